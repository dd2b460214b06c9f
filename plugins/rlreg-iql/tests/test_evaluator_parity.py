"""The evaluators against d3rlpy 2.8.1 itself, on its own model and 400 random transitions."""

from pathlib import Path

import numpy as np
import pytest

from rlreg import TransitionDataset
from rlreg.runtime.evaluators import EVALUATORS, SoftOPCEvaluator
from rlreg_iql.d3rlpy_import import convert_d3rlpy

MODEL = Path(__file__).parent / "data" / "iql_parity" / "default" / "model.d3"

# What the evaluators of d3rlpy gave for the very arrays made below (soft OPC: at the median).
D3RLPY = {
    "td_error": 1.0915833331533458,
    "advantage_sum": 0.04859269812050521,
    "average_value": 0.10859142925590276,
    "initial_value": 0.11932851374149323,
    "soft_opc": 0.0018125276081264047,
    "action_difference": 0.6937018122154405,
}


@pytest.mark.parametrize("name", EVALUATORS)
def test_an_evaluator_gives_the_figure_of_d3rlpy(name):
    learnable = convert_d3rlpy(MODEL)
    rng, size, length = np.random.default_rng(0), 400, 20
    observations = rng.normal(size=(size, 5)).astype(np.float32)
    actions = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    data = TransitionDataset.from_arrays(
        observations,
        actions,
        rng.normal(size=size).astype(np.float32),
        np.arange(size) % length == length - 1,
        np.zeros(size, bool),
        observation_space=learnable.spaces.observation_space,
        action_space=learnable.spaces.action_space,
    )
    evaluator = EVALUATORS[name]()
    if name == "soft_opc":
        evaluator = SoftOPCEvaluator(float(np.median(data.episodes.returns)))
    assert evaluator(learnable, data) == pytest.approx(D3RLPY[name], rel=1e-6, abs=1e-7)
