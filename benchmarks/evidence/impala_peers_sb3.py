"""SB3's PPO or A2C on CartPole-v1 until it is solved, as one JSON document.

    python benchmarks/evidence/impala_peers_sb3.py ppo|a2c SEED TRANSITIONS SECONDS BEGAN

Runs with a Python that has stable-baselines3 (scripts/make_peers.sh sb3) and knows nothing of
rlreg; `impala_peers.py` calls it. BEGAN is when the process was started, in seconds of the epoch.

Settings are those of RL Zoo (DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, "Tuned", and a2c.yml,
both under CartPole-v1): 8 environments stepped in turn, schedules over all transitions of the run.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

import stable_baselines3
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

GOAL, WINDOW = 475.0, 100


def falling(first):
    """A schedule of RL Zoo's `lin_` values: from the first to 0."""
    return lambda left: left * first


def make(name, env, seed):
    if name == "a2c":
        return A2C("MlpPolicy", env, ent_coef=0.0, seed=seed, device="cpu")
    return PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20,
        ent_coef=0.0, learning_rate=falling(1e-3), clip_range=falling(0.2), seed=seed, device="cpu",
    )  # fmt: skip


class UntilSolved(BaseCallback):
    """Ends training when the mean of the last training episodes is there, or time is over."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.began = seconds, time.perf_counter()
        self.returns = deque(maxlen=WINDOW)
        self.reached = None

    def _on_step(self):
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        took = time.perf_counter() - self.began
        if not ended:
            return took < self.seconds
        self.returns.extend(ended)
        if len(self.returns) == WINDOW and sum(self.returns) / WINDOW >= GOAL:
            self.reached = {"transitions": self.num_timesteps, "wall_s": took, "at": time.time()}
        return self.reached is None and took < self.seconds


def main():
    name, (seed, steps) = sys.argv[1], map(int, sys.argv[2:4])
    seconds, began = map(float, sys.argv[4:6])
    torch.set_num_threads(1)  # measured: faster than two for networks of this size
    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    model = make(name, env, seed)
    until = UntilSolved(seconds)
    model.learn(steps, callback=until)
    took = time.perf_counter() - until.began
    judge = make_vec_env("CartPole-v1", n_envs=1, seed=10_000 + seed)
    evaluated, _ = evaluate_policy(model, judge, n_eval_episodes=100, deterministic=True)
    reached = until.reached
    document = {
        "reached": reached is not None,
        "transitions": model.num_timesteps if reached is None else reached["transitions"],
        "wall_s": took if reached is None else reached["wall_s"],
        "with_start_s": (time.time() if reached is None else reached["at"]) - began,
        "last_mean": sum(until.returns) / max(1, len(until.returns)),
        "evaluated": float(evaluated),
        "version": f"stable-baselines3 {stable_baselines3.__version__}",
    }
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()
