"""Acting, estimating values, and the spaces IQL can be built for."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.errors import ConfigError, DatasetError, EnvironmentSpecError, LearnerError

KINDS = ["normal", "normal_state_dependent", "deterministic"]
DISCRETE = [
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([2, 4, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(3),
]


def test_one_observation_gives_one_action_and_a_batch_a_batch(make_iql):
    learnable = make_iql()
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    batch = learnable.predict(observations)
    assert batch.shape == (5, 2)
    assert batch.dtype == np.float32
    single = learnable.predict(observations[2])
    assert single.shape == (2,)
    np.testing.assert_allclose(single, batch[2], atol=1e-6)
    value = learnable.predict_value(observations[2], single)
    assert np.ndim(value) == 0
    values = learnable.predict_value(observations, batch)
    assert values.shape == (5,)
    assert values[2] == pytest.approx(float(value), abs=1e-6)


def test_torch_in_gives_torch_out(make_iql):
    learnable = make_iql()
    observations = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    actions = learnable.predict(observations)
    assert isinstance(actions, torch.Tensor)
    assert torch.equal(actions, torch.from_numpy(learnable.predict(observations.numpy())))
    assert isinstance(learnable.predict_value(observations, actions), torch.Tensor)
    assert learnable.predict(observations[0]).shape == (2,)
    assert not actions.requires_grad


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_other_number_types_and_memory_layouts_are_taken(dtype, make_iql):
    learnable = make_iql()
    observations = np.arange(40).reshape(4, 10)[:, ::2].T.astype(dtype)  # not contiguous
    expected = learnable.predict(np.ascontiguousarray(observations, np.float32))
    np.testing.assert_array_equal(learnable.predict(observations), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "box",
    [
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Box(np.array([-0.1, 5.0]), np.array([0.3, 5.7]), dtype=np.float64),
        spaces.Box(-3, 7, (2, 3), np.float32),
        spaces.Box(np.array([0.0, 2.0], np.float32), np.array([0.0, 3.0], np.float32)),
    ],
    ids=["unit", "float64", "matrix", "constant"],
)
def test_every_action_lies_in_the_box(kind, box, make_iql):
    linear = {"type": "vector", "hidden_units": [16], "exclude_last_activation": True}
    learnable = make_iql(action_space=box, actor_kind=kind, actor_encoder_factory=linear)
    with torch.no_grad():
        learnable.policy.mean.weight.mul_(1000)  # saturates tanh at both ends
    observations = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    for actions in (learnable.predict(observations), learnable.sample_action(observations)):
        assert actions.shape == (2000, *box.shape)
        assert actions.dtype == box.dtype
        assert all(box.contains(action) for action in actions)
    spread = learnable.predict(observations).reshape(2000, -1)
    width = (box.high - box.low).reshape(-1)
    np.testing.assert_allclose(np.ptp(spread, axis=0), width, rtol=1e-3, atol=1e-6)


def test_infinite_bounds_are_refused_with_a_remedy(make_iql):
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(EnvironmentSpecError, match="action_scaler"):
        make_iql(action_space=box)
    scaler = {"type": "min_max", "minimum": [-2, -2], "maximum": [2, 2]}
    learnable = make_iql(action_space=box, action_scaler=scaler)
    assert np.abs(learnable.predict(np.zeros(4))).max() <= 2


def test_actions_of_the_data_reach_the_networks_in_unit_range(make_iql, make_batch):
    learnable = make_iql(action_space=spaces.Box(-3, 7, (2,), np.float32))
    raw = make_batch(learnable, 200)
    prepared = learnable.prepare_batch(raw)
    np.testing.assert_allclose(prepared.actions, (raw["actions"] - 2) / 5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_bang_bang_actions_of_a_box_stay_continuous(kind, make_iql, make_batch):
    learnable = make_iql(actor_kind=kind)
    raw = make_batch(learnable)
    raw["actions"] = np.sign(raw["actions"])
    learnable.update(raw)
    assert learnable.predict(raw["observations"]).dtype == np.float32


@pytest.mark.parametrize("space", DISCRETE, ids=str)
@pytest.mark.parametrize("rule", ["d3rlpy", "paper"])
def test_discrete_actions_have_a_categorical_policy(space, rule, make_iql, make_batch):
    learnable = make_iql(action_space=space, update_rule=rule, weight_temp=0.0)
    raw = make_batch(learnable, 50)
    for actions in (
        learnable.predict(raw["observations"]),
        learnable.sample_action(raw["observations"]),
    ):
        assert actions.dtype == space.dtype
        assert all(space.contains(action) for action in actions)
    assert learnable.predict_value(raw["observations"], raw["actions"]).shape == (50,)
    assert space.contains(learnable.predict(raw["observations"][0]))
    first = learnable.update(raw)["actor_loss"]
    losses = [learnable.update(raw)["actor_loss"] for _ in range(60)]
    assert losses[-1] < first
    assert "diagnostics/log_std_at_floor" not in learnable.update(raw)


def test_the_policy_learns_the_better_category(make_iql):
    learnable = make_iql(
        action_space=spaces.Discrete(3, start=5),
        actor_learning_rate=1e-2,
        critic_learning_rate=1e-2,
        weight_temp=10.0,
        tau=0.1,
    )
    rng = np.random.default_rng(0)
    for _ in range(150):
        actions = rng.integers(5, 8, 64)
        learnable.update(
            {
                "observations": rng.normal(size=(64, 4)),
                "actions": actions,
                "rewards": (actions == 6).astype(np.float32),
                "next_observations": np.zeros((64, 4)),
                "terminations": np.ones(64, bool),
            }
        )
    assert (learnable.predict(rng.normal(size=(100, 4))) == 6).mean() > 0.95


def test_the_policy_learns_the_better_continuous_action(make_iql):
    learnable = make_iql(actor_learning_rate=1e-2, critic_learning_rate=1e-2, weight_temp=10.0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions = rng.choice([-0.6, 0.6], (64, 2)).astype(np.float32)
        learnable.update(
            {
                "observations": rng.normal(size=(64, 4)),
                "actions": actions,
                "rewards": 2 * (actions[:, 0] > 0) - 1.0,
                "next_observations": np.zeros((64, 4)),
                "terminations": np.ones(64, bool),
            }
        )
    assert learnable.predict(rng.normal(size=(100, 4)))[:, 0].mean() > 0.3


def test_categories_outside_the_space_are_refused(make_iql, make_batch):
    learnable = make_iql(action_space=spaces.Discrete(3, start=2))
    raw = make_batch(learnable)
    raw["actions"][4] = 1
    with pytest.raises(DatasetError, match="row 4"):
        learnable.update(raw)


def test_an_action_scaler_for_categories_is_refused(make_iql):
    with pytest.raises(ConfigError, match="action_scaler"):
        make_iql(action_space=spaces.Discrete(3), action_scaler={"type": "min_max"})


OBSERVATIONS = [
    spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "goal": spaces.Discrete(4)}),
    spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))),
    spaces.Discrete(5),
    spaces.Box(0, 255, (3, 40, 40), np.uint8),
    spaces.Box(0, 255, (40, 44, 3), np.uint8),
    spaces.Box(0, 255, (7, 7, 3), np.uint8),
    spaces.Box(0.0, 1.0, (4, 36, 36), np.float32),
]


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_of_any_space_train_and_act(space, make_iql, make_batch):
    encoder = {"type": "default"}
    learnable = make_iql(space, **{f"{n}_encoder_factory": encoder for n in ("actor", "critic")})
    if len(learnable.spaces.observation_shape) == 3:
        learnable = make_iql(
            space, **{f"{n}_encoder_factory": encoder for n in ("actor", "critic", "value")}
        )
    metrics = learnable.update(make_batch(learnable, 4))
    assert all(np.isfinite(value) for value in metrics.values())
    space.seed(0)
    action = learnable.predict(space.sample())
    assert action.shape == (2,)


def test_images_are_scaled_exactly_once(make_iql):
    space = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    encoder = {f"{n}_encoder_factory": {"type": "default"} for n in ("actor", "critic", "value")}
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 40, 40), np.uint8)
    plain = make_iql(space, **encoder).predict(image)
    scaled = make_iql(space, observation_scaler={"type": "pixel"}, **encoder).predict(image)
    np.testing.assert_allclose(plain, scaled, atol=1e-6)
    floats = make_iql(spaces.Box(0, 1, (3, 40, 40), np.float32), **encoder)
    np.testing.assert_allclose(floats.predict((image / 255).astype(np.float32)), plain, atol=1e-5)


def test_sampling_follows_the_seed_and_not_the_global_stream(make_iql):
    observations = np.zeros((50, 4), np.float32)
    first, second, third = (make_iql(seed=seed) for seed in (3, 3, 4))
    torch.manual_seed(0)
    one = first.sample_action(observations)
    torch.manual_seed(1)
    np.testing.assert_array_equal(one, second.sample_action(observations))
    assert not np.array_equal(one, third.sample_action(observations))
    assert not np.array_equal(one, first.sample_action(observations))


def test_samples_spread_around_the_mean_as_the_deviation_says(make_iql):
    learnable = make_iql()
    observations = np.zeros((20_000, 4), np.float32)
    mean = learnable.predict(observations[0])
    samples = learnable.sample_action(observations)
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(samples.std(axis=0), np.exp(-1.5), rtol=0.03)


def test_initial_deviations_are_those_of_the_references(make_iql):
    observations = torch.zeros(1, 4)
    means, log_stds = make_iql(update_rule="d3rlpy").policy(observations)
    torch.testing.assert_close(log_stds, torch.full((1, 2), -1.5))
    _, log_stds = make_iql(update_rule="paper").policy(observations)
    assert torch.equal(log_stds, torch.zeros(1, 2))
    assert means.abs().max() <= 1


def test_the_mean_stays_in_range_for_any_input(make_iql):
    for kind in KINDS:
        learnable = make_iql(actor_kind=kind, initialization="orthogonal")
        huge = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32) * 1e6
        assert np.abs(learnable.predict(huge)).max() <= 1


def test_orthogonal_initialisation_covers_every_layer(make_iql):
    learnable = make_iql(initialization="orthogonal", n_critics=2)
    layers = [
        *(m.weight for m in learnable.policy.modules() if isinstance(m, torch.nn.Linear)),
        *(m.weight for m in learnable.value.modules() if isinstance(m, torch.nn.Linear)),
        *(w for n, p in learnable.critics.named_parameters() if n.endswith("weight") for w in p),
    ]
    assert len(layers) == 3 + 3 + 6
    for weight in layers:
        small = weight if len(weight) <= weight.shape[1] else weight.T
        torch.testing.assert_close(small @ small.T, 2 * torch.eye(len(small)), atol=1e-5, rtol=0)
    for module in (learnable.policy, learnable.value, learnable.critics):
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                assert parameter.abs().max() == 0


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before(make_iql):
    torch.manual_seed(5)
    first = make_iql(seed=7).policy.state_dict()
    torch.manual_seed(6)
    second = make_iql(seed=7).policy.state_dict()
    other = make_iql(seed=8).policy.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["mean.weight"], other["mean.weight"])


def test_an_encoder_without_output_size_is_named(make_iql):
    from typing import Literal

    class Sizeless(rlreg.EncoderFactory):
        """An encoder whose module forgets its width."""

        type: Literal["sizeless-for-iql"] = "sizeless-for-iql"

        def create(self, observation_shape):
            return torch.nn.Linear(observation_shape[0], 8)

    rlreg.register_component(Sizeless)
    with pytest.raises(ConfigError, match=r"sizeless-for-iql.*output_size"):
        make_iql(actor_encoder_factory=Sizeless())
    with pytest.raises(LearnerError, match="does not take actions"):
        make_iql(critic_encoder_factory=Sizeless())
