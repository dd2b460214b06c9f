"""One update: V-trace, losses, gradients, schedules. Knows nothing of engines and environments."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlreg.errors import ConfigError, NonFiniteError
from rlreg.runtime.optimizers import Steppable

from .batches import FragmentBatch
from .config import IMPALAConfig
from .heads import log_prob_and_entropy
from .losses import Losses, clip_rewards, impala_losses
from .model import TorchActorCritic, Unroll
from .modes import require_one_mode
from .readings import Clock, grad_norm, read_update, require_finite
from .vtrace import VTraceReturns, vtrace

NoiseStream = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class Progress:
    """How far a run is; schedules run over all of it.

    Attributes:
        updates: Updates done.
        transitions: Transitions trained on.
        epochs: Epochs done.
        unit: What the length of the run is counted in.
        total: Length of the whole run in that unit; ``None`` while nobody has said it.
    """

    updates: int = 0
    transitions: int = 0
    epochs: int = 0
    unit: str = "updates"
    total: int | None = None

    @property
    def done(self) -> int:
        """What is done, in the unit of the length."""
        return self.transitions if self.unit == "transitions" else self.updates

    @property
    def fraction(self) -> float | None:
        """Share of the run that is done, in [0, 1]; ``None`` where its length is not known."""
        return None if self.total is None else min(1.0, self.done / self.total)

    def plan(self, unit: str, amount: int) -> None:
        """Says that ``amount`` more are to come.

        A plan that is not at its end yet stays, so that a run that goes on after an interruption
        keeps its schedules.
        """
        if self.unit == unit and self.total is not None and self.done < self.total:
            return
        self.unit = unit
        self.total = self.done + amount

    def state(self) -> dict[str, Any]:
        """Returns the counters for a checkpoint."""
        return {name: getattr(self, name) for name in self.__slots__}

    def load(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state` gave.

        Raises:
            ValueError: If a counter is no count, or the unit unknown.
        """
        for name in ("updates", "transitions", "epochs", "total"):
            is_open = name == "total" and state[name] is None
            if not is_open and (not isinstance(state[name], int) or state[name] < 0):
                raise ValueError(f"{name} = {state[name]!r}: expected a whole number >= 0")
        if state["unit"] not in ("updates", "transitions"):
            raise ValueError(f"unit = {state['unit']!r}: expected updates or transitions")
        for name in self.__slots__:
            setattr(self, name, state[name])


class Learner:
    """Changes a model by batches of fragments.

    Args:
        model: What learns, on the device where it is.
        optimizer: Over the parameters of the model.
        config: The settings.
        noise: Lends torch's global generator a stream of its own while the model runs in training
            mode (dropout draws from it).

    Attributes:
        progress: Counters; the schedules follow them.

    Raises:
        ConfigError: If there are two learning-rate schedules, or the policy acts differently in
            training.
    """

    def __init__(
        self,
        model: TorchActorCritic,
        optimizer: torch.optim.Optimizer,
        config: IMPALAConfig,
        noise: NoiseStream | None = None,
    ) -> None:
        _check_schedules(config)
        require_one_mode(model)
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.progress = Progress()
        self.transitions_per_update = 1
        self._noise = noise or contextlib.nullcontext
        self._schedule: Steppable | None = None
        self._schedule_position = 0
        self._clock = Clock()

    # --- schedules ------------------------------------------------------------------------------

    @property
    def planned_updates(self) -> int | None:
        """Updates of the whole run; an estimate where it is counted in transitions."""
        progress = self.progress
        if progress.total is None or progress.unit == "updates":
            return progress.total
        return max(1, math.ceil(progress.total / self.transitions_per_update))

    def start_schedules(self, transitions_per_update: int) -> None:
        """Settles the length of the schedules, before the first update of a run.

        Args:
            transitions_per_update: Rows of a batch; fewer where some are masked.

        Raises:
            ConfigError: If a schedule runs over the whole run and nobody said how long that is.
        """
        self.transitions_per_update = transitions_per_update
        planned = self.planned_updates
        announce = getattr(self.optimizer, "set_total_steps", None)
        if announce is not None and planned is not None:
            announce(planned)
        factory = self.config.lr_scheduler_factory
        if factory is None:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"])
        try:
            self._schedule = factory.create(self.optimizer, planned)
        except ConfigError as error:
            if planned is not None:
                raise
            raise ConfigError(
                f"lr_scheduler_factory: {factory.get_type()!r} runs over the whole run, whose "
                "length is not known: n_epochs = 0 trains until patience ends it; give "
                "n_epochs >= 1, the length in the schedule itself, or no schedule"
            ) from error
        self._schedule_position = 0
        self._follow_schedule()

    def _follow_schedule(self) -> None:
        """Moves the learning rate to where the run is.

        The position is a share of the run and not a count of updates: masked rows make a run of so
        many transitions a little longer in updates, and its end would learn nothing.
        """
        if self._schedule is None:
            return
        fraction, planned = self.progress.fraction, self.planned_updates
        position = self.progress.updates
        if fraction is not None and planned is not None:
            position = int(fraction * planned)
        while self._schedule_position < position:
            self._schedule.step()
            self._schedule_position += 1

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus now."""
        config = self.config
        if config.entropy_coef_final is None:
            return config.entropy_coef
        fraction = self.progress.fraction
        if fraction is None:
            raise ConfigError(
                "entropy_coef_final: the weight moves over the whole run, whose length is not "
                "known; give the number of epochs or steps"
            )
        share = min(1.0, fraction / config.entropy_decay_fraction)
        return config.entropy_coef + share * (config.entropy_coef_final - config.entropy_coef)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    # --- an update ------------------------------------------------------------------------------

    def update(self, batch: FragmentBatch) -> dict[str, float]:
        """Does one update.

        Args:
            batch: Fragments on the device of the model.

        Returns:
            Metrics; ``update/transitions`` is the number of rows that were trained on.

        Raises:
            NonFiniteError: If a loss or gradient is NaN or infinite; nothing is changed then.
        """
        self.model.train()
        self._clock.start()
        before = self._normalizer_state()
        with self._noise():
            try:
                metrics = self._step(batch)
            except NonFiniteError:
                self._restore_normalizer(before)
                raise
        self.progress.updates += 1
        self.progress.transitions += int(metrics["update/transitions"])
        self._follow_schedule()
        return metrics

    def _step(self, batch: FragmentBatch) -> dict[str, float]:
        config, rate = self.config, self.learning_rate
        is_burn_in = self.progress.epochs < config.critic_burn_in_epochs
        entropy_coef = self.entropy_coef
        self._see(batch)
        seen = self.model.unroll(
            batch.observations,
            batch.starts,
            batch.state,
            batch.final_observations,
            batch.final_rows,
        )
        log_probs, entropies = log_prob_and_entropy(self.model.codec, seen.params, batch.actions)
        self._clock.lap("learner_rollout")
        log_rhos = log_probs.detach() - batch.log_probs
        targets = self._targets(batch, seen, log_rhos)
        losses = impala_losses(
            log_probs,
            seen.values[:-1],
            entropies,
            targets.vs,
            targets.pg_advantages,
            batch.is_transition,
            policy_loss_coef=0.0 if is_burn_in else config.policy_loss_coef,
            value_loss_coef=config.value_loss_coef,
            entropy_coef=0.0 if is_burn_in else entropy_coef,
            reduction=config.reduction,
        )
        self._clock.lap("loss_computation")
        norms = self._backward(losses, is_burn_in=is_burn_in)
        metrics = read_update(losses, norms, seen, log_rhos, batch.is_transition)
        require_finite(metrics)
        if config.max_grad_norm > 0:
            self._clip(metrics["loss/grad_norm"])
        self.optimizer.step()
        self._clock.lap("backprop")
        if config.reduction == "sum":  # reported per transition, whatever is optimised
            metrics["loss/entropy"] /= max(1.0, metrics["update/transitions"])
        metrics |= {"schedule/learning_rate": rate, "schedule/entropy_coef": entropy_coef}
        return metrics | {f"time/{name}_s": took for name, took in self._clock.laps.items()}

    def _targets(self, batch: FragmentBatch, seen: Unroll, log_rhos: Tensor) -> VTraceReturns:
        """Runs V-trace; no gradient flows into anything it returns."""
        config = self.config
        values = seen.values.detach()
        discounts = config.gamma * (~batch.terminations).to(values.dtype)
        truncations = next_values = None
        if len(batch.final_rows):
            steps, columns = batch.final_rows.unbind(1)
            truncations = torch.zeros_like(batch.terminations)
            truncations[steps, columns] = True
            next_values = torch.zeros_like(discounts)
            next_values[steps, columns] = seen.final_values.detach()
        return vtrace(
            log_rhos,
            discounts,
            clip_rewards(config.reward_scale * batch.rewards, config.reward_clipping),
            values[:-1],
            values[-1],
            rho_clip=config.vtrace_clip_rho_threshold,
            pg_rho_clip=config.vtrace_clip_pg_rho_threshold,
            lambda_=config.vtrace_lambda,
            mask=batch.is_transition,
            truncations=truncations,
            next_values=next_values,
        )

    def _backward(self, losses: Losses, *, is_burn_in: bool) -> tuple[Tensor, Tensor]:
        """Makes the gradients and returns their norms, of the policy's and of the critic's."""
        self.optimizer.zero_grad(set_to_none=True)
        losses.total.backward()  # type: ignore[no-untyped-call]  # torch
        if is_burn_in:
            # With a shared torso, the critic's loss reaches the policy: it has to stand still.
            for parameter in self.model.policy.parameters():
                parameter.grad = None
        return grad_norm(self.model.policy), grad_norm(self.model.critic)

    def _clip(self, norm: float) -> None:
        scale = self.config.max_grad_norm / (norm + 1e-6)
        if scale < 1:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, scale)

    # --- observation statistics -----------------------------------------------------------------

    def _see(self, batch: FragmentBatch) -> None:
        normalizer = self.model.policy.normalizer
        if normalizer is not None:
            # The overlapping row is row 0 of the next fragment: counted there.
            normalizer.update(batch.observations[:-1].flatten(0, 1))

    def _normalizer_state(self) -> dict[str, Tensor]:
        normalizer = self.model.policy.normalizer
        held = {} if normalizer is None else normalizer.state_dict()
        return {name: tensor.clone() for name, tensor in held.items()}

    def _restore_normalizer(self, state: dict[str, Tensor]) -> None:
        if self.model.policy.normalizer is not None:
            self.model.policy.normalizer.load_state_dict(state)


@contextlib.contextmanager
def noise_stream(states: list[Tensor]) -> Iterator[None]:
    """Lends torch's global generator the state in ``states[0]``, and keeps it for the next time."""
    outer = torch.get_rng_state()
    torch.set_rng_state(states[0])
    try:
        yield
    finally:
        states[0] = torch.get_rng_state()
        torch.set_rng_state(outer)


def _check_schedules(config: IMPALAConfig) -> None:
    inner = getattr(config.optim_factory, "lr_scheduler_factory", None)
    if inner is not None and config.lr_scheduler_factory is not None:
        raise ConfigError(
            f"two learning-rate schedules: lr_scheduler_factory is "
            f"{config.lr_scheduler_factory.type!r} and optim_factory has {inner.type!r}; "
            "set one of them to null"
        )


def make_learner(
    model: TorchActorCritic, options: IMPALAConfig, noise: NoiseStream | None = None
) -> Learner:
    """Makes the optimizer of a model and the learner around both."""
    named = [("policy", model.policy), ("critic", model.critic)]
    optimizer = options.optim_factory.create(named, options.lr)
    return Learner(model, optimizer, options, noise)
