"""The environment as Stable-Baselines3 sees it: flat observations, actions in [-1, 1]."""

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


def flat_spaces(spaces: Spaces) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Returns the spaces that a model is built for.

    Raises:
        EnvironmentSpecError: If observations are images, or an action has several categories.
    """
    if len(spaces.observation_shape) != 1:
        raise EnvironmentSpecError(
            f"expected vector observations, got {spaces.observation_space}; images need a CnnPolicy"
        )
    observations = Box(-np.inf, np.inf, spaces.observation_shape, np.float32)
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
        return self.spaces.observation_plan.as_batch(observation)[0][0].astype(np.float32)

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
