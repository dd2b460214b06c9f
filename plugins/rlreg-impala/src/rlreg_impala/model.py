"""``TorchActorCritic``: the policy that acts and learns, and the critic that only learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlreg.errors import ConfigError, ShapeError
from rlreg.runtime.networks import initialize
from rlreg.runtime.spaces import FlatteningPlan, Space

from .actions import ActionCodec
from .networks import Memory, PolicyHead, PolicyNetwork, RunningNormalizer
from .policy import PolicySpec

if TYPE_CHECKING:
    from .config import IMPALAConfig


class Unroll(NamedTuple):
    """A fragment seen by the model.

    Attributes:
        params: Parameters of the action distributions, ``[T, B, P]``.
        values: ``[T + 1, B]``; the last row is the bootstrap.
        final_values: Values of the last observations that have no row, ``[F]``.
    """

    params: Tensor
    values: Tensor
    final_values: Tensor


class Critic(nn.Module):
    """Values of observations, from a torso of its own or from the policy's features.

    Args:
        encoder: The critic's own torso; ``None`` takes the policy's features.
        policy_features: Width of the policy's features, before its head.
        has_memory: Whether the policy has a memory: a critic with its own torso sees both.
    """

    def __init__(
        self, encoder: nn.Module | None, policy_features: int, *, has_memory: bool
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.sees_policy = encoder is None or has_memory
        own = 0 if encoder is None else output_size(encoder)
        self.linear = nn.Linear(own + (policy_features if self.sees_policy else 0), 1)
        nn.init.orthogonal_(self.linear.weight, 1.0)
        nn.init.zeros_(self.linear.bias)

    def forward(self, observations: Tensor, policy_features: Tensor) -> Tensor:
        """Values ``[M]`` of normalised observations ``[M, *O]`` and features ``[M, F]``."""
        parts = [policy_features] if self.sees_policy else []
        if self.encoder is not None:
            parts.insert(0, self.encoder(observations))
        values: Tensor = self.linear(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
        return values.squeeze(-1)


class TorchActorCritic(nn.Module):
    """Policy and critic for one pair of spaces.

    Args:
        observation_space: Of one environment; Box, image, Discrete, or a Dict or Tuple of these.
        action_space: Of one environment; Discrete, MultiDiscrete, Box, or a Dict or Tuple of these.
        policy_encoder: Module from flat observations ``[M, *O]`` to features, with ``output_size``.
        critic_encoder: The same for the critic; ``None`` shares the policy's features.
        memory: ``lstm`` or ``gru`` between the policy's features and its head.
        memory_size: Width of the memory.
        normalize_observations: Whether observations are normalised by running statistics.
        initial_log_std: Log deviation that continuous actions start with.

    Raises:
        EnvironmentSpecError: If a space cannot be used; the message names the leaf.
        ConfigError: If an encoder does not fit the observations.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        policy_encoder: nn.Module,
        critic_encoder: nn.Module | None = None,
        *,
        memory: Literal["none", "lstm", "gru"] = "none",
        memory_size: int = 256,
        normalize_observations: bool = False,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.plan = FlatteningPlan.of(observation_space)
        self.codec = ActionCodec.of(action_space)
        width = output_size(policy_encoder)
        core = None if memory == "none" else Memory(memory, width, memory_size)
        width = core.output_size if core is not None else width
        normalizer = None
        if normalize_observations:
            normalizer = RunningNormalizer(self.plan.shape, is_image=self.plan.is_image)
        head = PolicyHead(self.codec, width, initial_log_std)
        self.policy = PolicyNetwork(policy_encoder, head, normalizer=normalizer, memory=core)
        self.critic = Critic(critic_encoder, width, has_memory=core is not None)

    @classmethod
    def of(
        cls, config: IMPALAConfig, observation_space: Space, action_space: Space
    ) -> TorchActorCritic:
        """Builds the model that a config describes; draws weights from torch's generator."""
        shape = FlatteningPlan.of(observation_space).shape
        factories = config.actor_encoder_factory, config.critic_encoder_factory
        encoders = [
            None if factory is None else initialize(factory.create(shape), config.initialization)
            for factory in factories
        ]
        assert encoders[0] is not None
        return cls(
            observation_space,
            action_space,
            encoders[0],
            encoders[1],
            memory=config.core,
            memory_size=config.core_size,
            normalize_observations=config.observation_normalization == "running",
            initial_log_std=config.initial_log_std,
        )

    @property
    def state_size(self) -> int:
        """``S``: columns of the memory's state; 0 without memory."""
        return self.policy.state_size

    def policy_spec(self) -> PolicySpec:
        """Copies the acting half for the actors of an engine."""
        return PolicySpec.of(self.policy, self.observation_space, self.action_space)

    def step(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Takes one step: ``[N, *O]``, ``[N, S]`` to params ``[N, P]``, values ``[N]``, state."""
        policy = self.policy
        inputs = policy.normalize(observations)
        features = policy.encoder(inputs)
        if policy.memory is not None:
            features, state = policy.memory(features, state)
        return policy.head(features), self.critic(inputs, features), state

    def unroll(
        self,
        observations: Tensor,
        starts: Tensor,
        state: Tensor,
        final_observations: Tensor | None = None,
        final_rows: Tensor | None = None,
    ) -> Unroll:
        """Runs the model over a fragment, as the actors ran it step by step.

        Args:
            observations: Flat, ``[T + 1, B, *O]``.
            starts: ``[T + 1, B]`` bool; the memory is zeroed before these rows.
            state: Memory before row 0, ``[B, S]``.
            final_observations: Last observations that have no row of their own, ``[F, *O]``.
            final_rows: Row and column of the step that led to each, ``[F, 2]``.
        """
        steps, columns = observations.shape[:2]
        if starts.shape != (steps, columns) or state.shape != (columns, self.state_size):
            raise ShapeError(
                f"starts, state: expected [{steps}, {columns}] and [{columns}, {self.state_size}], "
                f"got {list(starts.shape)} and {list(state.shape)}"
            )
        inputs = self.policy.normalize(observations.flatten(0, 1))  # [(T + 1) B, *O]
        features = self.policy.encoder(inputs)
        states: list[Tensor] = []
        if self.policy.memory is not None:
            features, states = self._remember(features.view(steps, columns, -1), starts, state)
        values = self.critic(inputs, features).view(steps, columns)
        params = self.policy.head(features[: (steps - 1) * columns])
        final_values = values.new_zeros(0)
        if final_observations is not None and final_rows is not None and len(final_rows):
            final_values = self._final_values(final_observations, final_rows, states)
        return Unroll(params.view(steps - 1, columns, -1), values, final_values)

    def _remember(
        self, features: Tensor, starts: Tensor, state: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs the memory over ``[T + 1, B, F]``; gives its outputs, flat, and all its states."""
        assert self.policy.memory is not None
        outputs, states = [], []
        keep = (~starts).to(features.dtype).unsqueeze(-1)  # [T + 1, B, 1]
        for row, kept in zip(features, keep, strict=True):
            output, state = self.policy.memory(row, state * kept)
            outputs.append(output)
            states.append(state)
        return torch.cat(outputs), states

    def _final_values(
        self, final_observations: Tensor, final_rows: Tensor, states: list[Tensor]
    ) -> Tensor:
        """Values of observations after which the environment was reset at once, ``[F]``."""
        inputs = self.policy.normalize(final_observations)
        features = self.policy.encoder(inputs)
        if self.policy.memory is not None:
            # The state that the step left behind, before the reset zeroed it.
            rows = final_rows.tolist()
            before = torch.stack([states[t][n] for t, n in rows])
            features, _ = self.policy.memory(features, before)
        values: Tensor = self.critic(inputs, features)
        return values


def output_size(encoder: nn.Module) -> int:
    """Reads the width of an encoder's features.

    Raises:
        ConfigError: If the module does not say it.
    """
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        raise ConfigError(f"{type(encoder).__name__} has no int `output_size`, which encoders need")
    return size
