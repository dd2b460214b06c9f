"""IMPALA's losses: pure functions on time-major tensors (docs/notation.md).

No gradient flows into the targets or the advantages. Rows that are no transition (reset rows) count
in no sum and no mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlreg.errors import ShapeError

RewardClipping = Literal["none", "abs_one", "soft_asymmetric"]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class Losses:
    """The terms of one update, each a scalar tensor; ``total`` has the gradient.

    Attributes:
        total: Weighted sum of the three others.
        policy: Policy gradient loss.
        value: Half the squared error of the values.
        entropy: Entropy of the policy (a bonus: it enters ``total`` negatively).
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def clip_rewards(rewards: Tensor, how: RewardClipping) -> Tensor:
    """Bounds rewards of any shape.

    Source: ``abs_one`` as in Mnih et al. 2015; ``soft_asymmetric`` as in the released IMPALA code:
    ``5 tanh(r / 5)``, with 0.3 of it where ``r < 0``.
    """
    if how == "abs_one":
        return rewards.clamp(-1, 1)
    if how == "soft_asymmetric":
        squeezed = torch.tanh(rewards / 5)
        return 5 * torch.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards


def impala_losses(
    log_probs: Tensor,
    values: Tensor,
    entropies: Tensor,
    vs: Tensor,
    pg_advantages: Tensor,
    is_transition: Tensor,
    *,
    policy_loss_coef: float,
    value_loss_coef: float,
    entropy_coef: float,
    reduction: Reduction,
) -> Losses:
    """Computes the losses of one batch.

    Args:
        log_probs: ``[T, B]``, of the actions taken, under the policy that learns.
        values: ``[T, B]``, the critic's, with gradient.
        entropies: ``[T, B]``.
        vs: ``[T, B]``, targets of the values.
        pg_advantages: ``[T, B]``.
        is_transition: ``[T, B]`` bool; the other rows are left out.
        policy_loss_coef: Weight of the policy loss, >= 0.
        value_loss_coef: Weight of the value loss, >= 0.
        entropy_coef: Weight of the entropy bonus, >= 0.
        reduction: Whether rows are summed (as the paper) or averaged (as Maze). It rescales the
            effective learning rate by the number of rows.

    Source: IMPALA, section 4.2. The value loss is halved, as in the released code.
    """
    inputs = {"values": values, "entropies": entropies, "vs": vs, "pg_advantages": pg_advantages}
    for name, tensor in {**inputs, "is_transition": is_transition}.items():
        if tensor.shape != log_probs.shape:
            raise ShapeError.of(name, f"{list(log_probs.shape)}", tensor.shape)
    weights = is_transition.to(log_probs.dtype)
    if reduction == "mean":
        weights = weights / weights.sum().clamp(min=1)
    policy = -(weights * log_probs * pg_advantages.detach()).sum()
    value = 0.5 * (weights * (values - vs.detach()) ** 2).sum()
    entropy = (weights * entropies).sum()
    total = policy_loss_coef * policy + value_loss_coef * value - entropy_coef * entropy
    return Losses(total, policy, value, entropy)


def effective_sample_size(log_rhos: Tensor, is_transition: Tensor) -> Tensor:
    """Share of the batch that importance weights leave in effect, in (0, 1]; 1 on policy.

    Args:
        log_rhos: ``[T, B]``, unclipped.
        is_transition: ``[T, B]`` bool; the other rows are left out.

    Returns:
        ``(sum rho)^2 / (n sum rho^2)``, a scalar; 0 without transitions.

    Source: Kong 1992.
    """
    kept = log_rhos[is_transition].cpu().double()  # not every device has doubles
    if not len(kept):
        return torch.zeros(())
    # In logarithms: a ratio of 1e200 has no square.
    log_size = 2 * kept.logsumexp(0) - (2 * kept).logsumexp(0)
    return (log_size - torch.tensor(float(len(kept))).log()).exp()


def kl_divergence(log_rhos: Tensor, is_transition: Tensor) -> Tensor:
    """Estimates KL(behaviour || target): how far the policy has moved since the actor had it.

    Args:
        log_rhos: ``[T, B]``, unclipped: target minus behaviour, of actions that the actor drew.
        is_transition: ``[T, B]`` bool; the other rows are left out.

    Returns:
        Mean of ``rho - 1 - log rho``, a scalar >= 0; 0 on policy and without transitions.

    Source: Schulman 2020, "Approximating KL divergence" (its k3): unbiased, and no term is below 0.
    """
    terms = (torch.expm1(log_rhos) - log_rhos).masked_fill(~is_transition, 0.0)
    return terms.sum() / is_transition.sum().clamp(min=1)
