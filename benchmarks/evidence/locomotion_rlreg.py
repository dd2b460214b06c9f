"""One job of rlreg's on a locomotion data set. `locomotion_jobs.py` starts it.

python benchmarks/evidence/locomotion_rlreg.py '{"kind": "iql", ...}' OUT.json
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
from offline_runs import settings_of_preset, train_cloning, train_iql
from pointmaze_task import Stopwatch, write_json

import rlreg
from rlreg.runtime.evaluation import Evaluation, evaluate

NUM_EPISODES, FIRST_SEED = 20, 10_000


def load(job: dict[str, Any]) -> rlreg.TransitionDataset:
    if "/bullet-" in job["dataset"]:
        importlib.import_module("bullet_task")  # registers the environment
    return rlreg.load_dataset(job["dataset"], memory_map=False)


def run_training(job: dict[str, Any]) -> dict[str, Any]:
    watch, dataset = Stopwatch(), load(job)
    played: list[Evaluation] = []

    def judge(policy: Any) -> dict[str, Any]:
        assert dataset.info.env_spec is not None
        result = evaluate(policy, dataset.info.env_spec.id, NUM_EPISODES, FIRST_SEED)
        played.append(result)
        return {"mean_return": result.mean_return, "std_return": result.std_return}

    if job["kind"] == "iql":
        run = train_iql(job, dataset, settings_of_preset(job["preset"]), judge)
    else:
        run = train_cloning(job, dataset, judge)
    # The last point of the curve is the result: the same episodes.
    last, figures = played[-1], dict(run.curve[-1])
    del figures["update"]
    return {
        "curve": run.curve,
        "final": {**figures, "returns": list(last.returns), "lengths": list(last.lengths)},
        "content_hash": dataset.content_hash(),
        "cpu_s": watch.seconds(),
    }


def run_data(job: dict[str, Any]) -> dict[str, Any]:
    """What a data set holds, by rlreg's reading."""
    dataset = load(job)
    returns, references, spec = dataset.episodes.returns, dataset.references, dataset.info.env_spec
    assert references is not None
    assert spec is not None
    return {
        "id": job["dataset"],
        "env_id": spec.id,
        "transitions": len(dataset),
        "episodes": len(dataset.episodes),
        "terminations": int(dataset.terminations.sum()),
        "mean_return": float(returns.mean()),
        "best_return": float(returns.max()),
        "random": references.ref_min,
        "policy": references.ref_max,
        "description": str(dataset.info.metadata["description"]),
        "content_hash": dataset.content_hash(),
        "laws": str(dataset.laws).splitlines(),
    }


def main() -> None:
    torch.set_num_threads(1)
    job, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    found = run_data(job) if job["kind"] == "data" else run_training(job)
    simulation = "pybullet" if "/bullet-" in job["dataset"] else "mujoco"
    versions = {"rlreg": rlreg.__version__, "torch": torch.__version__}
    versions[simulation] = importlib.metadata.version(simulation)
    write_json(out, {"job": job, "versions": versions, **found})


if __name__ == "__main__":
    main()
