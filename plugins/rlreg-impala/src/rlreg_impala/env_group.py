"""The N environments of one actor, behind one face, whatever their autoreset mode."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import RolloutError
from rlreg.runtime.spaces import FlatteningPlan

from .streams import Streams


class BadEnvironmentError(RolloutError):
    """An environment returned what cannot be used; making it anew would not help."""


@dataclass(slots=True)
class Row:
    """Where one step of all environments is written.

    Attributes:
        observations: Flat observations after the step, ``[N, *O]``.
        rewards: ``[N]``.
        terminations: ``[N]``.
        truncations: ``[N]``.
        finals: ``(n, flat observation)`` of truncated environments that were reset at once.
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    finals: list[tuple[int, NDArray[Any]]]


class EnvGroup(ABC):
    """N environments that are reset and stepped together.

    Attributes:
        resets_on_next_step: Whether the step after a done is a reset row.
        can_replay: Whether the group can be brought back to where it was.
    """

    resets_on_next_step = False
    can_replay = False

    def __init__(self, observation_space: Any, num_envs: int, streams: Streams) -> None:
        self.num_envs = num_envs
        self.streams = streams
        self._plan = FlatteningPlan.of(observation_space)
        self._space = observation_space
        single = self._plan.leaves[0]
        # One Box needs no flattening: its numbers are copied to where they belong.
        self._is_plain = not single.keys and isinstance(single.space, spaces.Box)
        self._shape = tuple(observation_space.shape or ()) if self._is_plain else ()
        self._has_warned = False

    def empty_observations(self) -> NDArray[Any]:
        """Makes room for flat observations of all environments, ``[N, *O]``."""
        return np.zeros((self.num_envs, *self._plan.shape), dtype=self._plan.dtype)

    @abstractmethod
    def reset(self, out: NDArray[Any], border: int) -> None:
        """Begins a new episode everywhere, with seeds of its own for each ``border``."""

    @abstractmethod
    def step(self, actions: Any, row: Row) -> bool:
        """Steps every environment with a batch of its own actions; returns whether one is done."""

    @abstractmethod
    def close(self) -> None:
        """Frees the environments."""

    def warn_inconsistent(self, env: int) -> None:
        """Says once that an environment ended an episode without saying how."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"actor {self.streams.actor}, environment {env}: an episode ended with terminated "
                "and truncated both false; taken as a truncation (said once)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write_plain(self, observation: Any, out: NDArray[Any], shape: tuple[int, ...]) -> None:
        """Copies what a Box gives; ``out`` may have the axes of the plan."""
        values = np.asarray(observation)
        if values.shape != shape:
            raise BadEnvironmentError(f"observation of shape {values.shape}, expected {shape}")
        target = out if out.shape == shape else out.reshape(shape)
        if values.dtype == out.dtype:
            target[...] = values
            return
        if not np.can_cast(values.dtype, out.dtype, "same_kind"):
            raise BadEnvironmentError(f"observation of {values.dtype}, expected {out.dtype}")
        # A float64 beyond float32 becomes inf, which the check of the whole fragment reports.
        with np.errstate(over="ignore"):
            target[...] = values

    def _flat_one(self, observation: Any) -> NDArray[Any]:
        """Flattens the observation of one environment into memory of its own."""
        out = np.empty(self._plan.shape, dtype=self._plan.dtype)
        if self._is_plain:
            self._write_plain(observation, out, self._shape)
        else:
            out[...] = self._plan.flatten(collate(self._space, [observation]))[0]
        return out


def split(actions: Any) -> Sequence[Any]:
    """Splits a batch of actions into those of each environment.

    Nothing of it is shared with the batch that is recorded: environments may clip in place.
    """
    if isinstance(actions, np.ndarray):
        return list(actions if actions.ndim == 1 else actions.copy())
    if isinstance(actions, Mapping):
        parts = [split(part) for part in actions.values()]
        return [dict(zip(actions, values, strict=True)) for values in zip(*parts, strict=True)]
    if isinstance(actions, tuple):
        return list(zip(*(split(part) for part in actions), strict=True))
    return list(actions)


def collate(space: Any, observations: Sequence[Any]) -> Any:
    """Stacks the observations of several environments, part by part."""
    if isinstance(space, spaces.Dict):
        return {
            key: collate(part, [observation[key] for observation in observations])
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            collate(part, [observation[index] for observation in observations])
            for index, part in enumerate(space.spaces)
        )
    return np.array(observations)


def pick(batch: Any, index: int) -> Any:
    """Returns the entry of one environment of a batch of observations."""
    if isinstance(batch, Mapping):
        return {key: pick(part, index) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(pick(part, index) for part in batch)
    return batch[index]
