"""The learner's half of action distributions: log-probabilities and entropies with gradients.

The layout of actions and parameters is :class:`rlreg_impala.actions.ActionCodec`; the acting half,
in numpy, is there too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlreg.errors import ShapeError

from .actions import LOG_STD_RANGE, ActionCodec, Part

_LOG_2PI = math.log(2 * math.pi)


def log_prob_and_entropy(
    codec: ActionCodec, params: Tensor, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of actions and entropy of the distribution, both summed over all parts.

    Args:
        codec: Layout of the action space.
        params: ``[..., P]``, what the policy network gave.
        actions: ``[..., W]``, stored actions.

    Returns:
        ``[...]`` and ``[...]``. The parts are independent given the observation, so that the joint
        log-probability is their sum; importance weights are taken of it, never of single parts.

    Raises:
        ShapeError: If parameters or actions do not fit the codec or each other.
    """
    _check(codec, params, actions)
    log_probs, entropies = [], []
    for part in codec.parts:
        terms = _categorical if part.is_categorical else _gaussian
        log_prob, entropy = terms(part, params, actions)
        log_probs.append(log_prob)
        entropies.append(entropy)
    if len(log_probs) == 1:
        return log_probs[0], entropies[0]
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def sample(codec: ActionCodec, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws stored actions ``[..., W]`` for parameters ``[..., P]``.

    Args:
        codec: Layout of the action space.
        params: ``[..., P]``.
        generator: Where randomness comes from; the global one if none is given.
    """
    columns = []
    for part in codec.parts:
        own = params[..., part.params]
        if part.is_categorical:
            # The largest of logits plus Gumbel noise is a draw from the softmax.
            uniform = torch.rand(own.shape, generator=generator, device=own.device)
            noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
            columns.append((own + noise).argmax(-1, keepdim=True).to(own.dtype))
        else:
            mean, log_std = mean_and_log_std(own)
            noise = torch.randn(mean.shape, generator=generator, device=own.device)
            columns.append(mean + log_std.exp() * noise)
    return torch.cat(columns, dim=-1)


def mode(codec: ActionCodec, params: Tensor) -> Tensor:
    """Returns the most probable stored actions ``[..., W]`` for parameters ``[..., P]``."""
    columns = []
    for part in codec.parts:
        own = params[..., part.params]
        if part.is_categorical:
            columns.append(own.argmax(-1, keepdim=True).to(own.dtype))
        else:
            columns.append(mean_and_log_std(own)[0])
    return torch.cat(columns, dim=-1)


def _categorical(part: Part, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = params[..., part.params].log_softmax(-1)  # [..., K]
    chosen = actions[..., part.columns].long()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, chosen).squeeze(-1), entropy


def _gaussian(part: Part, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = mean_and_log_std(params[..., part.params])
    deviations = (actions[..., part.columns] - mean) * torch.exp(-log_std)
    log_probs = -0.5 * deviations**2 - log_std - 0.5 * _LOG_2PI
    entropy = log_std + 0.5 * (1 + _LOG_2PI)
    return log_probs.sum(-1), entropy.sum(-1)


def mean_and_log_std(params: Tensor) -> tuple[Tensor, Tensor]:
    """Splits the parameters of Gaussians ``[..., 2 k]`` into means and kept log deviations."""
    mean, log_std = params.chunk(2, dim=-1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def _check(codec: ActionCodec, params: Tensor, actions: Tensor) -> None:
    # Broadcasting would turn [T, B, W] against [B, P] into numbers without meaning.
    if params.shape[-1:] != (codec.num_params,):
        raise ShapeError.of("params", f"[..., {codec.num_params}]", params.shape)
    if actions.shape != (*params.shape[:-1], codec.width):
        raise ShapeError.of("actions", f"{[*params.shape[:-1], codec.width]}", actions.shape)
