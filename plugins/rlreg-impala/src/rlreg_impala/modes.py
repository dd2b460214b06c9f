"""Refuses networks that act one way in actors and another in the learner.

An actor runs its network in evaluation mode, the learner in training mode. Where the two differ,
importance weights are not 1 even on policy, and V-trace corrects for what no policy did. They do
with batch normalisation and dropout: an actor divides by statistics of the past and drops nothing.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlreg.config import EncoderFactory
from rlreg.errors import ConfigError

if TYPE_CHECKING:
    from .config import IMPALAConfig
    from .model import TorchActorCritic

_NORMS = (nn.modules.batchnorm._BatchNorm,)
_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_BATCH_NORM = (
    "IMPALA takes no batch normalisation: actors use statistics of the past, the learner those of "
    "its batch"
)
_DROPOUT = (
    "IMPALA takes no dropout in the policy: actors drop nothing, so the learner would see another "
    "policy than the one that acted"
)
_INSTEAD = "; use layer normalisation, or observation_normalization: running"


def require_plain_encoders(config: IMPALAConfig) -> None:
    """Raises if a config asks for layers that IMPALA does not take.

    A critic of its own may have dropout: no actor runs it.

    Raises:
        ConfigError: With the name of the field.
    """
    critic = config.critic_encoder_factory
    for name, factory in (
        ("actor_encoder_factory", config.actor_encoder_factory),
        ("critic_encoder_factory", critic),
    ):
        if getattr(factory, "use_batch_norm", False):
            raise ConfigError(f"{name}.use_batch_norm = true: {_BATCH_NORM}{_INSTEAD}")
    rate = _dropout_rate(config.actor_encoder_factory)
    if rate:
        shared = ", and the critic shares its features" if critic is None else ""
        raise ConfigError(
            f"actor_encoder_factory.dropout_rate = {rate:g}: {_DROPOUT}{shared}; set it to null"
        )


def _dropout_rate(factory: EncoderFactory) -> float:
    return float(getattr(factory, "dropout_rate", None) or 0.0)


def require_one_mode(model: TorchActorCritic) -> None:
    """Raises if a model's policy differs between training and evaluation mode.

    Layers of torch are known by their class; any other is found out by running a copy of the policy
    in both modes on the same rows.

    Raises:
        ConfigError: With the place of the layer.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, _NORMS):
            raise ConfigError(f"{name} is a {type(layer).__name__}: {_BATCH_NORM}{_INSTEAD}")
        in_policy = name.startswith("policy.")
        if in_policy and isinstance(layer, _DROPOUTS) and layer.p > 0:
            raise ConfigError(f"{name} is a {type(layer).__name__}: {_DROPOUT}")
    if not _acts_alike(model):
        raise ConfigError(
            "the policy gives other action probabilities in training mode than in evaluation mode, "
            "in which actors run it: leave out layers that act differently in training"
        )


@torch.no_grad()
def _acts_alike(model: TorchActorCritic) -> bool:
    policy = copy.deepcopy(model.policy)
    parameter = next(policy.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rows = torch.rand(8, *model.plan.shape)
        if model.plan.is_image:
            rows = (255 * rows).to(torch.uint8)
        rows = rows.to(parameter.device)
        state = torch.zeros(len(rows), policy.state_size, device=parameter.device)
        learning, acting = (policy.train(mode).step(rows, state)[0] for mode in (True, False))
    return torch.allclose(learning, acting, rtol=1e-3, atol=1e-5)
