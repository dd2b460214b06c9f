"""The environment as Stable-Baselines3 sees it: vectors or images, actions in [-1, 1]."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rlreg.errors import EnvironmentSpecError

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Spaces

Box = gymnasium.spaces.Box
Discrete = gymnasium.spaces.Discrete


SMALLEST_IMAGE = 36
"""Pixels that the three convolutions of CnnPolicy need."""


def is_image(spaces: Spaces) -> bool:
    """Whether observations are images."""
    return spaces.observation_plan.is_image


def is_channels_last(spaces: Spaces) -> bool:
    """Whether observations are images ``[H, W, C]``, which the model takes as ``[C, H, W]``."""
    return is_image(spaces) and int(np.argmin(spaces.observation_shape)) == 2


def flat_spaces(spaces: Spaces) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Returns the spaces that a model is built for.

    Raises:
        EnvironmentSpecError: If images are too small, or an action has several categories.
    """
    shape = spaces.observation_shape
    if is_channels_last(spaces):
        shape = (shape[2], *shape[:2])
    if is_image(spaces) and min(shape[1:]) < SMALLEST_IMAGE:
        raise EnvironmentSpecError(
            f"expected images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels, which "
            f"CnnPolicy needs, got {list(shape)}"
        )
    observations = Box(-np.inf, np.inf, shape, np.float32)
    if is_image(spaces):
        observations = Box(0, 255, shape, np.uint8)
    plan = spaces.action_plan
    if not plan.is_discrete:
        return observations, Box(-1.0, 1.0, (spaces.action_size,), np.float32)
    if len(plan.category_counts) != 1:
        raise EnvironmentSpecError(f"expected one discrete action, got {spaces.action_space}")
    return observations, Discrete(int(plan.category_counts[0]))


class FlatEnv(gymnasium.Env[Any, Any]):
    """Flattens and scales with the plans of the learnable, so that training and acting agree.

    Attributes:
        returns: Of the last 50 episodes.
    """

    def __init__(self, env: Any, spaces: Spaces, to_env: Callable[[Any], Any]) -> None:
        if hasattr(env, "num_envs"):
            env.close()
            raise EnvironmentSpecError("expected a single environment, got a vector environment")
        self.env, self.spaces, self.to_env = env, spaces, to_env
        self.observation_space, self.action_space = flat_spaces(spaces)
        self.returns: deque[float] = deque(maxlen=50)
        self._return = 0.0

    def _flat(self, observation: Any) -> Any:
        row = self.spaces.observation_plan.as_batch(observation)[0][0]
        if is_channels_last(self.spaces):
            row = np.ascontiguousarray(row.transpose(2, 0, 1))
        return row.astype(self.observation_space.dtype, copy=False)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._return = 0.0
        observation, info = self.env.reset(seed=seed, options=options)
        return self._flat(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Acts in the units of the real environment."""
        observation, reward, ends, is_cut, info = self.env.step(self.to_env(action))
        self._return += float(reward)
        if ends or is_cut:
            self.returns.append(self._return)
        return self._flat(observation), float(reward), bool(ends), bool(is_cut), info

    def close(self) -> None:
        """Closes the real environment."""
        self.env.close()
