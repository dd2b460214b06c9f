"""Spaces, files and arguments that IQL refuses with one line, and odd ones that it has to take."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.errors import CheckpointError, EnvironmentSpecError, NonFiniteError
from rlreg_iql.d3rlpy_import import import_d3rlpy

SIZE = 64


def make_dataset(**changed):
    rng = np.random.default_rng(0)
    ends = np.zeros(SIZE, bool)
    ends[-1] = True
    given = {
        "observations": rng.normal(size=(SIZE, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (SIZE, 2)).astype(np.float32),
        "rewards": rng.normal(size=SIZE).astype(np.float32),
        "terminations": ends,
        "truncations": np.zeros(SIZE, bool),
    }
    return rlreg.TransitionDataset.from_arrays(**{**given, **changed})


def make_iql(**settings):
    return rlreg.create("iql", device="cpu", batch_size=16, **settings)


def test_observations_of_no_dimension_survive_a_checkpoint(tmp_path):
    values = np.linspace(-1, 1, SIZE, dtype=np.float32)
    dataset = make_dataset(observations=values)
    assert dataset.observation_space.shape == ()
    iql = make_iql()
    iql.fit(dataset, 2, 1, show_progress=False)
    iql.save(tmp_path / "m.rlreg")
    again = rlreg.load(tmp_path / "m.rlreg", device="cpu")
    assert again.spaces.observation_space == dataset.observation_space
    assert np.array_equal(again.predict(values[:3]), iql.predict(values[:3]))


@pytest.mark.parametrize("bound", [3e38, 1.8e38, np.inf])
def test_bounds_whose_distance_overflows_are_refused_as_infinite_ones(bound):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvironmentSpecError, match="infinite bounds"):
            make_iql().build(spaces.Box(-1, 1, (3,)), spaces.Box(-bound, bound, (1,)))
        make_iql().build(spaces.Box(-1, 1, (3,)), spaces.Box(-1.6e38, 1.6e38, (1,)))


def test_values_of_actions_that_are_not_finite_are_refused():
    iql = make_iql()
    dataset = make_dataset()
    iql.build_with_dataset(dataset)
    actions = np.full((2, 2), 0.5, np.float32)
    actions[1, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"actions: NaN or inf in 1 of 2 rows \(1\)"):
        iql.predict_value(np.zeros((2, 3), np.float32), actions)


# --- files of d3rlpy that hold something else ---------------------------------------------------


class Opener:
    """What a malicious file would hold in place of a tensor."""

    def __reduce__(self):
        return print, ("never printed",)


def test_a_file_that_would_run_code_is_one_line_without_advice_to_run_it(tmp_path, capsys):
    inner = tmp_path / "inner.pt"
    torch.save({"policy": Opener()}, inner)
    file = tmp_path / "m.d3"
    file.write_bytes(pickle.dumps({"torch": inner.read_bytes(), "config": "{}", "version": "2"}))
    with pytest.raises(CheckpointError) as caught:
        import_d3rlpy(file)
    message = str(caught.value)
    assert message == (
        f"{file}: its tensors cannot be read: it holds more than tensors and plain data"
    )
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}", "it has no 'observation_shape'"),
        (b"{not json", "Expecting property name"),
        (b"\x8a\xff\xff", "not run: ?[A-Za-z]"),
    ],
    ids=["no-key", "no-json", "cut-off"],
)
def test_reasons_are_words(tmp_path, content, reason):
    file = tmp_path / "m.d3"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason.replace("not run", "nothing was run")) as one:
        import_d3rlpy(file)
    assert "Error(" not in str(one.value)
    assert "\n" not in str(one.value)
