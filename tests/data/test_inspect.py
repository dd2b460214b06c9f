import json

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from rlreg.errors import MissingDatasetError
from rlreg.runtime.data import load_dataset
from rlreg.runtime.data.inspect import inspect


def found(inspection, kind):
    return next((finding for finding in inspection.findings if finding.kind == kind), None)


@pytest.fixture
def healthy(recognisable):
    episode = recognisable(0, 5, terminated=True)
    episode["observations"] = np.random.default_rng(0).random((6, 2))
    return episode


REFERENCES = {"ref_min_score": 0.0, "ref_max_score": 1.0}


def test_a_healthy_data_set_has_no_finding(write_minari, healthy, plain_spaces):
    result = inspect(write_minari([healthy], *plain_spaces, metadata=REFERENCES))
    assert result.findings == ()
    assert "nothing odd" in str(result)
    assert result.figures["steps"] == 5
    assert result.figures["reward_sum"] == 10


@pytest.mark.parametrize(
    ("bad", "kind"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf"), (1e30, "too_large")]
)
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_numbers_that_load_refuses_are_counted_with_their_place(
    write_minari, recognisable, plain_spaces, bad, kind, data_format
):
    made = [recognisable(0, 3), recognisable(1, 3), recognisable(2, 3)]
    made[1]["observations"][2, 1] = bad
    made[2]["observations"][0] = bad
    result = inspect(write_minari(made, *plain_spaces, data_format=data_format))
    finding = found(result, kind)
    assert (finding.count, finding.episode, finding.index) == (3, 1, 2)
    assert "--set dataset.allow_non_finite=true" in finding.fix
    assert "allow_non_finite=True in Python" in finding.fix
    assert "d3rlpy #255" in finding.reference
    assert finding in result.problems


def test_non_finite_rewards_and_actions_are_told_apart(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3), recognisable(1, 3)]
    made[0]["rewards"][1] = np.nan
    made[1]["actions"][2] = np.nan
    result = inspect(write_minari(made, *plain_spaces))
    messages = [finding.message for finding in result.findings if finding.kind == "nan"]
    assert len(messages) == 2
    assert any("rewards" in message for message in messages)


def test_missing_final_observations_and_other_lengths_are_found(
    write_minari, recognisable, plain_spaces
):
    made = [
        recognisable(0, 3),
        recognisable(1, 3, observations=3),
        recognisable(2, 3, observations=3),
        recognisable(3, 3, observations=9),
    ]
    result = inspect(write_minari(made, *plain_spaces))
    finding = found(result, "missing_final_observation")
    assert (finding.count, finding.episode, finding.index) == (2, 1, 3)
    assert "Minari #199" in finding.reference
    assert found(result, "lengths").episode == 3


def test_actions_outside_their_space_are_found(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3), recognisable(1, 3)]
    made[1]["actions"][1] = -1.5
    finding = found(inspect(write_minari(made, *plain_spaces)), "action_out_of_bounds")
    assert (finding.count, finding.episode, finding.index) == (1, 1, 1)
    assert "--set dataset.clip_actions=true" in finding.fix
    assert "clip_actions=True in Python" in finding.fix


def test_constant_columns_zero_observations_and_zero_rewards_are_found(
    write_minari, recognisable, plain_spaces
):
    episode = recognisable(0, 4)
    episode["observations"] = np.stack([np.arange(5.0), np.zeros(5)], axis=1)
    episode["rewards"] = np.zeros(4)
    result = inspect(write_minari([episode], *plain_spaces))
    assert found(result, "constant_column").message.endswith("1")
    assert found(result, "zero_observation").count == 1
    assert "#155" in found(result, "all_rewards_zero").reference


def test_bang_bang_actions_are_a_note(write_minari, recognisable, plain_spaces):
    episode = recognisable(0, 4)
    episode["actions"] = np.array([[-1], [1], [1], [-1]], np.float32)
    finding = found(inspect(write_minari([episode], *plain_spaces)), "bang_bang_actions")
    assert finding.severity == "note"


@pytest.mark.parametrize("jpeg", [False, True])
def test_lossy_images_are_found(write_minari, jpeg):
    space = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    episode = {
        "observations": np.zeros((3, 32, 32, 3), np.uint8),
        "actions": np.array([0, 1]),
        "rewards": np.ones(2),
        "terminations": np.array([False, True]),
        "truncations": np.zeros(2, bool),
    }
    result = inspect(write_minari([episode], space, spaces.Discrete(2), jpeg_encoding=jpeg))
    assert (found(result, "lossy_images") is not None) == jpeg


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_parking_on_the_goal_is_found_with_its_share(
    write_minari, recognisable, plain_spaces, data_format
):
    made = [recognisable(0, 5), recognisable(1, 5)]
    made[0]["infos"] = {"success": [False] * 6}
    made[1]["infos"] = {"success": [False, False, True, True, True, True]}
    result = inspect(write_minari(made, *plain_spaces, data_format=data_format))
    finding = found(result, "success_parking")
    assert (finding.count, finding.episode, finding.index) == (3, 1, 1)
    assert "30.0 %" in finding.message
    assert "--set dataset.cut_after_success=true" in finding.fix
    assert "cut_after_success=True in Python" in finding.fix
    assert "#296" in finding.reference
    assert result.figures["success_share"] == 0.4


def test_missing_references_and_missing_terminations_are_notes(
    write_minari, recognisable, plain_spaces
):
    result = inspect(write_minari([recognisable(0, 3)], *plain_spaces))
    assert "Minari #323" in found(result, "missing_references").reference
    assert "continuing" in found(result, "no_termination").message
    assert result.problems == ()


def test_an_unflagged_end_is_found(write_minari, recognisable, plain_spaces):
    episode = recognisable(0, 3)
    episode["truncations"][:] = False
    finding = found(inspect(write_minari([episode], *plain_spaces)), "unflagged_end")
    assert finding.index == 2


def test_a_termination_inside_an_episode_is_found(write_minari, recognisable, plain_spaces):
    episode = recognisable(0, 5)
    episode["terminations"][1:3] = True
    path = write_minari([recognisable(0, 3), episode], *plain_spaces)
    finding = found(inspect(path), "flag_inside")
    assert (finding.episode, finding.index, finding.count) == (1, 1, 2)
    assert load_dataset(path).laws.notes == (
        "episodes that go on after a termination; no value is carried across it",
    )


def test_a_space_that_cannot_be_flattened_is_a_finding(write_minari):
    space = spaces.Dict({"mission": spaces.Text(10), "x": spaces.Discrete(2)})
    episode = {
        "observations": {"mission": ["go"] * 3, "x": np.array([0, 1, 0])},
        "actions": np.array([0, 5]),
        "rewards": np.ones(2),
        "terminations": np.array([False, True]),
        "truncations": np.zeros(2, bool),
    }
    result = inspect(write_minari([episode], space, spaces.Discrete(2)))
    assert "observation.mission" in found(result, "unsupported_space").message
    assert found(result, "action_out_of_bounds").index == 1


def test_a_damaged_episode_is_a_finding(write_minari, recognisable, plain_spaces, root):
    name = write_minari([recognisable(0, 3), recognisable(1, 3)], *plain_spaces)
    with h5py.File(root / name / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]
    assert "episode 1 is missing" in found(inspect(name), "damaged").message


def test_a_d4rl_file_is_inspected_without_its_flaws_stopping_it(tmp_path):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        observations = np.random.default_rng(0).random((7, 2), np.float32)
        observations[5, 0] = np.nan
        file["observations"] = observations
        file["actions"] = np.linspace(-0.9, 0.9, 14).reshape(7, 2)
        file["rewards"] = np.ones(7)
        file["terminals"] = np.array([0, 0, 1, 0, 0, 0, 0], bool)
    result = inspect(path)
    finding = found(result, "nan")
    assert (finding.episode, finding.index) == (1, 2)
    assert found(result, "no_timeouts") is not None
    assert found(result, "unflagged_end").episode == 1
    assert result.figures["episodes"] == 2


def test_the_report_is_strict_json(write_minari, recognisable, plain_spaces):
    made = [recognisable(0, 3)]
    made[0]["rewards"][1] = np.nan
    result = inspect(write_minari(made, *plain_spaces))
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["findings"][0]["kind"] == "nan"
    assert data["figures"]["steps"] == 3


def test_a_missing_data_set_cannot_be_inspected():
    with pytest.raises(MissingDatasetError):
        inspect("rlreg/pendulum/mixed-v0")
