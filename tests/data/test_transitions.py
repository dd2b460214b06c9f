import time

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlreg.errors import DatasetError, LeftOutWarning
from rlreg.runtime.data import TransitionDataset
from rlreg.runtime.data.dataset import DatasetInfo, References
from rlreg.runtime.data.laws import Ledger, StoreCount, compare


def make_flat(lengths, ends):
    """obs = (episode, t), reward = 100 * episode + t; ends: 't' terminal, 'x' timeout."""
    parts = {name: [] for name in ("obs", "act", "rew", "term", "trunc", "next")}
    for index, (steps, end) in enumerate(zip(lengths, ends, strict=True)):
        for t in range(steps):
            last = t == steps - 1
            parts["obs"].append([index, t])
            parts["next"].append([index, t + 1])
            parts["act"].append([index / 10])
            parts["rew"].append(100.0 * index + t)
            parts["term"].append(last and end == "t")
            parts["trunc"].append(last and end == "x")
    arrays = {name: np.array(values) for name, values in parts.items()}
    arrays["act"] = arrays["act"].astype(np.float32)
    arrays["obs"] = arrays["obs"].astype(np.float32)
    arrays["next"] = arrays["next"].astype(np.float32)
    return arrays


def test_every_row_of_flat_arrays_with_next_observations_is_right():
    flat = make_flat([3, 2, 4], "txx")
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"],
        next_observations=flat["next"],
    )  # fmt: skip
    assert len(data) == 9
    np.testing.assert_array_equal(data.observations, flat["obs"])
    np.testing.assert_array_equal(data.next_observations, flat["next"])
    np.testing.assert_array_equal(data.actions, flat["act"])
    np.testing.assert_array_equal(data.rewards, flat["rew"])
    np.testing.assert_array_equal(data.terminations, flat["term"])
    np.testing.assert_array_equal(data.truncations, flat["trunc"])
    np.testing.assert_array_equal(data.intervals, np.ones(9))
    assert data.episodes.lengths.tolist() == [3, 2, 4]
    assert data.episodes.returns.tolist() == [3.0, 201.0, 806.0]
    assert data.laws.hold


def test_without_next_observations_a_timeout_loses_one_step_and_a_terminal_none():
    flat = make_flat([3, 2, 4], "txx")
    with pytest.warns(LeftOutWarning) as caught:
        data = TransitionDataset.from_arrays(
            flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"]
        )
    assert [str(one.message) for one in caught] == [
        "arrays: the last step of 2 truncated episodes, with 304 of the 1,010 reward in all, is "
        "left out, because nothing says which observation followed it; next_observations=... keeps "
        "them"
    ]
    assert caught[0].filename == __file__
    assert data.episodes.lengths.tolist() == [3, 1, 3]
    assert data.rewards.tolist() == [0, 1, 2, 100, 200, 201, 202]
    expected = [[0, 1], [0, 2], [0, 0], [1, 1], [2, 1], [2, 2], [2, 3]]
    assert data.next_observations.tolist() == expected
    assert data.terminations.tolist() == [False, False, True, False, False, False, False]
    assert data.truncations.tolist() == [False, False, False, True, False, False, True]
    report = str(data.laws)
    assert "truncated episodes without a final observation" in report
    assert "2 steps left out, sum of their rewards 304" in report


def test_shuffled_transitions_become_episodes_of_their_own():
    flat = make_flat([30, 20, 40], "txx")
    order = np.random.default_rng(0).permutation(90)
    data = TransitionDataset.from_arrays(
        flat["obs"][order], flat["act"][order], flat["rew"][order], flat["term"][order],
        next_observations=flat["next"][order],
    )  # fmt: skip
    np.testing.assert_array_equal(data.observations, flat["obs"][order])
    np.testing.assert_array_equal(data.next_observations, flat["next"][order])
    assert "episodes ended where next_observations[i]" in str(data.laws)


def test_a_break_inside_a_declared_episode_is_refused():
    flat = make_flat([3, 3], "xx")
    flat["next"][1] = 7.0
    with pytest.raises(DatasetError, match="1 steps inside episodes, the first at step 1"):
        TransitionDataset.from_arrays(
            flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"],
            next_observations=flat["next"],
        )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("tx")), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 7),
)
@pytest.mark.filterwarnings("ignore::rlreg.errors.LeftOutWarning")
def test_rows_rewards_and_links_are_conserved(plan, with_next, block):
    from rlreg.runtime.data import arrays

    if not with_next and all(steps == 1 and end == "x" for steps, end in plan):
        return  # nothing has a next observation
    flat = make_flat([steps for steps, _ in plan], [end for _, end in plan])
    original, arrays._BLOCK = arrays._BLOCK, block  # block borders fall everywhere
    try:
        data = TransitionDataset.from_arrays(
            flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"],
            next_observations=flat["next"] if with_next else None,
        )  # fmt: skip
    finally:
        arrays._BLOCK = original
    lost = 0 if with_next else sum(end == "x" for _, end in plan)
    kept = np.ones(len(flat["rew"]), bool) if with_next else ~flat["trunc"]
    assert len(data) == len(flat["rew"]) - lost
    np.testing.assert_array_equal(data.rewards, flat["rew"][kept].astype(np.float32))
    np.testing.assert_array_equal(data.observations, flat["obs"][kept])
    going_on = ~data.terminations
    np.testing.assert_array_equal(data.next_observations[going_on], flat["next"][kept][going_on])
    assert data.terminations.sum() == flat["term"].sum()
    inside = np.flatnonzero(~(data.terminations | data.truncations))
    np.testing.assert_array_equal(
        data.next_observations[inside], data.observations[(inside + 1) % len(data)]
    )


def test_a_broken_law_is_an_error_that_shows_the_report():
    ledger = Ledger(steps=10, reward_sum=5.0, reward_magnitude=5.0, terminations=1)
    right = StoreCount(10, 5.0, 1, 0.0, 0)
    compare(ledger, right).require("x")
    for wrong in (
        StoreCount(9, 5.0, 1, 0.0, 0),
        StoreCount(10, 4.9, 1, 0.0, 0),
        StoreCount(10, 5.0, 0, 0.0, 0),
        StoreCount(10, 5.0, 1, 0.1, 0),
        StoreCount(10, 5.0, 1, 0.0, 1),
    ):
        with pytest.raises(DatasetError, match="FAIL"):
            compare(ledger, wrong).require("x")


def test_a_shift_of_observations_breaks_a_law(monkeypatch):
    from rlreg.runtime.data import store

    gather = store.Store.gather

    def shifted(self, indices):
        batch = gather(self, indices)
        other = gather(self, (indices + 1) % len(self))
        names = ("observations", "next_observations")
        return {**batch, **{name: other[name] for name in names}}

    monkeypatch.setattr(store.Store, "gather", shifted)
    flat = make_flat([30, 20, 40], "txx")
    with pytest.raises(DatasetError, match="FAIL position-weighted"):
        TransitionDataset.from_arrays(
            flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"]
        )


def test_sampling_is_uniform_with_replacement_and_repeatable():
    flat = make_flat([5, 5], "tx")
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"],
        next_observations=flat["next"],
    )  # fmt: skip
    first = data.sample(20_000, torch.Generator().manual_seed(3))
    again = data.sample(20_000, torch.Generator().manual_seed(3))
    assert all(torch.equal(first[name], again[name]) for name in first)
    _, counts = np.unique(first["rewards"].numpy(), return_counts=True)
    assert len(counts) == 10
    assert counts.min() > 1_800  # 2,000 each, 42 is one standard deviation
    numpy_batch = data.sample(64, np.random.default_rng(0))
    assert numpy_batch["observations"].shape == (64, 2)
    assert set(first) == {
        "observations", "actions", "rewards", "next_observations", "terminations", "truncations",
        "intervals",
    }  # fmt: skip
    assert first["rewards"].shape == (20_000,)


def test_a_sampled_row_keeps_its_parts_together():
    flat = make_flat([7, 5, 9], "txx")
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"], flat["term"], flat["trunc"],
        next_observations=flat["next"],
    )  # fmt: skip
    batch = data.sample(256, torch.Generator().manual_seed(0))
    episode, step = batch["observations"].T
    assert torch.equal(batch["rewards"], 100 * episode + step)
    assert torch.equal(batch["next_observations"], torch.stack([episode, step + 1], dim=1))
    assert torch.equal(batch["terminations"], ((episode == 0) & (step == 6)).float())


def test_discrete_actions_stay_int64_and_images_uint8():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    actions = rng.integers(0, 4, 12)
    data = TransitionDataset.from_arrays(
        images[:-1], actions[:-1], np.arange(11.0), np.arange(11) == 10,
        next_observations=images[1:],
    )  # fmt: skip
    batch = data.gather(torch.arange(11))
    assert batch["observations"].dtype == torch.uint8
    assert batch["actions"].dtype == torch.int64
    assert batch["actions"].shape == (11,)
    np.testing.assert_array_equal(batch["observations"].numpy(), images[:-1])
    np.testing.assert_array_equal(batch["next_observations"].numpy(), images[1:])
    np.testing.assert_array_equal(data.actions, actions[:-1])
    assert isinstance(data.action_space, spaces.Discrete)


def test_bang_bang_actions_of_a_box_stay_continuous():
    actions = np.array([[-1.0], [1.0], [1.0], [-1.0]])
    data = TransitionDataset.from_arrays(
        np.zeros((4, 2)) + np.arange(4)[:, None], actions, np.ones(4), [0, 0, 0, 1]
    )
    assert isinstance(data.action_space, spaces.Box)
    assert data.sample(2, torch.Generator())["actions"].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8", "bool"])
def test_any_numeric_type_and_layout_is_accepted(dtype):
    wide = np.arange(40).reshape(4, 10).astype(dtype)
    observations = wide[:, ::3]  # not contiguous
    data = TransitionDataset.from_arrays(observations, np.zeros((4, 1)), np.ones(4), [0, 0, 0, 1])
    batch = data.gather(torch.arange(4))
    assert batch["observations"].dtype == torch.float32
    np.testing.assert_array_equal(batch["observations"].numpy(), observations.astype(np.float32))


def test_column_vectors_and_numeric_flags_are_accepted():
    flat = make_flat([3, 3], "tt")
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"][:, None], flat["term"][:, None].astype(np.float32)
    )
    assert len(data) == 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, 1e300])
@pytest.mark.parametrize("field", ["obs", "act", "rew"])
def test_numbers_that_would_poison_training_are_refused_with_their_place(bad, field):
    flat = {name: array.astype(np.float64) for name, array in make_flat([3, 5], "tt").items()}
    flat[field][5] = bad  # episode 1, step 2
    with pytest.raises(DatasetError, match=r"episode 1, index 2") as caught:
        TransitionDataset.from_arrays(flat["obs"], flat["act"], flat["rew"], flat["term"])
    assert "rlreg data inspect" in str(caught.value)
    assert "--set dataset.allow_non_finite=true" in str(caught.value)
    assert "in Python allow_non_finite=True" in str(caught.value)


def test_all_offenders_are_counted_and_may_be_let_in():
    flat = make_flat([3, 5], "tt")
    flat["obs"][[1, 2, 6]] = np.nan
    with pytest.raises(DatasetError, match="6 numbers are NaN"):
        TransitionDataset.from_arrays(flat["obs"], flat["act"], flat["rew"], flat["term"])
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"], flat["term"], allow_non_finite=True
    )
    assert np.isnan(data.observations).sum() == 6
    assert "6 non-finite numbers let in" in str(data.laws)


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(DatasetError, match="4 rewards but 3 observations"):
        TransitionDataset.from_arrays(np.zeros((3, 2)), np.zeros((4, 1)), np.ones(4), [0, 0, 0, 1])
    with pytest.raises(DatasetError, match="expected 0 and 1"):
        TransitionDataset.from_arrays(np.zeros((2, 2)), np.zeros((2, 1)), np.ones(2), [0, 3])
    with pytest.raises(DatasetError, match="no transition"):
        TransitionDataset.from_arrays(np.zeros((1, 2)), np.zeros((1, 1)), np.ones(1), [0], [1])


def test_a_category_outside_its_space_is_refused_with_its_place():
    flat = make_flat([3, 3], "tt")
    with pytest.raises(DatasetError, match="episode 1, index 2"):
        TransitionDataset.from_arrays(
            flat["obs"], np.array([0, 1, 2, 0, 1, 3]), flat["rew"], flat["term"],
            action_space=spaces.Discrete(3),
        )  # fmt: skip


def test_intervals_are_kept():
    flat = make_flat([3], "t")
    data = TransitionDataset.from_arrays(
        flat["obs"], flat["act"], flat["rew"], flat["term"], intervals=[1, 3, 2]
    )
    assert data.intervals.tolist() == [1, 3, 2]


def test_episodes_can_be_given_and_read_back(recognisable):
    made = [recognisable(0, 3, terminated=True), recognisable(1, 2), recognisable(2, 4)]
    data = TransitionDataset.from_episodes(made)
    assert len(data) == 9
    assert data.episodes.starts.tolist() == [0, 3, 5]
    for episode, original in zip(data.episodes, made, strict=True):
        np.testing.assert_array_equal(episode.observations, original["observations"])
        np.testing.assert_array_equal(episode.actions, original["actions"])
        np.testing.assert_array_equal(episode.truncations, original["truncations"])
        assert len(episode) == len(original["rewards"])
    assert data.episodes[-1].index == 2
    assert [episode.index for episode in data.episodes[1:]] == [1, 2]
    with pytest.raises(IndexError):
        data.episodes[3]


def test_the_content_hash_follows_the_content_and_not_the_route(recognisable):
    made = [recognisable(0, 3, terminated=True), recognisable(1, 2)]
    data = TransitionDataset.from_episodes(made)
    same = TransitionDataset.from_episodes([dict(episode) for episode in made])
    assert data.content_hash() == same.content_hash()
    flat = TransitionDataset.from_arrays(
        data.observations, data.actions, data.rewards, data.terminations, data.truncations,
        next_observations=data.next_observations,
    )  # fmt: skip
    assert flat.content_hash() == data.content_hash()
    made[1]["rewards"] = made[1]["rewards"] + 1e-3
    assert TransitionDataset.from_episodes(made).content_hash() != data.content_hash()


def test_a_closed_data_set_says_so(recognisable):
    info = DatasetInfo("mine", references=References(-10.0, 10.0))
    data = TransitionDataset.from_episodes([recognisable(0, 3)], info=info)
    assert data.references.normalize(0.0) == 50.0
    assert "mine" in repr(data)
    data.close()
    with pytest.raises(DatasetError, match="mine is closed"):
        data.sample(1, torch.Generator())
    assert data.episodes.returns.tolist() == [3.0]
    with pytest.raises(DatasetError, match="closed"):
        data.episodes[0]


def test_batches_can_go_to_another_device_than_the_rows(recognisable):
    data = TransitionDataset.from_episodes([recognisable(0, 3)]).to("meta")
    assert data.gather(torch.arange(2))["rewards"].device.type == "meta"


def test_wide_rows_are_handled_few_at_a_time(monkeypatch):
    from rlreg.runtime.data import store

    seen = []
    append = store.StoreWriter.append
    monkeypatch.setattr(
        store.StoreWriter,
        "append",
        lambda self, block: (seen.append(len(block)), append(self, block)),
    )
    observations = np.random.default_rng(0).random((300, 20_000), np.float32)
    flags = np.arange(300) == 299
    data = TransitionDataset.from_arrays(observations, np.zeros((300, 1)), np.ones(300), flags)
    most = 2**22 // (4 * 20_000)
    assert max(seen) <= most
    assert sum(seen) == 300
    assert max(len(chunk["rewards"]) for chunk in data.chunks()) <= most
    np.testing.assert_array_equal(data.observations, observations)


def test_observations_are_stored_once():
    steps = 10_000
    observations = np.random.default_rng(0).random((steps + 1, 50), np.float32)
    data = TransitionDataset.from_episodes(
        [{"observations": observations, "actions": np.zeros((steps, 1)), "rewards": np.ones(steps)}]
    )
    assert data.nbytes < 1.2 * observations.nbytes


@pytest.mark.slow
def test_sampling_from_a_million_transitions_is_far_cheaper_than_an_update():
    steps = 1_000_000
    rng = np.random.default_rng(0)
    flags = np.arange(steps) % 1000 == 999
    data = TransitionDataset.from_arrays(
        rng.random((steps, 17), np.float32), rng.random((steps, 6), np.float32), np.ones(steps),
        np.zeros(steps, bool), flags,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    times = []
    for _ in range(500):
        start = time.perf_counter()
        data.sample(256, generator)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 150e-6
