import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlreg.errors import EnvironmentSpecError, ShapeError
from rlreg.runtime.spaces import (
    ActionPlan,
    FlatteningPlan,
    is_single,
    same_space,
    space_difference,
    space_from_json,
    space_to_json,
)

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float64)
IMAGE = spaces.Box(0, 255, (3, 32, 32), np.uint8)
EXAMPLES = [
    BOX,
    spaces.Box(np.array([-1, -np.inf], np.float32), np.array([2.5, 0.1], np.float32)),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-(2**62), 2**62, (2, 2), np.int64),
    spaces.Box(0, 1, (10, 10, 4), bool),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4], start=[1, 2]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("b", BOX), ("a", spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)]))]),
]


@pytest.mark.parametrize("space", EXAMPLES, ids=str)
def test_a_space_survives_strict_json(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert same_space(again, space)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == ["b", "a"]
    if isinstance(space, spaces.Box):
        assert again.dtype == space.dtype
        np.testing.assert_array_equal(again.low, space.low)
        np.testing.assert_array_equal(again.high, space.high)


@pytest.mark.parametrize("space", EXAMPLES, ids=str)
def test_what_minari_writes_is_read(space):
    from minari.serialization import serialize_space

    if isinstance(space, spaces.MultiBinary) and len(space.shape) > 1:
        pytest.skip("Minari cannot write it")
    assert space_from_json(json.loads(serialize_space(space))) == space


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Graph"},
        {"type": "Box", "dtype": "float32"},
        {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 1, 2], "high": 3},
        {"type": "Discrete", "n": 0},
        {"type": "Discrete", "n": "many"},
        {"type": "Dict", "subspaces": {"a": {"type": "Box"}}},
    ],
)
def test_a_broken_description_is_an_error_of_ours(data):
    with pytest.raises(EnvironmentSpecError):
        space_from_json(data)


def test_a_space_that_cannot_be_written_is_named():
    with pytest.raises(EnvironmentSpecError, match="Text"):
        space_to_json(spaces.Text(5))


def test_a_difference_names_the_place_and_both_sides():
    a = spaces.Dict({"x": BOX, "y": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])})
    b = spaces.Dict({"x": BOX, "y": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(4)])})
    assert space_difference(a, a) == ""
    assert space_difference(a, b) == "observation.y[1]: expected Discrete(3), got Discrete(4)"
    assert "expected keys ['x', 'y'], got ['x']" in space_difference(a, spaces.Dict({"x": BOX}))
    assert "got Discrete(3)" in space_difference(BOX, spaces.Discrete(3))
    assert not same_space(BOX, spaces.Box(-1, 1, (3,), np.float64))
    assert not same_space(BOX, spaces.Box(-np.inf, np.inf, (4,), np.float64))


def test_float_precision_makes_no_difference_of_spaces():
    assert same_space(
        spaces.Box(-np.pi, np.pi, (2,), np.float64), spaces.Box(-np.pi, np.pi, (2,), np.float32)
    )


def test_a_vector_is_passed_through():
    plan = FlatteningPlan.of(BOX)
    batch = np.arange(6.0).reshape(2, 3)
    assert plan.shape == (3,)
    assert not plan.is_image
    flat = plan.flatten(batch)
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, batch)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_types_and_strides_do_not_matter(dtype):
    wide = np.arange(24).reshape(2, 12).astype(dtype)
    flat = FlatteningPlan.of(BOX).flatten(wide[:, ::4])
    assert flat.flags.c_contiguous
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, wide[:, ::4].astype(np.float32))


def test_tensors_and_lists_are_accepted():
    plan = FlatteningPlan.of(BOX)
    expected = [[1.0, 2.0, 3.0]]
    assert plan.flatten(torch.tensor(expected, requires_grad=True)).tolist() == expected
    assert plan.flatten(expected).tolist() == expected


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (IMAGE, (3, 32, 32)),
        (spaces.Box(0, 255, (84, 84), np.uint8), (1, 84, 84)),
        (spaces.Dict({"pixels": IMAGE}), (3, 32, 32)),
    ],
)
def test_a_single_image_stays_uint8(space, shape):
    plan = FlatteningPlan.of(space)
    assert plan.is_image
    assert plan.shape == shape
    sample = space.sample()
    flat, single = plan.as_batch(sample)
    assert single
    assert flat.dtype == np.uint8
    pixels = sample["pixels"] if isinstance(sample, dict) else sample
    np.testing.assert_array_equal(flat[0].reshape(pixels.shape), pixels)


def test_a_grid_of_another_type_keeps_its_shape_as_floats():
    plan = FlatteningPlan.of(spaces.Box(0, 1, (10, 10, 4), bool))
    assert plan.shape == (10, 10, 4)
    assert not plan.is_image
    assert plan.flatten(np.ones((2, 10, 10, 4), bool)).dtype == np.float32


def test_a_dict_fills_columns_in_declared_order():
    space = spaces.Dict(
        [
            ("z", spaces.Box(-1, 1, (2, 2), np.float32)),
            ("d", spaces.Discrete(3, start=5)),
            ("m", spaces.MultiDiscrete([2, 3], start=[0, 1])),
            ("b", spaces.MultiBinary(2)),
            ("g", spaces.Box(0, 255, (2, 2, 1), np.uint8)),
        ]
    )
    plan = FlatteningPlan.of(space)
    flat = plan.flatten(
        {
            "b": np.array([[1, 0]]),
            "d": np.array([6]),
            "m": np.array([[1, 3]]),
            "z": np.array([[[1, 2], [3, 4]]]),
            "g": np.array([[[[9], [8]], [[7], [6]]]], np.uint8),
        }
    )
    assert flat.tolist() == [[1, 2, 3, 4, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 9, 8, 7, 6]]
    assert "observation.d: Discrete(3, start=5) -> columns 4:7" in plan.describe()


def test_a_large_image_beside_other_parts_is_refused_by_name():
    with pytest.raises(EnvironmentSpecError, match=r"observation\.camera is an image"):
        FlatteningPlan.of(spaces.Dict({"camera": IMAGE, "speed": BOX}))


@pytest.mark.parametrize(
    ("observation", "match"),
    [
        ({"x": np.zeros((2, 3))}, "observation.y: missing"),
        ({"x": np.zeros((2, 4)), "y": np.zeros(2, int)}, r"observation.x: expected shape \[B, 3\]"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, "observation.y"),
        (np.zeros((2, 4)), "expected a mapping"),
    ],
)
def test_an_observation_of_another_shape_is_an_error(observation, match):
    plan = FlatteningPlan.of(spaces.Dict({"x": BOX, "y": spaces.Discrete(2)}))
    with pytest.raises(ShapeError, match=match):
        plan.flatten(observation)


def test_a_category_outside_its_space_is_an_error():
    with pytest.raises(EnvironmentSpecError, match="at row 1"):
        FlatteningPlan.of(spaces.Discrete(3)).flatten(np.array([0, 3]))


def test_one_observation_and_many_are_told_apart():
    assert is_single(BOX, np.zeros(3))
    assert not is_single(BOX, np.zeros((1, 3)))
    assert is_single(spaces.Discrete(3), 1)
    assert not is_single(spaces.Discrete(3), np.array([1]))
    space = spaces.Dict({"x": BOX})
    assert is_single(space, {"x": np.zeros(3)})
    assert not is_single(space, {"x": np.zeros((5, 3))})


FLATTENED = [
    BOX,
    IMAGE,
    spaces.Box(0, 255, (40, 40), np.uint8),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(-1, 1, (1, 6), np.float32),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Discrete(4),
    spaces.MultiDiscrete([2, 3]),
    spaces.Dict({"b": BOX, "a": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)])}),
]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(FLATTENED) - 1), st.integers(2, 4), st.integers(0, 99))
def test_one_many_and_already_flat_observations_agree(index, size, seed):
    from gymnasium.vector.utils import batch_space

    space = FLATTENED[index]
    many = batch_space(space, size)
    many.seed(seed)
    plan = FlatteningPlan.of(space)
    flat, single = plan.as_batch(many.sample())
    assert flat.shape == (size, *plan.shape)
    assert not single
    again, single = plan.as_batch(flat)
    assert not single
    np.testing.assert_array_equal(again, flat)
    row, single = plan.as_batch(flat[0])
    np.testing.assert_array_equal(row.reshape(1, *plan.shape), flat[:1])
    space.seed(seed)
    one, single = plan.as_batch(space.sample())
    assert single
    assert one.shape == (1, *plan.shape)


def test_actions_follow_the_space_and_not_their_values():
    box = ActionPlan.of(spaces.Box(-2, 2, (2, 2), np.float32))
    assert (box.shape, box.is_discrete) == ((4,), False)
    flat = box.flatten(np.arange(8).reshape(2, 2, 2))
    assert flat.dtype == np.float32
    assert box.unflatten(flat).shape == (2, 2, 2)
    discrete = ActionPlan.of(spaces.Discrete(3))
    assert (discrete.shape, discrete.is_discrete) == ((), True)
    assert discrete.flatten(np.array([[1], [2]])).tolist() == [1, 2]
    multi = ActionPlan.of(spaces.MultiDiscrete([2, 3]))
    assert multi.flatten(np.array([[1, 2]])).dtype == np.int64
    with pytest.raises(ShapeError):
        box.flatten(np.zeros((2, 3)))
    for space in (spaces.Dict({"x": BOX}), spaces.Box(0, 9, (2,), np.int64)):
        with pytest.raises(EnvironmentSpecError):
            ActionPlan.of(space)
