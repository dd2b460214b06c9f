"""Spaces that arrays fit, where nobody says which they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError
from rlreg.runtime.data.build import LARGEST_USABLE
from rlreg.runtime.spaces import Space

_BLOCK = 65_536
_MOST_CATEGORIES = 2**20  # each has an input or output of the networks


def guess_observation_space(values: object) -> Space:
    """Makes a space that observations fit: images of uint8, categories of integers, else a Box."""
    if isinstance(values, Mapping):
        return spaces.Dict([(key, guess_observation_space(part)) for key, part in values.items()])
    if isinstance(values, tuple):
        return spaces.Tuple([guess_observation_space(part) for part in values])
    shape, dtype = tuple(getattr(values, "shape", ())), np.dtype(getattr(values, "dtype", "O"))
    if dtype.kind not in "biuf" or len(shape) == 0:
        raise DatasetError(f"observations: expected numbers [N, ...], got {dtype} {list(shape)}")
    if dtype == np.uint8 and len(shape) in {3, 4}:
        return spaces.Box(0, 255, shape[1:], np.uint8)
    if dtype.kind in "iu" and len(shape) == 1:
        return spaces.Discrete(_num_categories(_extent(values)[1], "observations"))
    return spaces.Box(-np.inf, np.inf, shape[1:], np.float32)


def guess_action_space(values: object) -> Space:
    """Makes a space that actions fit; floats are continuous whatever their values."""
    shape, dtype = tuple(getattr(values, "shape", ())), np.dtype(getattr(values, "dtype", "O"))
    if shape[:1] == (0,):
        raise DatasetError("actions: there is not a single one")
    if dtype.kind not in "iuf" or len(shape) == 0:
        raise DatasetError(f"actions: expected numbers [N, ...], got {dtype} {list(shape)}")
    low, high = _extent(values)
    if dtype.kind == "f":
        largest = float(max(np.max(-low), np.max(high), 1.0)) if high.size else 1.0
        # Normalised actions are the rule; 1 + rounding is still 1.
        bound = 1.0 if not 1.0 + 1e-6 < largest < np.inf else largest
        return spaces.Box(-bound, bound, shape[1:] or (1,), np.float32)
    if bool(np.any(low < 0)):
        raise DatasetError("actions: negative integers; give action_space to say what they mean")
    most = _num_categories(high, "actions")
    return spaces.Discrete(most) if high.size == 1 else spaces.MultiDiscrete(high.astype(int) + 1)


def _num_categories(high: NDArray[Any], name: str) -> int:
    count = int(high.max(initial=0)) + 1
    if count > _MOST_CATEGORIES:
        raise DatasetError(
            f"{name}: the integer {count - 1:,} would make {count:,} categories; if they are "
            f"quantities, give {name[:-1]}_space to say so"
        )
    return count


def _extent(values: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest and largest usable value of each component, read in blocks."""
    low = high = None
    for start in range(0, len(values), _BLOCK):
        part = np.asarray(values[start : start + _BLOCK])
        if part.dtype.kind == "f":
            part = np.where(np.abs(part) <= LARGEST_USABLE, part, 0)
        low = part.min(axis=0) if low is None else np.minimum(low, part.min(axis=0))
        high = part.max(axis=0) if high is None else np.maximum(high, part.max(axis=0))
    if low is None or high is None:
        raise DatasetError("no rows to guess a space from")
    return np.asarray(low), np.asarray(high)
