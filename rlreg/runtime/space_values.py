"""Values of a space as arrays of numbers: converted where that loses nothing, refused otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError, ShapeError
from rlreg.runtime.space_json import Space

NUMBER_KINDS = "biuf"
"""Kinds of dtypes that are numbers: bool, int, unsigned, float."""

MAX_COLUMNS = 2**20
"""Categories that a network may have to take or give; more of them are ids and not categories."""

_LARGEST_WHOLE = 2.0**53  # beyond it not every whole number is a float64


def to_numpy(value: object) -> NDArray[Any]:
    """Views an array, tensor (of any device), number or list as a numpy array.

    Raises:
        ShapeError: If it is ragged, masked, or a tensor of a kind that numpy does not have.
    """
    detach = getattr(value, "detach", None)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ShapeError("expected numbers, got an array with masked values; fill them first")
    try:
        return np.asarray(detach().cpu() if callable(detach) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{type(value).__name__} of {getattr(value, 'dtype', 'different lengths')}"
        raise ShapeError(f"expected an array of numbers, got a {kind}") from error


def as_contiguous(
    values: NDArray[Any], dtype: np.dtype[Any], name: str = "observations"
) -> NDArray[Any]:
    """Casts numbers to a dtype, in C order.

    Raises:
        ShapeError: If they are no real numbers: text, objects, complex numbers, dates.
    """
    if values.dtype.kind not in NUMBER_KINDS:
        raise ShapeError(f"{name}: expected numbers, got {values.dtype}")
    # A float64 beyond float32 becomes inf; whoever cares about that checks for it, with its place.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=dtype)


def as_categories(values: NDArray[Any], space: Space, name: str) -> NDArray[np.int64]:
    """Casts categories to int64; floats are taken if they are whole.

    Raises:
        ShapeError: If they are no numbers.
        EnvironmentSpecError: If one of them is no whole number.
    """
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            is_whole = (np.trunc(values) == values) & (np.abs(values) <= _LARGEST_WHOLE)
        if not is_whole.all():
            place = tuple(np.argwhere(~is_whole)[0].tolist())
            raise EnvironmentSpecError(
                f"{name}: {values[place]} at row {place[0]} is no whole number, but {space} has "
                "categories"
            )
    return as_contiguous(values, np.dtype(np.int64), name)
