"""What IQL minimises, as functions of whatever computes its networks.

The plain learner hands in modules, the compiled one functions of parameters. So both minimise the
same thing by construction and report the same metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlreg.runtime.batch import Batch
from rlreg_iql import losses
from rlreg_iql.networks import LOG_STD_MIN, ActionFeatures

if TYPE_CHECKING:
    from rlreg_iql.config import IQLConfig

_NEAR_FLOOR = 0.1

Metrics = dict[str, Tensor]
Result = tuple[Tensor, Metrics]
"""A loss, and what is reported about it without gradient."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The networks of IQL as functions.

    Attributes:
        score: From observations and actions to log-probabilities ``[B]`` and log-deviations.
        critics: From observations and action features to ``[E, B]``.
        target_critics: The same.
        value: From observations to ``[B]``.
    """

    score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
    critics: Callable[[Tensor, Tensor], Tensor]
    target_critics: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Work:
    """What the steps of one update share.

    Attributes:
        batch: The transitions.
        actions: What the policy is scored on, ``[B, A]`` or categories ``[B, parts]``.
        action_features: What the critics read, ``[B, F]``.
        target_values: Least of the target critics, ``[B]``, before this update.
        td_targets: Of the critics, ``[B]``, where somebody has computed them already.
    """

    batch: Batch
    actions: Tensor
    action_features: Tensor
    target_values: Tensor
    td_targets: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What losses read of a config.

    Attributes:
        gamma: Discount of a step.
        expectile: Of the value function.
        weight_temp: Factor of an advantage in its weight.
        max_weight: Largest weight.
    """

    gamma: float
    expectile: float
    weight_temp: float
    max_weight: float


class Objectives:
    """The losses of one update.

    Args:
        config: Numbers of the update.
        features: How actions enter the critics.
        action_limit: Actions of the data are clipped to this absolute value first; none if
            ``None``.
    """

    def __init__(
        self, config: IQLConfig, features: ActionFeatures, action_limit: float | None
    ) -> None:
        self._numbers = Numbers(
            config.gamma, config.expectile, config.weight_temp, config.max_weight
        )
        self._features = features
        self._action_limit = action_limit

    def identity(self) -> str:
        """Names all numbers in it."""
        return f"{self._numbers} {self._action_limit} {self._features.is_discrete}"

    def prepare(self, networks: Functions, batch: Batch) -> Work:
        """Computes what all steps of an update share."""
        scored, features = self.actions(batch)
        targets = self.target_values(networks, batch.observations, features)
        return Work(batch, scored, features, targets)

    def actions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns what the policy is scored on and what the critics read."""
        actions = batch.actions
        if self._features.is_discrete:
            scored = self._features.categories(actions)
        elif self._action_limit is not None:
            actions = scored = actions.clamp(-self._action_limit, self._action_limit)
        else:
            scored = actions
        return scored, self._features.encode(actions, batch.rewards.dtype)

    @staticmethod
    def target_values(networks: Functions, observations: Tensor, features: Tensor) -> Tensor:
        """Returns the least of the target critics, ``[B]``."""
        with torch.no_grad():
            return networks.target_critics(observations, features).amin(dim=0)

    def td_targets(self, networks: Functions, batch: Batch) -> Tensor:
        """Returns what the critics should say, ``[B]``."""
        with torch.no_grad():
            following = networks.value(_bootstrapped_observations(batch))
            return losses.td_targets(
                batch.rewards, batch.terminations, batch.intervals, following, self._numbers.gamma
            )

    def critics_and_value(self, networks: Functions, work: Work) -> Result:
        """The sum of the next two, from the value before the update."""
        q_loss, q_metrics = self.critics(networks, work)
        v_loss, v_metrics = self.value(networks, work)
        return q_loss + v_loss, {**q_metrics, **v_metrics}

    def critics(self, networks: Functions, work: Work) -> Result:
        """Equation 6."""
        targets = work.td_targets
        if targets is None:
            targets = self.td_targets(networks, work.batch)
        values = networks.critics(work.batch.observations, work.action_features)  # [E, B]
        loss = losses.critic_loss(values, targets).mean(dim=1).sum()
        return loss, {"q_loss": loss.detach(), "diagnostics/q_mean": values.detach().mean()}

    def value(self, networks: Functions, work: Work) -> Result:
        """Equation 5."""
        values = networks.value(work.batch.observations)  # [B]
        differences = work.target_values - values
        loss = losses.expectile_loss(differences, self._numbers.expectile).mean()
        return loss, {"v_loss": loss.detach(), "diagnostics/v_mean": values.detach().mean()}

    def actor(self, networks: Functions, work: Work) -> Result:
        """Equation 7."""
        observations = work.batch.observations
        with torch.no_grad():
            advantages = work.target_values - networks.value(observations)  # [B]
            weights = losses.advantage_weights(
                advantages, self._numbers.weight_temp, self._numbers.max_weight
            )
        scores, log_stds = networks.score(observations, work.actions)
        loss = losses.policy_loss(scores, weights).mean()
        is_capped = weights >= self._numbers.max_weight
        metrics = {
            "actor_loss": loss.detach(),
            "diagnostics/advantage_mean": advantages.mean(),
            "diagnostics/weight_at_max": is_capped.to(weights.dtype).mean(),
        }
        if log_stds is not None:
            is_low = log_stds.detach() <= LOG_STD_MIN + _NEAR_FLOOR
            metrics["diagnostics/log_std_at_floor"] = is_low.to(weights.dtype).mean()
        return loss, metrics


def _bootstrapped_observations(batch: Batch) -> Tensor:
    """Returns ``[B, *O]``: next observations, at terminations the observations themselves.

    Nothing is bootstrapped from a terminated state, so its value is not read; but an encoder that
    normalises over the batch would let it into the values of all other rows, NaN included.
    """
    following = batch.next_observations
    is_over = (batch.terminations > 0).view(-1, *[1] * (following.ndim - 1))
    return torch.where(is_over, batch.observations, following)
