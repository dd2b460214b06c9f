"""RMSprop as TensorFlow has it, which is what the IMPALA paper used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlreg.runtime.optimizers import NamedModules, StepExtras, trainable_parameters

if TYPE_CHECKING:
    from .components import RMSpropTF


class _RMSpropTF(torch.optim.Optimizer):
    """Divides gradients by ``sqrt(mean square + eps)``; the mean square starts at one."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, alpha: float, eps: float, momentum: float
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Takes one step."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            rate = group["lr"]  # read at each step: schedules change it
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["square_avg"] = torch.ones_like(parameter)
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                square = state["square_avg"]
                square.lerp_(parameter.grad.square(), 1 - group["alpha"])
                scaled = rate * parameter.grad / (square + group["eps"]).sqrt()
                # TensorFlow keeps the rate inside the momentum; it matters where the rate changes.
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(scaled)
                parameter.sub_(buffer)
        return loss


class RMSpropTFOptimizer(StepExtras, _RMSpropTF):
    """The same with clipping and a schedule."""


def make_rmsprop_tf(
    config: RMSpropTF, named_modules: NamedModules, lr: float
) -> torch.optim.Optimizer:
    """Builds the optimizer; see :class:`rlreg.OptimizerFactory`."""
    optimizer = RMSpropTFOptimizer(
        trainable_parameters(named_modules),
        lr=lr,
        alpha=config.alpha,
        eps=config.eps,
        momentum=config.momentum,
    )
    optimizer.configure(config.clip_grad_norm, config.lr_scheduler_factory)
    return optimizer
