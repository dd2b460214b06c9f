"""Random valid configs: build, update, save, load, predict."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlreg

ACTIVATIONS = ["relu", "tanh", "swish", "gelu", "geglu", "elu", "sigmoid"]


def records(tag, **fields):
    """A mapping with a tag, each field left out or drawn."""
    return st.fixed_dictionaries({"type": st.just(tag)}, optional=fields)


rates = st.floats(1e-6, 1e-2)
units = st.lists(st.integers(1, 12), min_size=1, max_size=3)
dropout = st.one_of(st.none(), st.floats(0, 0.9))
encoders = st.one_of(
    records("default", activation=st.sampled_from(ACTIVATIONS[:4]), dropout_rate=dropout),
    records(
        "vector",
        hidden_units=units,
        activation=st.sampled_from(ACTIVATIONS),
        use_batch_norm=st.booleans(),
        use_layer_norm=st.booleans(),
        dropout_rate=dropout,
        exclude_last_activation=st.booleans(),
        last_activation=st.one_of(st.none(), st.sampled_from(ACTIVATIONS)),
    ).map(lambda encoder: {"hidden_units": [8, 8], **encoder}),
    records(
        "simba",
        feature_size=st.integers(1, 12),
        hidden_size=st.integers(1, 12),
        n_blocks=st.integers(1, 2),
    ),
)
schedules = st.one_of(
    st.none(),
    records("warmup", warmup_steps=st.integers(1, 10)),
    records("cosine_annealing", T_max=st.one_of(st.none(), st.integers(1, 9)), eta_min=rates),
    records("linear", end_factor=st.floats(0, 1)),
)
extras = {
    "clip_grad_norm": st.one_of(st.none(), st.floats(1e-3, 10)),
    "lr_scheduler_factory": schedules,
    "weight_decay": st.floats(0, 0.1),
}
optimizers = st.one_of(
    records("adam", amsgrad=st.booleans(), **extras),
    records("adam_w", amsgrad=st.booleans(), **extras),
    records("sgd", momentum=st.floats(0.1, 0.99), nesterov=st.booleans(), **extras).map(
        lambda optimizer: {"momentum": 0.5, **optimizer}  # nesterov needs one
    ),
    records("rmsprop", centered=st.booleans(), momentum=st.floats(0, 0.9), **extras),
)
multiplier = st.floats(-10, 10)
configs = st.fixed_dictionaries(
    {"batch_size": st.integers(2, 8)},
    optional={
        "update_rule": st.sampled_from(["d3rlpy", "paper"]),
        "actor_kind": st.sampled_from(["normal", "normal_state_dependent", "deterministic"]),
        "initialization": st.sampled_from(["torch", "orthogonal"]),
        "gamma": st.floats(0, 1),
        "tau": st.floats(1e-3, 1),
        "expectile": st.floats(0.01, 0.99),
        "weight_temp": st.floats(0, 20),
        "max_weight": st.floats(0.1, 1e3),
        "n_critics": st.integers(1, 5),
        "actor_learning_rate": rates,
        "critic_learning_rate": rates,
        "value_learning_rate": st.one_of(st.none(), rates),
        "actor_optim_factory": optimizers,
        "critic_optim_factory": optimizers,
        "value_optim_factory": st.one_of(st.none(), optimizers),
        "actor_encoder_factory": encoders,
        "critic_encoder_factory": encoders,
        "value_encoder_factory": encoders,
        "observation_scaler": st.one_of(st.none(), records("min_max"), records("standard")),
        "reward_scaler": st.one_of(
            st.none(),
            records("return", multiplier=multiplier),
            records("standard", multiplier=multiplier),
            records("min_max", multiplier=multiplier),
            records("clip", low=st.just(-1.0), high=st.just(1.0)),
            records("shift", shift=multiplier, multiply_first=st.booleans()),
            records("multiply", multiplier=multiplier),
        ),
    },
)
action_spaces = st.sampled_from(
    [
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Box(-2, 3, (1,), np.float32),
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
    ]
)


def make_dataset(action_space):
    rng = np.random.default_rng(0)
    size = 40
    action_space.seed(0)
    return rlreg.TransitionDataset.from_arrays(
        rng.normal(size=(size, 3)).astype(np.float32),
        np.stack([action_space.sample() for _ in range(size)]),
        rng.normal(size=size).astype(np.float32),
        np.arange(size) % 10 == 9,
        action_space=action_space,
    )


def check(config, action_space):
    dataset = make_dataset(action_space)
    learnable = rlreg.create("iql", device="cpu", seed=3, **config)
    metrics = train(learnable, dataset, 3)
    assert all(np.isfinite(value) for value in metrics.values())
    twin = rlreg.create("iql", device="cpu", seed=4, **config)
    twin.build(dataset.observation_space, dataset.action_space)
    twin.load_state_dict(copy.deepcopy(learnable.state_dict()))
    observations = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    actions = learnable.predict(observations)
    assert all(action_space.contains(action) for action in actions)
    np.testing.assert_array_equal(actions, twin.predict(observations))
    np.testing.assert_array_equal(
        learnable.predict_value(observations, actions), twin.predict_value(observations, actions)
    )
    assert np.isfinite(learnable.predict_value(observations, actions)).all()
    assert train(learnable, dataset, 1) == train(twin, dataset, 1)


def train(learnable, dataset, steps):
    [(_, metrics)] = learnable.fitter(dataset, steps, steps)
    return metrics


@given(configs, action_spaces)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_configs_build_update_reload_and_predict(config, action_space):
    torch.set_num_threads(1)
    check(config, action_space)


@pytest.mark.slow
@given(configs, action_spaces)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_thousand_random_configs_build_update_reload_and_predict(config, action_space):
    torch.set_num_threads(1)
    check(config, action_space)
