"""SAC of stable-baselines3 on a MuJoCo task: where the locomotion data comes from.

    python benchmarks/evidence/locomotion_sac.py hopper --steps 100000 [--work FOLDER] [--seed N]

Needs what rlreg does not: `pip install stable-baselines3==2.9.2 mujoco`.

Training goes in pieces of 10,000 steps. A piece begins with a fresh episode and fresh seeds derived
from its number, and what it left (policy, optimizers, replay buffer, the episodes it played) is
complete before the next begins. A run that was killed therefore goes on at its last whole piece,
and ends with the same policy as one that was not; more steps can be asked for later.

Hyperparameters are stable-baselines3's own, and `learning_starts` as in rl-baselines3-zoo's
`hyperparams/sac.yml` for the MuJoCo tasks. The buffer is smaller than the default million: it never
fills, and is written after every piece.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

WORK = Path(__file__).resolve().parent.parent.parent / "build" / "locomotion"
TASKS = {"hopper": "Hopper-v5", "halfcheetah": "HalfCheetah-v5"}
PIECE = 10_000
LEARNING_STARTS = 10_000
BUFFER = 400_000
NUM_EPISODES = 10
# Starts of the curve, of what is reported, and of recorded rollouts must not be one another's.
CURVE_SEED = 20_000


class EpisodeLog(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps every step as it was played, with the final observation of every episode.

    What a replay buffer keeps is not enough for a data set: it has no seeds, and rounds.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[dict[str, Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        self.episodes.append({"seed": seed, "observations": [observation], "steps": []})
        return observation, info

    def step(self, action: Any) -> Any:
        following, reward, terminated, truncated, info = self.env.step(action)
        episode = self.episodes[-1]
        episode["observations"].append(following)
        own = np.array(action, np.float32)  # a copy: the caller may use its array again
        episode["steps"].append((own, float(reward), terminated, truncated))
        return following, reward, terminated, truncated, info

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """The episodes one after another; `lengths` says where they end.

        An episode of T steps has T + 1 observations. One that training left unfinished is no
        truncation of the environment's: it is marked as one by whoever writes the data set.
        """
        played = [episode for episode in self.episodes if episode["steps"]]
        steps = [step for episode in played for step in episode["steps"]]
        return {
            "observations": np.concatenate([np.stack(e["observations"]) for e in played]),
            "actions": np.stack([step[0] for step in steps]),
            "rewards": np.array([step[1] for step in steps]),
            "terminations": np.array([step[2] for step in steps], np.bool_),
            "truncations": np.array([step[3] for step in steps], np.bool_),
            "lengths": np.array([len(e["steps"]) for e in played]),
            # -1: the environment's own generator went on.
            "seeds": np.array([-1 if e["seed"] is None else e["seed"] for e in played]),
        }


class SacRun:
    """One resumable run in a folder.

    Args:
        task: A key of `TASKS`.
        folder: Where its pieces go: `policy-<steps>.zip`, `steps-<steps>.npz`, `curve.json`.
        seed: Of the weights, the sampling and the environment.
    """

    def __init__(self, task: str, folder: Path, seed: int) -> None:
        self.env_id, self.seed, self.folder = TASKS[task], seed, folder
        folder.mkdir(parents=True, exist_ok=True)

    def train(self, steps: int) -> None:
        """Goes on to `steps` steps in all."""
        self._record_versions()
        while (done := self.done()) < steps:
            begun = time.monotonic()
            figures = self._train_piece(done)
            how_fast = PIECE / (time.monotonic() - begun)
            print(f"{self.env_id} {figures}, {how_fast:.0f} steps/s", flush=True)

    def _record_versions(self) -> None:
        names = ("stable-baselines3", "mujoco", "gymnasium", "torch")
        versions = {name: importlib.metadata.version(name) for name in names}
        text = json.dumps(versions, indent=1)
        (self.folder / "versions.json").write_text(text + "\n", encoding="utf-8")

    def done(self) -> int:
        """Steps of the whole pieces that are there."""
        return int(curve[-1]["steps"]) if (curve := self.curve()) else 0

    def curve(self) -> list[dict[str, Any]]:
        """Returns of the policy after each piece, played without noise."""
        path = self.folder / "curve.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

    def policy_path(self, steps: int) -> Path:
        return self.folder / f"policy-{steps}.zip"

    def steps_path(self, steps: int) -> Path:
        return self.folder / f"steps-{steps}.npz"

    def _train_piece(self, done: int) -> dict[str, Any]:
        log = EpisodeLog(gymnasium.make(self.env_id))
        model = self._model(log, done)
        # A fresh episode and fresh seeds in every piece, resumed or not: the same bits either way.
        model._last_obs = None
        model.set_random_seed(self.seed * 10_000 + done // PIECE)
        model.learn(PIECE, reset_num_timesteps=False)
        after = done + PIECE
        figures = {"steps": after, **played_returns(model, self.env_id)}
        np.savez_compressed(self.steps_path(after), **log.columns())
        model.save(self.policy_path(after))
        part = self.folder / "buffer.part.pkl"
        model.save_replay_buffer(part)
        part.replace(self.folder / f"buffer-{after}.pkl")
        # The piece counts from here on.
        text = json.dumps([*self.curve(), figures], indent=1)
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(self.folder / "curve.json")
        (self.folder / f"buffer-{done}.pkl").unlink(missing_ok=True)
        return figures

    def _model(self, env: gymnasium.Env[Any, Any], done: int) -> Any:
        from stable_baselines3 import SAC

        if done == 0:
            return SAC(
                "MlpPolicy", env, seed=self.seed, device="cpu",
                learning_starts=LEARNING_STARTS, buffer_size=BUFFER,
            )  # fmt: skip
        model = SAC.load(self.policy_path(done), env=env, device="cpu")
        model.load_replay_buffer(self.folder / f"buffer-{done}.pkl")
        return model


def played_returns(model: Any, env_id: str, first_seed: int = CURVE_SEED) -> dict[str, Any]:
    """Plays seeded episodes without noise."""
    env, returns, lengths = gymnasium.make(env_id), [], []
    for seed in range(first_seed, first_seed + NUM_EPISODES):
        observation, _ = env.reset(seed=seed)
        total, length, is_over = 0.0, 0, False
        while not is_over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length, is_over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return {
        "mean_return": float(np.mean(returns)),
        "std_return": float(np.std(returns)),
        "mean_length": float(np.mean(lengths)),
        "n_episodes": NUM_EPISODES,
    }


def run_folder(work: Path, task: str, seed: int) -> Path:
    return work / f"sac-{task}-{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = run_folder(arguments.work, arguments.task, arguments.seed)
    SacRun(arguments.task, folder, arguments.seed).train(arguments.steps)


if __name__ == "__main__":
    main()
