"""Runs what docs/results.md says about IQL on locomotion: one job after another, resumable.

    python benchmarks/evidence/locomotion_jobs.py [--work FOLDER] [--updates N]

The data sets come from `locomotion_sac.py` and `locomotion_data.py`, and from `bullet_data.py`;
those that are not there are left out. `locomotion_collect.py` makes the committed results of what
the jobs leave.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import job_list
from locomotion_sac import WORK

from rlreg.runtime.data.minari import minari_root

PROGRAM = Path(__file__).resolve().parent / "locomotion_rlreg.py"
# Cloning is there long before; values, which begin at 0, need some 1 / (1 - gamma) times 1 / tau.
UPDATES = {"iql": 60_000, "bc": 20_000, "bc10": 20_000}
# HalfCheetah's returns are large and its episodes alike, so that there it takes longer.
LONG = {"iql": 240_000, "bc": 80_000, "bc10": 80_000}
LONG_TASK = "halfcheetah"
EVERY = {"iql": 10_000, "bc": 5_000, "bc10": 5_000}
SEEDS = (0, 1, 2)
PRESET = "iql/locomotion"
TASKS = ("bullet-hopper", "bullet-ant", "hopper", "halfcheetah")
KINDS = ("mixed", "medium", "medium-replay", "medium-best", "medium-expert")


def data_sets() -> list[tuple[str, str]]:
    """Tasks and kinds of the data sets that are there."""
    root = minari_root() / "rlreg"
    return [(task, k) for task in TASKS for k in KINDS if (root / task / f"{k}-v0").is_dir()]


def jobs(updates: Mapping[str, int] = UPDATES) -> Iterator[dict[str, Any]]:
    """The list, with so many updates by program: one seed of everything first."""
    there = data_sets()
    for task, kind in there:
        name = f"{task}-{kind}"
        yield {"name": f"{name}-data", "kind": "data", "dataset": f"rlreg/{task}/{kind}-v0"}
    for seed in SEEDS:
        for task, kind in there:
            for program, count in updates.items():
                yield {
                    "name": f"{task}-{kind}-{program}-{count // 1000}k-{seed}",
                    "kind": program, "task": task, "data": kind, "seed": seed,
                    "dataset": f"rlreg/{task}/{kind}-v0", "updates": count,
                    "every": EVERY[program],
                    **({"preset": PRESET} if program == "iql" else {}),
                }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    job_list.add_arguments(parser, WORK / "jobs")
    parser.add_argument("--updates", type=int, help="the same number for every program")
    own = parser.parse_args()
    if not data_sets():
        sys.exit(f"no data sets in {minari_root()}; see locomotion_data.py")
    updates = UPDATES if own.updates is None else dict.fromkeys(UPDATES, own.updates)
    longer = (job for job in jobs(LONG) if job.get("task") == LONG_TASK)
    listed = itertools.chain(jobs(updates), longer)
    failed = job_list.run_list(listed, PROGRAM, own.work, own.only, own.list)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
