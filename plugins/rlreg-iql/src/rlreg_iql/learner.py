"""One update of IQL, by the rule of the config.

A rule is data: the order of its steps and the few choices in which the published codes differ. The
README has the table. Every step checks its loss and gradients before its optimizer moves, and the
first failure takes the steps before it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rlreg.errors import ConfigError
from rlreg.runtime.batch import Batch
from rlreg.runtime.guard import Undo, check_step
from rlreg.runtime.networks import has_batch_norm
from rlreg.runtime.optimizers import StepExtras
from rlreg_iql import losses
from rlreg_iql.networks import LOG_STD_MIN, ActionFeatures, LogStdForm, Policy

if TYPE_CHECKING:
    from rlreg_iql.config import IQLConfig

Step = Literal["critics_and_value", "value", "actor", "critics", "targets"]

_NEAR_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """One published form of IQL.

    Attributes:
        steps: What is done, in order. Each step reads the networks as the earlier ones left them.
        log_std_form: How the policy's own deviation is kept in bounds.
        action_limit: Actions of the data are clipped to this absolute value first; none if
            ``None``.
    """

    steps: tuple[Step, ...]
    log_std_form: LogStdForm
    action_limit: float | None = None

    @property
    def has_value_optimizer(self) -> bool:
        """Whether the value function has an optimizer of its own."""
        return "value" in self.steps


RULES: Mapping[str, UpdateRule] = {
    # d3rlpy 2.8: one optimizer for critics and value, so V(s') is the value before this update.
    "d3rlpy": UpdateRule(("critics_and_value", "actor", "targets"), "sigmoid"),
    # The authors' code: V first, so the critics' targets and the weights see the new value.
    "paper": UpdateRule(("value", "actor", "critics", "targets"), "clip", 1.0 - 1e-5),
}


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks of IQL."""

    policy: Policy
    critics: nn.Module
    target_critics: nn.Module
    value: nn.Module


@dataclass(slots=True)
class _Work:
    """What the steps of one update share.

    Attributes:
        batch: The transitions.
        actions: What the policy is scored on, ``[B, A]`` or categories ``[B, parts]``.
        action_features: What the critics read, ``[B, F]``.
        target_values: Least of the target critics, ``[B]``, before this update.
        metrics: What the update returns.
    """

    batch: Batch
    actions: Tensor
    action_features: Tensor
    target_values: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class IQLLearner:
    """Does updates on networks and optimizers that somebody else holds.

    Args:
        config: Numbers of the update.
        networks: Changed by updates.
        optimizers: ``actor`` and ``critic``, and ``value`` where the rule has one.
        features: How actions enter the critics.
    """

    def __init__(
        self,
        config: IQLConfig,
        networks: Networks,
        optimizers: Mapping[str, torch.optim.Optimizer],
        features: ActionFeatures,
    ) -> None:
        self.rule = RULES[config.update_rule]
        self._config = config
        self._networks = networks
        self._optimizers = optimizers
        self._features = features
        self._steps: dict[Step, Callable[[_Work], None]] = {
            "critics_and_value": self._update_critics_and_value,
            "value": self._update_value,
            "actor": self._update_actor,
            "critics": self._update_critics,
            "targets": self._update_targets,
        }
        owners: dict[Step, str] = {
            "critics_and_value": "critic",
            "value": "value",
            "actor": "actor",
            "critics": "critic",
        }
        order = [owners[step] for step in self.rule.steps if step in owners]
        self._last = optimizers[order[-1]]
        modules = (networks.policy, networks.critics, networks.target_critics, networks.value)
        # Nothing is checked after the last optimizer's step, so it is never taken back.
        self._undo = Undo([optimizers[name] for name in order[:-1]], modules)
        self._has_batch_norm = any(has_batch_norm(module) for module in modules)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Does one update, whole or not at all.

        Args:
            batch: Scaled, on the device of the networks.

        Returns:
            Losses and diagnostics, scalars on the device.

        Raises:
            NonFiniteError: If a loss or gradient is not finite; nothing has changed then.
            ConfigError: If batch normalisation meets a batch of one row, or a schedule does not
                know the length of the run.
        """
        if self._has_batch_norm and batch.size < 2:
            raise ConfigError("batch normalisation needs a batch of at least 2 transitions")
        for optimizer in self._optimizers.values():
            if isinstance(optimizer, StepExtras):
                optimizer.prepare()  # raises here, before anything has changed
        with self._undo.guard():
            work = self._prepare(batch)
            for step in self.rule.steps:
                self._steps[step](work)
        return work.metrics

    def _prepare(self, batch: Batch) -> _Work:
        actions = batch.actions
        if self._features.is_discrete:
            scored = self._features.categories(actions)
        elif self.rule.action_limit is not None:
            actions = scored = actions.clamp(-self.rule.action_limit, self.rule.action_limit)
        else:
            scored = actions
        features = self._features.encode(actions, batch.rewards.dtype)
        with torch.no_grad():
            targets = self._networks.target_critics(batch.observations, features)  # [E, B]
        return _Work(batch, scored, features, targets.amin(dim=0))

    # --- steps ----------------------------------------------------------------------------------

    def _update_critics_and_value(self, work: _Work) -> None:
        q_loss = self._critic_loss(work)
        v_loss = self._value_loss(work)
        self._apply("critic_loss", q_loss + v_loss, "critic")
        self._report_critic_loss(work)

    def _update_value(self, work: _Work) -> None:
        self._apply("v_loss", self._value_loss(work), "value")

    def _update_critics(self, work: _Work) -> None:
        self._apply("q_loss", self._critic_loss(work), "critic")
        self._report_critic_loss(work)

    def _update_actor(self, work: _Work) -> None:
        observations = work.batch.observations
        with torch.no_grad():
            advantages = work.target_values - self._networks.value(observations)  # [B]
            weights = losses.advantage_weights(
                advantages, self._config.weight_temp, self._config.max_weight
            )
        scores, log_stds = self._networks.policy.score(observations, work.actions)
        loss = losses.policy_loss(scores, weights).mean()
        self._apply("actor_loss", loss, "actor")
        work.metrics["actor_loss"] = loss.detach()
        work.metrics["diagnostics/advantage_mean"] = advantages.mean()
        is_capped = weights >= self._config.max_weight
        work.metrics["diagnostics/weight_at_max"] = is_capped.to(weights.dtype).mean()
        if log_stds is not None:
            is_low = log_stds.detach() <= LOG_STD_MIN + _NEAR_FLOOR
            work.metrics["diagnostics/log_std_at_floor"] = is_low.to(weights.dtype).mean()

    @torch.no_grad()
    def _update_targets(self, _: _Work) -> None:
        targets = self._networks.target_critics.parameters()
        for target, source in zip(targets, self._networks.critics.parameters(), strict=True):
            target.lerp_(source, self._config.tau)

    # --- losses ---------------------------------------------------------------------------------

    def _critic_loss(self, work: _Work) -> Tensor:
        batch = work.batch
        with torch.no_grad():
            targets = losses.td_targets(
                batch.rewards,
                batch.terminations,
                batch.intervals,
                self._networks.value(batch.next_observations),
                self._config.gamma,
            )  # [B]
        values = self._networks.critics(batch.observations, work.action_features)  # [E, B]
        loss = losses.critic_loss(values, targets).mean(dim=1).sum()
        work.metrics["q_loss"] = loss.detach()
        work.metrics["diagnostics/q_mean"] = values.detach().mean()
        return loss

    def _value_loss(self, work: _Work) -> Tensor:
        values = self._networks.value(work.batch.observations)  # [B]
        differences = work.target_values - values
        loss = losses.expectile_loss(differences, self._config.expectile).mean()
        work.metrics["v_loss"] = loss.detach()
        work.metrics["diagnostics/v_mean"] = values.detach().mean()
        return loss

    @staticmethod
    def _report_critic_loss(work: _Work) -> None:
        work.metrics["critic_loss"] = work.metrics["q_loss"] + work.metrics["v_loss"]

    def _apply(self, name: str, loss: Tensor, owner: str) -> None:
        """Follows the gradients of a loss, if all of them are finite."""
        optimizer = self._optimizers[owner]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        check_step(name, loss.detach(), optimizer)
        if optimizer is self._last:
            self._undo.commit()
        optimizer.step()
