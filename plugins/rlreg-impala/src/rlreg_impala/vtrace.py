"""V-trace: off-policy corrected value targets and policy-gradient advantages.

Pure functions on time-major tensors (docs/notation.md). ``vtrace`` is the whole algorithm,
``from_importance_weights`` the same with the positional signature of Maze and scalable_agent;
``from_logits`` and ``from_distributions`` make the importance weights.

**Numbers that are not finite.** A factor that is exactly zero removes its term, whatever that is:

* ``log_rho = -inf`` (or ``mask`` false): the row is no transition. ``vs`` is its value, its
  advantage is 0, no trace passes it, and its reward and discount are not read.
* ``discount = 0``: neither the successor's value nor any later row is read.
* ``log_rho = +inf``: the ratio is the threshold. Without a threshold it is ``sqrt(largest float)``
  of the dtype computed in (1.8e19 for float32), so that products with it stay finite.
* NaN, or an infinite reward, discount or value that is read: the result is not finite, in that row
  and the earlier ones that its trace reaches only. Whoever applies an update has to see it.

Source of all formulas: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance
Weighted Actor-Learner Architectures" (arXiv:1802.01561), section 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import mode
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlreg.errors import DeviceError, ShapeError
from rlreg_impala.vtrace_arrays import are_finite, returns_of_arrays
from rlreg_impala.vtrace_inputs import (
    WIDE,
    Actions,
    Policy,
    Threshold,
    as_clips,
    as_lambda,
    as_tensor,
    log_probs,
    refused,
    softmax_policies,
)

# A ratio without a threshold, times a temporal difference, has to fit the dtype.
_CEILINGS = {dtype: math.sqrt(torch.finfo(dtype).max) for dtype in WIDE}


class VTraceReturns(NamedTuple):
    """``vs`` to regress the values on and ``pg_advantages`` for the policy, ``[T, B, ...]``."""

    vs: Tensor
    pg_advantages: Tensor


class VTraceFromLogitsReturns(NamedTuple):
    """V-trace, and the ``[T, B]`` it came from; only ``target_action_log_probs`` has a gradient."""

    vs: Tensor
    pg_advantages: Tensor
    log_rhos: Tensor
    behaviour_action_log_probs: Tensor
    target_action_log_probs: Tensor


class _Rows(NamedTuple):
    """Checked inputs of one dtype and device; values and bootstrap have the results' shape."""

    log_rhos: Tensor
    discounts: Tensor
    rewards: Tensor
    values: Tensor
    bootstrap_value: Tensor


def from_importance_weights(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: Threshold = 1.0,
    clip_pg_rho_threshold: Threshold = 1.0,
) -> VTraceReturns:
    """Computes V-trace from log importance weights, with traces clipped at 1.

    The inputs broadcast in the dimensions after B. NumPy arrays are taken too.

    Args:
        log_rhos: ``[T, B, ...]``, ``log(target(a|x) / behaviour(a|x))``; ``-inf`` for a row that is
            no transition.
        discounts: ``[T, B, ...]``, in [0, 1]; 0 where the episode terminated. The range is not
            checked: to read values would make an accelerator wait.
        rewards: ``[T, B, ...]``.
        values: ``[T, B, ...]``, values of the observations acted on.
        bootstrap_value: ``[B, ...]``, value of the observation after the last row.
        clip_rho_threshold: Largest ratio in the value targets; ``None`` does not clip.
        clip_pg_rho_threshold: Largest ratio in the advantages; ``None`` does not clip.

    Returns:
        Results of the inputs' device and dtype. Mixed dtypes promote; float16 and bfloat16 are
        computed in float32. ``T = 0`` and ``B = 0`` give empty results.

    Raises:
        ShapeError: A wrong rank, unequal T or B, or further dimensions that do not broadcast.
        DeviceError: The inputs are on several devices.
        ConfigError: A threshold is negative, NaN or no number; an input holds no real numbers.

    Source: IMPALA, section 4.1, equation (1), with c-bar = 1; the advantages: section 4.2.
    """
    inputs = (log_rhos, discounts, rewards, values, bootstrap_value)
    return vtrace(*inputs, rho_clip=clip_rho_threshold, pg_rho_clip=clip_pg_rho_threshold)


def vtrace(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    rho_clip: Threshold,
    pg_rho_clip: Threshold,
    c_clip: Threshold = 1.0,
    lambda_: float = 1.0,
    mask: Tensor | None = None,
    truncations: Tensor | None = None,
    next_values: Tensor | None = None,
) -> VTraceReturns:
    """Computes V-trace of fragments that may hold several episodes.

    Inputs, results and errors are those of ``from_importance_weights``. Episodes may follow each
    other in both ways that Gymnasium resets. NEXT_STEP: the row after an end holds the episode's
    last observation and an ignored action; mask it, and its value is the bootstrap of the row
    before. SAME_STEP: that observation has no row; flag the row before in ``truncations`` and give
    the observation's value in ``next_values``.

    ``rho_clip``, ``pg_rho_clip`` and ``c_clip`` bound the ratios in the targets, the advantages and
    the traces (rho-bar, the advantages' own, c-bar); ``lambda_`` in [0, 1] scales every trace. The
    others are ``[T, B]`` or of the values' rank, ``mask`` and ``truncations`` bool or 0 and 1:
    ``mask`` is true where the row is a transition,
    ``truncations`` where the next row is not its successor, and ``next_values`` are read only
    there. A discount of 0 still means terminated: then nothing is bootstrapped.

    Source: IMPALA, section 4.1, equation (1), remark 1 (the recursion), remark 2 (lambda).
    """
    # Errors use the names of the configs and of ``from_importance_weights``.
    clips = as_clips(clip_rho_threshold=rho_clip, clip_pg_rho_threshold=pg_rho_clip, c_clip=c_clip)
    lambda_ = as_lambda(lambda_)
    rows, dtype = _checked(log_rhos, discounts, rewards, values, bootstrap_value)
    if truncations is not None and next_values is not None:
        rows = _with_true_successors(rows, truncations, next_values)
    elif truncations is not None or next_values is not None:
        raise ShapeError("truncations, next_values: expected both or neither, got one")
    if mask is not None:
        transitions = _flags("mask", mask, rows.values)
        rows = rows._replace(log_rhos=torch.where(transitions, rows.log_rhos, -math.inf))
    ceiling = _CEILINGS[rows.values.dtype]
    result = _returns(rows, [min(clip, ceiling) for clip in clips], lambda_)
    if result.vs.dtype != dtype:
        result = VTraceReturns(result.vs.to(dtype), result.pg_advantages.to(dtype))
    return result


def from_logits(
    behaviour_logits: Tensor | Sequence[Tensor],
    target_logits: Tensor | Sequence[Tensor],
    actions: Tensor | Sequence[Tensor],
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: Threshold = 1.0,
    clip_pg_rho_threshold: Threshold = 1.0,
    *,
    nvec: Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> VTraceFromLogitsReturns:
    """Computes V-trace (IMPALA, section 4.1) for softmax policies over discrete actions.

    Logits are ``[T, B, K]`` and actions ``[T, B]``. For MultiDiscrete, logits are a sequence of
    such, or one ``[T, B, sum(nvec)]`` with ``nvec``, the number of actions of each head; actions
    are ``[T, B, heads]`` or a sequence, of an integer type. Half-precision logits give float32
    results. The rest is as in ``from_distributions``; NumPy arrays are taken too.
    """
    values = as_tensor("values", values)
    (behaviour, target), acted = softmax_policies(
        behaviour_logits, target_logits, actions, nvec, values.shape[:2]
    )
    inputs = (acted, discounts, rewards, values, bootstrap_value)
    clips = (clip_rho_threshold, clip_pg_rho_threshold)
    return from_distributions(behaviour, target, *inputs, *clips, mask=mask)


def from_distributions(
    behaviour: Policy,
    target: Policy,
    actions: Actions,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: Threshold = 1.0,
    clip_pg_rho_threshold: Threshold = 1.0,
    *,
    mask: Tensor | None = None,
) -> VTraceFromLogitsReturns:
    """Computes V-trace (IMPALA, section 4.1) for policies over any action space.

    A policy is a distribution of batch shape ``[T, B, ...]`` (what follows B is part of the
    action), or a mapping or sequence of policies, for Dict, Tuple and MultiDiscrete. Actions have
    the same structure; a sequence of policies also takes one tensor ``[T, B, heads]``.
    Log-probabilities are summed over all parts and only then exponentiated: the parts are
    independent given the observation. ``mask`` is as in ``vtrace``, and the rest as in
    ``from_importance_weights``.

    Raises:
        ShapeError: Also where the structures, or an action and its distribution, do not fit.
        ConfigError: Also where a category is no integer, or (on the CPU) none of the policy's.
    """
    values = as_tensor("values", values)
    with torch.no_grad():
        behaviour_log_probs = log_probs("behaviour", behaviour, actions)
    target_log_probs = log_probs("target", target, actions)
    log_rhos = target_log_probs.detach() - behaviour_log_probs
    if mask is not None:
        log_rhos = torch.where(_flags("mask", mask, log_rhos), log_rhos, -math.inf)
    # One ratio per (t, b) serves all value heads.
    shape = log_rhos.shape + (1,) * max(0, values.ndim - log_rhos.ndim)
    inputs = (log_rhos.reshape(shape), discounts, rewards, values, bootstrap_value)
    returns = from_importance_weights(*inputs, clip_rho_threshold, clip_pg_rho_threshold)
    return VTraceFromLogitsReturns(*returns, log_rhos, behaviour_log_probs, target_log_probs)


def _returns(rows: _Rows, clips: Sequence[float], lambda_: float) -> VTraceReturns:
    # Exact type: a FakeTensor has no memory to view.
    viewable = rows.values.is_cpu and {*map(type, rows)} == {Tensor}
    if viewable and rows.values.numel() and not torch.compiler.is_compiling():
        both = returns_of_arrays([tensor.numpy() for tensor in rows], clips, lambda_)
        # A NaN may come from 0 * inf. Looking for one would make an accelerator wait.
        if are_finite(both):
            vs, advantages = both
            return VTraceReturns(torch.from_numpy(vs), torch.from_numpy(advantages))
    return _recursion(rows, clips, lambda_)


def _recursion(rows: _Rows, clips: Sequence[float], lambda_: float) -> VTraceReturns:
    log_rhos, discounts, rewards, values, bootstrap_value = rows
    ratios = torch.exp(log_rhos)
    rhos, pg_rhos, cs = (ratios.clamp(max=clip) for clip in clips)
    next_values = torch.cat([values, bootstrap_value[None]])[1:]
    differences = rewards + _times(discounts, next_values) - values
    excess = _scan(_times(rhos, differences), _times(lambda_ * cs, discounts))  # vs - values
    next_excess = torch.cat([excess, torch.zeros_like(bootstrap_value)[None]])[1:]
    # r + discount * vs' - V = (r + discount * V' - V) + discount * (vs' - V')
    advantages = _times(pg_rhos, differences + _times(discounts, next_excess))
    return VTraceReturns(values + excess, advantages)


def _times(factor: Tensor, term: Tensor) -> Tensor:
    """Multiplies, except that a factor of zero gives zero even for infinity and NaN."""
    return torch.where(factor == 0, 0.0, factor * term)


def _scan(terms: Tensor, coefficients: Tensor) -> Tensor:
    """Solves ``y[t] = terms[t] + coefficients[t] * y[t + 1]`` by doubling the rows summed."""
    # A closed form would divide by a cumulative product, which underflows.
    length, span = terms.shape[0], 1
    while span < length:
        longer = terms[:-span] + _times(coefficients[: length - span], terms[span:])
        terms = torch.cat([longer, terms[-span:]])
        coefficients = _times(coefficients[:-span], coefficients[span:])
        span *= 2
    return terms


def _checked(*inputs: Tensor) -> tuple[_Rows, torch.dtype]:
    """Returns the inputs in the dtype to compute in, and the dtype to return."""
    if _are_plain(inputs):
        rows = _Rows(*inputs)
    else:
        device = inputs[3].device if isinstance(inputs[3], Tensor) else torch.device("cpu")
        rows = _Rows(*[_tensor(*item, device) for item in zip(_Rows._fields, inputs, strict=True)])
    log_rhos, discounts, rewards, values, bootstrap = rows
    shape, dtype = values.shape, values.dtype
    same = log_rhos.shape == discounts.shape == rewards.shape == shape
    if not same or len(shape) < 2 or bootstrap.shape != shape[1:]:
        shape = _result_shape(rows)
        rows = rows._replace(
            values=values.expand(shape), bootstrap_value=bootstrap.expand(shape[1:])
        )
    alike = log_rhos.dtype == discounts.dtype == rewards.dtype == bootstrap.dtype == dtype
    if dtype not in WIDE or not alike:
        for name, tensor in zip(_Rows._fields, rows, strict=True):
            if tensor.is_complex():
                raise refused(name, "expected real numbers", tensor.dtype)
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in rows))
        if not dtype.is_floating_point:
            dtype = torch.promote_types(dtype, torch.get_default_dtype())
        rows = _Rows(*(tensor.to(dtype if dtype in WIDE else torch.float32) for tensor in rows))
    return rows, dtype


def _are_plain(inputs: Sequence[object]) -> bool:
    """Says whether all are tensors in CPU memory without gradient, the usual case."""
    for data in inputs:  # all() with a generator takes twice as long
        if type(data) is not Tensor or not data.is_cpu or data.requires_grad:
            return False
    return True


def _tensor(name: str, data: Tensor | NDArray[np.generic], device: torch.device) -> Tensor:
    if not isinstance(data, Tensor):
        data = as_tensor(name, data)
    if data.device != device:
        raise DeviceError(f"{name}: expected device {device} as for values, got {data.device}")
    return data.detach() if data.requires_grad else data


def _result_shape(rows: _Rows) -> torch.Size:
    """Checks each shape against the majority's; the values decide a tie."""
    named = {name: rows._asdict()[name].shape for name in ("values", *_Rows._fields)}
    bootstrap = named.pop("bootstrap_value")
    rank, leading = mode((len(shape), shape[:2]) for shape in named.values())
    if rank < 2:
        raise ShapeError.of("values", "[T, B, ...] (must have rank 2 or more)", rows.values.shape)
    extra = torch.Size([1] * (rank - 2))
    for name, shape in named.items():
        extra = _broadcast(name, shape, leading, extra)
    return torch.Size([*leading, *_broadcast("bootstrap_value", bootstrap, leading[1:], extra)])


def _broadcast(name: str, shape: torch.Size, fixed: torch.Size, extra: torch.Size) -> torch.Size:
    """Returns what ``extra`` becomes when it meets the dimensions that follow the fixed ones."""
    own = shape[len(fixed) :]
    fits = all(1 in pair or pair[0] == pair[1] for pair in zip(own, extra, strict=False))
    if shape[: len(fixed)] != fixed or len(own) != len(extra) or not fits:
        wanted = f"{[*fixed, *extra]} (must have rank {len(fixed + extra)})"
        raise ShapeError.of(name, wanted, shape)
    return torch.Size(b if a == 1 else a for a, b in zip(own, extra, strict=True))


def _aligned(name: str, data: Tensor, values: Tensor) -> Tensor:
    """Returns data that are ``[T, B]`` or of the values' rank in the values' rank."""
    tensor = _tensor(name, data, values.device)
    if tensor.ndim == 2:
        tensor = tensor.reshape(tensor.shape + (1,) * (values.ndim - 2))
    if _broadcast(name, tensor.shape, values.shape[:2], values.shape[2:]) != values.shape[2:]:
        raise ShapeError.of(name, f"{list(values.shape)} (or broadcasting to it)", tensor.shape)
    return tensor


def _flags(name: str, data: Tensor, values: Tensor) -> Tensor:
    """Returns bool data aligned with the values; a number such as 0.5 would count as true."""
    tensor = _aligned(name, data, values)
    if tensor.is_floating_point() and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise refused(name, "expected bool, or numbers 0 and 1", "others")
    return tensor.bool()


def _with_true_successors(rows: _Rows, truncations: Tensor, next_values: Tensor) -> _Rows:
    """Moves the bootstrap of truncated rows into their reward and ends the trace there."""
    ends = _flags("truncations", truncations, rows.values)
    successors = _aligned("next_values", next_values, rows.values).to(rows.values.dtype)
    bootstrapped = rows.rewards + _times(rows.discounts, successors)
    return rows._replace(
        rewards=torch.where(ends, bootstrapped, rows.rewards),
        discounts=torch.where(ends, 0.0, rows.discounts),
    )
