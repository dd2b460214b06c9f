"""The SimBa encoder as a torch module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from rlreg.runtime.networks import flat_features

if TYPE_CHECKING:
    from rlreg_iql.components import SimBaEncoder


class SimBaBlock(nn.Module):
    """A residual block: normalise, widen, narrow, add.

    Args:
        size: Width of the residual stream.
        hidden_size: Width inside.
    """

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, size),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Maps ``[B, size]`` to ``[B, size]``."""
        change: Tensor = self.layers(features)
        return features + change


class SimBaNetwork(nn.Module):
    """A linear layer, residual blocks and a final layer normalisation.

    Args:
        config: Widths and number of blocks.
        observation_shape: Shape of one observation; it is flattened.
        action_size: Width of the action features behind the observation, or none.

    Source: Lee et al. 2024 (arXiv:2410.09754), without its running normalisation of observations:
        that
    is what the `standard` observation scaler is for.
    """

    def __init__(
        self,
        config: SimBaEncoder,
        observation_shape: tuple[int, ...],
        action_size: int | None = None,
    ) -> None:
        super().__init__()
        self.output_size = int(config.feature_size)
        self.layers = nn.Sequential(
            nn.Linear(math.prod(observation_shape) + (action_size or 0), self.output_size),
            *(SimBaBlock(self.output_size, config.hidden_size) for _ in range(config.n_blocks)),
            nn.LayerNorm(self.output_size),
        )

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Encodes ``[B, *O]``, and ``[B, A]`` where built for actions, to ``[B, output_size]``."""
        features: Tensor = self.layers(flat_features(observations, actions))
        return features
