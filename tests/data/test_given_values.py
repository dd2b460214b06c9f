"""Values that do not mean what a space says are refused, with their name, instead of being cast."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg.errors import DatasetError, EnvironmentSpecError, ShapeError
from rlreg.runtime.data import TransitionDataset
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, space_from_json, space_to_json

SIZE = 8


def arrays(**changed):
    ends = np.zeros(SIZE, bool)
    ends[-1] = True
    given = {
        "observations": np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3),
        "actions": np.linspace(-1, 1, SIZE, dtype=np.float32)[:, None],
        "rewards": np.arange(SIZE, dtype=np.float32),
        "terminations": ends,
        "truncations": np.zeros(SIZE, bool),
    }
    return {**given, **changed}


def refused(match, error=DatasetError, **changed):
    with pytest.raises(error, match=match):
        TransitionDataset.from_arrays(**arrays(**changed))


@pytest.mark.parametrize(
    ("space", "bad", "good"),
    [
        (spaces.Discrete(2), [[0.9]] * SIZE, [[1.0]] * SIZE),
        (spaces.MultiDiscrete([2, 3]), [[1.0, 1.5]] * SIZE, [[1.0, 2.0]] * SIZE),
        (spaces.MultiBinary(2), [[1.0, 0.5]] * SIZE, [[1.0, 0.0]] * SIZE),
        (spaces.Discrete(2), [np.nan] * SIZE, [0.0] * SIZE),
        (spaces.Discrete(2), [1e300] * SIZE, [0.0] * SIZE),
    ],
    ids=["discrete", "multi-discrete", "multi-binary", "nan", "huge"],
)
def test_actions_of_categories_are_whole_numbers(space, bad, good):
    refused("actions: .* at row 0 is no whole number", actions=np.array(bad), action_space=space)
    dataset = TransitionDataset.from_arrays(**arrays(actions=np.array(good), action_space=space))
    expected = np.array(good).astype(int).reshape(SIZE, -1)
    assert np.asarray(dataset.actions).reshape(SIZE, -1).tolist() == expected.tolist()


def test_observations_of_categories_are_whole_numbers_too():
    plan = FlatteningPlan.of(spaces.Dict(a=spaces.Discrete(3)))
    assert plan.flatten({"a": np.array([2.0])}).tolist() == [[0, 0, 1]]
    with pytest.raises(EnvironmentSpecError, match=r"observation\.a: 1\.9 at row 1"):
        plan.flatten({"a": np.array([1.0, 1.9])})


def test_what_is_no_number_is_refused_where_a_policy_would_act_on_it():
    plan = FlatteningPlan.of(spaces.Box(-1, 1, (2,)))
    for value in (np.ones((1, 2), complex), np.array([["a", "b"]]), np.array([[None, None]])):
        with pytest.raises(ShapeError, match="observations: expected numbers, got"):
            plan.flatten(value)
    with pytest.raises(ShapeError, match="actions: expected numbers"):
        ActionPlan.of(spaces.Box(-1, 1, (2,))).flatten(np.ones((1, 2), complex))


@pytest.mark.parametrize("name", ["rewards", "terminations", "truncations"])
@pytest.mark.parametrize(
    "value",
    [
        np.array([None] * SIZE),
        ["a"] * SIZE,
        np.zeros(SIZE, complex),
        np.zeros(SIZE, "datetime64[s]"),
        [[1], [1, 2]],
        torch.zeros(SIZE).to_sparse(),
        torch.zeros(SIZE, dtype=torch.bfloat16),
    ],
    ids=["objects", "text", "complex", "dates", "ragged", "sparse", "bfloat16"],
)
def test_columns_are_numbers(name, value):
    refused(f"^{name}: expected (numbers|an array of numbers)", **{name: value})


def test_observations_and_actions_are_arrays_of_numbers():
    refused("observations: expected an array", observations=[[1.0], [1.0, 2.0]])
    refused("actions: expected an array", actions=[[1.0], [1.0, 2.0]])
    refused("observations: expected rows", observations=3)
    masked = np.ma.masked_greater(arrays()["observations"], 5)
    refused("masked values", observations=masked)
    whole = np.ma.masked_array(arrays()["observations"])
    assert len(TransitionDataset.from_arrays(**arrays(observations=whole))) == SIZE


def test_parts_that_the_space_has_no_place_for_are_not_dropped():
    space = spaces.Dict(a=spaces.Box(-1e3, 1e3, (3,)))
    both = {"a": arrays()["observations"], "c": np.zeros((SIZE, 2))}
    refused("'c' is not in the observation space", observations=both, observation_space=space)


def test_whether_nan_is_let_in_is_a_bool():
    refused("allow_non_finite: expected True or False, got 'no'", allow_non_finite="no")


# --- boxes of no dimension ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_a_box_of_shape_nothing_survives_json(dtype):
    space = spaces.Box(-2, 3, (), dtype)
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert again.shape == ()
