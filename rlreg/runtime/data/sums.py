"""Sums and counts by which a file and its store are compared; see `laws.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PROBED_COMPONENTS = 64
_PROBE_PERIOD = 97
_PROBE_ROWS = 8192


def finite_sum(values: NDArray[Any]) -> float:
    """Sums the finite numbers among ``values``, in float64."""
    total = float(values.sum(dtype=np.float64))
    if math.isfinite(total):
        return total
    return float(values[np.isfinite(values)].sum(dtype=np.float64))


def probe_sum(observations: NDArray[Any], actions: NDArray[Any], first: int) -> tuple[float, float]:
    """Sums components of transitions weighted by their position, and the magnitude of that sum.

    About 64 components of an observation take part, so that images cost little. Numbers that are
    not finite count as 0.
    """
    size = len(observations)
    flat = observations.reshape(size, -1)
    step = max(1, flat.shape[1] // _PROBED_COMPONENTS)
    weights = np.arange(first, first + size) % _PROBE_PERIOD + 1.0
    value = magnitude = 0.0
    for given in (flat[:, ::step], actions.reshape(size, -1)):
        for start in range(0, size, _PROBE_ROWS):  # as much as stays in the processor's cache
            part = weights[start : start + _PROBE_ROWS]
            columns = given[start : start + _PROBE_ROWS].astype(np.float64)
            sizes = np.abs(columns)
            scale = float((part @ sizes).sum())
            if not math.isfinite(scale):
                np.nan_to_num(columns, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
                scale = float((part @ np.abs(columns)).sum())
            value += float((part @ columns).sum())
            magnitude += scale
    return value, magnitude


def num_broken(following: NDArray[Any], own: NDArray[Any], ends: NDArray[np.bool_]) -> int:
    """Counts rows that differ where no episode ends."""
    different = following != own
    # Nearly always there are none, and rows are counted only if there is something to count.
    if np.count_nonzero(different) == np.count_nonzero(different[ends]):
        return 0
    return num_different(following[~ends], own[~ends])


def num_different(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Counts rows that are not equal."""
    same = (a == b) | ((a != a) & (b != b))  # NaN equals NaN where NaN was let in
    return int((~same.reshape(len(a), -1).all(axis=1)).sum()) if len(a) else 0
