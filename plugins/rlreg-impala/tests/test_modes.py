"""Layers that act differently in training are refused: the actors run the policy without them."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces
from learner_helpers import OneState, config, fragment, model_for
from torch import nn

import rlreg
from rlreg.config import RolloutEngineFactory
from rlreg.errors import ConfigError
from rlreg.open_union import validate
from rlreg_impala.batches import FragmentBatch
from rlreg_impala.learner import make_learner
from rlreg_impala.model import TorchActorCritic
from rlreg_impala.trainer import MultiStepIMPALA

VECTOR = spaces.Box(-1, 1, (5,))
NORMALISED = {"type": "vector", "use_batch_norm": True}
DROPPING = {"type": "vector", "dropout_rate": 0.1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actor_encoder_factory": NORMALISED}, "actor_encoder_factory.use_batch_norm = true"),
        ({"critic_encoder_factory": NORMALISED}, "critic_encoder_factory.use_batch_norm = true"),
        ({"actor_encoder_factory": DROPPING}, "actor_encoder_factory.dropout_rate = 0.1"),
        (
            {"actor_encoder_factory": DROPPING, "critic_encoder_factory": None},
            "the critic shares its features; set it to null",
        ),
    ],
    ids=["actor batch norm", "critic batch norm", "actor dropout", "shared dropout"],
)
def test_create_names_the_field(settings, message):
    with pytest.raises(ConfigError, match=message):
        rlreg.create("impala", device="cpu", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"critic_encoder_factory": DROPPING},
        {"actor_encoder_factory": {"type": "vector", "dropout_rate": 0.0}},
        {"actor_encoder_factory": {"type": "vector", "use_layer_norm": True}},
        {"core": "gru", "core_size": 4, "observation_normalization": "running"},
        {"actor_encoder_factory": {"type": "impala_resnet"}, "critic_encoder_factory": None},
    ],
    ids=["critic dropout", "no dropout", "layer norm", "memory", "images"],
)
def test_what_actors_and_learner_see_alike_is_taken(settings):
    is_image = settings.get("critic_encoder_factory", ...) is None
    space = spaces.Box(0, 255, (36, 36, 3), "uint8") if is_image else VECTOR
    rlreg.create("impala", device="cpu", **settings).build(space, spaces.Discrete(3))


class Functional(nn.Module):
    """Drops features without having a layer for it."""

    output_size = 8

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 8)

    def forward(self, observations):
        return nn.functional.dropout(self.linear(observations), 0.3, self.training)


def encoder(*layers):
    made = nn.Sequential(nn.Linear(1, 8), *layers)
    made.output_size = 8
    return made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encoder(nn.BatchNorm1d(8)), "policy.encoder.1 is a BatchNorm1d"),
        (lambda: encoder(nn.Tanh(), nn.Dropout(0.2)), "policy.encoder.2 is a Dropout"),
        (Functional, "other action probabilities in training mode"),
    ],
    ids=["batch norm", "dropout", "functional"],
)
def test_a_module_of_the_user_is_refused_with_the_place_of_the_layer(make, message):
    model = TorchActorCritic(OneState.observation_space, OneState.action_space, make())
    actors = validate(RolloutEngineFactory, {"type": "sequential"})
    state, random = model.state_dict(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    with pytest.raises(ConfigError, match=message):
        MultiStepIMPALA(model, actors, OneState, config())
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    assert torch.equal(torch.get_rng_state(), random)


def test_on_policy_importance_weights_are_one_with_dropout_in_the_critic():
    settings = {"critic_encoder_factory": DROPPING, "observation_normalization": "none"}
    model = model_for(VECTOR, spaces.Discrete(3), **settings)
    learner = make_learner(model, config(**settings))
    learner.progress.plan("updates", 10)
    learner.start_schedules(12)
    metrics = learner.update(FragmentBatch.of([fragment(model)], torch.device("cpu")))
    assert metrics["rho/max"] == pytest.approx(1, abs=1e-5)
    assert metrics["rho/kl_divergence"] == pytest.approx(0, abs=1e-6)
