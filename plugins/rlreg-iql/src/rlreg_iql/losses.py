"""The formulas of IQL as pure functions.

Everything works on one value for each item, ``[B]`` (docs/notation.md), and returns one for each
item: the learner reduces. A shape that would broadcast by accident is refused.

Source: Kostrikov, Nair, Levine 2021, "Offline Reinforcement Learning with Implicit Q-Learning"
(arXiv:2110.06169), equations 5 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlreg.errors import ShapeError

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def _check_items(**tensors: Tensor) -> None:
    """Raises unless all tensors are ``[B]`` with the same B."""
    size: int | None = None
    for name, tensor in tensors.items():
        if tensor.ndim != 1 or (size is not None and len(tensor) != size):
            raise ShapeError.of(name, f"[{'B' if size is None else size}]", tensor.shape)
        size = len(tensor)


def _check_rows(size: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or len(tensor) not in (size, 1):
            raise ShapeError.of(name, f"[{size}, A]", tensor.shape)


def expectile_loss(differences: Tensor, expectile: float) -> Tensor:
    """Squares differences, those below zero weighted with ``1 - expectile``, the others with it.

    Args:
        differences: Target minus estimate, ``[B]``.
        expectile: In (0, 1); 0.5 is half the squared error.

    Returns:
        ``[B]``.

    Source: equation 5, u = Q - V.
    """
    _check_items(differences=differences)
    is_below = (differences < 0).to(differences.dtype)  # [B]
    weights = (expectile - is_below).abs()  # [B], without gradient
    return weights * differences.square()


def td_targets(
    rewards: Tensor,
    terminations: Tensor,
    intervals: Tensor,
    next_values: Tensor,
    discount: float,
) -> Tensor:
    """Bootstraps one transition: reward plus discounted value of the next state.

    Args:
        rewards: ``[B]``.
        terminations: ``[B]``, 0 or 1. Where 1, the next value is not read, whatever it is.
        intervals: ``[B]``, steps between the two observations, >= 1.
        next_values: ``[B]``.
        discount: Of one step, in [0, 1].

    Returns:
        ``[B]``.

    Source: equation 6; the power of the discount is d3rlpy's.
    """
    _check_items(
        rewards=rewards, terminations=terminations, intervals=intervals, next_values=next_values
    )
    bootstrap = discount**intervals * next_values  # [B]
    return rewards + torch.where(terminations > 0, torch.zeros_like(bootstrap), bootstrap)


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Squares the distance of each critic from the targets.

    Args:
        values: ``[E, B]``.
        targets: ``[B]``.

    Returns:
        ``[E, B]``.

    Source: equation 6. Both references take the mean over B and the sum over E.
    """
    _check_items(targets=targets)
    if values.ndim != 2 or values.shape[1] != len(targets):
        raise ShapeError.of("values", f"[E, {len(targets)}]", values.shape)
    return (values - targets).square()


def advantage_weights(
    advantages: Tensor, inverse_temperature: float, max_advantage_weight: float
) -> Tensor:
    """Exponentiates advantages and caps them.

    Args:
        advantages: ``[B]``.
        inverse_temperature: Beta of the paper, >= 0; 0 gives weight 1 everywhere.
        max_advantage_weight: Cap, > 0.

    Returns:
        ``[B]`` in (0, cap]; an overflow of the exponential is the cap, NaN stays NaN.

    Source: equation 7; the cap is that of the authors' code.
    """
    _check_items(advantages=advantages)
    return (inverse_temperature * advantages).exp().clamp(max=max_advantage_weight)


def normal_log_prob(actions: Tensor, means: Tensor, log_stds: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian that nothing squashes.

    Args:
        actions: ``[B, A]``.
        means: ``[B, A]``.
        log_stds: ``[B, A]``, or ``[1, A]`` for all rows.

    Returns:
        ``[B]``, summed over A.
    """
    _check_rows(len(actions), actions=actions, means=means, log_stds=log_stds)
    if actions.shape != means.shape or log_stds.shape[1] != means.shape[1]:
        raise ShapeError.of("means", str(list(actions.shape)), means.shape)
    distances = (actions - means) * torch.exp(-log_stds)  # [B, A] in deviations
    return -(0.5 * distances.square() + log_stds + _HALF_LOG_TWO_PI).sum(dim=1)


def categorical_log_prob(
    logits: Tensor, categories: Tensor, category_counts: Sequence[int]
) -> Tensor:
    """Log-probability of independent categories.

    Args:
        logits: ``[B, sum(K)]``, one block for each part of the action.
        categories: ``[B, parts]`` int64, from 0.
        category_counts: K of each part.

    Returns:
        ``[B]``, summed over the parts.
    """
    size = len(categories)
    _check_rows(size, logits=logits, categories=categories)
    if logits.shape[1] != sum(category_counts) or categories.shape[1] != len(category_counts):
        raise ShapeError.of("logits", f"[{size}, {sum(category_counts)}]", logits.shape)
    chosen = [
        torch.log_softmax(part, dim=1).gather(1, categories[:, index : index + 1])
        for index, part in enumerate(torch.split(logits, list(category_counts), dim=1))
    ]
    return torch.cat(chosen, dim=1).sum(dim=1)


def negative_squared_distance(actions: Tensor, predictions: Tensor) -> Tensor:
    """What a policy without density maximises instead of a log-probability.

    Args:
        actions: ``[B, A]``.
        predictions: ``[B, A]``.

    Returns:
        ``[B]``, summed over A.

    Source: CORL's deterministic policy.
    """
    if actions.shape != predictions.shape or actions.ndim != 2:
        raise ShapeError.of("predictions", str(list(actions.shape)), predictions.shape)
    return -(actions - predictions).square().sum(dim=1)


def policy_loss(scores: Tensor, weights: Tensor) -> Tensor:
    """Weighted regression on the actions of the data.

    Args:
        scores: Log-probabilities, ``[B]``.
        weights: Advantage weights, ``[B]``, without gradient.

    Returns:
        ``[B]``.

    Source: equation 7.
    """
    _check_items(scores=scores, weights=weights)
    return -(weights * scores)
