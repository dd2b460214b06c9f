"""Arrays as users give them: read where their meaning is plain, else refused by their name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError, RlregError
from rlreg.runtime.space_values import NUMBER_KINDS, to_numpy
from rlreg.runtime.spaces import Space


def column(value: object, name: str) -> NDArray[Any]:
    """Reads ``[N]`` or ``[N, 1]`` numbers as ``[N]``."""
    array = numbers(value, name)
    if array.dtype.kind not in NUMBER_KINDS:
        raise DatasetError(f"{name}: expected numbers, got {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DatasetError(f"{name}: expected shape [N] or [N, 1], got {list(array.shape)}")
    return array


def flags(value: object, name: str) -> NDArray[np.bool_]:
    """Reads flags, bool or 0/1, as ``[N]`` bool."""
    array = column(value, name)
    if array.dtype.kind != "b" and not bool(np.isin(array, (0, 1)).all()):
        raise DatasetError(f"{name}: expected 0 and 1, got {np.unique(array)[:5].tolist()}")
    return array.astype(np.bool_)


def as_arrays(value: object) -> object:
    """Views every part of structured observations as an array."""
    if isinstance(value, Mapping):
        return {key: as_arrays(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(as_arrays(part) for part in value)
    return numbers(value, "observations")


def numbers(value: object, name: str) -> NDArray[Any]:
    """Views what a user gave as an array.

    Raises:
        DatasetError: If it is none: ragged lists, masked values.
    """
    try:
        array = to_numpy(value)
    except RlregError as error:
        raise DatasetError(f"{name}: {error}") from error
    if array.ndim == 0:
        raise DatasetError(f"{name}: expected rows [N, ...], got {value!r}")
    return array


def refuse_unknown_parts(space: Space, values: object, path: str = "observations") -> None:
    """Raises if there is data that the space has no place for: it would be lost.

    Raises:
        DatasetError: If there is; the message names it.
    """
    if isinstance(space, spaces.Dict) and isinstance(values, Mapping):
        extra = [key for key in values if key not in space.spaces]
        if extra:
            raise DatasetError(
                f"{path}: {', '.join(map(repr, extra))} is not in the observation space, which has "
                f"{', '.join(map(repr, space.spaces))}; leave it out or add it to the space"
            )
        for key, part in values.items():
            refuse_unknown_parts(space.spaces[key], part, f"{path}.{key}")
    elif isinstance(space, spaces.Tuple) and isinstance(values, tuple):
        if len(values) > len(space.spaces):
            raise DatasetError(f"{path}: {len(values)} parts, the space has {len(space.spaces)}")
        for index, part in enumerate(values):
            refuse_unknown_parts(space.spaces[index], part, f"{path}[{index}]")


def length(value: object) -> int:
    """Rows of the first part."""
    for part in _leaves(value):
        return len(part)
    return 0


def _leaves(value: object) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def rows_of(value: Any, start: int, stop: int) -> object:
    """Cuts rows out of every part."""
    if isinstance(value, Mapping):
        return {key: rows_of(part, start, stop) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(rows_of(part, start, stop) for part in value)
    return value[start:stop]
