"""What users hand in by mistake is refused by name, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlreg.errors import DatasetError, NonFiniteError


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_observations_that_are_not_finite_are_refused_with_their_rows(make_tiny, value, make):
    learnable = make_tiny(3)
    observations = np.zeros((8, 3), np.float32)
    observations[[2, 5], 1] = value
    match = r"observations: NaN or inf in 2 of 8 rows \(2, 5\)"
    for method in (learnable.predict, learnable.sample_action):
        with pytest.raises(NonFiniteError, match=match):
            method(make(observations))
    with pytest.raises(NonFiniteError, match=match):
        learnable.predict_value(make(observations), np.zeros((8, 1), np.float32))
    with pytest.raises(NonFiniteError, match=r"1 of 1 rows \(0\)"):
        learnable.predict(make(observations)[2])


def test_large_observations_are_finite(make_tiny):
    observations = np.full((2, 3), 1e30, np.float32)  # whose squares are not
    assert np.isfinite(make_tiny(3).predict(observations)).all()


@pytest.mark.parametrize("dataset", [[1, 2], None, "rlreg/pendulum/mixed-v0"])
def test_fit_says_that_it_takes_a_data_set(make_tiny, dataset):
    with pytest.raises(DatasetError, match=r"expected a TransitionDataset .*, got a"):
        make_tiny(0).fit(dataset, n_steps=5)


def test_update_says_that_it_takes_a_mapping(make_tiny):
    with pytest.raises(DatasetError, match=r"expected a mapping with observations, .*got a int"):
        make_tiny(0).update(3)
