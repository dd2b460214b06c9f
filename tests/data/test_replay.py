"""The replay buffer: what it keeps, what leaves it, and where batches come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg import TransitionDataset
from rlreg.errors import CheckpointError, ConfigError, NonFiniteError
from rlreg.runtime.data.replay import ReplayBuffer

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = spaces.Box(-1, 1, (1,), np.float32)


def dataset_of(size=10):
    """Rewards 0, -1, -2, ...: negative, so that origin and age of a sampled row are seen."""
    rows = np.arange(size, dtype=np.float32)
    return TransitionDataset.from_arrays(
        np.stack([rows, rows], axis=1),
        np.zeros((size, 1), np.float32),
        -rows,
        np.zeros(size, bool),
        np.ones(size, bool),
        next_observations=np.stack([rows + 0.5, rows], axis=1),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )


def fill(buffer, count, first=1):
    for number in range(first, first + count):
        buffer.append(
            np.array([number, 0]),
            np.array([0.5]),
            number,
            np.array([number + 0.25, 0]),
            terminated=number % 3 == 0,
            truncated=number % 3 == 1,
        )


def rewards_in(buffer, count=4000):
    return buffer.sample(count, torch.Generator().manual_seed(0))["rewards"]


def test_a_row_keeps_its_parts_together_and_its_true_next_observation():
    buffer = ReplayBuffer(observation_space=OBSERVATIONS, action_space=ACTIONS)
    fill(buffer, 9)
    batch = buffer.sample(200, np.random.default_rng(0))
    numbers = batch["rewards"]
    assert set(numbers.tolist()) == set(range(1, 10))
    assert torch.equal(batch["observations"][:, 0], numbers)
    assert torch.equal(batch["next_observations"][:, 0], numbers + 0.25)
    assert torch.equal(batch["terminations"], (numbers % 3 == 0).float())
    assert torch.equal(batch["truncations"], (numbers % 3 == 1).float())
    assert torch.equal(batch["intervals"], torch.ones(200))
    assert batch["actions"].shape == (200, 1)


def test_names_types_and_shapes_are_those_of_a_data_set():
    buffer = ReplayBuffer(dataset=dataset_of())
    fill(buffer, 5)
    generator = torch.Generator().manual_seed(0)
    own, given = buffer.sample(32, generator), dataset_of().sample(32, generator)
    assert own.keys() == given.keys()
    for name in given:
        assert own[name].dtype == given[name].dtype, name
        assert own[name].shape == given[name].shape, name


def test_collected_rows_leave_a_full_buffer_oldest_first():
    buffer = ReplayBuffer(4, observation_space=OBSERVATIONS, action_space=ACTIONS)
    fill(buffer, 11)
    assert len(buffer) == 4
    assert set(rewards_in(buffer).tolist()) == {8, 9, 10, 11}


def test_rows_of_the_data_set_leave_before_collected_ones():
    buffer = ReplayBuffer(12, dataset=dataset_of(10))
    assert (buffer.num_offline, buffer.num_online) == (10, 0)
    fill(buffer, 5)
    assert (buffer.num_offline, buffer.num_online, len(buffer)) == (7, 5, 12)
    # -0 to -2 are the oldest rows of the data set.
    assert set(rewards_in(buffer).tolist()) == {-3, -4, -5, -6, -7, -8, -9, 1, 2, 3, 4, 5}
    fill(buffer, 20, first=6)
    assert (buffer.num_offline, buffer.num_online) == (0, 12)
    assert rewards_in(buffer).min() == 14


def test_uniform_sampling_follows_the_counts():
    buffer = ReplayBuffer(dataset=dataset_of(30))
    fill(buffer, 10)
    share = float((rewards_in(buffer, 20_000) > 0).float().mean())
    assert share == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("share", "size", "expected"), [(0.5, 64, 32), (0.25, 40, 10)])
def test_a_balanced_batch_has_its_share_of_each_whatever_the_counts(share, size, expected):
    buffer = ReplayBuffer(6, dataset=dataset_of(10), balanced_share=share)
    assert (rewards_in(buffer, size) <= 0).all()  # nothing was collected yet
    fill(buffer, 3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        rewards = buffer.sample(size, generator)["rewards"]
        assert int((rewards <= 0).sum()) == expected
    fill(buffer, 20, first=4)
    assert (buffer.num_offline, buffer.num_online) == (10, 6)


def test_structured_observations_discrete_actions_and_images():
    space = spaces.Dict(goal=spaces.Box(-1, 1, (2,)), lamp=spaces.Discrete(3))
    buffer = ReplayBuffer(observation_space=space, action_space=spaces.Discrete(4, start=2))
    seen = {"goal": np.array([0.5, -0.5], np.float32), "lamp": 1}
    buffer.append(seen, 5, 1.0, seen, terminated=False, truncated=True)
    batch = buffer.sample(2, np.random.default_rng(0))
    assert batch["observations"].tolist() == [[0.5, -0.5, 0, 1, 0]] * 2
    assert batch["actions"].tolist() == [5, 5]
    assert batch["actions"].dtype == torch.int64
    images = ReplayBuffer(
        observation_space=spaces.Box(0, 255, (3, 4, 4), np.uint8), action_space=ACTIONS
    )
    first = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    images.append(first, [0.1], 0.0, first + 1, terminated=False, truncated=False)
    batch = images.sample(3, np.random.default_rng(0))
    assert batch["observations"].dtype == torch.uint8
    assert torch.equal(batch["next_observations"][2], torch.from_numpy(first + 1))


def test_numbers_that_are_not_finite_are_refused_and_not_added():
    buffer = ReplayBuffer(observation_space=OBSERVATIONS, action_space=ACTIONS)
    for reward, observation in ((np.nan, [0, 0]), (0, [np.inf, 0])):
        with pytest.raises(NonFiniteError, match="transition 0"):
            buffer.append(observation, [0], reward, [0, 0], terminated=False, truncated=False)
    assert len(buffer) == 0


def test_a_restored_buffer_goes_on_bit_for_bit():
    first = ReplayBuffer(8, dataset=dataset_of(4))
    fill(first, 6)
    second = ReplayBuffer(8, dataset=dataset_of(4))
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        fill(buffer, 5, first=7)
    assert (first.num_offline, first.num_online) == (second.num_offline, second.num_online)
    assert torch.equal(rewards_in(first), rewards_in(second))


def test_a_state_of_another_buffer_is_refused():
    state = ReplayBuffer(8, dataset=dataset_of()).state_dict()
    with pytest.raises(CheckpointError, match="limit"):
        ReplayBuffer(9, dataset=dataset_of()).load_state_dict(state)


def test_what_makes_no_buffer_is_refused():
    with pytest.raises(ConfigError, match="spaces"):
        ReplayBuffer()
    with pytest.raises(ConfigError, match="limit"):
        ReplayBuffer(0, dataset=dataset_of())
    with pytest.raises(ConfigError, match="share"):
        ReplayBuffer(dataset=dataset_of(), balanced_share=1.0)
    with pytest.raises(ConfigError, match="share"):
        ReplayBuffer(observation_space=OBSERVATIONS, action_space=ACTIONS, balanced_share=0.5)
    with pytest.raises(ConfigError, match="other spaces"):
        ReplayBuffer(dataset=dataset_of(), action_space=spaces.Box(-2, 2, (1,)))
    with pytest.raises(ConfigError, match="empty"):
        ReplayBuffer(observation_space=OBSERVATIONS, action_space=ACTIONS).sample(
            1, np.random.default_rng(0)
        )
