"""Scalers: statistics over all transitions, nothing that turns into NaN, states of any shape."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg.components import (
    ClipRewardScaler,
    MinMaxActionScaler,
    MinMaxObservationScaler,
    MinMaxRewardScaler,
    MultiplyRewardScaler,
    PixelObservationScaler,
    ShiftRewardScaler,
    StandardObservationScaler,
    StandardRewardScaler,
)
from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.runtime import scalers as module
from rlreg.runtime.data import TransitionDataset
from rlreg.runtime.scalers import MinMaxScaler, Scaler, StandardScaler, bounds_scaler

RNG = np.random.default_rng(0)
LENGTH = 600


def make_dataset(observations=None, rewards=None, *, space=None, action_scale=1.0):
    size = LENGTH if observations is None else len(observations)
    if observations is None:
        observations = RNG.normal(size=(size, 3)) * [1, 10, 100] + [5, -5, 0]
    ends = np.arange(size) % 100 == 99
    return TransitionDataset.from_arrays(
        observations if space is not None else observations.astype(np.float32),
        (RNG.uniform(-1, 1, (size, 2)) * action_scale).astype(np.float32),
        (RNG.normal(size=size) if rewards is None else rewards).astype(np.float32),
        ends,
        observation_space=space,
        action_space=spaces.Box(-5, 5, (2,), np.float32),
    )


SCALERS = [
    PixelObservationScaler(),
    MinMaxObservationScaler(),
    StandardObservationScaler(),
    MinMaxActionScaler(),
    MultiplyRewardScaler(multiplier=3.0),
    ClipRewardScaler(low=-100.0, multiplier=2.0),
    MinMaxRewardScaler(multiplier=-5.0),
    StandardRewardScaler(multiplier=2.0),
    ShiftRewardScaler(shift=-1.0, multiplier=4.0),
]


def column_of(config, dataset):
    name = {"observation": "observations", "action": "actions", "reward": "rewards"}
    return torch.from_numpy(getattr(dataset, name[config.kind.split("_")[0]]))


@pytest.mark.parametrize("config", SCALERS, ids=lambda config: f"{config.kind}-{config.type}")
def test_inverse_undoes_transform(config):
    dataset, scaler = make_dataset(), config.create()
    scaler.fit(dataset)
    values = column_of(config, dataset)
    given = scaler.transform(values)
    assert given.shape == values.shape
    torch.testing.assert_close(scaler.inverse(given), values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", SCALERS, ids=lambda config: f"{config.kind}-{config.type}")
@pytest.mark.parametrize("constant", [0.0, 7.25, -1e6])
def test_constant_data_never_become_nan(config, constant):
    dataset = make_dataset(np.full((LENGTH, 3), constant), np.full(LENGTH, constant))
    scaler = config.create()
    scaler.fit(dataset)
    values = column_of(config, dataset)
    given = scaler.transform(values)
    assert torch.isfinite(given).all()
    assert torch.isfinite(scaler.inverse(given)).all()
    other = scaler.transform(values + 1)
    assert torch.isfinite(other).all()


def test_constant_columns_become_zero():
    observations = RNG.normal(size=(LENGTH, 3))
    observations[:, 1] = 3.0
    dataset = make_dataset(observations)
    rows = torch.from_numpy(dataset.observations)
    for config in (MinMaxObservationScaler(), StandardObservationScaler(eps=0.0)):
        scaler = config.create()
        scaler.fit(dataset)
        assert scaler.transform(rows)[:, 1].abs().max() <= 1e-6
        assert scaler.transform(rows)[:, 0].abs().max() > 0.5


def test_min_max_maps_the_data_onto_minus_one_to_one():
    dataset, scaler = make_dataset(), MinMaxObservationScaler().create()
    scaler.fit(dataset)
    given = scaler.transform(torch.from_numpy(dataset.observations))
    torch.testing.assert_close(given.amin(0), -torch.ones(3))
    torch.testing.assert_close(given.amax(0), torch.ones(3))


def test_standard_uses_population_moments_and_eps():
    dataset, scaler = make_dataset(), StandardObservationScaler(eps=0.5).create()
    scaler.fit(dataset)
    rows = dataset.observations.astype(np.float64)
    expected = (rows - rows.mean(0)) / (rows.std(0) + 0.5)
    np.testing.assert_allclose(scaler.transform(torch.from_numpy(rows)), expected, atol=1e-4)


def test_every_transition_counts_the_last_of_an_episode_too():
    observations = np.zeros((LENGTH, 1))
    observations[99] = 50.0  # the last observation with an action in the first episode
    scaler = MinMaxObservationScaler().create()
    scaler.fit(make_dataset(observations))
    assert float(scaler.maximum) == 50.0


def test_moments_do_not_depend_on_chunks_and_survive_large_offsets(monkeypatch):
    rows = (RNG.normal(size=(LENGTH, 3)) + np.array([1e4, -1e4, 0])).astype(np.float32)
    dataset = make_dataset(rows)
    whole = module.moments_of(dataset, "observations")
    chunks = dataset.chunks
    monkeypatch.setattr(dataset, "chunks", lambda: chunks(7))
    parts = module.moments_of(dataset, "observations")
    stored = dataset.observations.astype(np.float64)
    for given in (whole, parts):
        np.testing.assert_allclose(given[0], stored.mean(0), rtol=1e-12)
        np.testing.assert_allclose(given[1], stored.std(0), rtol=1e-9)


def test_images_are_scaled_in_their_shape():
    space = spaces.Box(0, 255, (2, 4, 4), np.uint8)
    images = RNG.integers(0, 256, (LENGTH, 2, 4, 4), np.uint8)
    images[:, 0, 0, 0] = 9
    dataset = make_dataset(images, space=space)
    rows = torch.from_numpy(dataset.observations)
    assert rows.dtype == torch.uint8
    for config in (
        PixelObservationScaler(),
        MinMaxObservationScaler(),
        StandardObservationScaler(),
    ):
        scaler = config.create()
        scaler.fit(dataset)
        given = scaler.transform(rows)
        assert given.dtype == torch.float32
        assert given.shape == rows.shape
        assert torch.isfinite(given).all()
    assert PixelObservationScaler().create().transform(rows).max() <= 1


# --- given statistics ---------------------------------------------------------------------------


def test_given_statistics_are_kept_and_the_rest_is_fitted():
    scaler = MinMaxObservationScaler(minimum=(-1000, -1000, -1000)).create()
    assert not scaler.is_fitted
    scaler.fit(make_dataset())
    assert scaler.minimum.tolist() == [-1000] * 3
    assert scaler.is_fitted
    both = StandardObservationScaler(mean=(1, 2), std=(0, 4), eps=0).create()
    assert both.is_fitted
    torch.testing.assert_close(both.transform(torch.tensor([[3.0, 4.0]])), torch.tensor([[0, 0.5]]))


@pytest.mark.parametrize(
    "config",
    [
        MinMaxObservationScaler(minimum=(0, 0), maximum=(1, 1)),
        StandardObservationScaler(mean=(0, 0)),
    ],
)
def test_statistics_of_the_wrong_length_are_a_config_error(config):
    scaler = config.create()
    with pytest.raises(ConfigError, match=r"2 values.*3 components"):
        scaler.set_shape((3,))
    if not scaler.is_fitted:
        with pytest.raises(ConfigError, match="2 values"):
            scaler.fit(make_dataset())


def test_flat_statistics_take_the_shape_of_an_image():
    scaler = MinMaxObservationScaler(minimum=(0,) * 8, maximum=(255,) * 8).create()
    scaler.set_shape((2, 2, 2))
    assert scaler.transform(torch.zeros(5, 2, 2, 2)).shape == (5, 2, 2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinMaxObservationScaler(minimum=(1,), maximum=(0,)).create(),
        lambda: StandardObservationScaler(std=(-1,)).create(),
        lambda: ClipRewardScaler(low=1, high=0).create(),
        lambda: MinMaxRewardScaler(minimum=1, maximum=0).create(),
    ],
)
def test_impossible_statistics_are_a_config_error(make):
    with pytest.raises(ConfigError):
        make()


def test_an_unfitted_scaler_says_what_to_do():
    for config in (MinMaxObservationScaler(), StandardObservationScaler(), StandardRewardScaler()):
        scaler = config.create()
        assert not scaler.is_fitted
        for call in (scaler.transform, scaler.inverse):
            with pytest.raises(ConfigError, match="no statistics yet"):
                call(torch.zeros(2, 3))


@pytest.mark.parametrize("config", SCALERS, ids=lambda config: f"{config.kind}-{config.type}")
def test_states_load_into_scalers_that_were_never_fitted(config):
    dataset, fitted, fresh = make_dataset(), config.create(), config.create()
    fitted.fit(dataset)
    fresh.load_state_dict(fitted.state_dict())
    assert fresh.is_fitted
    values = column_of(config, dataset)
    assert torch.equal(fitted.transform(values), fresh.transform(values))


def test_the_base_changes_nothing():
    values = torch.ones(2)
    assert Scaler().transform(values) is values
    assert Scaler().is_fitted


# --- actions ------------------------------------------------------------------------------------


def test_a_unit_box_needs_no_scaler_and_categories_have_none():
    assert bounds_scaler(spaces.Box(-1, 1, (3,), np.float32)) is None
    assert bounds_scaler(spaces.Discrete(3)) is None


@pytest.mark.parametrize(("low", "high"), [(-np.inf, 1), (-1, np.inf)])
def test_infinite_bounds_are_refused_with_a_remedy(low, high):
    with pytest.raises(EnvironmentSpecError, match="action_scaler"):
        bounds_scaler(spaces.Box(low, high, (3,), np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_land_inside_the_box(dtype):
    low, high = np.array([[0.1, -7.3]], dtype), np.array([[0.3, 1e5 / 3]], dtype)
    scaler = bounds_scaler(spaces.Box(low, high, dtype=dtype))
    actions = scaler.inverse(torch.linspace(-1.001, 1.001, 1001)[:, None].expand(-1, 2)).numpy()
    assert (actions.astype(dtype) >= low).all()
    assert (actions.astype(dtype) <= high).all()
    torch.testing.assert_close(scaler.transform(torch.from_numpy(actions[:1])), -torch.ones(1, 2))


def test_a_bounded_space_beats_the_data_and_an_unbounded_one_does_not():
    bounded, unbounded = MinMaxActionScaler().create(), MinMaxActionScaler().create()
    bounded.fit_space(spaces.Box(-5, 5, (2,), np.float32))
    unbounded.fit_space(spaces.Box(-np.inf, np.inf, (2,), np.float32))
    dataset = make_dataset()
    for scaler in (bounded, unbounded):
        scaler.fit(dataset)
    assert bounded.maximum.tolist() == [5, 5]
    assert unbounded.maximum.max() <= 1


def test_given_action_bounds_are_kept_but_predictions_stay_in_the_box():
    scaler = MinMaxActionScaler(minimum=(-9, -9), maximum=(9, 9)).create()
    scaler.fit_space(spaces.Box(-5, 5, (2,), np.float32))
    torch.testing.assert_close(scaler.transform(torch.full((1, 2), 4.5)), torch.full((1, 2), 0.5))
    assert scaler.inverse(torch.ones(1, 2)).tolist() == [[5, 5]]
    with pytest.raises(ConfigError, match="2 values"):
        scaler.fit_space(spaces.Box(-5, 5, (3,), np.float32))


def test_scalers_of_actions_can_be_standard_in_code():
    scaler = StandardScaler("actions")
    scaler.fit(make_dataset())
    assert scaler.subject == "action"
    assert MinMaxScaler("observations").subject == "observation"


# --- rewards ------------------------------------------------------------------------------------


def test_reward_scalers_compute_their_formulas():
    rewards = torch.tensor([-2.0, 0.0, 4.0])
    cases = [
        (MultiplyRewardScaler(multiplier=3.0), [-6, 0, 12]),
        (ClipRewardScaler(low=-1.0, high=1.0, multiplier=2.0), [-2, 0, 2]),
        (ClipRewardScaler(high=1.0), [-2, 0, 1]),
        (ClipRewardScaler(multiplier=2.0), [-4, 0, 8]),
        (ShiftRewardScaler(shift=-1.0), [-3, -1, 3]),
        (ShiftRewardScaler(shift=-1.0, multiplier=2.0), [-6, -2, 6]),
        (ShiftRewardScaler(shift=-1.0, multiplier=2.0, multiply_first=True), [-5, -1, 7]),
        (MinMaxRewardScaler(minimum=-2.0, maximum=4.0, multiplier=6.0), [0, 2, 6]),
        (StandardRewardScaler(mean=1.0, std=1.0, eps=1.0, multiplier=2.0), [-3, -1, 3]),
    ]
    for config, expected in cases:
        given = config.create().transform(rewards)
        torch.testing.assert_close(given, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("tag", [MultiplyRewardScaler, ClipRewardScaler, ShiftRewardScaler])
def test_a_multiplier_of_zero_has_a_finite_inverse(tag):
    scaler = tag(multiplier=0.0).create()
    assert torch.isfinite(scaler.inverse(scaler.transform(torch.ones(3)))).all()
