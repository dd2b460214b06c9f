"""V-trace of finite numbers in CPU memory, with few calls and few passes over the rows.

NumPy takes a third of torch's time for a call on a short row, and half of it for exponentials;
``vtrace`` calls this first, and does the work itself where the result is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating]

_ROWS_AT_ONCE = 4
_SMALL = 4096
"""Elements up to which the cost of a call decides, and not that of its loop."""


def returns_of_arrays(inputs: Sequence[Floats], clips: Sequence[float], lambda_: float) -> Floats:
    """Computes targets and advantages as ``vtrace`` does, except where 0 meets infinity or NaN.

    Args:
        inputs: Logarithms of ratios, discounts, rewards, values and bootstrap values as in
            ``vtrace``, of one dtype; values and bootstrap of the results' shape; T >= 1.
        clips: Finite bounds of the ratios in the targets, the advantages and the traces.
        lambda_: Scales the traces.

    Returns:
        ``[2, T, B, ...]``.
    """
    log_rhos, discounts, rewards, values, bootstrap_value = inputs
    results = np.empty((2, *values.shape), values.dtype)
    excess, differences = results
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = np.exp(log_rhos)
        rho_clip, pg_rho_clip, c_clip = clips
        rhos = _bounded(ratios, rho_clip)
        pg_rhos = rhos if pg_rho_clip == rho_clip else _bounded(ratios, pg_rho_clip)
        cs = rhos if c_clip == rho_clip else _bounded(ratios, c_clip)
        traces = cs * discounts if lambda_ == 1.0 else lambda_ * cs * discounts
        not_last, followed = discounts[:-1], differences[:-1]
        np.multiply(not_last, values[1:], followed)
        np.multiply(discounts[-1], bootstrap_value, differences[-1])
        differences += rewards
        differences -= values
        np.multiply(rhos, differences, excess)
        solve_in_place(excess, traces)  # vs - values
        # r + discount * vs' - V = (r + discount * V' - V) + discount * (vs' - V')
        followed += not_last * excess[1:]
        differences *= pg_rhos
        excess += values
    return results


def are_finite(results: Floats) -> bool:
    """Says whether the results of ``returns_of_arrays`` are finite (if not sure: false)."""
    if results.size <= _SMALL:
        # inf and NaN stay so in a sum of products, even with 0; it may overflow besides.
        return math.isfinite(np.vdot(*results))
    # BLAS would wake its threads, NumPy's sum is a quarter as fast.
    return math.isfinite(torch.from_numpy(results).sum())


def _bounded(ratios: Floats, clip: float) -> Floats:
    if ratios.size <= _SMALL:
        small: Floats = np.minimum(ratios, clip)
        return small
    # By a whole row: against a single number NumPy compares one element at a time.
    row = np.empty(ratios.shape[1:], ratios.dtype)
    row.fill(clip)
    bounded: Floats = np.minimum(ratios, row)
    return bounded


def solve_in_place(terms: Floats, coefficients: Floats) -> None:
    """Solves ``y[t] = terms[t] + coefficients[t] * y[t + 1]``; y takes the place of the terms.

    Two doublings of the rows summed leave ``y[t] = terms[t] + coefficients[t] * y[t + 4]``, which
    takes a quarter of the calls, each on four rows.

    Args:
        terms: ``[T, ...]``.
        coefficients: ``[T, ...]``, broadcasting to the terms.
    """
    multiply, add = np.multiply, np.add
    length, span = len(terms), 1
    while span < _ROWS_AT_ONCE and span < length:
        followed = length - span
        product = coefficients[:followed] * terms[span:]
        row = terms[:followed]
        add(row, product, row)
        span *= 2
        coefficients = coefficients[: length - span] * coefficients[span // 2 : followed]
    product = np.empty((span, *terms.shape[1:]), terms.dtype)
    start, later = length - 2 * span, terms[length - span :]
    while start >= 0:
        row = terms[start : start + span]
        multiply(coefficients[start : start + span], later, product)
        later = add(row, product, row)
        start -= span
    if start > -span:  # fewer rows are left
        row = terms[: start + span]
        row += coefficients[: start + span] * terms[span : start + 2 * span]
