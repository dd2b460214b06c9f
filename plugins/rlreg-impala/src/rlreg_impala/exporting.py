"""What an exported policy gives: the environment's actions or their distributions, in torch alone.

`actions.py` does the same in numpy. Nothing here may depend on the size of the batch or on values,
so that torch can trace it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from rlreg.runtime.spaces import Space

from . import heads
from .actions import ActionCodec, Part, units


def named_actions(codec: ActionCodec, params: Tensor) -> dict[str, Tensor]:
    """Gives the most probable actions, in the environment's units and types.

    Args:
        codec: Layout of the action space.
        params: ``[B, P]``, what the policy network gave.

    Returns:
        ``action`` ``[B, *A]``; for structured spaces one such output for each part, named by the
        way to it: ``action.arm``, ``action[0]``.
    """
    stored = heads.mode(codec, params)
    return {
        "action" + _suffix(leaf.keys): _decoded(leaf.space, stored[:, leaf.columns])
        for leaf in codec.leaves
    }


def named_distributions(codec: ActionCodec, params: Tensor) -> dict[str, Tensor]:
    """Gives the parameters of the distribution that actions are drawn from.

    Args:
        codec: Layout of the action space.
        params: ``[B, P]``, what the policy network gave.

    Returns:
        ``mean`` and ``std`` ``[B, *A]`` in the environment's units, before clipping; ``logits``
        ``[B, K]`` of a category, counted from the space's start; ``logits_0``, ``logits_1``, ...
        of several. Parts of structured spaces add the way to them: ``mean.arm``, ``logits[0]``.
    """
    found: dict[str, Tensor] = {}
    for leaf in codec.leaves:
        suffix, parts = _suffix(leaf.keys), _parts_of(codec, leaf.columns)
        if isinstance(leaf.space, spaces.Box):
            for part in parts:
                both = _gaussians(leaf.space, params[:, part.params])
                found["mean" + suffix], found["std" + suffix] = both
            continue
        is_single = isinstance(leaf.space, spaces.Discrete)
        for index, part in enumerate(parts):
            found[("logits" if is_single else f"logits_{index}") + suffix] = params[:, part.params]
    return found


def named_outputs(
    codec: ActionCodec, params: Tensor, kind: Literal["action", "distribution"]
) -> dict[str, Tensor]:
    """Gives the outputs of one kind of exported policy."""
    named = named_actions if kind == "action" else named_distributions
    return named(codec, params)


def _suffix(keys: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def _parts_of(codec: ActionCodec, columns: slice) -> list[Part]:
    return [part for part in codec.parts if columns.start <= part.columns.start < columns.stop]


def _gaussians(space: spaces.Box, params: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = heads.mean_and_log_std(params)
    base, half, shift = (_constant(array.astype(space.dtype)) for array in units(space))
    shape = (params.shape[0], *space.shape)
    return (base + half * (mean + shift)).reshape(shape), (half * log_std.exp()).reshape(shape)


def _decoded(space: Space, stored: Tensor) -> Tensor:
    shape = (stored.shape[0], *(space.shape or ()))
    dtype = _constant(np.zeros(0, dtype=space.dtype)).dtype
    if isinstance(space, spaces.Box):
        base, half, shift = (_constant(array.astype(space.dtype)) for array in units(space))
        low, high = _constant(space.low.ravel()), _constant(space.high.ravel())
        scaled = base + half * (stored + shift)
        return torch.clamp(scaled, low, high).reshape(shape).to(dtype)
    categories = stored.long()
    if isinstance(space, spaces.Discrete):
        categories = categories + int(space.start)
    elif isinstance(space, spaces.MultiDiscrete):
        categories = categories + _constant(space.start.ravel()).long()
    return categories.reshape(shape).to(dtype)


def _constant(array: NDArray[Any]) -> Tensor:
    return torch.tensor(array.tolist(), dtype=torch.from_numpy(array[:0]).dtype)
