"""The policy network, as actors and learner share it: statistics, encoder, memory, head."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .actions import LOG_STD_RANGE, ActionCodec


class RunningNormalizer(nn.Module):
    """Subtracts the mean of all observations seen and divides by their deviation.

    Each component of a vector has its own; an image has one of all its pixels, because a pixel that
    hardly ever changes would drown the others. Only the learner updates the statistics; they travel
    to the actors as buffers.

    Args:
        shape: Shape of one observation ``O``.
        clip: Largest absolute value of a normalised component.
        is_image: Whether observations are images, whatever their axes.
    """

    def __init__(
        self, shape: tuple[int, ...], clip: float = 10.0, *, is_image: bool = False
    ) -> None:
        super().__init__()
        self.clip = clip
        self._is_image = is_image
        own = () if is_image else shape
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(own))
        self.register_buffer("variance", torch.ones(own))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, observations: Tensor) -> None:
        """Takes more observations ``[M, *O]`` into the statistics (Chan et al. 1979)."""
        rows = observations.float().flatten() if self._is_image else observations
        added = float(len(rows))
        mean = rows.mean(0)
        variance = rows.var(0, correction=0)
        total = self.count + added
        share = added / total
        delta = mean - self.mean
        self.variance.lerp_(variance, share).add_(delta**2 * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)

    def forward(self, observations: Tensor) -> Tensor:
        """Normalises ``[..., *O]``."""
        rows = observations.float() if self._is_image else observations
        scaled = (rows - self.mean) * torch.rsqrt(self.variance + 1e-8)
        return scaled.clamp(-self.clip, self.clip)


class Memory(nn.Module):
    """An LSTM or GRU whose state is one row ``[S]``, so that it travels like any other array."""

    def __init__(self, kind: Literal["lstm", "gru"], input_size: int, size: int) -> None:
        super().__init__()
        self.output_size = size
        self.state_size = 2 * size if kind == "lstm" else size
        cell = nn.LSTMCell if kind == "lstm" else nn.GRUCell
        self.cell = cell(input_size, size)

    def forward(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one step: features ``[N, F]``, state ``[N, S]`` to output ``[N, H]`` and state."""
        if isinstance(self.cell, nn.LSTMCell):
            before, kept = state.chunk(2, dim=-1)
            hidden, cell = self.cell(features, (before, kept))
            return hidden, torch.cat([hidden, cell], dim=-1)
        hidden = self.cell(features, state)
        return hidden, hidden


class PolicyHead(nn.Module):
    """Features ``[..., F]`` to the parameters ``[..., P]`` of an action distribution.

    Logits and means are linear in the features; log deviations are parameters of their own, one for
    all observations. The weights start small, so that the first policy is nearly uniform.

    Means of bounded dimensions go through tanh: beyond the bounds every action is clipped to the
    same one, so that no reward ever calls a mean back that has left them.
    """

    def __init__(self, codec: ActionCodec, input_size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.layout = [(part.size, part.is_categorical) for part in codec.parts]
        self.linear = nn.Linear(input_size, sum(size for size, _ in self.layout))
        nn.init.orthogonal_(self.linear.weight, 0.01)
        nn.init.zeros_(self.linear.bias)
        is_bounded = torch.tensor(codec.bounded_means())
        self.is_bounded: Tensor
        self.register_buffer("is_bounded", is_bounded, persistent=False)
        gaussians = sum(part.size for part in codec.parts if not part.is_categorical)
        log_std = torch.full((gaussians,), initial_log_std)
        self.log_std: Tensor
        if gaussians:
            self.log_std = nn.Parameter(log_std)
        else:  # a parameter without gradient would be an oddity in every optimizer
            self.register_buffer("log_std", log_std, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Maps features to parameters, in the layout of :class:`ActionCodec`."""
        outputs: Tensor = self.linear(features)
        if not len(self.log_std):
            return outputs
        outputs = torch.where(self.is_bounded, torch.tanh(outputs), outputs)
        log_std = self.log_std.clamp(*LOG_STD_RANGE)
        blocks, start = [], 0
        sizes = [size for size, _ in self.layout]
        for own, (size, is_categorical) in zip(
            torch.split_with_sizes(outputs, sizes, dim=-1), self.layout, strict=True
        ):
            blocks.append(own)
            if not is_categorical:
                blocks.append(log_std[start : start + size].expand_as(own))
                start += size
        return torch.cat(blocks, dim=-1)


class PolicyNetwork(nn.Module):
    """Everything between a flat observation and the parameters of the action distribution.

    Args:
        encoder: Module with ``output_size``, from ``[M, *O]`` to ``[M, F]``.
        head: From features to parameters.
        normalizer: Applied to observations first.
        memory: Between encoder and head.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: PolicyHead,
        *,
        normalizer: RunningNormalizer | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.encoder = encoder
        self.memory = memory
        self.head = head

    @property
    def state_size(self) -> int:
        """``S``: columns of the memory's state; 0 without memory."""
        return 0 if self.memory is None else self.memory.state_size

    def normalize(self, observations: Tensor) -> Tensor:
        """Applies the statistics, where there are any."""
        return observations if self.normalizer is None else self.normalizer(observations)

    def step(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one step: ``[N, *O]``, ``[N, S]`` to parameters ``[N, P]`` and state ``[N, S]``."""
        features = self.encoder(self.normalize(observations))
        if self.memory is not None:
            features, state = self.memory(features, state)
        return self.head(features), state
