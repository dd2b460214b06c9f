"""Tables and pictures of benchmarks/results/evidence_impala_peers.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from report_pointmaze import spread, table

BLOCKS = ("impala-peers",)


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page; there is no picture."""
    return {"impala-peers": peers_table(document["programs"])}, {}


def peers_table(programs: Mapping[str, Any]) -> str:
    """One row a program; figures to the goal are of the seeds that reach it."""
    rows = []
    for name, row in programs.items():
        runs = row["runs"]
        if not runs:
            continue
        solved = [run for run in runs if run["reached"]]
        rows.append(
            [name, f"{len(solved)} of {len(runs)}",
             middle([run["transitions"] / 1000 for run in solved]),
             middle([run["wall_s"] for run in solved], 1),
             middle([run["with_start_s"] for run in solved], 1),
             f"{statistics.median(run['transitions'] / run['wall_s'] for run in runs):,.0f}",
             spread([run["evaluated"] for run in runs], 0), version_of(runs)]
        )  # fmt: skip
    head = [
        "", "seeds that reach 475", "thousands of transitions", "seconds of training",
        "seconds with start-up", "transitions a second", "mode of the policy at the end", "version",
    ]  # fmt: skip
    return table(head, rows)


def middle(values: Sequence[float], digits: int = 0) -> str:
    """Median over seeds, the lowest and the highest; nothing where there is no seed."""
    if not values:
        return ""
    figures = statistics.median(values), min(values), max(values)
    median, low, high = (f"{figure:,.{digits}f}" for figure in figures)
    return median if len(values) == 1 else f"{median} ({low} to {high})"


def version_of(runs: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({run["version"] for run in runs}))
