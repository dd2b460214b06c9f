"""Policies, critics and the value function of IQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlreg.config import EncoderFactory
from rlreg.errors import ConfigError
from rlreg.runtime.ensemble import EnsembleLinear, stack
from rlreg.runtime.networks import (
    Initialization,
    VectorEncoderNetwork,
    flat_features,
    initialize,
)
from rlreg_iql.losses import categorical_log_prob, negative_squared_distance, normal_log_prob

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Spaces

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LogStdForm = Literal["sigmoid", "clip"]


def output_size(encoder: nn.Module, factory: EncoderFactory) -> int:
    """Returns the width of an encoder's features.

    Raises:
        ConfigError: If a plugin's encoder does not say it.
    """
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int) or isinstance(size, bool):
        raise ConfigError(
            f"encoder {factory.type!r}: its module needs an int attribute output_size, has {size!r}"
        )
    return size


class ActionFeatures:
    """How actions enter a critic: as they are, or one-hot for categories.

    Args:
        spaces: What the learnable is built for.
    """

    def __init__(self, spaces: Spaces) -> None:
        plan = spaces.action_plan
        self.is_discrete = plan.is_discrete
        self.counts, self.starts = plan.category_counts, plan.category_starts
        self.shape = plan.shape
        self.size = sum(self.counts) if self.is_discrete else plan.size

    def categories(self, actions: Tensor) -> Tensor:
        """Counts categories from 0: ``[B]`` or ``[B, parts]`` to ``[B, parts]``."""
        columns = actions.reshape(len(actions), len(self.counts))
        return columns - torch.tensor(self.starts, device=actions.device)

    def actions(self, categories: Tensor) -> Tensor:
        """Undoes :meth:`categories`."""
        own = categories + torch.tensor(self.starts, device=categories.device)
        return own.reshape(own.shape[0], *self.shape)  # len() would be a constant in an export

    def encode(self, actions: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns ``[B, size]`` features of a batch of actions."""
        if not self.is_discrete:
            return actions
        parts = self.categories(actions).unbind(dim=1)
        hot = [
            functional.one_hot(part, count) for part, count in zip(parts, self.counts, strict=True)
        ]
        return torch.cat(hot, dim=1).to(dtype)


# --- policies -----------------------------------------------------------------------------------


class Policy(nn.Module):
    """Base of the policies."""

    def score(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Says how well actions of the data fit the policy.

        Args:
            observations: ``[B, *O]``.
            actions: ``[B, A]``, or int64 categories from 0, ``[B, parts]``.

        Returns:
            Log-probabilities ``[B]`` (or what stands for them), and the log-deviations if any.
        """
        raise NotImplementedError

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Chooses actions: ``[B, A]`` in [-1, 1], or categories from 0, ``[B, parts]``."""
        raise NotImplementedError

    def distribution(self, observations: Tensor) -> dict[str, Tensor]:
        """Returns the parameters of what actions are drawn from."""
        raise NotImplementedError("a deterministic policy has no distribution; export its action")


class PolicyScore(nn.Module):
    """Makes the score of a policy what the call of a module is."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns what :meth:`Policy.score` does."""
        return self.policy.score(observations, actions)


class NormalPolicy(Policy):
    """A diagonal Gaussian around ``tanh`` of the network; the Gaussian itself is not squashed.

    Args:
        encoder: From observations to features.
        size: Width of the features.
        action_size: A.
        log_std_form: How a deviation that does not depend on the observation is kept in [-5, 2]:
            through a sigmoid (d3rlpy; starts at -1.5) or clipped (the paper's code; starts at 0).
        is_state_dependent: Whether the network gives the log-deviation; it is clipped then.
    """

    def __init__(
        self,
        encoder: nn.Module,
        size: int,
        action_size: int,
        *,
        log_std_form: LogStdForm,
        is_state_dependent: bool,
    ) -> None:
        super().__init__()
        self.log_std_form = log_std_form
        self.encoder = encoder
        self.mean = nn.Linear(size, action_size)
        self.log_std: nn.Linear | nn.Parameter
        if is_state_dependent:
            self.log_std = nn.Linear(size, action_size)
        else:
            self.log_std = nn.Parameter(torch.zeros(1, action_size))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means ``[B, A]`` in (-1, 1) and log-deviations ``[B, A]`` or ``[1, A]``."""
        features = self.encoder(observations)
        means = torch.tanh(self.mean(features))
        if isinstance(self.log_std, nn.Linear):
            return means, self.log_std(features).clamp(LOG_STD_MIN, LOG_STD_MAX)
        if self.log_std_form == "sigmoid":
            share = torch.sigmoid(self.log_std)
            return means, LOG_STD_MIN + share * (LOG_STD_MAX - LOG_STD_MIN)
        return means, self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def score(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns log-densities ``[B]`` and log-deviations."""
        means, log_stds = self(observations)
        return normal_log_prob(actions, means, log_stds), log_stds

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns the mean, or a sample clipped to [-1, 1]."""
        means: Tensor
        log_stds: Tensor
        means, log_stds = self(observations)
        if deterministic:
            return means
        # Drawn on the CPU, whose generator the base lends us: equal on every device.
        noise = torch.randn(means.shape, dtype=means.dtype).to(means.device)
        return (means + noise * log_stds.exp()).clamp(-1.0, 1.0)

    def distribution(self, observations: Tensor) -> dict[str, Tensor]:
        """Returns ``mean`` and ``std``, ``[B, A]``, before samples are clipped."""
        means, log_stds = self(observations)
        return {"mean": means, "std": log_stds.exp().expand_as(means)}


class DeterministicPolicy(Policy):
    """A point: ``tanh`` of the network.

    Args:
        encoder: From observations to features.
        size: Width of the features.
        action_size: A.

    Source: CORL.
    """

    def __init__(self, encoder: nn.Module, size: int, action_size: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.mean = nn.Linear(size, action_size)

    def forward(self, observations: Tensor) -> Tensor:
        """Returns actions ``[B, A]`` in (-1, 1)."""
        return torch.tanh(self.mean(self.encoder(observations)))

    def score(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns negative squared distances ``[B]``."""
        return negative_squared_distance(actions, self(observations)), None

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns the point; there is nothing to sample."""
        actions: Tensor = self(observations)
        return actions


class CategoricalPolicy(Policy):
    """Independent categories, one softmax for each part of the action.

    Args:
        encoder: From observations to features.
        size: Width of the features.
        category_counts: Categories of each part.
    """

    def __init__(self, encoder: nn.Module, size: int, category_counts: Sequence[int]) -> None:
        super().__init__()
        self.category_counts = tuple(category_counts)
        self.encoder = encoder
        self.logits = nn.Linear(size, sum(self.category_counts))

    def forward(self, observations: Tensor) -> Tensor:
        """Returns logits ``[B, sum(K)]``."""
        logits: Tensor = self.logits(self.encoder(observations))
        return logits

    def score(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns log-probabilities ``[B]``."""
        return categorical_log_prob(self(observations), actions, self.category_counts), None

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns the likeliest categories or a sample, ``[B, parts]``."""
        chosen = []
        for logits in torch.split(self(observations), list(self.category_counts), dim=1):
            if deterministic:
                chosen.append(logits.argmax(dim=1))
            else:
                shares = torch.softmax(logits.cpu(), dim=1)  # the CPU generator is the lent one
                chosen.append(torch.multinomial(shares, 1)[:, 0].to(logits.device))
        return torch.stack(chosen, dim=1)

    def distribution(self, observations: Tensor) -> dict[str, Tensor]:
        """Returns ``logits``, or ``logits_0``, ``logits_1``, ... of several parts."""
        parts = torch.split(self(observations), list(self.category_counts), dim=1)
        if len(parts) == 1:
            return {"logits": parts[0]}
        return {f"logits_{index}": part for index, part in enumerate(parts)}


def make_policy(
    factory: EncoderFactory,
    spaces: Spaces,
    *,
    actor_kind: str,
    log_std_form: LogStdForm,
    initialization: Initialization,
) -> Policy:
    """Builds the policy that fits the action space."""
    encoder = factory.create(spaces.observation_shape)
    size = output_size(encoder, factory)
    action_size = spaces.action_plan.size
    policy: Policy
    if spaces.is_discrete:
        policy = CategoricalPolicy(encoder, size, spaces.action_plan.category_counts)
    elif actor_kind == "deterministic":
        policy = DeterministicPolicy(encoder, size, action_size)
    else:
        policy = NormalPolicy(
            encoder,
            size,
            action_size,
            log_std_form=log_std_form,
            is_state_dependent=actor_kind == "normal_state_dependent",
        )
    initialize(policy, initialization)
    head = getattr(policy, "log_std", None)
    if isinstance(head, nn.Linear) and initialization == "orthogonal":
        nn.init.orthogonal_(head.weight, 1e-3)  # the paper's code starts near one deviation
    return policy


# --- values -------------------------------------------------------------------------------------


class ValueFunction(nn.Module):
    """The value of an observation.

    Args:
        encoder: From observations to features.
        size: Width of the features.
    """

    def __init__(self, encoder: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(size, 1)

    def forward(self, observations: Tensor) -> Tensor:
        """Returns ``[B]``."""
        values: Tensor = self.head(self.encoder(observations))
        return values.squeeze(1)


class Critic(nn.Module):
    """The value of an observation and an action.

    Args:
        encoder: From both to features.
        size: Width of the features.
    """

    def __init__(self, encoder: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(size, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns ``[B]``."""
        values: Tensor = self.head(self.encoder(observations, actions))
        return values.squeeze(1)


class CriticList(nn.Module):
    """Critics one after the other: for encoders that cannot be stacked.

    Args:
        members: The critics.
    """

    def __init__(self, members: Sequence[Critic]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns ``[E, B]``."""
        return torch.stack([member(observations, actions) for member in self.members])


class StackedCritics(nn.Module):
    """Critics with fully connected encoders, in one computation.

    Args:
        encoder: The stacked layers of all encoders.
        head: The stacked heads.
    """

    def __init__(self, encoder: nn.Module, head: EnsembleLinear) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns ``[E, B]``."""
        values: Tensor = self.head(self.encoder(flat_features(observations, actions)))
        return values.squeeze(2)


def join_critics(members: Sequence[Critic]) -> StackedCritics | CriticList:
    """Stacks critics where their layers allow it."""
    encoders = [member.encoder for member in members]
    # A subclass may compute something else around its layers.
    plain = [part.layers for part in encoders if type(part) is VectorEncoderNetwork]
    stacked = stack(plain) if len(plain) == len(members) else None
    if stacked is None:
        return CriticList(members)
    return StackedCritics(stacked, EnsembleLinear([member.head for member in members]))


def make_critics(
    factory: EncoderFactory,
    spaces: Spaces,
    *,
    num_critics: int,
    initialization: Initialization,
) -> StackedCritics | CriticList:
    """Builds critics, each initialised by itself in the order of a loop."""
    action_size = ActionFeatures(spaces).size
    members = []
    for _ in range(num_critics):
        encoder = factory.create_with_action(spaces.observation_shape, action_size)
        critic = Critic(encoder, output_size(encoder, factory))
        initialize(critic, initialization)
        members.append(critic)
    return join_critics(members)


def make_value_function(
    factory: EncoderFactory, spaces: Spaces, *, initialization: Initialization
) -> ValueFunction:
    """Builds the value function."""
    encoder = factory.create(spaces.observation_shape)
    value = ValueFunction(encoder, output_size(encoder, factory))
    initialize(value, initialization)
    return value
