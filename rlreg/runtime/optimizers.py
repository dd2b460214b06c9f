"""Optimizers with gradient clipping and a learning-rate schedule inside ``step()``.

A learner calls ``step()`` and nothing else: it clips, updates, and moves the schedule on, so
schedules count optimizer steps. ``state_dict`` holds the schedule too. Plugins that bring an
optimizer of their own mix :class:`StepExtras` into it.

Source: the order clip, update, schedule and the order of parameters are d3rlpy's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rlreg.errors import CheckpointError, ConfigError
from rlreg.runtime.uncompiled import without_compiler

if TYPE_CHECKING:
    from rlreg.components import CosineAnnealingScheduler, LinearScheduler, WarmupScheduler
    from rlreg.config import LRSchedulerFactory, OptimizerFactory

NamedModules = Iterable[tuple[str, nn.Module]]


class Steppable(Protocol):
    """A learning-rate schedule: what :class:`rlreg.LRSchedulerFactory` creates."""

    def step(self) -> None:
        """Moves on by one update."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restores what :meth:`state_dict` gave."""


# --- schedules ----------------------------------------------------------------------------------

Rate = Callable[[float, int], float]
"""Learning rate from the one the optimizer was made with and the number of updates so far."""


class Schedule:
    """A learning rate in closed form, so that a resumed schedule equals an undisturbed one exactly.

    Args:
        optimizer: Whose rates it sets, of all parameter groups.
        make_rate: Gives the curve for a run of so many updates (``None``: not known yet).
        total_steps: Updates of the whole run.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        make_rate: Callable[[int | None], Rate],
        total_steps: int | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._make_rate = make_rate
        self._rate = make_rate(total_steps)
        self.num_steps = 0
        self._apply()

    def step(self) -> None:
        """Moves on by one update."""
        self.num_steps += 1
        self._apply()

    def set_total_steps(self, total_steps: int) -> None:
        """Changes the length of the run."""
        self._rate = self._make_rate(total_steps)
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of updates so far."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.num_steps = int(state_dict["num_steps"])
        self._apply()

    def _apply(self) -> None:
        for group in self._optimizer.param_groups:
            rate = self._rate(group.setdefault("initial_lr", group["lr"]), self.num_steps)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _needs_length(tag: str, field: str) -> ConfigError:
    return ConfigError(
        f"schedule '{tag}' runs over the whole run, whose length is not known: set "
        f"{field}, or call set_total_steps before the first update (fit and train do)"
    )


def warmup(config: WarmupScheduler, optimizer: torch.optim.Optimizer) -> Schedule:
    """Grows the rate linearly: update k, from 0, has ``(k + 1) / warmup_steps`` of it at most."""

    def make_rate(_: int | None) -> Rate:
        return lambda base, step: base * min((step + 1) / config.warmup_steps, 1.0)

    return Schedule(optimizer, make_rate)


def cosine_annealing(
    config: CosineAnnealingScheduler, optimizer: torch.optim.Optimizer, total_steps: int | None
) -> Schedule:
    """Lets the rate fall along half a cosine.

    With an explicit ``T_max`` it rises again afterwards, as torch's and d3rlpy's does; bound to the
    length of the run it stays at the minimum.

    Raises:
        ConfigError: If neither ``T_max`` nor the length of the run is known.
    """

    def make_rate(length: int | None) -> Rate:
        period = config.T_max if config.T_max is not None else length
        if period is None:
            raise _needs_length("cosine_annealing", "T_max")

        def rate(base: float, step: int) -> float:
            position = step if config.T_max is not None else min(step, period)
            share = (1 + math.cos(math.pi * position / period)) / 2
            return config.eta_min + (base - config.eta_min) * share

        return rate

    return Schedule(optimizer, make_rate, total_steps)


def linear(
    config: LinearScheduler, optimizer: torch.optim.Optimizer, total_steps: int | None
) -> Schedule:
    """Moves the rate in a straight line to ``end_factor`` of itself, then keeps it.

    Raises:
        ConfigError: If neither ``total_steps`` nor the length of the run is known.
    """

    def make_rate(length: int | None) -> Rate:
        period = config.total_steps if config.total_steps is not None else length
        if period is None:
            raise _needs_length("linear", "total_steps")
        return lambda base, step: base * (1 + (config.end_factor - 1) * min(step, period) / period)

    return Schedule(optimizer, make_rate, total_steps)


# --- optimizers ---------------------------------------------------------------------------------


class StepExtras(torch.optim.Optimizer):
    """Mixed into an optimizer class: clipping before each step and a schedule after it.

    Attributes:
        clip_grad_norm: Largest norm of all gradients together, or none.
        total_steps: Updates of the whole run, once known.
    """

    clip_grad_norm: float | None = None
    total_steps: int | None = None
    _factory: LRSchedulerFactory | None = None
    _schedule: Steppable | None = None

    def configure(
        self, clip_grad_norm: float | None, lr_scheduler_factory: LRSchedulerFactory | None
    ) -> None:
        """Sets both extras; the schedule is made when the first step needs it."""
        self.clip_grad_norm = clip_grad_norm
        self._factory = lr_scheduler_factory

    def set_total_steps(self, total_steps: int) -> None:
        """Tells the schedule how many updates the whole run has."""
        self.total_steps = total_steps
        announce = getattr(self._schedule, "set_total_steps", None)
        if announce is not None:
            announce(total_steps)

    @property
    def schedule(self) -> Steppable | None:
        """The schedule, once there is one."""
        return self._schedule

    def prepare(self) -> None:
        """Makes the schedule; groups and learning rates are final from here on.

        Raises:
            ConfigError: If the schedule needs the length of the run and nobody has said it.
        """
        if self._factory is not None and self._schedule is None:
            self._schedule = self._factory.create(self, self.total_steps)

    def step(self, closure: Any = None) -> Any:
        """Clips, updates, and moves the schedule on."""
        if self._factory is not None and self._schedule is None:
            self.prepare()
            return self.step(closure)  # torch's own schedules have put themselves in front of it
        if self.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(parameters_in(self), self.clip_grad_norm)
        loss = without_compiler(super().step)(closure)
        self.advance()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        without_compiler(super().zero_grad)(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, with settings of their own."""
        without_compiler(super().add_param_group)(param_group)

    def advance(self) -> None:
        """Moves the schedule on by one update; for learners that do the step themselves."""
        if self._schedule is not None:
            self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state and, where there is a schedule, its own."""
        state: dict[str, Any] = without_compiler(super().state_dict)()
        if self._factory is not None:
            started = self._schedule is not None
            state["schedule"] = {
                "total_steps": self.total_steps,
                "state": self._schedule.state_dict() if self._schedule is not None else {},
                "is_started": started,
            }
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave.

        Raises:
            CheckpointError: If one of both sides has a schedule and the other has not.
        """
        own = {key: value for key, value in state_dict.items() if key != "schedule"}
        schedule = state_dict.get("schedule")
        if (schedule is None) != (self._factory is None):
            raise CheckpointError(
                "optimizer: the state was saved "
                f"{'without' if schedule is None else 'with'} a learning-rate schedule, this "
                f"config has {'none' if self._factory is None else repr(self._factory.type)}"
            )
        without_compiler(super().load_state_dict)(own)
        if schedule is None:
            return
        if self.total_steps is None:
            self.total_steps = schedule["total_steps"]
        if schedule["is_started"]:
            self.prepare()
            assert self._schedule is not None
            self._schedule.load_state_dict(dict(schedule["state"]))
        else:
            self._schedule = None


class SGD(StepExtras, torch.optim.SGD):
    """Stochastic gradient descent with clipping and a schedule."""


class Adam(StepExtras, torch.optim.Adam):
    """Adam with clipping and a schedule."""


class AdamW(StepExtras, torch.optim.AdamW):
    """AdamW with clipping and a schedule."""


class RMSprop(StepExtras, torch.optim.RMSprop):
    """RMSprop with clipping and a schedule."""


_CLASSES: dict[str, Callable[..., StepExtras]] = {
    "sgd": SGD,
    "adam": Adam,
    "adam_w": AdamW,
    "rmsprop": RMSprop,
}
_EXTRAS = {"type", "clip_grad_norm", "lr_scheduler_factory"}


def make_optimizer(
    config: OptimizerFactory, named_modules: NamedModules, lr: float
) -> torch.optim.Optimizer:
    """Builds one of core's optimizers.

    Args:
        config: Its settings.
        named_modules: Pairs of name and module; their order is the order of the parameters.
        lr: Learning rate, > 0.

    Raises:
        ConfigError: If settings contradict each other.
    """
    parameters = trainable_parameters(named_modules)
    cls = _CLASSES[config.type]
    options = {name: getattr(config, name) for name in type(config).model_fields}
    settings = {name: value for name, value in options.items() if name not in _EXTRAS}
    if cls is not RMSprop and _can_fuse(parameters):
        settings["fused"] = True
    try:
        optimizer = cls(parameters, lr=lr, **settings)
    except ValueError as error:
        raise ConfigError(f"optimizer {config.type!r}: {error}") from error
    optimizer.configure(options["clip_grad_norm"], options["lr_scheduler_factory"])
    return optimizer


def trainable_parameters(named_modules: NamedModules) -> list[nn.Parameter]:
    """Returns the parameters to train, each once, in the order in which the modules name them."""
    found: dict[nn.Parameter, None] = {}
    for _, module in named_modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                found.setdefault(parameter)
    return list(found)


def parameters_in(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Returns all parameters of an optimizer, in the order of its state."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_learning_rate(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], lr: float
) -> None:
    """Gives some parameters, the last ones of an optimizer, a learning rate of their own.

    They still share its step, its clipping and its schedule; the order of parameters does not
    change.
    """
    chosen = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        own = [parameter for parameter in group["params"] if id(parameter) in chosen]
        if own:
            group["params"] = [part for part in group["params"] if id(part) not in chosen]
            optimizer.add_param_group({**group, "params": own, "lr": lr})


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether torch has a single-kernel step for these parameters; it needs a known device."""
    return all(
        parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")
        for parameter in parameters
    )


class Schedules:
    """Remembers where learning rates stand, to put them back if a chunk does not come to its end.

    Args:
        optimizers: Whose.

    Attributes:
        places: Of each optimizer the rates of its groups and the state of its schedule.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self.places = [
            ([group["lr"] for group in optimizer.param_groups], _schedule_state(optimizer))
            for optimizer in self._optimizers
        ]
        self._is_committed = False

    def commit(self) -> None:
        """Says that the chunk counts."""
        self._is_committed = True

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Puts everything back at the end of the block unless it was committed."""
        try:
            yield
        finally:
            if not self._is_committed:
                self._restore()

    def _restore(self) -> None:
        for optimizer, (rates, state) in zip(self._optimizers, self.places, strict=True):
            if state is not None and isinstance(optimizer, StepExtras) and optimizer.schedule:
                optimizer.schedule.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


def _schedule_state(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    schedule = optimizer.schedule if isinstance(optimizer, StepExtras) else None
    return None if schedule is None else dict(schedule.state_dict())
