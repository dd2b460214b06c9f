"""Updates that happen whole or not at all.

NaN spreads: one bad gradient poisons the parameters, the optimizer's moments and, a step later,
every other network. A learner therefore checks each loss and its gradients before the step they
would feed, and keeps copies of what earlier steps of the same update changed, to take them back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlreg.errors import NonFiniteError
from rlreg.runtime.optimizers import parameters_in


def check_step(
    name: str,
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    describe: Callable[[Tensor], str] = lambda parameter: f"shape {list(parameter.shape)}",
) -> None:
    """Refuses a step whose loss or gradients are not finite.

    A gradient whose square overflows counts as infinite: Adam's second moment would stay infinite,
    and the parameter frozen, for ever.

    Args:
        name: What the loss is called in the message.
        loss: Scalar.
        optimizer: Whose step would use the gradients.
        describe: Names a parameter in the message.

    Raises:
        NonFiniteError: With the loss, or the first parameter whose gradient is not finite.
    """
    gradients = [part.grad for part in parameters_in(optimizer) if part.grad is not None]
    if not gradients:
        return
    norm = nn.utils.get_total_norm(gradients)
    if bool(torch.isfinite(loss + norm.square())):  # the one wait for the device on the good path
        return
    value = float(loss.detach())
    if not math.isfinite(value):
        raise NonFiniteError(f"{name} is {value}")
    for parameter in parameters_in(optimizer):
        gradient = parameter.grad
        if gradient is not None and not bool(torch.isfinite(gradient.square()).all()):
            raise NonFiniteError(
                f"{name} is {value:.4g}, but the gradient of {describe(parameter)} is not finite "
                f"or too large (largest entry {float(gradient.abs().max()):.4g})"
            )
    raise NonFiniteError(f"{name} is {value:.4g}, but the norm of its gradients overflows")


class Undo:
    """Copies of what an update changes, so that a failed update leaves no trace.

    Args:
        optimizers: Those that step before the last check of the update; their parameters, moments,
            learning rates and schedules are copied.
        modules: Those whose buffers (batch normalisation) a forward pass changes.
    """

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], modules: Iterable[nn.Module] = ()
    ) -> None:
        self._optimizers = list(optimizers)
        self._modules = list(modules)
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._states: list[dict[Tensor, dict[str, Any]]] = []
        self._options: list[list[dict[str, Any]]] = []
        self._schedules: list[Any] = []
        self._pool: dict[int, Tensor] = {}
        self._spare: dict[int, Tensor] = {}
        self._is_armed = False

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Takes everything back if the block raises before :meth:`commit`."""
        self.remember()
        try:
            yield
        except BaseException:
            if self._is_armed:
                self.restore()
            raise
        finally:
            self._is_armed = False

    def commit(self) -> None:
        """Says that the last check has passed: from here on nothing is taken back."""
        self._is_armed = False

    def remember(self) -> None:
        """Copies the present state."""
        self._tensors, self._states, self._options, self._schedules = [], [], [], []
        self._spare, self._pool = self._pool, {}  # copies of last time, to be written again
        for optimizer in self._optimizers:
            self._remember_optimizer(optimizer)
        for module in self._modules:
            for buffer in module.buffers():
                self._copy(buffer)
        self._is_armed = True

    def _remember_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        states: dict[Tensor, dict[str, Any]] = {}
        for parameter in parameters_in(optimizer):
            self._copy(parameter.detach())
            state = optimizer.state.get(parameter)
            if state:
                states[parameter] = dict(state)
                for value in state.values():
                    if isinstance(value, Tensor):
                        self._copy(value)
        self._states.append(states)
        self._options.append([_options(group) for group in optimizer.param_groups])
        schedule = getattr(optimizer, "_schedule", None)
        self._schedules.append(None if schedule is None else dict(schedule.state_dict()))

    def _copy(self, value: Tensor) -> None:
        kept = self._spare.get(value.data_ptr())
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = value.clone()
        else:
            kept.copy_(value)
        self._pool[value.data_ptr()] = kept
        self._tensors.append((value, kept))

    def restore(self) -> None:
        """Puts the remembered state back."""
        with torch.no_grad():
            for value, copy in self._tensors:
                value.copy_(copy)
        for optimizer, states, options, schedule in zip(
            self._optimizers, self._states, self._options, self._schedules, strict=True
        ):
            optimizer.state.clear()
            for parameter, state in states.items():
                optimizer.state[parameter] = state
            for group, kept in zip(optimizer.param_groups, options, strict=True):
                for key in [key for key in group if key != "params" and key not in kept]:
                    del group[key]
                group.update(kept)
            if schedule is not None:
                optimizer._schedule.load_state_dict(schedule)  # type: ignore[attr-defined]
            elif getattr(optimizer, "_schedule", None) is not None:
                optimizer._schedule = None  # type: ignore[attr-defined]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
