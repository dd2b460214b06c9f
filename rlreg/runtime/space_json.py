"""Gymnasium spaces as values that strict JSON can hold, and back.

Also reads what Minari stores. May import numpy and gymnasium, nothing else of the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError

Space: TypeAlias = spaces.Space[Any]
JsonDict: TypeAlias = dict[str, object]

# What a file of some bytes may ask for: a Box keeps two bounds for each number, a category or a bit
# is an input of the networks. Four stacked frames of 4K in colour are 100 million numbers.
_MOST_NUMBERS, _MOST_CATEGORIES = 2**27, 2**24


def space_to_json(space: Space) -> JsonDict:
    """Describes a space as values that strict JSON can hold.

    The keys are those Minari writes; infinite bounds become the strings ``inf`` and ``-inf``, and a
    bound that is equal everywhere is written once.

    Raises:
        EnvironmentSpecError: The space is of a kind that cannot be written.
    """
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {
            "type": "Discrete",
            "dtype": str(space.dtype),
            "n": int(space.n),
            "start": int(space.start),
        }
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "dtype": str(space.dtype),
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        shape = list(space.shape)
        return {"type": "MultiBinary", "n": shape if len(shape) > 1 else shape[0]}
    if isinstance(space, spaces.Dict):
        entries = {str(key): space_to_json(part) for key, part in space.spaces.items()}
        return {"type": "Dict", "subspaces": entries}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [space_to_json(part) for part in space.spaces]}
    raise unsupported(space)


def space_from_json(data: Mapping[str, object]) -> Space:
    """Rebuilds a space from ``space_to_json`` or from what Minari stores.

    Raises:
        EnvironmentSpecError: The description is incomplete or of an unknown kind.
    """
    kind = data.get("type")
    build = _FROM_JSON.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise EnvironmentSpecError(
            f"space type {kind!r} is not one of {', '.join(sorted(_FROM_JSON))}"
        )
    try:
        return build(data)
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        if isinstance(cause, EnvironmentSpecError):
            raise
        raise EnvironmentSpecError(f"not a valid {kind} space: {cause!r}") from cause


def _bounds_to_json(bounds: NDArray[Any]) -> object:
    first = bounds.flat[0] if bounds.size else 0
    if bool(np.all(bounds == first)):
        return _number_to_json(first)
    return _nested(bounds.tolist())


def _nested(value: object) -> object:
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return _number_to_json(value)


def _number_to_json(value: Any) -> object:
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float) and math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if isinstance(number, float) and math.isnan(number):
        raise EnvironmentSpecError("a Box has NaN as a bound; expected a number or infinity")
    return number


def _bounds_from_json(value: object, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = np.dtype(dtype)
    numbers = np.asarray(_parse_numbers(value), dtype=kind)
    return np.array(np.broadcast_to(numbers, shape), order="C")  # of shape () too


def _parse_numbers(value: object) -> object:
    if isinstance(value, list):
        return [_parse_numbers(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _require_size(count: int, most: int, what: str) -> int:
    if count > most:
        raise EnvironmentSpecError(f"{count:,} {what}, more than {most:,}")
    return count


def _box_from_json(data: Mapping[str, Any]) -> Space:
    shape, dtype = tuple(int(side) for side in data["shape"]), str(data["dtype"])
    _require_size(math.prod(shape), _MOST_NUMBERS, "numbers in a Box")
    low = _bounds_from_json(data["low"], dtype, shape)
    high = _bounds_from_json(data["high"], dtype, shape)
    return spaces.Box(low=low, high=high, shape=shape, dtype=np.dtype(dtype).type)


def _discrete_from_json(data: Mapping[str, Any]) -> Space:
    dtype = np.dtype(str(data.get("dtype", "int64"))).type
    count = _require_size(int(data["n"]), _MOST_CATEGORIES, "categories of a Discrete")
    return spaces.Discrete(count, start=int(data.get("start", 0)), dtype=dtype)


def _multi_discrete_from_json(data: Mapping[str, Any]) -> Space:
    dtype = np.dtype(str(data.get("dtype", "int64"))).type
    nvec = np.asarray(data["nvec"], dtype=dtype)
    _require_size(int(nvec.sum(dtype=float)), _MOST_CATEGORIES, "categories of a MultiDiscrete")
    start = data.get("start")
    offsets = None if start is None else np.asarray(start, dtype=dtype)
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=offsets)


def _multi_binary_from_json(data: Mapping[str, Any]) -> Space:
    sides = data["n"] if isinstance(data["n"], list) else [data["n"]]
    _require_size(math.prod(int(n) for n in sides), _MOST_CATEGORIES, "bits of a MultiBinary")
    return spaces.MultiBinary(data["n"])


def _dict_from_json(data: Mapping[str, Any]) -> Space:
    # A sequence of pairs keeps the declared order; gymnasium sorts the keys of a plain dict.
    return spaces.Dict([(key, space_from_json(part)) for key, part in data["subspaces"].items()])


def _text_from_json(data: Mapping[str, Any]) -> Space:
    return spaces.Text(
        int(data["max_length"]), min_length=int(data["min_length"]), charset=str(data["charset"])
    )


_FROM_JSON: dict[str, Callable[[Mapping[str, Any]], Space]] = {
    "Box": _box_from_json,
    "Discrete": _discrete_from_json,
    "MultiDiscrete": _multi_discrete_from_json,
    "MultiBinary": _multi_binary_from_json,
    "Dict": _dict_from_json,
    "Tuple": lambda data: spaces.Tuple([space_from_json(part) for part in data["subspaces"]]),
    # Read so that the plan can name it; nothing of rlreg flattens text.
    "Text": _text_from_json,
}


def unsupported(space: Space, name: str = "space") -> EnvironmentSpecError:
    """Makes the error for a space that rlreg cannot use."""
    return EnvironmentSpecError(
        f"{name}: {space} cannot be used; expected Box, Discrete, MultiDiscrete, MultiBinary, or a "
        "Dict or Tuple of these. A wrapper (gymnasium.wrappers.FilterObservation) can leave it out"
    )
