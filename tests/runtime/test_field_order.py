"""Pairs of fields in the wrong order are refused, naming both, in files and in create."""

import json

import pytest

import rlreg
from rlreg import files
from rlreg.errors import ConfigError

MISORDERED = {
    "clip": ("reward_scaler", {"type": "clip", "low": 2, "high": 1}, "low", "high"),
    "rewards": ("reward_scaler", {"type": "min_max", "minimum": 2, "maximum": 1}, None, None),
    "observations": (
        "observation_scaler",
        {"type": "min_max", "minimum": [0, 3], "maximum": [1, 2]},
        None,
        None,
    ),
    "actions": ("action_scaler", {"type": "min_max", "minimum": [1], "maximum": [0]}, None, None),
    "returns": (
        "reward_scaler",
        {"type": "return", "return_min": 2, "return_max": 1},
        "return_min",
        "return_max",
    ),
}


@pytest.mark.parametrize(("field", "part", "low", "high"), MISORDERED.values(), ids=MISORDERED)
def test_fields_in_the_wrong_order_are_refused_by_both_names(tmp_path, field, part, low, high):
    low, high = low or "minimum", high or "maximum"
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"learnable": {"type": "iql", field: part}}))
    expected = rf"run.yaml:1:\d+: learnable.{field}.{low} = .*: must not be above {high} = "
    with pytest.raises(ConfigError, match=expected):
        files.load_run(path)
    with pytest.raises(ConfigError, match=rf"{field}.{low} = .*: must not be above {high} = "):
        rlreg.create("iql", device="cpu", **{field: part})
    equal = {**part, low: part[high]}
    assert files.load_run(path, overrides=[f"learnable.{field}={json.dumps(equal)}"])
    one = {**part, high: None}
    assert files.load_run(path, overrides=[f"learnable.{field}={json.dumps(one)}"])


def test_every_wrong_order_is_reported_beside_the_flag_that_made_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("learnable: {type: iql, reward_scaler: {type: clip, low: 0, high: 1}}")
    flags = [
        "learnable.reward_scaler.low=5",
        "learnable.action_scaler={type: min_max, minimum: [1], maximum: [0]}",
    ]
    with pytest.raises(ConfigError) as caught:
        files.load_run(path, overrides=flags)
    assert len(caught.value.problems) == 2
    assert "--set learnable.reward_scaler.low=5: learnable.reward_scaler.low" in str(caught.value)
