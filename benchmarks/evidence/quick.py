"""A small slice of the evidence, done anew and compared with the committed intervals.

    python benchmarks/evidence/quick.py                     # seed 0: fails outside its interval
    python benchmarks/evidence/quick.py --record --seeds 5  # measures the intervals

IQL on the generated pendulum data and IMPALA on CartPole, a minute or two. An interval is what a
new seed is expected in: the mean of the recorded seeds and three deviations to either side, never
less than a tenth of the way from random play to that mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from record import RESULTS, machine, versions, write

_NAME = "evidence_quick"
_RANDOM = {"iql-pendulum": -1200.0, "impala-cartpole": 22.0}  # rounded; they only set a least width
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "iql-pendulum": (
        "iql/pendulum",
        {
            "learnable": {"type": "iql"},
            "dataset": "rlreg/pendulum/mixed-v0",
            "train": {"n_steps": 3_000, "n_steps_per_epoch": 1_000},
            "evaluation": {"n_episodes": 20, "every": 3_000},
        },
    ),
    "impala-cartpole": (
        "impala/small",
        {
            "learnable": {"type": "impala"},
            "env": "CartPole-v1",
            "engine": {"type": "process", "deterministic": True},
            "train": {"n_steps": 120_000},
            "evaluation": {"n_episodes": 20, "every": 120_000},
        },
    ),
}


def mean_return(name: str, seed: int) -> float:
    """Trains in a folder that is thrown away; returns the last evaluation's mean."""
    import rlreg

    preset, run = TASKS[name]
    if "dataset" in run:
        rlreg.load_dataset(run["dataset"], generate=True).close()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        rlreg.train(
            {**run, "seed": seed, "device": "cpu"}, out=out, preset=preset, show_progress=False
        )
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return float(summary["final"]["mean_return"])


def interval(name: str, values: list[float]) -> list[float]:
    """Where another seed is expected; see the module."""
    mean = statistics.mean(values)
    half = max(3 * statistics.stdev(values), 0.1 * abs(mean - _RANDOM[name]))
    return [mean - half, mean + half]


def record(seeds: int, only: list[str]) -> None:
    path = RESULTS / f"{_NAME}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.is_file() else {}
    for name in only or TASKS:
        preset, run = TASKS[name]
        values = [mean_return(name, seed) for seed in range(seeds)]
        print(name, values, flush=True)
        settings = {"preset": preset, **run}
        found[name] = {"settings": settings, "values": values, "interval": interval(name, values)}
    names = ("rlreg-iql", "rlreg-impala", "torch", "gymnasium")
    document = {
        "title": "The quick slice", "machine": machine(), "versions": versions(*names),
        "tasks": found,
    }  # fmt: skip
    print(write(_NAME, document))


def check(seed: int) -> None:
    known = json.loads((RESULTS / f"{_NAME}.json").read_text(encoding="utf-8"))["tasks"]
    failed = []
    for name in TASKS:
        low, high = known[name]["interval"]
        value = mean_return(name, seed)
        is_inside = low <= value <= high
        word = "inside" if is_inside else "OUTSIDE"
        print(f"{name}: mean return {value:.1f}, {word} [{low:.1f}, {high:.1f}]", flush=True)
        if not is_inside:
            failed.append(name)
    if failed:
        sys.exit(f"outside its interval: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help="measure the intervals anew")
    parser.add_argument("--only", action="append", default=[], choices=TASKS, help="of --record")
    parser.add_argument("--seeds", type=int, default=5, help="of --record")
    parser.add_argument("--seed", type=int, default=0, help="of the check")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.seeds, arguments.only)
    else:
        check(arguments.seed)


if __name__ == "__main__":
    main()
