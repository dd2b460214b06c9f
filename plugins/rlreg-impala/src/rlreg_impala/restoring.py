"""Giving a trainer a state back: all of it, or nothing.

Parts are checked by the code that takes them. What one of them refuses is an error in the state,
and the parts that were taken before are undone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlreg.errors import CheckpointError, RlregError

PARTS = ("model", "optimizer", "selection", "progress", "trainer")
"""What the state of a trainer consists of."""

_FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)


def split(state: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Splits a state into weights, and the rest of a trainer's state, empty where there is none.

    Raises:
        CheckpointError: If it is neither the weights of a model nor the whole state of a trainer.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"expected a state dict of a trainer or of a model, got {type(state).__name__}"
        )
    if "model" not in state:
        return state, {}
    if not isinstance(state["model"], Mapping):
        given = type(state["model"]).__name__
        raise CheckpointError(f"model: expected a state dict, got {given}")
    missing = [name for name in PARTS if name not in state]
    surplus = sorted(str(name) for name in state if name not in PARTS)
    if missing or surplus:
        wrong = f"has no {missing[0]!r}" if missing else f"has {surplus[0]!r}"
        raise CheckpointError(
            f"the state {wrong}; expected {', '.join(PARTS)}, or the weights of a model alone "
            "(state['model'])"
        )
    return state["model"], {name: state[name] for name in PARTS[1:]}


def load_all(
    loaders: Mapping[str, Callable[[Any], object]],
    state: Mapping[str, Any],
    before: Mapping[str, Any],
) -> None:
    """Hands each part of a state to its loader; after a failure all get back what they had.

    Args:
        loaders: By the name of the part.
        state: What to load.
        before: What the parts hold now.

    Raises:
        CheckpointError: With the part that failed.
    """
    kept = copy.deepcopy({name: before[name] for name in loaders})
    done = []
    for name, load in loaders.items():
        done.append(name)
        try:
            load(state[name])
        except (*_FAULTS, RlregError) as error:
            for taken in done:
                loaders[taken](kept[taken])
            raise CheckpointError(f"{name}: {_reason(error)}; nothing was loaded") from error


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Gives an optimizer its state, after a look at the shapes, which torch does not take.

    Raises:
        ValueError: If a moment has another shape than its parameter.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, moments in state["state"].items():
        for name, moment in moments.items():
            if not isinstance(moment, torch.Tensor) or not moment.ndim:
                continue
            shape = parameters[int(index)].shape
            if moment.shape != shape:
                found = f"{name} of parameter {index} has shape {list(moment.shape)}"
                raise ValueError(f"{found}, the parameter {list(shape)}")
    optimizer.load_state_dict(dict(state))


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    if isinstance(error, KeyError):
        return f"has no {error.args[0]!r}" if error.args else "is incomplete"
    return lines[0] if lines else type(error).__name__
