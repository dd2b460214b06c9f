"""Writes the golden files of a version: ``python tests/golden/make_golden.py v1``.

Run it once, before the release that brings the version; afterwards its folder stays as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

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


def write(folder: Path) -> None:
    """Writes config, run file, checkpoint and what the checkpoint predicts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run = rlreg.load_config(RUN)
    (folder / "iql.yaml").write_text(dump_yaml(run.learnable))
    (folder / "run.yaml").write_text(dump_yaml(run))
    learnable = rlreg.create(run.learnable, device="cpu", seed=3, compile="off")
    data = pendulum_arrays()
    learnable.fit(data, n_steps=5, n_steps_per_epoch=5, show_progress=False)
    learnable.save(folder / "iql.rlreg")
    observations = np.asarray(data.observations[:4])
    expected = {
        "grad_step": learnable.grad_step,
        "observations": observations.tolist(),
        "actions": np.asarray(learnable.predict(observations)).tolist(),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    write(HERE / sys.argv[1])
