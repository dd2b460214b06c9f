"""Tables and pictures of benchmarks/results/evidence_impala.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report_pointmaze import spread, table
from svg_panels import Panel, curve, picture

BLOCKS = ("impala", "impala-values", "impala-lag")


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page and pictures by name."""
    tasks = document["tasks"]
    panels = [tasks_panel(name, row) for name, row in tasks.items()]
    pictures = {"impala": picture(panels, {0: "mean return of evaluations, by transitions"}, 2)}
    text = "![Mean return against transitions, task by task](pictures/impala.svg)"
    blocks = {"impala": f"{text}\n\n{tasks_table(tasks)}"}
    ablations = document.get("ablations", {})
    if ablations:
        blocks["impala-values"] = values_table(ablations)
        blocks["impala-lag"] = lag_table(ablations.get("lag", {}))
    return blocks, pictures


def values_table(ablations: Mapping[str, Any]) -> str:
    rows = []
    for name in ("time-limit", "reset-rows"):
        for variant, runs in ablations.get(name, {}).items():
            values = spread([run["value"] for run in runs], 2)
            rows.append([name.replace("-", " "), variant, str(len(runs)), values])
    return table(["", "", "seeds", "learnt value (true: 10)"], rows)


def lag_table(variants: Mapping[str, Any]) -> str:
    rows = []
    for name, runs in variants.items():
        lag, _, weights = name.partition(", ")
        columns = [spread([run[key] for run in runs], 0) for key in ("last", "mean")]
        sizes = spread([run["effective_sample_size"] for run in runs], 2)
        rows.append([lag.removeprefix("lag "), weights, str(len(runs)), *columns, sizes])
    head = ["updates behind", "weights", "seeds", "last return", "mean return", "effective samples"]
    return table(head, rows)


def tasks_table(tasks: Mapping[str, Any]) -> str:
    rows = []
    for name, row in tasks.items():
        finals = [run["final"] for run in row["runs"]]
        walls = [run["wall_s"] for run in row["runs"]]
        goal = row["goal"]
        reached = "" if goal is None else f"{row['reached']} of {len(finals)} reach {goal:g}"
        rows.append(
            [name, f"`{row['preset']}`", f"{row['n_steps']:,}", str(len(finals)), spread(finals),
             f"{row['random']:.1f}" if isinstance(row["random"], float) else "", reached,
             spread(walls, 0)]
        )  # fmt: skip
    head = [
        "task", "preset", "transitions", "seeds", "last return (lowest to highest seed)",
        "random play", "goal", "wall time, s",
    ]  # fmt: skip
    return table(head, rows)


def tasks_panel(name: str, row: Mapping[str, Any]) -> Panel:
    runs = [[(float(point[0]), float(point[1])) for point in run["curve"]] for run in row["runs"]]
    shortest = min(map(len, runs))
    levels = [] if row["goal"] is None else [("goal", row["goal"])]
    return Panel(name, [curve(name, 0, [run[:shortest] for run in runs])], "transitions", levels)
