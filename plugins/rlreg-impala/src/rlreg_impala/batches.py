"""From the fragments of an engine to the tensors of one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlreg.errors import RolloutError

from .rollouts import Fragment


@dataclass(frozen=True, slots=True, eq=False)
class FragmentBatch:
    """Fragments side by side: ``B`` columns are the environments of all fragments.

    Attributes:
        observations: Flat, ``[T + 1, B, *O]``.
        actions: Stored actions, ``[T, B, W]``.
        log_probs: Of the actions under the policy that acted, ``[T, B]``.
        rewards: ``[T, B]``, unclipped.
        terminations: ``[T, B]`` bool: nothing is bootstrapped.
        is_transition: ``[T, B]`` bool: false on reset rows.
        starts: ``[T + 1, B]`` bool: the observation is the first of an episode.
        state: Memory before row 0, ``[B, S]``.
        final_observations: Last observations that have no row of their own, ``[F, *O]``.
        final_rows: Row and column of the step that led to each, ``[F, 2]``.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    terminations: Tensor
    is_transition: Tensor
    starts: Tensor
    state: Tensor
    final_observations: Tensor
    final_rows: Tensor

    @classmethod
    def of(cls, fragments: Sequence[Fragment], device: torch.device) -> FragmentBatch:
        """Joins fragments of equal length and moves them to the device.

        On the CPU the tensors of a single fragment share its memory: release it afterwards.

        Raises:
            RolloutError: If there are none, or their shapes differ.
        """
        if not fragments or len({part.observations.shape[0] for part in fragments}) != 1:
            shapes = [list(part.observations.shape) for part in fragments]
            raise RolloutError(f"fragments of one batch need one length, got {shapes}")
        rows = [part.final_rows for part in fragments]
        if len(fragments) > 1:
            shifts = np.cumsum([0, *(part.rewards.shape[1] for part in fragments)])
            rows = [
                own + np.array([0, shift], dtype=np.int64)
                for own, shift in zip(rows, shifts, strict=False)
            ]

        def side_by_side(name: str, axis: int = 1) -> Tensor:
            return _tensor([getattr(part, name) for part in fragments], axis, device)

        return cls(
            observations=side_by_side("observations"),
            actions=side_by_side("actions"),
            log_probs=side_by_side("log_probs"),
            rewards=side_by_side("rewards"),
            terminations=side_by_side("terminations"),
            is_transition=~side_by_side("resets"),
            starts=side_by_side("starts"),
            state=side_by_side("core_state", 0),
            final_observations=side_by_side("final_observations", 0),
            final_rows=_tensor(rows, 0, device),
        )


def _tensor(parts: list[NDArray[Any]], axis: int, device: torch.device) -> Tensor:
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
    if not joined.flags.writeable:
        joined = joined.copy()  # torch warns of memory that it must not write
    tensor = torch.from_numpy(joined)
    # What is called once an update finds nothing in the caches: each call counts sixfold.
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
