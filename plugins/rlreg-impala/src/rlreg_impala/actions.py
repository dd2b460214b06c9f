"""Actions as one row of numbers: how they are stored, drawn and given to an environment.

The acting loop runs millions of times, so everything here is numpy on whole batches and no
``torch.distributions`` (whose ``Categorical`` costs six times a small network's forward pass). The
learner's half, with gradients, is `heads.py`. Both read one layout of *parameters*: a row ``[P]``
with, for each part of the action space in its order, logits, or means and log deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError, ShapeError
from rlreg.runtime.spaces import Space, walk_leaves

Floats: TypeAlias = NDArray[np.float32]

MAX_CATEGORIES = 2**24
"""Categories are stored as float32, which holds every whole number up to here."""

LOG_STD_RANGE = (-10.0, 2.0)
"""Log deviations are kept in here: beyond it, ratios of densities overflow."""


@dataclass(frozen=True, slots=True)
class Part:
    """One elementary distribution of an action.

    Attributes:
        name: Where it stands in the action space, for messages.
        is_categorical: A softmax over categories, or else independent Gaussians.
        columns: Its columns in the stored action ``[W]``: one for a category, ``k`` for Gaussians.
        params: Its columns in the parameters ``[P]``: logits, or means and then log deviations.
    """

    name: str
    is_categorical: bool
    columns: slice
    params: slice

    @property
    def size(self) -> int:
        """Categories, or the number of Gaussians."""
        width: int = self.params.stop - self.params.start
        return width if self.is_categorical else width // 2


@dataclass(frozen=True, slots=True)
class _Leaf:
    keys: tuple[str | int, ...]
    space: Space
    columns: slice


@dataclass(frozen=True, slots=True)
class ActionCodec:
    """The layout of stored actions ``[W]`` and of policy parameters ``[P]`` for an action space.

    Categories are stored from 0, whatever the space's ``start``. Continuous actions are stored as
    drawn, before clipping, in units in which a bounded dimension reaches from -1 to 1.

    Attributes:
        space: The action space of one environment.
        parts: The elementary distributions.
        width: ``W``, columns of a stored action.
        num_params: ``P``, columns of the parameters.
    """

    space: Space
    leaves: tuple[_Leaf, ...]
    parts: tuple[Part, ...]
    width: int
    num_params: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of stored actions: float32, which holds every category exactly."""
        return np.dtype(np.float32)

    def bounded_means(self) -> list[bool]:
        """Says which outputs of a policy head are means of bounded dimensions.

        A head has an output for each logit and for each mean, in the order of the parts.
        """
        found: list[bool] = []
        for leaf in self.leaves:
            for part in self.parts:
                if not leaf.columns.start <= part.columns.start < leaf.columns.stop:
                    continue
                if isinstance(leaf.space, spaces.Box):
                    found += _is_bounded(leaf.space).tolist()
                else:
                    found += [False] * part.size
        return found

    @classmethod
    def of(cls, space: Space) -> ActionCodec:
        """Makes the codec of Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple of these.

        Raises:
            EnvironmentSpecError: If a part of the space is of another kind; the message names it.
        """
        leaves: list[_Leaf] = []
        parts: list[Part] = []
        column = param = 0
        for keys, leaf in walk_leaves(space, ()):
            name = "action" + "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
            start = column
            for is_categorical, size in _distributions(leaf, name):
                columns = 1 if is_categorical else size
                params = size if is_categorical else 2 * size
                parts.append(
                    Part(
                        name,
                        is_categorical,
                        slice(column, column + columns),
                        slice(param, param + params),
                    )
                )
                column, param = column + columns, param + params
            leaves.append(_Leaf(keys, leaf, slice(start, column)))
        if not parts:
            raise EnvironmentSpecError(f"action space {space} has nothing to decide")
        return cls(space, tuple(leaves), tuple(parts), column, param)

    def to_env(self, actions: Floats) -> Any:
        """Turns stored actions ``[N, W]`` into what a vector environment of ``N`` takes.

        Continuous actions are clipped to the space; the log-probability stays that of the draw.
        """
        if actions.ndim != 2 or actions.shape[1] != self.width:
            raise ShapeError.of("actions", f"[N, {self.width}]", actions.shape)
        return self._assemble(self.space, iter(self.leaves), actions)

    def to_single_env(self, actions: Floats) -> Any:
        """Turns one stored action ``[W]`` into what a single environment takes."""
        return _first(self.to_env(actions[None]))

    def _assemble(self, space: Space, leaves: Iterator[_Leaf], actions: Floats) -> Any:
        if isinstance(space, spaces.Dict):
            return {
                key: self._assemble(part, leaves, actions) for key, part in space.spaces.items()
            }
        if isinstance(space, spaces.Tuple):
            return tuple(self._assemble(part, leaves, actions) for part in space.spaces)
        leaf = next(leaves)
        return _decode(leaf.space, actions[:, leaf.columns])


def _distributions(space: Space, name: str) -> list[tuple[bool, int]]:
    """Lists ``(is_categorical, size)`` of the elementary distributions of a leaf."""
    if isinstance(space, spaces.Discrete):
        sizes = [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = [int(size) for size in space.nvec.ravel()]
    elif isinstance(space, spaces.MultiBinary):
        sizes = [2] * math.prod(space.shape or ())
    elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        _require_width(space, name)
        return [(False, math.prod(space.shape))] if math.prod(space.shape) else []
    else:
        raise EnvironmentSpecError(
            f"{name}: IMPALA cannot act in {space}; expected Discrete, MultiDiscrete, MultiBinary, "
            "a Box of floats, or a Dict or Tuple of these"
        )
    if max(sizes, default=1) > MAX_CATEGORIES:
        raise EnvironmentSpecError(
            f"{name}: {max(sizes)} categories, at most {MAX_CATEGORIES} can be stored"
        )
    return [(True, size) for size in sizes]


def _require_width(space: spaces.Box, name: str) -> None:
    """Refuses bounds whose distance no number of their type holds: nothing scales to them."""
    with np.errstate(over="ignore", invalid="ignore"):
        is_too_wide = _is_bounded(space) & ~np.isfinite(space.high - space.low).ravel()
    if is_too_wide.any():
        raise EnvironmentSpecError(
            f"{name}: the bounds of dimensions {np.flatnonzero(is_too_wide)[:5].tolist()} are too "
            f"far apart for {np.dtype(space.dtype)}; expected bounds within which actions make "
            "sense (gymnasium.wrappers.RescaleAction), or infinite ones"
        )


def _decode(space: Space, stored: Floats) -> Any:
    """Gives the columns of one leaf ``[N, k]`` the form of the space, ``[N, *shape]``."""
    shape = (len(stored), *(space.shape or ()))
    if isinstance(space, spaces.Box):
        base, half, shift = units(space)
        scaled = base + half * (stored + shift)
        low, high = space.low.ravel(), space.high.ravel()
        return np.clip(scaled, low, high).reshape(shape).astype(space.dtype)
    categories = stored.astype(np.int64)
    if isinstance(space, spaces.Discrete):
        return (categories[:, 0] + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        categories = categories + space.start.ravel()
    return categories.reshape(shape).astype(space.dtype)


def units(space: spaces.Box) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns ``base, half, shift``, ``[k]``: an action is ``base + half * (stored + shift)``."""
    low, high, is_bounded = space.low.ravel(), space.high.ravel(), _is_bounded(space)
    half = np.where(is_bounded, (high - low) / 2, 1.0)
    return np.where(is_bounded, low, 0.0), half, np.where(is_bounded, 1.0, 0.0)


def _is_bounded(space: spaces.Box) -> NDArray[np.bool_]:
    """Says which dimensions of a Box, in one row, end on both sides."""
    bounded: NDArray[np.bool_] = np.isfinite(space.low) & np.isfinite(space.high)
    return bounded.ravel()


def _first(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _first(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_first(part) for part in value)
    return value[0]


# --- drawing ------------------------------------------------------------------------------------


def sample(codec: ActionCodec, params: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws actions.

    Args:
        codec: Layout of the action space.
        params: ``[N, P]``, what the policy network gave.
        rng: Where randomness comes from.

    Returns:
        Stored actions ``[N, W]`` and their log-probabilities ``[N]``, summed over all parts.
    """
    actions = np.empty((len(params), codec.width), dtype=np.float32)
    log_probs = np.zeros(len(params), dtype=np.float32)
    for part in codec.parts:
        draw = _sample_category if part.is_categorical else _sample_gaussian
        actions[:, part.columns], log_prob = draw(params[:, part.params], rng)
        log_probs += log_prob
    return actions, log_probs


def mode(codec: ActionCodec, params: Floats) -> Floats:
    """Returns the most probable stored actions ``[N, W]`` for parameters ``[N, P]``."""
    actions = np.empty((len(params), codec.width), dtype=np.float32)
    for part in codec.parts:
        own = params[:, part.params]
        if part.is_categorical:
            actions[:, part.columns] = own.argmax(axis=1)[:, None]
        else:
            actions[:, part.columns] = own[:, : part.size]
    return actions


def _sample_category(logits: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    shifted = logits - logits.max(axis=1, keepdims=True)  # [N, K]
    cumulative = np.exp(shifted).cumsum(axis=1)
    total = cumulative[:, -1]
    draws = rng.random(len(logits), dtype=np.float32) * total
    # A product that rounds up to the total would give a category past the last one.
    chosen = np.minimum((cumulative <= draws[:, None]).sum(axis=1), logits.shape[1] - 1)
    log_probs = shifted[np.arange(len(logits)), chosen] - np.log(total)
    return chosen[:, None].astype(np.float32), log_probs


def _sample_gaussian(params: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    size = params.shape[1] // 2
    mean, log_std = params[:, :size], params[:, size:].clip(*LOG_STD_RANGE)
    noise = rng.standard_normal(mean.shape, dtype=np.float32)
    # Taken from the rounded action, which is all that the learner will see.
    actions = mean + np.exp(log_std) * noise
    deviations = (actions - mean) / np.exp(log_std)
    densities = -0.5 * deviations**2 - log_std - 0.5 * math.log(2 * math.pi)
    return actions, densities.sum(axis=1)
