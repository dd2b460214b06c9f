"""Environments of the IMPALA evidence, each of which needs one thing only.

Gymnasium finds them as `impala_envs:Recall-v0` and so on while this folder is on the path.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Recall(gym.Env[Observation, np.int64]):
    """Shows a bit once and asks for it `delay` steps later; the only reward is 1 for the bit.

    No policy without memory gets more than 0.5 on average.
    """

    def __init__(self, delay: int = 6) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.delay, self.bit, self.now = delay, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.bit, self.now = int(self.np_random.integers(2)), 0
        return np.array([2 * self.bit - 1, 0], dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.now += 1
        is_over = self.now > self.delay
        reward = float(is_over and action == self.bit)
        seen = np.array([0, float(self.now == self.delay)], dtype=np.float32)
        return seen, reward, is_over, False, {}


class OneState(gym.Env[Observation, np.int64]):
    """One state, reward 1, a time limit that is no end.

    The value is 1 / (1 - discount). Seen as an end, the limit leaves the mean over the steps of
    what is left, which the observation cannot tell apart.
    """

    def __init__(self, limit: int = 10) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.limit, self.steps = limit, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.ones(1, dtype=np.float32), 1.0, False, self.steps >= self.limit, {}


class Lever(OneState):
    """The same state; only action 1 pays 1.

    A policy that pulls with probability p has the value p / (1 - discount).
    """

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        seen, _, is_terminated, is_truncated, info = super().step(action)
        return seen, float(action == 1), is_terminated, is_truncated, info


class LateReward(gym.Env[Observation, np.int64]):
    """Episodes of a fixed length whose only reward, 1, is at the last step; actions do nothing.

    The observation is the number of the step, one-hot; the first one's value is
    discount ** (length - 1).
    """

    def __init__(self, length: int = 5) -> None:
        self.observation_space = spaces.Box(0, 1, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.now = length, 0

    def _seen(self) -> Observation:
        seen = np.zeros(self.length, dtype=np.float32)
        seen[min(self.now, self.length - 1)] = 1
        return seen

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.now += 1
        is_over = self.now == self.length
        return self._seen(), float(is_over), is_over, False, {}


class EndsAtLimit(gym.Wrapper[Any, Any, Any, Any]):
    """Says that a time limit is the end, as a single `done` flag does."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, is_terminated, is_truncated, info = self.env.step(action)
        return seen, reward, is_terminated or is_truncated, False, info


gym.register("Recall-v0", "impala_envs:Recall")
