"""One update of IQL, by the rule of the config.

A rule is data: the order of its steps and the few choices in which the published codes differ. The
README has the table. Every step checks its loss and gradients before its optimizer moves, and the
first failure takes the steps before it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rlreg.errors import ConfigError
from rlreg.runtime.batch import Batch
from rlreg.runtime.guard import Undo, check_step
from rlreg.runtime.networks import has_batch_norm
from rlreg.runtime.optimizers import StepExtras
from rlreg_iql.networks import ActionFeatures, LogStdForm, Policy
from rlreg_iql.objectives import Functions, Metrics, Objectives

if TYPE_CHECKING:
    from rlreg_iql.config import IQLConfig

Step = Literal["critics_and_value", "value", "actor", "critics", "targets"]


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


OWNERS: Mapping[Step, str] = {
    "critics_and_value": "critic",
    "value": "value",
    "actor": "actor",
    "critics": "critic",
}
"""Whose optimizer a step moves."""
LOSS_NAMES: Mapping[Step, str] = {
    "critics_and_value": "critic_loss",
    "value": "v_loss",
    "actor": "actor_loss",
    "critics": "q_loss",
}
"""What the loss of a step is called in messages."""


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
        self._functions = Functions(
            networks.policy.score, networks.critics, networks.target_critics, networks.value
        )
        self._objectives = Objectives(config, features, self.rule.action_limit)
        order = [OWNERS[step] for step in self.rule.steps if step in OWNERS]
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
        metrics: Metrics = {}
        with self._undo.guard():
            work = self._objectives.prepare(self._functions, batch)
            for step in self.rule.steps:
                if step == "targets":
                    self._move_targets()
                else:
                    loss, reported = getattr(self._objectives, step)(self._functions, work)
                    self._apply(LOSS_NAMES[step], loss, OWNERS[step])
                    metrics.update(reported)
        metrics["critic_loss"] = metrics["q_loss"] + metrics["v_loss"]
        return metrics

    @torch.no_grad()
    def _move_targets(self) -> None:
        targets: list[Tensor] = [*self._networks.target_critics.parameters()]
        sources: list[Tensor] = [*self._networks.critics.parameters()]
        torch._foreach_lerp_(targets, sources, self._config.tau)

    def _apply(self, name: str, loss: Tensor, owner: str) -> None:
        """Follows the gradients of a loss, if all of them are finite."""
        optimizer = self._optimizers[owner]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        check_step(name, loss.detach(), optimizer)
        if optimizer is self._last:
            self._undo.commit()
        optimizer.step()
