"""d3rlpy's IQL with its default settings, in d3rlpy's own environment; leaves policies as weights.

    .peers/d3rlpy/bin/python pointmaze_d3rlpy.py '{"way": "aligned", ...}' FOLDER

`way` is `get_minari`, as d3rlpy's documentation has it, or `aligned`: the transitions that rlreg
reads, every one of them. Batches are drawn uniformly with replacement from all transitions, as
d3rlpy does, but from arrays: its own sampler takes as long as an update and gives the same.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import d3rlpy
import numpy as np
import structlog
import torch
from d3rlpy.algos import IQLConfig
from d3rlpy.dataset import TransitionMiniBatch

_LOSSES = ("q_loss", "v_loss", "actor_loss")
_ROW = 1_000
_NAMES = ("observations", "actions", "rewards", "next_observations", "terminals")


def aligned(folder: Path) -> dict[str, np.ndarray]:
    """Columns that rlreg wrote."""
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _NAMES[:4]}
    columns["terminals"] = np.load(folder / "terminations.npy", mmap_mode="r")
    return columns


def as_users_get_it(dataset_id: str) -> dict[str, np.ndarray]:
    """Every transition that `get_minari`'s buffer can give, picked by its own picker."""
    from d3rlpy.datasets import get_minari

    buffer, _ = get_minari(dataset_id)
    rows: dict[str, list] = {name: [] for name in _NAMES}
    picker = buffer._transition_picker
    for episode in buffer.episodes:
        for index in range(episode.transition_count):
            picked = picker(episode, index)
            rows["observations"].append(picked.observation)
            rows["actions"].append(picked.action)
            rows["rewards"].append(picked.reward)
            rows["next_observations"].append(picked.next_observation)
            rows["terminals"].append(picked.terminal)
    assert len(rows["rewards"]) == buffer.transition_count
    return {name: np.asarray(values, np.float32) for name, values in rows.items()}


def batch_of(columns: dict[str, np.ndarray], indices: np.ndarray) -> TransitionMiniBatch:
    """The rows as d3rlpy hands them to `update`; IQL reads neither next actions nor transitions."""
    size = len(indices)
    picked = {name: np.ascontiguousarray(column[indices]) for name, column in columns.items()}
    return TransitionMiniBatch(
        observations=picked["observations"],
        actions=picked["actions"],
        rewards=picked["rewards"].reshape(size, 1),
        next_observations=picked["next_observations"],
        next_actions=np.zeros_like(picked["actions"]),
        terminals=picked["terminals"].reshape(size, 1),
        intervals=np.ones((size, 1), np.float32),
        transitions=[],
    )


def save_policy(algorithm, path: Path) -> None:
    """Writes the layers of the policy's mean."""
    state = algorithm.impl.policy.state_dict()
    names = [key.removesuffix(".weight") for key in state if key.endswith(".weight")]
    layers = {}
    for index, name in enumerate(names):
        layers[f"weight{index}"] = state[f"{name}.weight"].numpy().T
        layers[f"bias{index}"] = state[f"{name}.bias"].numpy()
    np.savez(path, **layers)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    job, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    begun = time.process_time()
    if job["way"] == "aligned":
        columns = aligned(Path(job["folder"]))
    else:
        columns = as_users_get_it(job["dataset"])
    d3rlpy.seed(job["seed"])
    rng = np.random.default_rng(job["seed"])
    algorithm = IQLConfig().create(device="cpu:0")
    shapes = columns["observations"].shape[1:], columns["actions"].shape[1]
    algorithm.create_impl(*shapes)
    size, losses = len(columns["rewards"]), {name: [] for name in _LOSSES}
    sums = dict.fromkeys(_LOSSES, 0.0)
    for step in range(1, job["updates"] + 1):
        found = algorithm.update(batch_of(columns, rng.integers(size, size=job["batch_size"])))
        for name in _LOSSES:
            sums[name] += float(found[name]) / _ROW
        if step % _ROW == 0:
            for name in _LOSSES:
                losses[name].append(sums[name])
                sums[name] = 0.0
        if step % job["every"] == 0:
            save_policy(algorithm, folder / f"{step}.npz")
    report = {
        "columns": "rlreg" if job["way"] == "aligned" else "get_minari",
        "transitions": size,
        "rewards_seen": float(columns["rewards"].sum(dtype=np.float64)),
        "losses": {"every": _ROW, **losses},
        "cpu_s": time.process_time() - begun,
        "versions": {"d3rlpy": d3rlpy.__version__},
    }
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
