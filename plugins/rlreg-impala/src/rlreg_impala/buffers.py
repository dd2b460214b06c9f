"""Where fragments are written: one array per field, with the slots as its first axis.

The same layout lies over shared memory (process engine), over ordinary memory (sequential engine)
and inside the arrays that Ray carries. This file knows no processes and no environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.runtime.spaces import FlatteningPlan

from .rollouts import ActingPolicy, EngineSpec, Fragment, FragmentArrays, PolicySpec

# Every array begins on a cache line, so that two actors never write to the same one.
_ALIGNMENT = 64

HEADER = ("actor_id", "version", "sequence", "num_final", "num_episodes")
"""Integers of a fragment, in the order in which ``header`` keeps them."""


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Names, shapes and dtypes of the arrays of one fragment.

    Attributes:
        fields: ``(name, shape, dtype string)`` in the order in which they lie in memory.
        num_weights: Length of the flat weights of the policy that fills it.
    """

    fields: tuple[tuple[str, tuple[int, ...], str], ...]
    num_weights: int

    @classmethod
    def of(cls, spec: EngineSpec, policy_spec: PolicySpec, policy: ActingPolicy) -> FragmentLayout:
        """Derives the layout from the sizes of the engine, the spaces and the policy."""
        T, N = spec.unroll_length, spec.num_envs
        plan = FlatteningPlan.of(policy_spec.observation_space)
        codec = policy_spec.codec
        core_size = policy.initial_state(1).shape[1]
        rows: tuple[int, ...] = (T, N)
        # At worst every row ends an episode. Memory that is never touched costs nothing.
        most = T * N
        shapes: list[tuple[str, tuple[int, ...], Any]] = [
            ("header", (len(HEADER),), np.int64),
            ("seconds", (1,), np.float64),
            ("observations", (T + 1, N, *plan.shape), plan.dtype),
            ("actions", (*rows, codec.width), codec.dtype),
            ("log_probs", rows, np.float32),
            ("rewards", rows, np.float32),
            ("terminations", rows, np.bool_),
            ("truncations", rows, np.bool_),
            ("resets", rows, np.bool_),
            ("starts", (T + 1, N), np.bool_),
            ("core_state", (N, core_size), np.float32),
            ("final_rows", (most, 2), np.int64),
            ("final_observations", (most, *plan.shape), plan.dtype),
            ("episode_returns", (most,), np.float64),
            ("episode_lengths", (most,), np.int64),
        ]
        named = tuple((name, shape, np.dtype(dtype).str) for name, shape, dtype in shapes)
        return cls(named, policy.num_weights)

    def num_bytes(self, num_slots: int) -> int:
        """Returns the size of the memory that ``arrays`` needs."""
        return sum(_padded(num_slots, shape, dtype) for _, shape, dtype in self.fields)

    def arrays(self, memory: Any, num_slots: int) -> dict[str, NDArray[Any]]:
        """Lays the fields over a buffer, ``[num_slots, *shape]`` each."""
        result, offset = {}, 0
        for name, shape, dtype in self.fields:
            size = (num_slots, *shape)
            result[name] = np.ndarray(size, dtype=dtype, buffer=memory, offset=offset)
            offset += _padded(num_slots, shape, dtype)
        return result

    def allocate(self, num_slots: int) -> dict[str, NDArray[Any]]:
        """Makes the arrays in ordinary memory."""
        return {
            name: np.zeros((num_slots, *shape), dtype=dtype) for name, shape, dtype in self.fields
        }


def _padded(num_slots: int, shape: tuple[int, ...], dtype: str) -> int:
    size = num_slots * math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


ARRAYS = tuple(field.name for field in fields(FragmentArrays))
"""Names of the arrays that a fragment has."""

LISTS_OF_FINALS = ("final_rows", "final_observations")
LISTS_OF_EPISODES = ("episode_returns", "episode_lengths")
"""Arrays with room for one entry per row, and the ``header`` says how many there are."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FragmentBuffers(FragmentArrays):
    """The arrays of one slot, to be filled by an actor and read by the learner.

    Attributes:
        header: The integers of :data:`HEADER`.
        seconds: Time the actor spent on it, ``[1]``.
    """

    header: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @classmethod
    def slot(cls, arrays: Mapping[str, NDArray[Any]], index: int) -> FragmentBuffers:
        """Views one slot of the arrays of a layout."""
        return cls(**{name: array[index] for name, array in arrays.items()})

    def trimmed(self) -> dict[str, NDArray[Any]]:
        """Views the arrays of the fragment, without the room that lists did not need."""
        num_final, num_episodes = self.header[3:].tolist()
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {name: arrays[name][:num_final] for name in LISTS_OF_FINALS}
        return arrays | {name: arrays[name][:num_episodes] for name in LISTS_OF_EPISODES}

    def fragment(self, handle: Any) -> Fragment:
        """Views the slot as what the learner is given."""
        actor_id, version, sequence = self.header[:3].tolist()
        return Fragment(
            **self.trimmed(),
            actor_id=actor_id,
            version=version,
            sequence=sequence,
            seconds=float(self.seconds[0]),
            handle=handle,
        )
