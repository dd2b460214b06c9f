"""From an id or a callable to the environments of one actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlreg.errors import EnvironmentSpecError
from rlreg.runtime.spaces import space_difference

from .env_group import EnvGroup
from .progress import Progress
from .rollouts import EnvFactory
from .separate_envs import SeparateEnvs
from .streams import Streams
from .vector_envs import VectorEnvs


def make_group(
    factory: EnvFactory,
    num_envs: int,
    observation_space: Any,
    streams: Streams,
    progress: Progress,
    *,
    can_replay: bool,
) -> EnvGroup:
    """Makes the environments of one actor.

    Raises:
        EnvironmentSpecError: If they cannot be made, are of another number than the engine has room
            for, or have other spaces than the policy.
    """
    make: Callable[[], Any] = (
        (lambda: gym.make(factory, disable_env_checker=True))
        if isinstance(factory, str)
        else factory
    )
    first = _made(make)
    if isinstance(first, VectorEnv):
        if first.num_envs != num_envs:
            raise EnvironmentSpecError(
                f"the vector environment has {first.num_envs} environments, the engine expects "
                f"{num_envs}; set engine.num_envs to {first.num_envs}"
            )
        _check_space(observation_space, first.single_observation_space)
        return VectorEnvs(first, streams)
    _check_space(observation_space, first.observation_space)
    envs = [first, *(_made(make) for _ in range(num_envs - 1))]
    return SeparateEnvs(envs, observation_space, streams, progress, can_replay=can_replay)


def _made(make: Callable[[], Any]) -> Any:
    try:
        env = make()
    except gym.error.Error as cause:
        raise EnvironmentSpecError(f"the environment cannot be made: {cause}") from cause
    if not isinstance(env, gym.Env | VectorEnv):
        raise EnvironmentSpecError(
            f"the environment factory gave {type(env).__name__}, expected a gymnasium Env or "
            "VectorEnv"
        )
    return env


def _check_space(expected: Any, given: Any) -> None:
    difference = space_difference(expected, given)
    if difference:
        raise EnvironmentSpecError(f"the environment is not the one of the policy: {difference}")
