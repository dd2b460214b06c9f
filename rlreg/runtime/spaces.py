"""Gymnasium spaces: compared, and flattened to the arrays that networks take.

The flattening plan is the one place that decides how a structured observation becomes an array, so
that a data set, a live environment and an exported model agree column for column. This module may
import numpy and gymnasium, nothing else of the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError, NonFiniteError, ShapeError
from rlreg.runtime.action_plan import ActionPlan
from rlreg.runtime.space_json import JsonDict, Space, space_from_json, space_to_json, unsupported
from rlreg.runtime.space_values import MAX_COLUMNS, as_categories, as_contiguous, to_numpy

Observation: TypeAlias = object  # an array, or a mapping or tuple of observations

__all__ = [
    "ActionPlan",
    "FlatteningPlan",
    "JsonDict",
    "Leaf",
    "Observation",
    "Space",
    "is_single",
    "require_finite",
    "same_space",
    "space_difference",
    "space_from_json",
    "space_to_json",
    "to_numpy",
]

# Minari's own border between a picture and a symbolic grid such as MiniGrid's 7x7x3.
_SMALLEST_IMAGE_SIDE = 32


# --------------------------------------------------------------------------------------- comparison


def space_difference(expected: Space, given: Space, path: str = "observation") -> str:
    """Says in one line where two spaces first differ; empty when they are the same.

    Bounds are compared exactly, dtypes of floats are not: a float64 environment may use a model
    that was trained on float32 data.
    """
    if type(expected) is not type(given):
        return f"{path}: expected {expected}, got {given}"
    if isinstance(expected, spaces.Dict) and isinstance(given, spaces.Dict):
        if list(expected.spaces) != list(given.spaces):
            keys = f"expected keys {list(expected.spaces)}, got {list(given.spaces)}"
            return f"{path}: {keys}"
        names = expected.spaces
        pairs = ((f"{path}.{key}", names[key], given.spaces[key]) for key in names)
        return next(filter(None, (space_difference(a, b, p) for p, a, b in pairs)), "")
    if isinstance(expected, spaces.Tuple) and isinstance(given, spaces.Tuple):
        if len(expected.spaces) != len(given.spaces):
            return f"{path}: expected {len(expected.spaces)} parts, got {len(given.spaces)}"
        parts = enumerate(zip(expected.spaces, given.spaces, strict=True))
        return next(
            filter(None, (space_difference(a, b, f"{path}[{i}]") for i, (a, b) in parts)), ""
        )
    return "" if _same_leaf(expected, given) else f"{path}: expected {expected}, got {given}"


def same_space(a: Space, b: Space) -> bool:
    """Tells whether two spaces have the same structure, shapes, sizes and bounds."""
    return space_difference(a, b) == ""


def _same_leaf(a: Space, b: Space) -> bool:
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        if a.shape != b.shape or _dtype(a).kind != _dtype(b).kind:
            return False
        # Both through float32, the coarser of the two that occur: pi in float64 equals pi in
        # float32.
        low = np.array_equal(a.low.astype(np.float32), b.low.astype(np.float32))
        return low and np.array_equal(a.high.astype(np.float32), b.high.astype(np.float32))
    return bool(a == b)


def _dtype(space: Space) -> np.dtype[Any]:
    return np.dtype(space.dtype)


# ---------------------------------------------------------------------------------- flattening plan


@dataclass(frozen=True, slots=True)
class Leaf:
    """One elementary space inside a structured one.

    Attributes:
        keys: The way from the root: names in a Dict, positions in a Tuple.
        space: The elementary space.
        start: First column in the flattened vector.
        width: Number of columns.
    """

    keys: tuple[str | int, ...]
    space: Space
    start: int
    width: int

    @property
    def name(self) -> str:
        """The way as text: ``observation.camera[0]``."""
        parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)
        return "observation" + "".join(parts)


@dataclass(frozen=True, slots=True)
class FlatteningPlan:
    """How observations of a space become one array.

    A single uint8 Box of rank 2 or 3 is an image: it stays uint8 with its shape (rank 2 gets a
    leading channel axis) and the encoder scales it. A single Box of rank 3 of another type keeps
    its shape as float32. Everything else becomes a float32 vector: boxes raveled, Discrete and
    MultiDiscrete as one-hots, MultiBinary as 0 and 1, in the order in which a Dict declares its
    keys. Symbolic uint8 grids below 32x32 may stand beside vectors; real images may not.

    Attributes:
        space: The space the plan was made for.
        leaves: Its elementary spaces with the columns they fill.
        shape: Shape of one flattened observation.
        is_image: Whether the result is a uint8 image.
    """

    space: Space
    leaves: tuple[Leaf, ...]
    shape: tuple[int, ...]
    is_image: bool

    @classmethod
    def of(cls, space: Space) -> FlatteningPlan:
        """Makes the plan of a space.

        Raises:
            EnvironmentSpecError: The space holds text, graphs or sequences, or mixes images of
                32x32 and more with other parts.
        """
        found = list(walk_leaves(space, ()))
        leaves, start = [], 0
        for keys, part in found:
            width = _width(part, keys)
            leaves.append(Leaf(keys, part, start, width))
            start += width
        for leaf in leaves:
            is_one_hot = isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete)
            if is_one_hot and leaf.width > MAX_COLUMNS:
                raise EnvironmentSpecError(
                    f"{leaf.name}: {leaf.space} would become a one-hot of {leaf.width:,} numbers; "
                    f"at most {MAX_COLUMNS:,} are taken"
                )
        if not leaves or start == 0:
            raise EnvironmentSpecError(f"{space} has no component to learn from")
        if len(leaves) == 1:
            shape, is_image = _single_shape(leaves[0])
            return cls(space, tuple(leaves), shape, is_image)
        for leaf in leaves:
            if _is_large_image(leaf.space):
                raise EnvironmentSpecError(
                    f"{leaf.name} is an image {leaf.space.shape} beside other parts; rlreg takes a "
                    "single image or vectors. Keep one of them with gymnasium's "
                    "FilterObservation, or encode the image beforehand"
                )
        return cls(space, tuple(leaves), (start,), False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """``uint8`` for an image, ``float32`` otherwise."""
        return np.dtype(np.uint8) if self.is_image else np.dtype(np.float32)

    @property
    def size(self) -> int:
        """Number of components of one flattened observation."""
        return math.prod(self.shape)

    def flatten(self, batch: Observation) -> NDArray[Any]:
        """Flattens a batch of observations.

        Args:
            batch: ``[B, ...]`` arrays in the structure of the space, or observations that are
                already flat, ``[B, *shape]``.

        Returns:
            A contiguous array ``[B, *shape]`` of the plan's dtype.

        Raises:
            ShapeError: A part is missing or has another shape.
            EnvironmentSpecError: A category lies outside its Discrete space.
        """
        if self._is_flat(batch, batched=True):
            return as_contiguous(to_numpy(batch), self.dtype)
        if len(self.leaves) == 1:
            leaf = self.leaves[0]
            part = _encode(leaf, to_numpy(_part(batch, leaf)))
            return as_contiguous(part.reshape(len(part), *self.shape), self.dtype)
        parts = [(leaf, to_numpy(_part(batch, leaf))) for leaf in self.leaves]
        size = len(parts[0][1])
        result = np.empty((size, *self.shape), dtype=np.float32)  # [B, O]
        for leaf, part in parts:
            if part.ndim == 0 or len(part) != size:
                raise ShapeError.of(leaf.name, f"[{size}, ...]", part.shape)
            columns = _encode(leaf, part).reshape(size, leaf.width)
            result[:, leaf.start : leaf.start + leaf.width] = as_contiguous(columns, self.dtype)
        return result

    def as_batch(self, observations: Observation) -> tuple[NDArray[Any], bool]:
        """Flattens one or many observations.

        Returns:
            The flat batch ``[B, *shape]`` and whether a single observation was given.
        """
        if self._is_flat(observations, batched=True):
            return self.flatten(observations), False
        if self._is_flat(observations, batched=False):
            return as_contiguous(to_numpy(observations)[None], self.dtype), True
        if is_single(self.space, observations):
            return self.flatten(_add_axis(observations)), True
        return self.flatten(observations), False

    def as_finite_batch(self, observations: Observation) -> tuple[NDArray[Any], bool]:
        """Like :meth:`as_batch`, for a policy to act on.

        Raises:
            NonFiniteError: If there is NaN or inf; the message names the rows.
        """
        batch, is_single = self.as_batch(observations)
        require_finite(batch)
        return batch, is_single

    def describe(self) -> str:
        """Tells which column comes from where, one line per part."""
        if self.is_image or len(self.shape) > 1:
            return f"{self.leaves[0].name}: {self.leaves[0].space} -> {self.dtype} {self.shape}"
        lines = []
        for leaf in self.leaves:
            columns = f"columns {leaf.start}:{leaf.start + leaf.width}"
            lines.append(f"{leaf.name}: {leaf.space} -> {columns}")
        return "\n".join(lines)

    def _is_flat(self, value: Observation, *, batched: bool) -> bool:
        """Whether ``value`` has gone through this plan before (``dataset.observations``)."""
        given = getattr(value, "shape", None)
        if isinstance(value, Mapping | tuple) or not isinstance(given, tuple):
            return False
        if (given[1:] if batched else given) != self.shape:
            return False
        if self.leaves[0].keys:
            return True  # the space is structured, an array can only be flat
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            return to_numpy(value).dtype.kind == "f"  # [n] integers are a batch of categories
        own = tuple(self.space.shape or ())
        return own not in (given, given[1:])


def is_single(space: Space, observations: Observation) -> bool:
    """Tells one observation of a space from a batch of them, by the rank of its first part."""
    keys, leaf = next(iter(walk_leaves(space, ())))
    part = to_numpy(_part(observations, Leaf(keys, leaf, 0, 0), strict=False))
    return part.ndim == len(leaf.shape or ())


def require_finite(values: NDArray[Any], name: str = "observations") -> None:
    """Refuses rows with NaN or inf.

    Raises:
        NonFiniteError: If there are some; the message names the rows.
    """
    # A sum of squares is finite only if all numbers are, and costs half a microsecond.
    if values.dtype.kind != "f" or math.isfinite(np.vdot(values, values)):
        return
    is_bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    rows = np.flatnonzero(is_bad).tolist()
    if rows:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise NonFiniteError(f"{name}: NaN or inf in {len(rows)} of {len(values)} rows ({shown})")


def walk_leaves(
    space: Space, keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Space]]:
    """Yields the elementary spaces of a space, each with the keys that lead to it."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from walk_leaves(part, (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from walk_leaves(part, (*keys, index))
    else:
        yield keys, space


def _width(space: Space, keys: tuple[str | int, ...]) -> int:
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return math.prod(space.shape or ())
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise unsupported(space, Leaf(keys, space, 0, 0).name)


def _single_shape(leaf: Leaf) -> tuple[tuple[int, ...], bool]:
    space = leaf.space
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Box) and len(shape) in {2, 3} and space.dtype == np.uint8:
        return (shape if len(shape) == 3 else (1, *shape)), True
    if isinstance(space, spaces.Box) and len(shape) == 3:
        return shape, False
    return (leaf.width,), False


def _is_large_image(space: Space) -> bool:
    if (
        not isinstance(space, spaces.Box)
        or space.dtype != np.uint8
        or len(space.shape) not in {2, 3}
    ):
        return False
    # Height and width are the two largest sides, wherever the channels stand.
    return sorted(space.shape)[-2] >= _SMALLEST_IMAGE_SIDE


def _part(value: Observation, leaf: Leaf, *, strict: bool = True) -> object:
    for key in leaf.keys:
        if isinstance(key, str) and isinstance(value, Mapping):
            if key not in value:
                raise ShapeError(f"{leaf.name}: missing; the observation has {sorted(value)}")
            value = value[key]
        elif isinstance(key, int) and isinstance(value, Sequence):
            if key >= len(value):
                raise ShapeError(f"{leaf.name}: missing; the observation has {len(value)} parts")
            value = value[key]
        elif strict:
            kind = "a mapping" if isinstance(key, str) else "a tuple"
            raise ShapeError(f"{leaf.name}: expected {kind} of arrays, got {type(value).__name__}")
        else:
            return value
    return value


def _add_axis(value: Observation) -> Observation:
    if isinstance(value, Mapping):
        return {key: _add_axis(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_add_axis(part) for part in value)
    return to_numpy(value)[None]


def _encode(leaf: Leaf, values: NDArray[Any]) -> NDArray[Any]:
    space, shape = leaf.space, tuple(leaf.space.shape or ())
    if isinstance(space, spaces.Discrete) and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]  # d3rlpy and some files keep a column
    if values.ndim == 0 or values.shape[1:] != shape:
        raise ShapeError.of(leaf.name, f"[B{''.join(f', {side}' for side in shape)}]", values.shape)
    if isinstance(space, spaces.Discrete):
        return _one_hot(leaf, values.reshape(-1, 1), np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        columns = values.reshape(len(values), -1)
        return _one_hot(leaf, columns, space.nvec.ravel(), space.start.ravel())
    return values


def _one_hot(
    leaf: Leaf, values: NDArray[Any], sizes: NDArray[Any], starts: NDArray[Any]
) -> NDArray[np.float32]:
    categories = as_categories(values, leaf.space, leaf.name) - starts  # [B, parts]
    outside = (categories < 0) | (categories >= sizes)
    if bool(outside.any()):
        row = int(np.argwhere(outside)[0, 0])
        raise EnvironmentSpecError(
            f"{leaf.name}: {values[row].tolist()} at row {row} is not in {leaf.space}"
        )
    result = np.zeros((len(values), int(sizes.sum())), dtype=np.float32)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    result[np.arange(len(values))[:, None], categories + offsets] = 1.0
    return result
