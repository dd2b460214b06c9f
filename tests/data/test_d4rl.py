import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from rlreg.errors import DatasetError
from rlreg.runtime.data import load_dataset
from rlreg.runtime.data.inspect import inspect


@pytest.fixture
def write(tmp_path):
    def write(lengths, ends, *, with_next=False, with_timeouts=True, tail=0, **changes):
        """Episodes of obs = (episode, t); the last ``tail`` steps carry no flag."""
        rows = [
            (index, t, steps, end)
            for index, (steps, end) in enumerate(zip(lengths, ends, strict=True))
            for t in range(steps)
        ]
        rows += [(len(lengths), t, tail + 1, "") for t in range(tail)]
        episode, step = (np.array([row[i] for row in rows]) for i in (0, 1))
        last = np.array([t == steps - 1 for _, t, steps, _ in rows])
        kind = np.array([end for *_, end in rows])
        arrays = {
            "observations": np.stack([episode, step], axis=1).astype(np.float32),
            "actions": (np.stack([episode, step], axis=1) / 50).astype(np.float32),
            "rewards": (100.0 * episode + step).astype(np.float32),
            "terminals": last & (kind == "t"),
        }
        if with_timeouts:
            arrays["timeouts"] = last & (kind == "x")
        if with_next:
            arrays["next_observations"] = np.stack([episode, step + 1], axis=1).astype(np.float32)
        arrays.update(changes)
        path = tmp_path / "walker2d_medium-v2.hdf5"
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                if values is not None:
                    file.create_dataset(name, data=values, compression="gzip")
            file.create_dataset("metadata/algorithm", data="SAC")
        return path

    return write


def test_every_row_of_a_file_without_next_observations_is_right(write):
    data = load_dataset(write([3, 4, 2], "txx"))
    assert data.observations.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert data.next_observations.tolist() == [
        [0, 1], [0, 2], [0, 0],
        [1, 1], [1, 2], [1, 3],
        [2, 1],
    ]  # fmt: skip
    assert data.rewards.tolist() == [0, 1, 2, 100, 101, 102, 200]
    assert np.flatnonzero(data.terminations).tolist() == [2]
    assert np.flatnonzero(data.truncations).tolist() == [5, 6]
    assert "2 steps left out, sum of their rewards 304" in str(data.laws)
    assert "the file names no action space" in str(data.laws)
    assert data.action_space == spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert data.references is None


def test_a_file_with_next_observations_loses_nothing(write):
    data = load_dataset(write([3, 4, 2], "txx", with_next=True, tail=2))
    assert len(data) == 11
    assert data.next_observations[:3].tolist() == [[0, 1], [0, 2], [0, 3]]
    assert data.episodes.lengths.tolist() == [3, 4, 2, 2]
    assert data.truncations[-1]


def test_steps_after_the_last_flag_are_kept(write):
    data = load_dataset(write([3], "t", tail=3))
    assert data.episodes.lengths.tolist() == [3, 2]
    assert "episodes that end without a flag" in str(data.laws)


def test_where_terminal_and_timeout_coincide_the_terminal_holds(write):
    path = write([3, 3], "tx")
    with h5py.File(path, "a") as file:
        file["timeouts"][2] = True
    data = load_dataset(path)
    assert data.episodes.lengths.tolist() == [3, 2]
    assert data.terminations[2]


def test_a_file_without_timeouts_ends_episodes_where_next_observations_break(write):
    data = load_dataset(write([3, 4], "xx", with_next=True, with_timeouts=False))
    assert data.episodes.lengths.tolist() == [3, 4]
    report = str(load_dataset(write([3, 4], "tt", with_timeouts=False)).laws)
    assert "a reset without a terminal cannot be seen" in report


def test_breaks_inside_an_episode_are_refused_unless_asked_to_split(write):
    path = write([3, 4], "xx", with_next=True)
    with h5py.File(path, "a") as file:
        file["next_observations"][4] = 9.0
    with pytest.raises(DatasetError, match="split_at_breaks=True"):
        load_dataset(path)
    data = load_dataset(path, split_at_breaks=True)
    assert data.episodes.lengths.tolist() == [3, 2, 2]
    assert data.next_observations[4].tolist() == [9, 9]


def test_integer_actions_are_categories_and_spaces_can_be_given(write):
    path = write([3, 3], "tt", actions=np.array([[0], [1], [2], [0], [1], [2]]))
    data = load_dataset(path)
    assert data.action_space == spaces.Discrete(3)
    assert data.actions.tolist() == [0, 1, 2, 0, 1, 2]
    given = load_dataset(path, action_space=spaces.Discrete(5))
    assert given.action_size == 5


def test_non_finite_numbers_are_refused_with_episode_and_index(write):
    path = write([3, 4], "tt")
    with h5py.File(path, "a") as file:
        file["rewards"][5] = np.nan
    with pytest.raises(DatasetError, match="rewards in episode 1, index 2"):
        load_dataset(path)


def test_a_file_of_another_kind_is_refused(write, tmp_path):
    with pytest.raises(DatasetError, match="neither part of a Minari data set"):
        load_dataset(write([3], "t", rewards=None))
    text = tmp_path / "x.hdf5"
    text.write_text("not this")
    with pytest.raises(DatasetError, match="not a readable HDF5 file"):
        load_dataset(text)
    with pytest.raises(DatasetError, match="6 rewards but 5 observations"):
        load_dataset(write([3, 3], "tt", observations=np.zeros((5, 2))))


def test_the_mapped_store_equals_the_resident_one(write):
    path = write([30, 40, 20], "txx", with_next=True)
    mapped = load_dataset(path, memory_map=True)
    assert mapped.content_hash() == load_dataset(path).content_hash()
    assert load_dataset(path, memory_map=True).laws == mapped.laws


@pytest.mark.parametrize(("name", "dtype"), [("actions", np.uint64), ("observations", np.int64)])
def test_integers_too_large_for_categories_are_refused(name, dtype, write):
    path = write([3, 2], "tx", **{name: np.array([0, 1, 2, 2**62, 4], dtype)})
    with pytest.raises(DatasetError, match=f"{name}: the integer 4,611,686,.* give {name[:-1]}_sp"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda f: f.create_group("rewards"), "rewards is no array"),
        (lambda f: f.__setitem__("rewards", h5py.SoftLink("/rewards")), "rewards is missing, or a"),
        (lambda f: f.__setitem__("rewards", h5py.SoftLink("/none")), "rewards is missing, or a"),
        (lambda f: f.__setitem__("rewards", h5py.ExternalLink("b.h5", "/r")), "to another file"),
        (
            lambda f: f.create_dataset("rewards", (2 * 10**9,), np.float64, chunks=(1000,)),
            "rewards would be 16,000,000,000 bytes, more than this file can hold",
        ),
    ],
)
def test_arrays_that_are_not_in_the_file_are_refused(change, what, write, tmp_path):
    path = write([3, 2], "tx")
    with h5py.File(tmp_path / "b.h5", "w") as other:
        other["r"] = np.zeros(5, np.float32)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        change(file)
    with pytest.raises(DatasetError, match=what):
        load_dataset(path)


def test_no_old_gym_is_imported(write):
    code = (
        "import sys; from rlreg.runtime.data import load_dataset; "
        f"load_dataset({str(write([3], 't'))!r}); "
        "sys.exit('gym' in sys.modules or 'd4rl' in sys.modules or 'minari' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_mapped_load_needs_little_memory_of_its_own(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    out = tmp_path / "memory.json"
    words = ["--transitions", "2000000", "--out", str(out)]
    subprocess.run([sys.executable, str(script), *words], check=True)
    figures = json.loads(out.read_text())["figures"]
    assert figures["load mapped, 1,000 batches: anonymous memory, MiB"] < 180  # the rows are 206
    assert figures["inspect: anonymous memory, MiB"] < 180


@pytest.mark.parametrize("look", [load_dataset, inspect])
@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("actions", np.full(4, -1), "actions: negative integers"),
        ("actions", np.array([b"left"] * 4), "actions: expected numbers"),
        ("actions", np.zeros((0, 2)), "actions: there is not a single one"),
        ("rewards", np.zeros((4, 2)), "rewards: expected shape"),
        ("terminals", np.full(4, 3), "terminals: expected 0 and 1"),
    ],
)
def test_whatever_is_wrong_with_the_data_names_the_file(look, name, values, said, write):
    path = write([4], "t", **{name: values})
    with pytest.raises(DatasetError) as caught:
        look(str(path))
    assert str(caught.value).startswith(f"{path}: {said}")
