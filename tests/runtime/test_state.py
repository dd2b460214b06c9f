"""State: complete, restored exactly or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlreg.errors import CheckpointError
from rlreg.runtime.state import flatten_state, learnable_state, restore_learnable, unflatten_state


def tensors_of(learnable):
    return flatten_state(learnable_state(learnable))


def assert_equal(one, other):
    (document, tensors), (other_document, other_tensors) = tensors_of(one), tensors_of(other)
    assert document == other_document
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name


def test_restored_learnable_trains_on_bit_for_bit(make_tiny, arrays_data):
    first = make_tiny(20)
    second = make_tiny(0, seed=5)
    second.load_state_dict(first.state_dict())
    assert_equal(first, second)
    for learnable in (first, second):
        learnable.fit(arrays_data, 30, 30, show_progress=False)
    assert_equal(first, second)


def test_state_survives_json_and_tensors(make_tiny):
    state = learnable_state(make_tiny(3))
    document, tensors = flatten_state(state)
    back = unflatten_state(document, tensors)
    assert back["counters"] == state["counters"]
    assert back["extra"] == state["extra"]
    assert list(back["optimizers"]["optimizer"]["state"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2.5, None), 3: [True, "x"]},
        {"$odd": 1},
        {"inf": float("inf"), "small": 5e-324, "big": 2**100},
        {("a", 1): {}},
        {},
    ],
)
def test_plain_values_survive_flattening(value):
    document, tensors = flatten_state(value)
    assert unflatten_state(document, tensors) == value


def test_arrays_come_back_as_arrays():
    document, tensors = flatten_state({"x": np.arange(3), "y": torch.arange(2), "n": np.float32(2)})
    back = unflatten_state(document, tensors)
    assert isinstance(back["x"], np.ndarray)
    assert back["x"].tolist() == [0, 1, 2]
    assert back["y"].tolist() == [0, 1]
    assert back["n"] == 2.0


def test_a_zero_dimensional_array_keeps_its_rank():
    document, tensors = flatten_state({"count": np.array(3)})
    assert unflatten_state(document, tensors)["count"].shape == ()


def test_tensors_that_share_memory_are_saved_apart():
    shared = torch.arange(4.0)
    _, tensors = flatten_state({"a": shared, "b": shared[:2]})
    assert tensors["a"].data_ptr() != tensors["b"].data_ptr()


def test_unsavable_values_are_named():
    with pytest.raises(CheckpointError, match="extra/f: a function cannot be saved"):
        flatten_state({"extra": {"f": lambda: 1}})


def _wrong_shape(state):
    state["networks"]["policy"]["1.weight"] = torch.zeros(2, 2)


def _missing_tensor(state):
    del state["networks"]["policy"]["1.bias"]


def _other_network(state):
    state["networks"]["critic"] = state["networks"].pop("policy")


def _wrong_dtype(state):
    state["networks"]["policy"]["1.bias"] = state["networks"]["policy"]["1.bias"].double()


def _wrong_moment(state):
    state["optimizers"]["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)


def _no_group(state):
    state["optimizers"]["optimizer"]["param_groups"] = [-1]


def _no_parameters(state):
    state["optimizers"]["optimizer"]["param_groups"][0]["params"] = -1


def _odd_parameters(state):
    state["optimizers"]["optimizer"]["param_groups"][0]["params"][1] = [1, 2]


def _no_moments(state):
    state["optimizers"]["optimizer"]["state"][0] = 3


def _moments_of_a_stranger(state):
    slots = state["optimizers"]["optimizer"]["state"]
    slots[77] = slots.pop(0)


def _no_rate(state):
    state["optimizers"]["optimizer"]["param_groups"][0]["lr"] = ""


def _no_betas(state):
    state["optimizers"]["optimizer"]["param_groups"][0]["betas"] = (0.9, None)


def _wrong_counter(state):
    state["counters"]["grad_step"] = -1


def _wrong_extra(state):
    state["extra"] = {}


def _no_rng(state):
    del state["rng"]


def _wrong_rng(state):
    state["rng"]["sampling"] = torch.zeros(3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_wrong_shape, r"policy.1.weight: expected shape \[1, 8\], got \[2, 2\]"),
        (_missing_tensor, "1.bias"),
        (_other_network, "no network 'policy'"),
        (_wrong_dtype, "expected torch.float32"),
        (_wrong_moment, r"optimizers.optimizer\[0\].exp_avg"),
        (_no_group, "optimizer 'optimizer' of the state is for other parameters"),
        (_no_parameters, "optimizer 'optimizer' of the state is for other parameters"),
        (_odd_parameters, r"has moments of the parameter"),
        (_no_moments, r"optimizers.optimizer\[0\]: expected moments, got 3"),
        (_moments_of_a_stranger, r"has moments of the parameter \[77\], which it does not have"),
        (_no_rate, r"optimizers.optimizer.lr = '': expected one like 0.00"),
        (_no_betas, r"optimizers.optimizer.betas = \(0.9, None\): expected one like \(0.9"),
        (_wrong_counter, "grad_step = -1"),
        (_wrong_extra, "running_loss"),
        (_no_rng, "no rng"),
        (_wrong_rng, "rng.sampling"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(make_tiny, spoil, message):
    source, target, twin = make_tiny(5), make_tiny(2, seed=1), make_tiny(2, seed=1)
    document, tensors = flatten_state(learnable_state(source))
    state = unflatten_state(document, tensors)
    spoil(state)
    with pytest.raises(CheckpointError, match=message):
        restore_learnable(target, state)
    assert_equal(target, twin)
