import json
import shutil

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg.errors import DatasetError, MissingDatasetError, RlregError, UnknownNameError
from rlreg.runtime.data import TransitionDataset, load_dataset
from rlreg.runtime.data.dataset import References
from rlreg.runtime.data.inspect import inspect
from rlreg.runtime.data.load import list_local
from rlreg.runtime.data.minari import env_spec_from_json

FORMATS = ["hdf5", "arrow", "parquet"]


@pytest.fixture(params=FORMATS)
def data_format(request):
    return request.param


def test_every_row_of_three_episodes_is_right(
    write_minari, recognisable, plain_spaces, data_format
):
    made = [recognisable(0, 3, terminated=True), recognisable(1, 4), recognisable(2, 2)]
    data = load_dataset(write_minari(made, *plain_spaces, data_format=data_format))
    assert data.observations.tolist() == [
        [0, 0], [0, 1], [0, 2],
        [1, 0], [1, 1], [1, 2], [1, 3],
        [2, 0], [2, 1],
    ]  # fmt: skip
    assert data.next_observations.tolist() == [
        [0, 1], [0, 2], [0, 3],
        [1, 1], [1, 2], [1, 3], [1, 4],
        [2, 1], [2, 2],
    ]  # fmt: skip
    assert data.rewards.tolist() == [0, 1, 2, 100, 101, 102, 103, 200, 201]
    np.testing.assert_allclose(
        data.actions[:, 0], [0, 0.01, 0.02, 0.1, 0.11, 0.12, 0.13, 0.2, 0.21], rtol=1e-6
    )
    assert np.flatnonzero(data.terminations).tolist() == [2]
    assert np.flatnonzero(data.truncations).tolist() == [6, 8]
    assert data.laws.hold
    assert data.env_spec is None
    assert data.env_id is None


def test_the_last_step_of_a_truncated_episode_keeps_its_true_next_observation_and_its_reward(
    write_minari, plain_spaces, data_format
):
    steps = 4
    rewards = np.array(
        [0.0, 0.0, 0.0, 1.0]
    )  # as in sparse mazes: the last step is the only one paid
    episode = {
        "observations": np.arange(10.0).reshape(5, 2),
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": rewards,
        "terminations": np.zeros(steps, bool),
        "truncations": np.arange(steps) == 3,
    }
    data = load_dataset(write_minari([episode] * 3, *plain_spaces, data_format=data_format))
    assert len(data) == 12
    assert data.rewards.sum() == 3.0
    last = data.gather(torch.tensor([3]))
    assert last["next_observations"].tolist() == [[8.0, 9.0]]
    assert last["terminations"].item() == 0


def test_both_formats_give_the_same_content(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3, terminated=True), recognisable(1, 4)]
    hashes = set()
    for data_format in FORMATS:
        name = f"test/{data_format}-v0"
        write_minari(made, *plain_spaces, data_format=data_format, dataset_id=name)
        hashes.add(load_dataset(name).content_hash())
    hashes.add(
        TransitionDataset.from_episodes(
            made, observation_space=plain_spaces[0], action_space=plain_spaces[1]
        ).content_hash()
    )
    assert len(hashes) == 1


def test_episodes_with_t_observations_are_found_reported_and_give_one_step_less(
    write_minari, recognisable, plain_spaces, data_format
):
    made = [recognisable(0, 3), recognisable(1, 4, observations=4), recognisable(2, 2)]
    data = load_dataset(write_minari(made, *plain_spaces, data_format=data_format))
    assert data.episodes.lengths.tolist() == [3, 3, 2]
    assert data.rewards.tolist() == [0, 1, 2, 100, 101, 102, 200, 201]
    assert data.next_observations[3:6].tolist() == [[1, 1], [1, 2], [1, 3]]
    report = str(data.laws)
    assert "episodes with T observations where T + 1 belong" in report
    assert "1 steps left out, sum of their rewards 103" in report


def test_other_lengths_are_refused_with_the_episode(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3), recognisable(1, 4, observations=7)]
    with pytest.raises(DatasetError, match="episode 1: 4 rewards and 7 observations; expected 5"):
        load_dataset(write_minari(made, *plain_spaces))


@pytest.fixture
def write_long_arrow(write_minari, plain_spaces, root):
    """Writes an Arrow episode of 140,000 steps, its record batches in the order asked for."""

    def write(order):
        import pyarrow as pa

        steps = 140_000
        episode = {
            "observations": np.stack([np.arange(steps + 1.0)] * 2, axis=1),
            "actions": np.zeros((steps, 1), np.float32),
            "rewards": np.arange(steps) % 7.0,
            "terminations": np.zeros(steps, bool),
            "truncations": np.arange(steps) == steps - 1,
        }
        name = write_minari([episode], *plain_spaces, data_format="arrow")
        path = root / name / "data" / "0" / "part-0.arrow"
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
        rows = np.concatenate([np.asarray(c.flatten()) for c in table["observations"].chunks])
        table = table.take(np.argsort(rows.reshape(-1, 2)[:, 0]))
        with pa.ipc.new_file(path, table.schema) as file:
            for part in order:
                file.write(table.slice(part * 32_768, 32_768))
        return name, steps

    return write


def test_an_episode_of_many_record_batches_is_read_whole(write_long_arrow):
    name, steps = write_long_arrow([0, 1, 2, 3, 4])
    data = load_dataset(name)
    assert len(data) == steps
    np.testing.assert_array_equal(data.observations[:, 0], np.arange(steps))
    np.testing.assert_array_equal(data.next_observations[:, 0], np.arange(steps) + 1)
    assert "may have put out of order" in str(data.laws)


def test_rows_that_were_written_out_of_order_are_refused(write_long_arrow):
    name, _ = write_long_arrow([0, 4, 1, 2, 3])
    with pytest.raises(DatasetError, match="out of order"):
        load_dataset(name)


def test_dict_observations_follow_the_declared_order(write_minari, data_format):
    steps = 3
    parts = {
        "zeta": np.arange(4)[:, None] + 10.0,
        "alpha": np.array([0, 2, 1, 2]),
        "pair": (np.arange(4)[:, None] + 20.0, np.array([[0, 1], [1, 0], [1, 2], [0, 0]])),
    }
    space = spaces.Dict(
        [
            ("zeta", spaces.Box(-np.inf, np.inf, (1,), np.float64)),
            ("alpha", spaces.Discrete(3)),
            (
                "pair",
                spaces.Tuple([spaces.Box(0, 99, (1,), np.float64), spaces.MultiDiscrete([2, 3])]),
            ),
        ]
    )
    episode = {
        "observations": parts,
        "actions": np.array([0, 1, 2]),
        "rewards": np.ones(steps),
        "terminations": np.zeros(steps, bool),
        "truncations": np.arange(steps) == 2,
    }
    data = load_dataset(write_minari([episode], space, spaces.Discrete(3), data_format=data_format))
    assert data.plan.shape == (10,)
    assert data.observations[1].tolist() == [11, 0, 0, 1, 21, 0, 1, 1, 0, 0]
    assert data.next_observations[2].tolist() == [13, 0, 0, 1, 23, 1, 0, 1, 0, 0]
    assert data.actions.tolist() == [0, 1, 2]
    assert "observation.pair[1]" in data.plan.describe()


def test_multi_discrete_actions_and_discrete_observations(write_minari, data_format):
    episode = {
        "observations": np.array([0, 1, 3]),
        "actions": np.array([[0, 2], [1, 0]]),
        "rewards": np.ones(2),
        "terminations": np.array([False, True]),
        "truncations": np.zeros(2, bool),
    }
    name = write_minari(
        [episode], spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), data_format=data_format
    )
    batch = load_dataset(name).gather(torch.arange(2))
    assert batch["observations"].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert batch["actions"].tolist() == [[0, 2], [1, 0]]
    assert batch["actions"].dtype == torch.int64


@pytest.mark.parametrize("jpeg", [False, True])
def test_images_stay_uint8(write_minari, data_format, jpeg):
    flat = np.stack([np.full((32, 40, 3), 10 * t, np.uint8) for t in range(4)])
    episode = {
        "observations": flat,
        "actions": np.array([0, 1, 0]),
        "rewards": np.ones(3),
        "terminations": np.array([False, False, True]),
        "truncations": np.zeros(3, bool),
    }
    space = spaces.Box(0, 255, (32, 40, 3), np.uint8)
    name = write_minari(
        [episode], space, spaces.Discrete(2), data_format=data_format, jpeg_encoding=jpeg
    )
    data = load_dataset(name)
    assert data.plan.is_image
    assert data.observations.dtype == np.uint8
    np.testing.assert_array_equal(data.observations, flat[:3])
    np.testing.assert_array_equal(data.next_observations, flat[1:])


def test_unknown_keys_in_an_environment_spec_are_ignored(
    write_minari, recognisable, plain_spaces, root
):
    import gymnasium

    name = write_minari([recognisable(0, 3)], *plain_spaces, env_spec=gymnasium.spec("Pendulum-v1"))
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    spec = json.loads(metadata["env_spec"])
    spec.update({"autoreset": False, "apply_api_compatibility": False, "from_the_future": [1]})
    metadata["env_spec"] = json.dumps(spec)
    metadata["minari_version"] = "99.0"  # Minari itself refuses what it does not list
    path.write_text(json.dumps(metadata))
    data = load_dataset(name)
    assert data.env_id == "Pendulum-v1"
    assert data.env_spec.max_episode_steps == 200


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 3, "additional_wrappers": [{"x": 1}]}'])
def test_an_unreadable_environment_spec_is_no_environment(text):
    assert env_spec_from_json(text) is None


def test_spaces_left_to_the_environment_are_taken_from_it(write_minari, root):
    import gymnasium

    spec = gymnasium.spec("Pendulum-v1")
    with gymnasium.make(spec) as env:
        observation_space, action_space = env.observation_space, env.action_space
    episode = {
        "observations": np.zeros((3, 3), np.float32),
        "actions": np.zeros((2, 1), np.float32),
        "rewards": np.ones(2),
        "terminations": np.zeros(2, bool),
        "truncations": np.array([False, True]),
    }
    name = write_minari([episode], observation_space, action_space, env_spec=spec)
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"], metadata["action_space"]
    path.write_text(json.dumps(metadata))
    assert load_dataset(name).observation_space == observation_space


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_non_finite_data_are_refused_with_episode_and_index(
    write_minari, recognisable, plain_spaces, data_format, bad
):
    made = [recognisable(0, 3), recognisable(1, 3)]
    made[1]["observations"][3, 0] = bad  # a final observation counts as well
    name = write_minari(made, *plain_spaces, data_format=data_format)
    with pytest.raises(DatasetError, match="episode 1, index 3, component 0"):
        load_dataset(name)
    assert len(load_dataset(name, allow_non_finite=True)) == 6


def test_episodes_can_be_cut_after_their_first_success(write_minari, plain_spaces, data_format):
    steps = 6
    success = [False, False, False, True, True, True, True]
    episode = {
        "observations": np.arange(14.0).reshape(7, 2),
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": np.array([0, 0, 1, 1, 1, 1.0]),
        "terminations": np.zeros(steps, bool),
        "truncations": np.arange(steps) == 5,
        "infos": {"success": success},
    }
    name = write_minari([episode] * 2, *plain_spaces, data_format=data_format)
    assert len(load_dataset(name)) == 12
    data = load_dataset(name, cut_after_success=True)
    assert data.episodes.lengths.tolist() == [3, 3]
    assert data.rewards.tolist() == [0, 0, 1, 0, 0, 1]
    assert data.next_observations[2].tolist() == [6, 7]
    assert data.truncations[[2, 5]].all()
    assert not data.terminations.any()
    assert "6 steps left out, sum of their rewards 6" in str(data.laws)


def test_actions_can_be_clipped_to_their_space(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3)]
    made[0]["actions"][1] = 1.5
    name = write_minari(made, *plain_spaces)
    assert load_dataset(name).actions.max() == np.float32(1.5)
    data = load_dataset(name, clip_actions=True)
    assert data.actions.max() == 1.0
    assert "actions clipped" in str(data.laws)


def test_references_come_from_the_file_or_from_the_user(write_minari, recognisable, plain_spaces):
    name = write_minari(
        [recognisable(0, 3)],
        *plain_spaces,
        metadata={"ref_min_score": -5.0, "ref_max_score": 15.0},
    )
    assert load_dataset(name).references.normalize(5.0) == 50.0
    assert load_dataset(name, references=References(0.0, 10.0)).references.ref_max == 10.0
    bare = write_minari([recognisable(0, 3)], *plain_spaces, dataset_id="test/bare-v0")
    assert load_dataset(bare).references is None


def test_a_data_set_is_found_by_every_path_into_it(write_minari, recognisable, plain_spaces, root):
    name = write_minari([recognisable(0, 3)], *plain_spaces)
    folder = root / name
    for path in (folder, folder / "data", folder / "data" / "main_data.hdf5", str(folder)):
        assert len(load_dataset(path)) == 3
    assert [entry.dataset_id for entry in list_local()] == [name]
    assert list_local()[0].num_steps == 3


def test_a_missing_data_set_says_where_it_looked_and_what_to_do(root):
    with pytest.raises(MissingDatasetError) as caught:
        load_dataset("D4RL/pointmaze/umaze-v2")
    assert str(root) in str(caught.value)
    assert "minari download D4RL/pointmaze/umaze-v2" in str(caught.value)
    assert "in Python with load_dataset(..., download=True)" in str(caught.value)
    with pytest.raises(MissingDatasetError) as caught:
        load_dataset("rlreg/pendulum/mixed-v0")
    assert str(root) in str(caught.value)
    assert "rlreg data generate rlreg/pendulum/mixed-v0" in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean 'rlreg/pendulum/mixed-v0'"):
        load_dataset("rlreg/pendulum/mixt-v0")
    with pytest.raises(MissingDatasetError, match="no such file"):
        load_dataset("somewhere/else.hdf5")


def test_what_is_neither_id_nor_path_is_refused():
    with pytest.raises(DatasetError, match="expected the id or the path of a data set, got None"):
        load_dataset(None)


def test_a_failed_download_is_a_data_set_error(monkeypatch):
    import minari

    def fail(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(minari, "download_dataset", fail)
    with pytest.raises(DatasetError, match="could not be downloaded: ConnectionError: no network"):
        load_dataset("D4RL/door/human-v2", download=True)


def test_damaged_files_are_data_set_errors(write_minari, recognisable, plain_spaces, root):
    name = write_minari([recognisable(0, 3)], *plain_spaces)
    data_file = root / name / "data" / "main_data.hdf5"
    whole = data_file.read_bytes()
    data_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match="HDF5"):
        load_dataset(name)
    data_file.unlink()
    with pytest.raises(DatasetError, match="HDF5"):
        load_dataset(name)
    (root / name / "data" / "metadata.json").write_text("{")
    with pytest.raises(DatasetError, match="metadata"):
        load_dataset(name)
    shutil.rmtree(root / name / "data")
    with pytest.raises(MissingDatasetError):
        load_dataset(name)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_rot_are_found_or_do_no_harm(
    seed, write_minari, recognisable, plain_spaces, root
):
    """HDF5 says so in errors of many kinds, from reading as from looking around."""
    name = write_minari([recognisable(0, 3), recognisable(1, 4)], *plain_spaces)
    file = root / name / "data" / "main_data.hdf5"
    whole, rng, num_refused = file.read_bytes(), np.random.default_rng(seed), 0
    # Headers and trees, where most of the bytes are of some kilobytes of file.
    for _ in range(150):
        rotten = bytearray(whole)
        for place in rng.integers(len(whole), size=8):
            rotten[place] = rng.integers(256)
        file.write_bytes(rotten)
        for look in (load_dataset, inspect):
            try:
                look(name)
            except RlregError:
                num_refused += 1
    assert num_refused > 20


@pytest.mark.parametrize("space", ["{", "[]", "[" * 10_000, 3, [], {}, '{"type": "Box"}'])
def test_a_space_that_cannot_be_read_is_a_data_set_error(
    space, write_minari, recognisable, plain_spaces, root
):
    name = write_minari([recognisable(0, 3)], *plain_spaces)
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "observation_space": space}))
    with pytest.raises(DatasetError, match="observation_space"):
        load_dataset(name)


def test_a_missing_episode_is_named(write_minari, recognisable, plain_spaces, data_format, root):
    name = write_minari([recognisable(0, 3)], *plain_spaces, data_format=data_format)
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.update(total_episodes=2)
    path.write_text(json.dumps(metadata))
    with pytest.raises(DatasetError, match="episode 1 is missing"):
        load_dataset(name)


def test_steps_that_the_metadata_promises_but_the_file_lacks_break_a_law(
    write_minari, recognisable, plain_spaces, root
):
    name = write_minari([recognisable(0, 3)], *plain_spaces)
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.update(total_steps=4)
    path.write_text(json.dumps(metadata))
    with pytest.raises(DatasetError, match="FAIL steps declared and read: file 4, store 3"):
        load_dataset(name)


def test_what_the_metadata_leaves_out_is_said(
    write_minari, recognisable, plain_spaces, data_format, root
):
    episodes = [recognisable(index, 3) for index in range(3)]
    name = write_minari(episodes, *plain_spaces, data_format=data_format)
    path = root / name / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    assert not any("metadata.json" in note for note in load_dataset(name).laws.notes)
    path.write_text(json.dumps({**metadata, "total_episodes": 2, "total_steps": None}))
    dataset = load_dataset(name)
    assert len(dataset) == 6
    lost, more = (note for note in dataset.laws.notes if "metadata.json" in note)
    assert lost.startswith("metadata.json has no total_steps")
    assert more.startswith("the files have more episodes than total_episodes of metadata.json")


@pytest.mark.parametrize("value", ["many", [], {}])
def test_a_number_of_steps_that_is_none_is_refused(
    write_minari, recognisable, plain_spaces, value, root
):
    name = write_minari([recognisable(0, 3)], *plain_spaces)
    path = root / name / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_steps": value}))
    with pytest.raises(DatasetError, match="not the metadata of a Minari data set"):
        load_dataset(name)


def test_a_mapped_store_equals_the_resident_one_and_is_built_once(
    write_minari, recognisable, plain_spaces, tmp_path, monkeypatch
):
    made = [recognisable(0, 30, terminated=True), recognisable(1, 40)]
    name = write_minari(made, *plain_spaces)
    resident = load_dataset(name)
    mapped = load_dataset(name, memory_map=True)
    assert mapped.content_hash() == resident.content_hash()
    assert mapped.laws == resident.laws
    first = resident.sample(32, torch.Generator().manual_seed(1))
    again = mapped.sample(32, torch.Generator().manual_seed(1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    entries = list((tmp_path / "cache" / "datasets").iterdir())
    assert len(entries) == 1
    stamp = (entries[0] / "numbers.bin").stat().st_mtime_ns
    assert load_dataset(name, memory_limit=1).content_hash() == resident.content_hash()
    assert (entries[0] / "numbers.bin").stat().st_mtime_ns == stamp
    load_dataset(name, memory_limit=1, clip_actions=True)
    assert len(list((tmp_path / "cache" / "datasets").iterdir())) == 2


def test_short_episodes_packed_together_are_those_packed_one_by_one(
    write_minari, recognisable, plain_spaces, monkeypatch
):
    from rlreg.runtime.data import build

    made = [recognisable(index, index % 4 + 1, terminated=index % 2 == 0) for index in range(9)]
    made.append(recognisable(9, 5, observations=5))
    name = write_minari(made, *plain_spaces)
    packed = load_dataset(name)
    made[3]["observations"][1, 1] = np.nan
    made[3]["rewards"][2] = np.inf
    made[7]["observations"][0, 0] = 1e30
    faulty = write_minari(made, *plain_spaces, dataset_id="test/faulty-v0")
    with pytest.raises(DatasetError, match="3 numbers are NaN") as caught:
        load_dataset(faulty)
    for rows in (1, 7):
        monkeypatch.setattr(build, "_JOINED_ROWS", rows)
        single = load_dataset(name)
        assert single.content_hash() == packed.content_hash()
        assert single.laws.to_json() == packed.laws.to_json()
        with pytest.raises(DatasetError) as again:
            load_dataset(faulty)
        assert str(again.value) == str(caught.value)


def test_a_changed_file_never_meets_an_old_store(write_minari, recognisable, plain_spaces, root):
    name = write_minari([recognisable(0, 4)], *plain_spaces)
    load_dataset(name, memory_map=True)
    shutil.rmtree(root / name)
    write_minari([recognisable(7, 4)], *plain_spaces)
    assert load_dataset(name, memory_map=True).observations[:, 0].tolist() == [7] * 4


def test_a_damaged_cache_breaks_a_law(write_minari, recognisable, plain_spaces, tmp_path):
    name = write_minari([recognisable(0, 30)], *plain_spaces)
    load_dataset(name, memory_map=True)
    path = next((tmp_path / "cache" / "datasets").iterdir()) / "numbers.bin"
    damaged = bytearray(path.read_bytes())
    damaged[400:404] = b"\x00\x00\x80\x3f"
    path.write_bytes(bytes(damaged))
    with pytest.raises(DatasetError, match="FAIL"):
        load_dataset(name, memory_map=True)


def test_a_failed_build_leaves_no_cache_entry(write_minari, recognisable, plain_spaces, tmp_path):
    made = [recognisable(0, 3)]
    made[0]["rewards"][1] = np.nan
    name = write_minari(made, *plain_spaces)
    with pytest.raises(DatasetError, match="NaN"):
        load_dataset(name, memory_map=True)
    assert list((tmp_path / "cache" / "datasets").iterdir()) == []


def test_text_observations_are_refused_by_name(write_minari, root):
    space = spaces.Dict({"mission": spaces.Text(10), "x": spaces.Discrete(2)})
    episode = {
        "observations": {"mission": ["go"] * 3, "x": np.array([0, 1, 0])},
        "actions": np.array([0, 1]),
        "rewards": np.ones(2),
        "terminations": np.array([False, True]),
        "truncations": np.zeros(2, bool),
    }
    name = write_minari([episode], space, spaces.Discrete(2))
    with pytest.raises(DatasetError, match=r"observation\.mission"):
        load_dataset(name)
