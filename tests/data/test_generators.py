import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rlreg.errors import DatasetError, MissingDatasetError, MissingExtraError, UnknownNameError
from rlreg.runtime.data import load_dataset
from rlreg.runtime.data.generate import RECIPES, generate, list_generators, write_recipe
from rlreg.runtime.data.pendulum import PendulumController
from rlreg.runtime.data.pointmaze import shortest_path

PENDULUM = "rlreg/pendulum/mixed-v0"
UMAZE = "rlreg/pointmaze/umaze-v0"
has_robotics = all(importlib.util.find_spec(name) for name in ("gymnasium_robotics", "mujoco"))
needs_robotics = pytest.mark.skipif(
    not has_robotics, reason="gymnasium-robotics is not installed: pip install rlreg[pointmaze]"
)


@pytest.fixture
def all_scores():
    """For tests that look at the reference returns: measure them as users do."""


@pytest.fixture(autouse=True)
def few_scores(request, monkeypatch):
    """Elsewhere a few episodes do."""
    if "all_scores" not in request.fixturenames:
        monkeypatch.setattr("rlreg.runtime.data.pendulum._NUM_SCORED", 2)
        monkeypatch.setattr("rlreg.runtime.data.pointmaze._NUM_SCORED", 2)


def hashes(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_the_pendulum_data_have_the_promised_mixture(all_scores):
    calls = []
    generate(PENDULUM, progress=lambda done, total: calls.append((done, total)))
    data = load_dataset(PENDULUM)
    assert len(data) == 30_000
    assert set(data.episodes.lengths.tolist()) == {200}
    kinds, counts = np.unique(data.episodes.kinds, return_counts=True)
    assert dict(zip(kinds.tolist(), counts.tolist(), strict=True)) == {
        "controller": 30, "noisy": 60, "random": 60,
    }  # fmt: skip
    assert data.env_id == "Pendulum-v1"
    references = data.references
    assert -1400 < references.ref_min < -1000
    assert -700 < references.behavior < -600
    assert -190 < references.ref_max < -120
    np.testing.assert_allclose(data.episodes.returns.mean(), references.behavior, rtol=1e-5)
    assert calls[-1] == (30_000, 30_000)
    assert data.laws.hold


def test_minari_itself_opens_the_pendulum_data():
    import minari

    generate(PENDULUM, n_steps=1_000)
    dataset = minari.load_dataset(PENDULUM)
    assert dataset.total_steps == 1_000
    assert dataset.total_episodes == 5
    assert dataset.recover_environment().spec.id == "Pendulum-v1"
    ours = load_dataset(PENDULUM)
    total = sum(float(episode.rewards.sum()) for episode in dataset)
    np.testing.assert_allclose(ours.rewards.sum(dtype=np.float64), total, rtol=1e-6)
    for episode, own in zip(dataset, ours.episodes, strict=True):
        np.testing.assert_array_equal(episode.observations, own.observations)
    assert list(minari.list_local_datasets()) == [PENDULUM]


@pytest.mark.parametrize("dataset_id", [PENDULUM, pytest.param(UMAZE, marks=needs_robotics)])
def test_equal_seeds_give_equal_files_and_others_do_not(dataset_id, root):
    first = hashes(generate(dataset_id, n_steps=500))
    assert hashes(generate(dataset_id, n_steps=500, overwrite=True)) == first
    other = hashes(generate(dataset_id, n_steps=500, seed=1, overwrite=True))
    assert other.keys() == first.keys()
    assert all(other[name] != first[name] for name in first)


def test_the_rewards_belong_to_the_actions_beside_them():
    generate(PENDULUM, n_steps=400)
    data = load_dataset(PENDULUM)
    for index in (0, 57, 199, 200, 399):
        cosine, sine, velocity = (float(x) for x in data.observations[index])
        torque = float(data.actions[index, 0])
        angle = np.arctan2(sine, cosine)
        cost = angle**2 + 0.1 * velocity**2 + 0.001 * torque**2
        np.testing.assert_allclose(data.rewards[index], -cost, atol=1e-4)


def test_the_controller_swings_up_and_holds():
    controller, returns = PendulumController(), []
    with gymnasium.make("Pendulum-v1") as env:
        for seed in range(10):
            observation, _ = env.reset(seed=seed)
            total = 0.0
            for _ in range(200):
                observation, reward, *_ = env.step(controller(observation))
                total += float(reward)
            returns.append(total)
            assert observation[0] > 0.99
    assert np.mean(returns) > -200
    batch = controller(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    assert batch.shape == (2, 1)
    assert batch[0, 0] == 0.0
    assert abs(batch[1, 0]) == 2.0


@pytest.mark.parametrize("n_steps", [1, 150, 450])
def test_any_number_of_steps_is_kept_exactly(n_steps):
    generate(PENDULUM, n_steps=n_steps)
    data = load_dataset(PENDULUM)
    assert len(data) == n_steps
    assert data.truncations.sum() == -(-n_steps // 200)


def test_any_recipe_can_be_written_and_says_what_made_it(root):
    folder = generate(PENDULUM, n_steps=300)
    known = hashes(folder)
    recipe = type(RECIPES[PENDULUM])(dataset_id="mine/pendulum-v3")
    own = write_recipe(recipe, n_steps=300, made_by="make_it.py")
    assert own == root / "mine" / "pendulum-v3"
    data = load_dataset("mine/pendulum-v3")
    assert data.content_hash() == load_dataset(PENDULUM).content_hash()
    assert data.info.metadata["description"].endswith("Made by `make_it.py`, seed 0.")
    assert hashes(folder) == known
    with pytest.raises(DatasetError, match="mine/pendulum-v3 is already at"):
        write_recipe(recipe, n_steps=300)


def test_a_failed_run_leaves_nothing(root, monkeypatch):
    class Failing(type(RECIPES[PENDULUM])):
        def episodes(self, n_steps, seed):
            yield next(super().episodes(n_steps, seed))
            raise KeyboardInterrupt

    monkeypatch.setitem(RECIPES, PENDULUM, Failing())
    with pytest.raises(KeyboardInterrupt):
        generate(PENDULUM)
    assert not [path for path in root.rglob("*") if path.is_file()]
    with pytest.raises(MissingDatasetError):
        load_dataset(PENDULUM)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("nobody but root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_message_and_leaves_nothing(small_disk):
    """HDF5 would end the process; so this is a process of its own."""
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(small_disk)}
    command = [sys.executable, "-m", "rlreg", "data", "generate", "rlreg/pendulum/mixed-v0"]
    done = subprocess.run(
        [*command, "--steps", "2000"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "could not be written to" in done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in small_disk.rglob("*")] in ([], ["rlreg"])


def test_a_failed_replacement_keeps_the_old_data(root, monkeypatch):
    before = hashes(generate(PENDULUM, n_steps=200))

    class Failing(type(RECIPES[PENDULUM])):
        def scores(self, seed):
            raise OSError(28, "No space left on device")

    monkeypatch.setitem(RECIPES, PENDULUM, Failing())
    with pytest.raises(DatasetError, match="No space left"):
        generate(PENDULUM, n_steps=200, overwrite=True)
    assert hashes(root / PENDULUM) == before


def test_an_existing_data_set_is_not_replaced_by_accident():
    generate(PENDULUM, n_steps=200)
    with pytest.raises(DatasetError, match="overwrite=True"):
        generate(PENDULUM, n_steps=200)


def test_a_process_that_was_faster_keeps_its_files(root, monkeypatch):
    recipe = RECIPES[PENDULUM]

    class Slow(type(recipe)):
        def scores(self, seed):
            monkeypatch.setitem(RECIPES, PENDULUM, recipe)
            generate(PENDULUM, n_steps=200)
            return recipe.scores(seed)

    monkeypatch.setitem(RECIPES, PENDULUM, Slow())
    generate(PENDULUM, n_steps=200)
    assert len(load_dataset(PENDULUM)) == 200
    assert [path.name for path in root.iterdir()] == ["rlreg"]


def test_loading_generates_only_when_asked():
    with pytest.raises(MissingDatasetError):
        load_dataset(PENDULUM)
    assert len(load_dataset(PENDULUM, generate=True)) == 30_000
    assert len(load_dataset(PENDULUM, generate=True)) == 30_000  # found, not made again


def test_an_unknown_generator_lists_the_near_ones():
    with pytest.raises(UnknownNameError, match="rlreg/pointmaze/umaze-v0"):
        generate("rlreg/pointmaze/umase-v0")
    with pytest.raises(DatasetError, match="n_steps = 0"):
        generate(PENDULUM, n_steps=0)
    assert len(list_generators()) == 9


def test_a_missing_environment_is_named_with_the_command(monkeypatch):
    from rlreg.runtime.data import pointmaze

    monkeypatch.setattr(pointmaze, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install rlreg\[pointmaze\]"):
        generate(UMAZE)
    missing = {entry.dataset_id: entry.missing for entry in list_generators()}
    assert "rlreg[pointmaze]" in missing[UMAZE]
    assert missing[PENDULUM] == ""


def test_the_planner_takes_a_shortest_way():
    free = np.array([[1, 1, 1], [0, 0, 1], [1, 1, 1]], bool)
    path = shortest_path(free, (0, 0), (2, 0))
    assert path == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0)]
    assert shortest_path(free, (0, 0), (0, 0)) == [(0, 0)]
    blocked = np.array([[1, 0, 1]], bool)
    assert shortest_path(blocked, (0, 0), (0, 2)) == [(0, 0), (0, 2)]


def check_pointmaze(n_steps):
    import h5py

    folder = generate(UMAZE, n_steps=n_steps)
    data = load_dataset(UMAZE)
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        in_file = sum(float(group["rewards"][()].sum()) for group in file.values())
    assert len(data) == n_steps
    assert in_file > 10 * n_steps / 2_000
    assert data.rewards.sum(dtype=np.float64) == in_file
    # All of it sits in the last, truncated steps, which other loaders drop.
    paid = np.flatnonzero(data.rewards)
    assert data.truncations[paid].all()
    assert not data.terminations.any()
    return data


@needs_robotics
def test_no_reward_of_pointmaze_is_lost():
    data = check_pointmaze(2_000)
    goals = [episode.observations[:, 2:4] for episode in data.episodes]
    np.testing.assert_allclose(goals[0][0], (-1.22308949, 0.86017994), atol=1e-7)
    np.testing.assert_allclose(goals[1][0], (1.2116725, 0.8882872), atol=1e-7)
    for goal in goals:  # one goal per episode, shown from the first observation on
        assert (goal == goal[0]).all()
    assert list(data.observation_space.spaces) == ["achieved_goal", "desired_goal", "observation"]
    assert data.env_id == "PointMaze_UMaze-v3"
    assert data.info.eval_env_spec.kwargs["reset_target"] is False
    assert data.references.ref_min < data.references.behavior < data.references.ref_max * 1.1
    assert "a continuing task" in str(data.laws)


@needs_robotics
@pytest.mark.slow
def test_no_reward_of_twenty_thousand_steps_is_lost():
    data = check_pointmaze(20_000)
    assert 200 < len(data.episodes) < 300  # the published recipe gives 242


@needs_robotics
@pytest.mark.slow
@pytest.mark.parametrize("maze", ["open", "medium", "large"])
@pytest.mark.parametrize("dense", ["", "-dense"])
def test_every_maze_can_be_made_and_opened_by_minari(maze, dense):
    import minari

    name = f"rlreg/pointmaze/{maze}{dense}-v0"
    generate(name, n_steps=1_500)
    assert minari.load_dataset(name).total_steps == 1_500
    assert load_dataset(name).references.ref_max > load_dataset(name).references.ref_min


def test_the_metadata_are_strict_json(root):
    generate(PENDULUM, n_steps=200)
    text = (root / PENDULUM / "data" / "metadata.json").read_text()
    metadata = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in metadata"))
    assert metadata["dataset_id"] == PENDULUM
