"""What an update says about itself: times, norms, losses, importance weights."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from rlreg.errors import NonFiniteError

from .losses import Losses, effective_sample_size, kl_divergence
from .model import Unroll


class Clock:
    """Seconds between marks of one update."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """Starts a new update."""
        self.laps = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Books the time since the last mark under a name."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def grad_norm(module: nn.Module) -> Tensor:
    """Norm of all gradients of a module together, a scalar; 0 without any."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def read_update(
    losses: Losses,
    norms: tuple[Tensor, Tensor],
    seen: Unroll,
    log_rhos: Tensor,
    is_transition: Tensor,
) -> dict[str, float]:
    """Reads all numbers of an update at once: each read would wait for the device."""
    kept = log_rhos.masked_fill(~is_transition, -math.inf)
    count = is_transition.sum()
    ratios = kept.exp()
    scalars = {
        "loss/policy": losses.policy,
        "loss/value": losses.value,
        "loss/entropy": losses.entropy,
        "loss/total": losses.total,
        "loss/policy_grad_norm": norms[0],
        "loss/critic_grad_norm": norms[1],
        "loss/critic_value": (seen.values[:-1].detach() * is_transition).sum() / count.clamp(min=1),
        "rho/mean": ratios.sum() / count.clamp(min=1),
        "rho/max": ratios.max(),
        "rho/kl_divergence": kl_divergence(log_rhos, is_transition),
        "rho/effective_sample_size": effective_sample_size(log_rhos, is_transition),
        "update/transitions": count,
    }
    device = losses.total.device
    stacked = torch.stack([v.detach().to(device, torch.float32) for v in scalars.values()])
    metrics = dict(zip(scalars, stacked.tolist(), strict=True))
    metrics["loss/grad_norm"] = math.hypot(
        metrics["loss/policy_grad_norm"], metrics["loss/critic_grad_norm"]
    )
    return metrics


def require_finite(metrics: dict[str, float]) -> None:
    """Raises if a loss or a gradient is not finite.

    Raises:
        NonFiniteError: With all that are not.
    """
    wanted = [name for name in metrics if name.startswith("loss/")]
    bad = [f"{name} = {metrics[name]}" for name in wanted if not math.isfinite(metrics[name])]
    if bad:
        raise NonFiniteError(
            f"an update is not finite ({', '.join(bad)}); the weights were not changed. Look for "
            "NaN in observations and rewards, or lower the learning rate"
        )
