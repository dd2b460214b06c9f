"""Writes the golden files of a version: ``python tests/golden/make_golden.py v1 iql impala``.

Run it once, before the release that brings the version; afterwards its folder stays as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rlreg
from rlreg.files import dump_yaml

HERE = Path(__file__).parent
ENCODER = {"type": "vector", "hidden_units": [4]}
PARTS = ("actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory")
RUN = {
    "learnable": {
        "type": "iql",
        "expectile": 0.8,
        "batch_size": 16,
        "observation_scaler": {"type": "standard"},
        **dict.fromkeys(PARTS, ENCODER),
    },
    "dataset": "rlreg/pendulum/mixed-v0",
    "seed": 3,
    "train": {"n_steps": 20, "n_steps_per_epoch": 10},
    "evaluation": {"n_episodes": 1},
    "logging": [{"type": "jsonl"}, {"type": "tensorboard"}],
}
ONLINE_RUN = {
    "learnable": {
        "type": "impala",
        "n_rollout_steps": 5,
        "actors_batch_size": 2,
        "entropy_coef": 0.02,
        "actor_encoder_factory": ENCODER,
        "critic_encoder_factory": ENCODER,
        "optim_factory": {"type": "rmsprop_tf"},
    },
    "env": "Pendulum-v1",
    "seed": 3,
    "engine": {"type": "sequential", "num_actors": 2},
    "train": {"n_epochs": 2, "epoch_length": 3},
    "evaluation": {"n_episodes": 1},
}


def pendulum_arrays(rows: int = 64) -> rlreg.TransitionDataset:
    """Transitions of a pendulum's shape."""
    import gymnasium

    rng = np.random.default_rng(0)
    with gymnasium.make("Pendulum-v1") as env:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    angles = rng.uniform(-np.pi, np.pi, rows)
    speeds = rng.uniform(-8, 8, rows)
    return rlreg.TransitionDataset.from_arrays(
        observations=np.stack([np.cos(angles), np.sin(angles), speeds], 1).astype(np.float32),
        actions=rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminations=np.arange(rows) % 16 == 15,
        **spaces,
    )


def write_iql(folder: Path) -> None:
    """Writes config, run file, checkpoint and what the checkpoint predicts."""
    run = rlreg.load_config(RUN)
    (folder / "iql.yaml").write_text(dump_yaml(run.learnable))
    (folder / "run.yaml").write_text(dump_yaml(run))
    learnable = rlreg.create(run.learnable, device="cpu", seed=3, compile="off")
    data = pendulum_arrays()
    learnable.fit(data, n_steps=5, n_steps_per_epoch=5, show_progress=False)
    learnable.save(folder / "iql.rlreg")
    _write_expected(folder / "expected.json", learnable, np.asarray(data.observations[:4]))


def write_impala(folder: Path) -> None:
    """The same of a learnable that learns online."""
    run = rlreg.load_config(ONLINE_RUN)
    (folder / "impala.yaml").write_text(dump_yaml(run.learnable))
    (folder / "impala-run.yaml").write_text(dump_yaml(run))
    learnable = rlreg.create(run.learnable, device="cpu", seed=3, compile="off")
    learnable.train("Pendulum-v1", engine=run.engine, n_epochs=1, epoch_length=3)
    learnable.save(folder / "impala.rlreg")
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    _write_expected(folder / "impala-expected.json", learnable, rows)


def _write_expected(path: Path, learnable: Any, observations: Any) -> None:
    expected = {
        "grad_step": learnable.grad_step,
        "observations": observations.tolist(),
        "actions": np.asarray(learnable.predict(observations)).tolist(),
    }
    path.write_text(json.dumps(expected, indent=1) + "\n")


WRITERS = {"iql": write_iql, "impala": write_impala}

if __name__ == "__main__":
    version, *learnables = sys.argv[1:]
    (HERE / version).mkdir(exist_ok=True)
    for name in learnables:
        WRITERS[name](HERE / version)
