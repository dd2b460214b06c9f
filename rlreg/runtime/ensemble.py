"""Many equal networks in one computation.

``stack`` turns E equally built stacks of layers into one whose parameters carry a leading ensemble
dimension, so that 2 or 100 critics cost one batched product a layer instead of a loop. What it
cannot stack (convolutions, batch normalisation, an author's own layers) it declines, and the caller
loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlreg.runtime.networks import GEGLU

_SHARED = (
    nn.ReLU,
    nn.Tanh,
    nn.SiLU,
    nn.GELU,
    nn.ELU,
    nn.Sigmoid,
    nn.Identity,
    GEGLU,
    nn.Dropout,  # draws for every element, so each member has its own mask
)


class EnsembleLinear(nn.Module):
    """E linear layers: ``[E, B, in]``, or ``[B, in]`` shared by all members, to ``[E, B, out]``.

    Args:
        members: The layers, whose parameters are copied.
    """

    def __init__(self, members: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = _stacked([member.weight for member in members])  # [E, out, in]
        self.bias = _stacked([member.bias for member in members])  # [E, out]

    def forward(self, features: Tensor) -> Tensor:
        """Applies each member to its features."""
        if features.ndim == 2:  # one product for all members instead of E copies of the input
            E, out, _ = self.weight.shape
            joined = functional.linear(features, self.weight.flatten(0, 1), self.bias.flatten())
            return joined.view(len(features), E, out).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], features, self.weight.transpose(1, 2))


class EnsembleLayerNorm(nn.Module):
    """E layer normalisations over the last dimension of ``[E, B, n]``."""

    def __init__(self, members: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.normalized_shape, self.eps = members[0].normalized_shape, members[0].eps
        self.weight = _stacked([member.weight for member in members])  # [E, n]
        self.bias = _stacked([member.bias for member in members])  # [E, n]

    def forward(self, features: Tensor) -> Tensor:
        """Normalises, then scales and shifts by each member's parameters."""
        normal = functional.layer_norm(features, list(self.normalized_shape), None, None, self.eps)
        return normal * self.weight[:, None] + self.bias[:, None]


def stack(members: Sequence[nn.Sequential]) -> nn.Sequential | None:
    """Stacks equally built layers; the parameters are copied, the indices of layers kept.

    Args:
        members: One ``Sequential`` for each member, with the same layers.

    Returns:
        A module from ``[B, in]`` to ``[E, B, out]``; ``None`` if a layer cannot be stacked.
    """
    layers: list[nn.Module] = []
    for index, layer in enumerate(members[0]):
        peers = [member[index] for member in members]
        if type(layer) is nn.Linear and layer.bias is not None:
            layers.append(EnsembleLinear(cast("list[nn.Linear]", peers)))
        elif type(layer) is nn.LayerNorm and layer.elementwise_affine:
            layers.append(EnsembleLayerNorm(cast("list[nn.LayerNorm]", peers)))
        elif type(layer) in _SHARED:
            layers.append(layer)
        else:
            return None
    return nn.Sequential(*layers)


def _stacked(parameters: Sequence[Tensor | None]) -> nn.Parameter:
    return nn.Parameter(torch.stack([cast("Tensor", part).detach() for part in parameters]))
