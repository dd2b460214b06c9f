"""Environments for the command line that go wrong: ``--env bad_envs:Nan-v0``."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPACE = spaces.Box(-1.0, 1.0, (3,), np.float32)


class BadEnv(gym.Env):
    """Is well behaved before step ``at``."""

    def __init__(self, trouble="", *, at=7, length=5, observation_space=SPACE, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.trouble, self.at, self.length, self.count = trouble, at, length, 0

    def _observation(self):
        is_bad = self.count >= self.at
        if is_bad and self.trouble == "nan":
            return np.full(3, np.nan, np.float32)
        size = 4 if is_bad and self.trouble == "shape" else self.observation_space.shape
        return np.zeros(size, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        is_bad = self.count >= self.at
        if is_bad and self.trouble == "raise":
            raise ValueError("the floor is gone")
        if self.trouble == "slow":
            time.sleep(0.5)
        reward = float("nan") if is_bad and self.trouble == "reward" else 1.0
        return self._observation(), reward, self.count % self.length == 0, False, {}


def _add(name, **settings):
    gym.register(f"{name}-v0", lambda: BadEnv(**settings))


for _trouble in ("nan", "shape", "reward", "raise", "slow"):
    _add(_trouble.title(), trouble=_trouble)
for _trouble in ("shape", "raise", "nan"):
    _add(f"{_trouble.title()}Late", trouble=_trouble, length=8)
_add("Good")
_add("Wide", observation_space=spaces.Box(-1.0, 1.0, (5,), np.float32))
_add("Text", observation_space=spaces.Dict(pose=SPACE, note=spaces.Text(5)))
_add("Ints", action_space=spaces.Dict(go=spaces.Discrete(2), far=spaces.Box(0, 5, (2,), np.int64)))
