"""What V-trace takes: numbers, arrays, and policies as log-probabilities of actions.

Checks read types and shapes. Values are read only where they are in CPU memory anyway: to look at
those of an accelerator would make it wait.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from statistics import mode
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from rlreg.errors import ConfigError, Problem, ShapeError

Threshold: TypeAlias = float | Tensor | None
Policy: TypeAlias = "Distribution | Mapping[str, Policy] | Sequence[Policy]"
Actions: TypeAlias = "Tensor | Mapping[str, Actions] | Sequence[Actions]"

WIDE = (torch.float32, torch.float64)
"""Computed in as they are; the others in float32."""


def refused(name: str, expected: str, given: object) -> ConfigError:
    """What to raise where an input holds something else than it should."""
    return ConfigError([Problem((name,), expected, str(given))])


def as_clips(**thresholds: Threshold) -> list[float]:
    """Returns thresholds as numbers; ``None`` is infinity.

    Raises:
        ConfigError: If one is negative, NaN or no number.
        ShapeError: If one is a tensor with dimensions.
    """
    clips = []
    for name, given in thresholds.items():
        if type(given) is float:
            clip = given
        else:
            clip = math.inf if given is None else _number(name, given, "a number >= 0 or None")
        if not clip >= 0:
            raise refused(name, "expected a number >= 0 or None", repr(given))
        clips.append(clip)
    return clips


def as_lambda(given: float | Tensor) -> float:
    """Returns lambda as a number.

    Raises:
        ConfigError: If it is no number in [0, 1].
        ShapeError: If it is a tensor with dimensions.
    """
    if type(given) is not float:
        given = _number("lambda_", given, "a number in [0, 1]")
    if not 0 <= given <= 1:
        raise refused("lambda_", "expected a number in [0, 1]", repr(given))
    return given


def _number(name: str, given: object, expected: str) -> float:
    if isinstance(given, Tensor):
        if given.ndim != 0:
            raise ShapeError.of(name, "[] (a number, a 0-d tensor or None)", given.shape)
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise refused(name, f"expected {expected}", repr(given))
    return float(given)


def as_tensor(name: str, data: Any) -> Tensor:
    """Returns a tensor as it is, and copies arrays and lists of real numbers into one.

    Raises:
        ConfigError: If it is anything else; the message names the input.
    """
    if isinstance(data, Tensor):
        return data
    try:
        # Copied: torch warns of a read-only array and cannot view negative strides.
        array = np.array(data, order="C")
        if array.dtype.kind in "biuf":
            return torch.tensor(array)
    except (TypeError, ValueError, RuntimeError):
        pass  # ragged lists, types that torch has not
    raise refused(name, "expected a tensor or an array of real numbers", f"a {_kind(data)}")


def _kind(data: object) -> str:
    kind = type(data).__name__
    return f"{kind} of {data.dtype}" if isinstance(data, np.ndarray) else kind


# --- policies -----------------------------------------------------------------------------------


def softmax_policies(
    behaviour: Any, target: Any, actions: Any, nvec: Sequence[int] | None, leading: torch.Size
) -> tuple[list[Policy], Actions]:
    """Makes the policies of logits, and tensors of actions.

    Args:
        behaviour: Logits ``[T, B, K]``, a sequence of such, or ``[T, B, sum(nvec)]``.
        target: The same.
        actions: ``[T, B]``, ``[T, B, heads]`` or a sequence of ``[T, B]``.
        nvec: Number of actions of each head.
        leading: ``[T, B]`` of the values.

    Raises:
        ShapeError: If the two do not fit each other or the values; the message names the input.
        ConfigError: If an input is no tensor, or ``nvec`` holds no numbers of actions.
    """
    if nvec is not None:
        nvec = [_size_of_head(size) for size in _sizes_in(nvec)]
    names = ("behaviour_logits", "target_logits")
    heads = [_heads(*item, nvec) for item in zip(names, (behaviour, target), strict=True)]
    acted = _action_tensors(actions)
    first = acted if isinstance(acted, Tensor) else acted[0] if acted else None
    sizes = [part.shape[:2] for part in (*heads[0][:1], *heads[1][:1])]
    usual = mode([leading, *sizes, *([] if first is None else [first.shape[:2]])])
    for name, own in zip(names, heads, strict=True):
        for index, part in enumerate(own):
            if part.ndim != 3 or part.shape[:2] != usual:
                where = name if len(own) == 1 else f"{name}[{index}]"
                raise ShapeError.of(where, f"{[*usual, 'K']}".replace("'", ""), part.shape)
    kinds = [[part.shape[-1] for part in own] for own in heads]
    if kinds[0] != kinds[1]:
        raise ShapeError(
            f"target_logits: expected {kinds[0]} actions in the heads, as behaviour_logits have "
            f"them, got {kinds[1]}"
        )
    is_one = isinstance(behaviour, Tensor | np.ndarray) and nvec is None
    policies = [[_categorical(part) for part in own] for own in heads]
    return [own[0] if is_one else own for own in policies], acted


def _sizes_in(nvec: Any) -> Iterable[object]:
    if isinstance(nvec, np.ndarray | Tensor):
        nvec = nvec.tolist()
    if not isinstance(nvec, Sequence) or isinstance(nvec, str):
        raise refused("nvec", "expected the number of actions of each head", repr(nvec))
    return nvec


def _size_of_head(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
        raise refused("nvec", "expected the number of actions of each head, at least 1", repr(size))
    return int(size)


def _heads(name: str, logits: Any, nvec: list[int] | None) -> list[Tensor]:
    if isinstance(logits, Sequence) and not isinstance(logits, str):
        if nvec is not None and len(logits) != len(nvec):
            raise ShapeError(f"{name}: expected {len(nvec)} heads, as nvec has, got {len(logits)}")
        heads = [as_tensor(f"{name}[{index}]", part) for index, part in enumerate(logits)]
        if not heads:
            raise ShapeError(f"{name}: expected at least one head, got none")
        for index, size in enumerate(nvec or []):
            if heads[index].shape[-1:] != (size,):
                raise ShapeError.of(f"{name}[{index}]", f"[T, B, {size}]", heads[index].shape)
        return heads
    whole = as_tensor(name, logits)
    if nvec is None:
        return [whole]
    if whole.shape[-1:] != (sum(nvec),):
        raise ShapeError.of(name, f"[T, B, {sum(nvec)}] (the sum of nvec)", whole.shape)
    return list(torch.split_with_sizes(whole, nvec, dim=-1))


def _action_tensors(actions: Any) -> Tensor | list[Tensor]:
    if isinstance(actions, Sequence) and not isinstance(actions, str):
        return [as_tensor(f"actions[{index}]", part) for index, part in enumerate(actions)]
    return as_tensor("actions", actions)


def _categorical(logits: Tensor) -> Categorical:
    # The difference of two log-probabilities rounded to half precision is mostly rounding.
    wide = logits if logits.dtype in WIDE else logits.float()
    return Categorical(logits=wide, validate_args=False)


def log_probs(name: str, policy: Policy, actions: Actions) -> Tensor:
    """Returns the ``[T, B]`` log-probabilities of whole actions."""
    if isinstance(policy, Distribution):
        return _leaf_log_probs(name, policy, actions)
    if isinstance(policy, Mapping):
        if not isinstance(actions, Mapping) or set(actions) != set(policy):
            raise ShapeError(f"actions: expected a mapping with the keys {sorted(policy)}")
        parts = [(f"{name}[{key!r}]", policy[key], actions[key]) for key in policy]
    elif isinstance(policy, Sequence) and not isinstance(policy, str):
        chosen = actions.unbind(-1) if isinstance(actions, Tensor) and actions.ndim else actions
        if not isinstance(chosen, Sequence) or len(chosen) != len(policy):
            raise ShapeError(f"actions: expected {len(policy)} parts, as many as {name} has")
        parts = [(f"{name}[{i}]", policy[i], chosen[i]) for i in range(len(policy))]
    else:
        wanted = "expected a distribution, or a mapping or sequence of such"
        raise refused(name, wanted, f"a {_kind(policy)}")
    if not parts:
        raise ShapeError(f"{name}: expected at least one distribution, got none")
    return torch.stack([log_probs(*part) for part in parts]).sum(0)


def _leaf_log_probs(name: str, leaf: Distribution, actions: Actions) -> Tensor:
    shape = leaf.batch_shape + leaf.event_shape
    wanted = f"{list(shape)} (at least [T, B]), as {name} has it"
    if isinstance(actions, Mapping | Sequence) and not isinstance(actions, str):
        raise ShapeError.of("actions", wanted, [len(actions)])
    given = as_tensor("actions", actions)
    # log_prob would broadcast [T, B] against [T, B, 1] into [T, T, B].
    if given.shape != shape or len(shape) < 2:
        raise ShapeError.of("actions", wanted, given.shape)
    if not isinstance(leaf, Categorical):
        return leaf.log_prob(given).reshape(*shape[:2], -1).sum(-1)
    if given.is_floating_point() or given.is_complex():
        raise refused("actions", "expected categories of an integer type", given.dtype)
    softmax: Distribution = leaf
    try:
        found = softmax.log_prob(given)
    except RuntimeError as error:  # by torch, which looks at them anyway
        last = leaf.logits.shape[-1] - 1
        if given.is_cpu and not bool(((given >= 0) & (given <= last)).all()):
            extremes = f"{int(given.min())} to {int(given.max())}"
            raise refused("actions", f"expected categories from 0 to {last}", extremes) from error
        raise
    return found.reshape(*shape[:2], -1).sum(-1)
