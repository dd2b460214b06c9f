"""One minibatch of transitions, checked at the border.

Users hand in whatever they have: arrays or tensors, flags as bool or 0/1, per-item scalars as
``[B]`` or ``[B, 1]``, structured observations. Learners get :class:`Batch`: float32 tensors on
the device, flat observations, every per-item scalar ``[B]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlreg.errors import DatasetError, NonFiniteError, ShapeError, did_you_mean

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Spaces

_REQUIRED = ("observations", "actions", "rewards", "next_observations", "terminations")
_OPTIONAL = {"truncations": 0.0, "intervals": 1.0}


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Mapping[str, Tensor]):
    """Transitions as a learner sees them: by attribute or by key.

    Attributes:
        observations: ``[B, *O]``, scaled; uint8 for images.
        actions: ``[B, A]`` float, scaled; ``[B]`` or ``[B, A]`` int64 for categories.
        rewards: ``[B]``, scaled.
        next_observations: ``[B, *O]``, scaled.
        terminations: ``[B]``, 0 or 1; 1 stops the bootstrap.
        truncations: ``[B]``, 0 or 1; ends the sequence only.
        intervals: ``[B]``, steps between the two observations.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminations: Tensor
    truncations: Tensor
    intervals: Tensor

    def __getitem__(self, key: str) -> Tensor:
        if key not in _NAMES:
            raise KeyError(key)
        value: Tensor = getattr(self, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    @property
    def size(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on a device."""
        return Batch(**{name: self[name].to(device) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Batch))


def check_batch(raw: Mapping[str, Any], spaces: Spaces) -> Batch:
    """Turns what a user gave into an unscaled :class:`Batch` on the CPU or where its tensors are.

    Raises:
        DatasetError: If an array is missing, has an unknown name or a category is not in the space.
        ShapeError: If an array has another shape than the spaces or the other arrays.
        NonFiniteError: If a number is NaN or infinite; the message names array and rows.
    """
    if not isinstance(raw, Mapping):
        raise DatasetError(
            f"batch: expected a mapping with {', '.join(_REQUIRED)}, got a {type(raw).__name__}"
        )
    _check_names(raw)
    observations = _observations(raw["observations"], "observations", spaces)
    size = len(observations)
    columns = {
        name: _column(raw.get(name, default), name, size) for name, default in _OPTIONAL.items()
    }
    batch = Batch(
        observations=observations,
        actions=_actions(raw["actions"], spaces, size),
        rewards=_column(raw["rewards"], "rewards", size),
        next_observations=_observations(raw["next_observations"], "next_observations", spaces),
        terminations=_column(raw["terminations"], "terminations", size),
        **columns,
    )
    if len(batch.next_observations) != size:
        expected = f"[{size}, ...]"
        raise ShapeError.of("next_observations", expected, batch.next_observations.shape)
    _check_finite(batch)
    _check_flags(batch)
    _check_categories(batch, spaces)
    return batch


def _check_names(raw: Mapping[str, Any]) -> None:
    missing = [name for name in _REQUIRED if name not in raw]
    if missing:
        raise DatasetError(f"batch: missing {', '.join(missing)}; it has {', '.join(sorted(raw))}")
    for name in raw:
        if name not in _NAMES:
            raise DatasetError(f"batch: no such array {name!r}; {did_you_mean(name, _NAMES)}")


def _observations(value: Any, name: str, spaces: Spaces) -> Tensor:
    try:
        if isinstance(value, Tensor) and value.shape[1:] == torch.Size(spaces.observation_shape):
            return value if value.dtype == torch.uint8 else value.float()
        return torch.from_numpy(spaces.observation_plan.flatten(value))
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from error


def _actions(value: Any, spaces: Spaces, size: int) -> Tensor:
    actions = _tensor(value, "actions")
    expected = (size, *spaces.action_plan.shape)
    if actions.numel() != torch.Size(expected).numel() or len(actions) != size:
        raise ShapeError.of("actions", str(list(expected)), actions.shape)
    actions = actions.reshape(expected)
    return actions.long() if spaces.action_plan.is_discrete else actions.float()


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:  # of objects, or of rows of several lengths
        raise DatasetError(f"batch: {name}: expected an array of numbers") from error


def _column(value: Any, name: str, size: int) -> Tensor:
    if isinstance(value, float):
        return torch.full((size,), value)
    column = _tensor(value, name)
    if tuple(column.shape) not in ((size,), (size, 1)):
        raise ShapeError.of(name, f"[{size}] or [{size}, 1]", column.shape)
    return column.reshape(size).float()


def _check_finite(batch: Batch) -> None:
    for name, value in batch.items():
        if not value.is_floating_point() or bool(torch.isfinite(value).all()):
            continue
        bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
        rows = bad.nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise NonFiniteError(
            f"batch: {name} is not finite in {len(rows)} of {len(bad)} rows ({shown}); "
            "nothing was updated"
        )


def _check_flags(batch: Batch) -> None:
    for name in ("terminations", "truncations"):
        value = batch[name]
        if bool(((value != 0) & (value != 1)).any()):
            raise DatasetError(f"batch: {name} must be 0 or 1")
    if bool((batch.intervals < 1).any()):
        raise DatasetError("batch: intervals must be at least 1")


def _check_categories(batch: Batch, spaces: Spaces) -> None:
    plan = spaces.action_plan
    if not plan.is_discrete:
        return
    columns = batch.actions.reshape(batch.size, plan.size).cpu()
    lowest = torch.tensor(plan.category_starts)
    is_outside = (columns < lowest) | (columns >= lowest + torch.tensor(plan.category_counts))
    if bool(is_outside.any()):
        row = int(is_outside.any(dim=1).nonzero()[0])
        raise DatasetError(
            f"batch: action {columns[row].tolist()} of row {row} is not in {plan.space}"
        )
