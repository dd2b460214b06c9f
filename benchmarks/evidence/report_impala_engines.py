"""Tables and pictures of benchmarks/results/evidence_impala_engines.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report_pointmaze import agreement, spread, table
from svg_panels import Panel, curve, picture

from rlreg.runtime.report.curves import Curve

BLOCKS = ("impala-engines",)


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page and pictures by name."""
    tasks = document["tasks"]
    curves = {name: curves_of(row) for name, row in tasks.items()}
    names = {own.index: own.group for found in curves.values() for own in found.values()}
    panels = [
        Panel(tasks[name]["env"], list(found.values()), "transitions")
        for name, found in curves.items()
    ]
    text = "![Mean return against transitions, by engine](pictures/impala-engines.svg)"
    drawn = picture(panels, dict(sorted(names.items())), 2)
    return (
        {"impala-engines": f"{text}\n\n{engines_table(tasks, curves)}"},
        {"impala-engines": drawn},
    )


def curves_of(row: Mapping[str, Any]) -> dict[str, Curve]:
    """The curve of each engine; seeds may differ by an update in where they are evaluated."""
    found = {}
    for index, (engine, runs) in enumerate(row["engines"].items()):
        counts = [point[0] for point in runs[0]["curve"]]
        points = [
            [(float(x), float(point[1])) for x, point in zip(counts, run["curve"], strict=True)]
            for run in runs
        ]
        found[engine] = curve(engine, index, points)
    return found


def engines_table(tasks: Mapping[str, Any], curves: Mapping[str, Mapping[str, Curve]]) -> str:
    """One row an engine, compared with the sequential one point by point."""
    rows = []
    for name, row in tasks.items():
        for engine, runs in row["engines"].items():
            meet, inside, count = agreement(curves[name]["sequential"], curves[name][engine])
            shares = [f"{meet} of {count}", f"{inside} of {count}"]
            rows.append(
                [row["env"], engine, str(len(runs)), spread([run["lag"] for run in runs], 2),
                 spread([run["curve"][-1][1] for run in runs]),
                 *(["", ""] if engine == "sequential" else shares)]
            )  # fmt: skip
    head = [
        "task", "engine", "seeds", "updates behind, mean", "last return (lowest to highest seed)",
        "interval meets the sequential engine's", "each mean in the other's interval",
    ]  # fmt: skip
    return table(head, rows)
