"""Makes the locomotion data sets of docs/results.md of what `locomotion_sac.py` trained.

    python benchmarks/evidence/locomotion_data.py hopper [--work FOLDER] [--medium STEPS]

Needs what rlreg does not: `pip install stable-baselines3==2.9.2 mujoco`. The data sets go where
Minari keeps its own (MINARI_DATASETS_PATH):

- `rlreg/hopper/medium-v0`: rollouts of a policy that was half trained, with its noise;
- `rlreg/hopper/medium-replay-v0`: every step of the training up to that policy;
- `rlreg/hopper/medium-best-v0`, if there is a better policy: half rollouts of the former anew,
  half of the best one. It is called `medium-expert` only where the best policy has nine tenths of
  what D4RL's expert has.

Half trained means, as D4RL means it, a third of the return of D4RL's expert: the first policy of
the curve that has it, or the one named by `--medium`. What its return is stands in the description.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from locomotion_sac import TASKS, WORK, SacRun, run_folder

import rlreg
from rlreg.runtime.data.generate import write_recipe
from rlreg.runtime.data.recipe import CollectedEpisode, Scores
from rlreg.runtime.evaluation import evaluate, evaluate_random
from rlreg.runtime.references import find_references
from rlreg.runtime.spaces import Space

STEPS = 100_000
MEDIUM_SHARE, EXPERT_SHARE = 1 / 3, 0.9
NUM_SCORED = 20
# Far from the seeds that judge: no start of the data is one that a policy is judged on.
_FIRST_ROLLOUT_SEED = 1_000_000


def expert_return(task: str) -> float:
    """D4RL's, measured in older versions of the environment: a yardstick for names, no more."""
    known = find_references(f"{task}-expert-v2")
    assert known is not None
    return known.ref_max


def medium_steps(task: str, curve: list[dict[str, Any]]) -> int:
    """Training steps of the first policy with a third of the expert's return.

    Raises:
        SystemExit: No policy has it.
    """
    wanted = MEDIUM_SHARE * expert_return(task)
    for point in curve:
        if point["mean_return"] >= wanted:
            return int(point["steps"])
    best = max(point["mean_return"] for point in curve)
    raise SystemExit(
        f"{task}: no policy has a return of {wanted:.0f}, the best has {best:.0f}; "
        "train longer (locomotion_sac.py --steps) or name one by its steps (--medium)"
    )


def best_steps(curve: list[dict[str, Any]]) -> int:
    return int(max(curve, key=lambda point: point["mean_return"])["steps"])


def best_name(task: str, curve: list[dict[str, Any]]) -> str:
    """What the best policy may be called."""
    best = max(point["mean_return"] for point in curve)
    return "expert" if best >= EXPERT_SHARE * expert_return(task) else "best"


@dataclass(frozen=True)
class LocomotionRecipe:
    """A data set of one SAC run; a recipe as `rlreg data generate` has them.

    Attributes:
        task: A key of `TASKS`.
        kind: `medium`, `medium-replay` or `medium-best`, the last part of its name.
        run: Whose policies and steps.
        policies: Names and training steps of the policies that play; of a replay, the last one.
    """

    task: str
    kind: str
    run: SacRun
    policies: tuple[tuple[str, int], ...]

    @property
    def dataset_id(self) -> str:
        return f"rlreg/{self.task}/{self.kind}-v0"

    @property
    def is_replay(self) -> bool:
        return self.kind.endswith("replay")

    @property
    def summary(self) -> str:
        """How far the policies got, in so many words."""
        returns = {point["steps"]: point for point in self.run.curve()}
        told = [
            f"{name}: {steps:,} training steps, mean return {returns[steps]['mean_return']:.0f} "
            f"without noise over {returns[steps]['n_episodes']} episodes"
            for name, steps in self.policies
        ]
        what = (
            "all steps of the training up to a policy, random ones first" if self.is_replay
            else "rollouts with the policy's noise"
        )  # fmt: skip
        expert = expert_return(self.task)
        return (
            f"{TASKS[self.task]}, SAC of stable-baselines3, {what} ({'; '.join(told)}; D4RL's "
            f"expert has {expert:.0f} in an older version of the environment). ref_max_score is "
            "what the last named policy has without noise"
        )

    @property
    def default_steps(self) -> int:
        return self.policies[-1][1] if self.is_replay else STEPS

    @property
    def algorithm(self) -> str:
        return "SAC"

    @property
    def requirements(self) -> tuple[str, ...]:
        return ("mujoco>=3.1",)

    def check(self) -> None:
        """Whoever trained the policies has what playing them needs."""

    def spaces(self) -> tuple[Space, Space]:
        with gymnasium.make(self.run.env_id) as env:
            return env.observation_space, env.action_space

    def env_specs(self) -> tuple[EnvSpec, EnvSpec | None]:
        return gymnasium.spec(self.run.env_id), None

    def episodes(self, n_steps: int, seed: int) -> Iterator[CollectedEpisode]:
        if self.is_replay:
            yield from replayed(self.run, n_steps)
            return
        share = n_steps // len(self.policies)
        for place, (name, steps) in enumerate(self.policies):
            is_last = place == len(self.policies) - 1
            count = n_steps - share * place if is_last else share
            # The same policy plays other episodes in every data set.
            first = _FIRST_ROLLOUT_SEED * (1 + seed) + 100_000 * _number(f"{self.kind} {name}")
            yield from rollouts(self._policy(steps), self.run.env_id, count, first, name)

    def scores(self, seed: int) -> Scores:
        """Random play, and the last policy without noise, 20 episodes from the same starts."""
        del seed  # the starts are those of every evaluation
        random = evaluate_random(self.run.env_id, NUM_SCORED).mean_return
        own = evaluate(self._act(), self.run.env_id, NUM_SCORED).mean_return
        return Scores(random, own, None, NUM_SCORED)

    def _act(self) -> Any:
        policy = self._policy(self.policies[-1][1])
        return lambda observations: policy.predict(observations, deterministic=True)[0]

    def _policy(self, steps: int) -> Any:
        from stable_baselines3 import SAC

        return SAC.load(self.run.policy_path(steps), device="cpu")


def _number(name: str) -> int:
    return zlib.crc32(name.encode()) % 1_000


def rollouts(
    policy: Any, env_id: str, n_steps: int, first_seed: int, kind: str
) -> Iterator[CollectedEpisode]:
    """Plays a policy with its noise for exactly `n_steps` steps; an episode has its own seed."""
    env, seed = gymnasium.make(env_id), first_seed
    while n_steps > 0:
        torch.manual_seed(seed)
        observation, _ = env.reset(seed=seed)
        observations, steps, is_over = [observation], [], False
        while not is_over:
            action, _ = policy.predict(observation, deterministic=False)
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            # The data set may end inside an episode of the environment.
            truncated = truncated or (len(steps) + 1 == n_steps and not terminated)
            steps.append((action, float(reward), bool(terminated), bool(truncated)))
            is_over = terminated or truncated
        yield _episode(observations, steps, kind, seed)
        n_steps, seed = n_steps - len(steps), seed + 1
    env.close()


def _episode(
    observations: list[Any], steps: list[tuple[Any, ...]], kind: str, seed: int
) -> CollectedEpisode:
    actions, rewards, terminations, truncations = zip(*steps, strict=True)
    return CollectedEpisode(
        np.stack(observations), np.stack(actions), np.array(rewards), np.array(terminations),
        np.array(truncations), kind=kind, seed=seed,
    )  # fmt: skip


def replayed(run: SacRun, n_steps: int) -> Iterator[CollectedEpisode]:
    """The episodes of the training, in order, up to `n_steps` steps.

    An episode that a piece of the training cut short is truncated at its last step, and so is the
    one that the data set ends in.
    """
    pieces = [int(point["steps"]) for point in run.curve()]
    for piece in pieces:
        with np.load(run.steps_path(piece)) as file:
            columns = {name: file[name] for name in file.files}
        start = 0
        for index, length in enumerate(columns["lengths"].tolist()):
            kept = min(length, n_steps)
            if kept == 0:
                return
            n_steps -= kept
            own = slice(start, start + kept)
            terminations = columns["terminations"][own]
            truncations = columns["truncations"][own].copy()
            truncations[-1] = truncations[-1] or not terminations[-1]
            seed = int(columns["seeds"][index])
            # Every episode before this one has an observation more than it has steps.
            first = start + index
            yield CollectedEpisode(
                columns["observations"][first : first + kept + 1], columns["actions"][own],
                columns["rewards"][own], terminations, truncations,
                kind="replay", seed=None if seed < 0 else seed,
            )  # fmt: skip
            start += length


def recipes(task: str, run: SacRun, medium: int | None = None) -> list[LocomotionRecipe]:
    """The data sets of a run: two, or three if its best policy came after the half-trained one."""
    curve = run.curve()
    half = medium_steps(task, curve) if medium is None else medium
    name = best_name(task, curve)
    both = (("medium", half), (name, best_steps(curve)))
    found = [
        LocomotionRecipe(task, "medium", run, both[:1]),
        LocomotionRecipe(task, "medium-replay", run, both[:1]),
    ]
    if best_steps(curve) != half:
        found.append(LocomotionRecipe(task, f"medium-{name}", run, both))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--seed", type=int, default=0, help="of the SAC run and of the rollouts")
    parser.add_argument("--medium", type=int, help="training steps of the half-trained policy")
    parser.add_argument("--only", default="", help="data sets whose names hold this text")
    parser.add_argument("--overwrite", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task, seed = arguments.task, arguments.seed
    run = SacRun(task, run_folder(arguments.work, task, seed), seed)
    for recipe in recipes(task, run, arguments.medium):
        if arguments.only not in recipe.dataset_id:
            continue
        write_recipe(
            recipe, seed=seed, overwrite=arguments.overwrite,
            made_by=f"benchmarks/evidence/locomotion_data.py {task}",
        )  # fmt: skip
        dataset = rlreg.load_dataset(recipe.dataset_id, memory_map=False)
        told = {"transitions": len(dataset), "content_hash": dataset.content_hash()}
        print(recipe.dataset_id, json.dumps(told), dataset.laws, sep="\n", flush=True)


if __name__ == "__main__":
    main()
