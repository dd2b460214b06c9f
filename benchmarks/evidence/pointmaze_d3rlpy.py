"""d3rlpy's IQL in d3rlpy's own environment; leaves policies as weights.

    .peers/d3rlpy/bin/python pointmaze_d3rlpy.py '{"way": "aligned", ...}' FOLDER

`way` is `get_minari`, as d3rlpy's documentation has it, or `aligned`: the transitions that rlreg
reads, every one of them; both with d3rlpy's default settings. `tuned` is `aligned` with those of
rlreg's preset `iql/pointmaze` that d3rlpy has fields for. Batches are drawn uniformly with
replacement from all transitions, as d3rlpy does, but from arrays: its own sampler takes as long as
an update and gives the same.
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
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import StandardObservationScaler

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


def config_of(job: dict, columns: dict[str, np.ndarray]) -> IQLConfig:
    """d3rlpy's defaults, or what of the preset it has fields for."""
    if job["way"] != "tuned":
        return IQLConfig()
    mean = columns["observations"].mean(axis=0, dtype=float)
    std = columns["observations"].std(axis=0, dtype=float)
    schedule = CosineAnnealingLRFactory(T_max=job["updates"])
    return IQLConfig(
        expectile=0.7,
        weight_temp=10.0,
        observation_scaler=StandardObservationScaler(mean=mean, std=std),
        actor_optim_factory=AdamFactory(lr_scheduler_factory=schedule),
    )


def save_policy(algorithm, path: Path) -> None:
    """Writes the layers of the policy's mean; a scaler becomes part of the first."""
    state = algorithm.impl.policy.state_dict()
    names = [key.removesuffix(".weight") for key in state if key.endswith(".weight")]
    layers = {}
    for index, name in enumerate(names):
        layers[f"weight{index}"] = state[f"{name}.weight"].numpy().T
        layers[f"bias{index}"] = state[f"{name}.bias"].numpy()
    scaler = algorithm.config.observation_scaler
    if scaler is not None:
        layers["weight0"] = layers["weight0"] / (scaler.std + scaler.eps)[:, None]
        layers["bias0"] = layers["bias0"] - scaler.mean @ layers["weight0"]
    np.savez(path, **{name: values.astype(np.float32) for name, values in layers.items()})


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    job, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    begun = time.process_time()
    if job["way"] == "get_minari":
        columns = as_users_get_it(job["dataset"])
    else:
        columns = aligned(Path(job["folder"]))
    d3rlpy.seed(job["seed"])
    rng = np.random.default_rng(job["seed"])
    algorithm = config_of(job, columns).create(device="cpu:0")
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
        "columns": "get_minari" if job["way"] == "get_minari" else "rlreg",
        "transitions": size,
        "rewards_seen": float(columns["rewards"].sum(dtype=np.float64)),
        "losses": {"every": _ROW, **losses},
        "cpu_s": time.process_time() - begun,
        "versions": {"d3rlpy": d3rlpy.__version__},
    }
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
