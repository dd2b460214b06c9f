"""What every plugin promises, checked by rlreg, and what is particular to cloning."""

from __future__ import annotations

import numpy as np
import pytest

import rlreg
from rlreg.testing import conformance_tests

test_conformance = conformance_tests("rlreg-bc")


@pytest.mark.parametrize("is_discrete", [False, True])
def test_it_learns_what_the_demonstrator_does(is_discrete: bool) -> None:
    """Four hundred updates on noise-free demonstrations are enough."""
    observations = np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32)
    scores = observations @ np.array([[1.0], [-0.5], [0.25]], np.float32)
    actions = (scores[:, 0] > 0).astype(np.int64) if is_discrete else np.tanh(scores)
    dataset = rlreg.TransitionDataset.from_arrays(
        observations=observations,
        actions=actions,
        rewards=np.zeros(512),
        terminations=np.arange(512) % 64 == 63,
    )
    bc = rlreg.create("bc", device="cpu", learning_rate=3e-3)
    bc.fit(dataset, n_steps=400, n_steps_per_epoch=400, show_progress=False)
    cloned = bc.predict(observations)
    assert np.mean(np.abs(cloned - actions)) < 0.05
