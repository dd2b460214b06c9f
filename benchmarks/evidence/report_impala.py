"""Tables and pictures of benchmarks/results/evidence_impala.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report_pointmaze import spread, table
from svg_panels import Panel, curve, picture

BLOCKS = (
    "impala", "impala-minatar", "impala-values", "impala-thresholds", "impala-lag",
    "impala-lag-cartpole",
)  # fmt: skip

# What MinAtar's authors publish of their actor-critic with traces of 0.8: training returns (means
# of 100 episodes and 30 runs), after 1 and 5 million frames. Read off img/learning_curves.gif of
# github.com/kenjyoung/MinAtar, to some 2 % of its height.
MILLIONS = (1, 5)
MINATAR_AUTHORS = {
    "minatar-breakout": (9.9, 17.5),
    "minatar-asterix": (0.9, 18.7),
    "minatar-freeway": (0.2, 47.7),
    "minatar-space-invaders": (52.1, 185.3),
}

# Rates of the two ablations on CartPole-v1.
RATES = {"lag": "0.003, falling", "lag-fast": "0.01"}


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page and pictures by name."""
    tasks = document["tasks"]
    panels = [tasks_panel(name, row) for name, row in tasks.items()]
    pictures = {"impala": picture(panels, {0: "mean return of evaluations, by transitions"}, 3)}
    text = "![Mean return against transitions, task by task](pictures/impala.svg)"
    blocks = {"impala": f"{text}\n\n{tasks_table(tasks)}"}
    blocks["impala-minatar"] = minatar_table(tasks)
    ablations = document.get("ablations", {})
    if ablations:
        blocks["impala-values"] = values_table(ablations)
        blocks["impala-thresholds"] = thresholds_table(ablations.get("thresholds", {}))
        blocks["impala-lag-cartpole"] = lag_table(ablations)
        swing = ablations.get("swing", {})
        blocks["impala-lag"] = swing_table(swing)
        if swing:
            pictures["impala-lag"] = swing_picture(swing)
            text = "![Error of the learnt value against lag](pictures/impala-lag.svg)"
            blocks["impala-lag"] = f"{text}\n\n{blocks['impala-lag']}"
    return blocks, pictures


def values_table(ablations: Mapping[str, Any]) -> str:
    """What each thing taken away does to a value; 10 where a run does not say the true one."""
    rows = []
    for name in ("time-limit", "reset-rows", "last-row"):
        for variant, runs in ablations.get(name, {}).items():
            values = spread([run["value"] for run in runs], 2)
            true = f"{runs[0].get('true', 10):.2f}"
            rows.append([name.replace("-", " "), variant, str(len(runs)), values, true])
    return table(["", "", "seeds", "learnt value", "true value"], rows)


def thresholds_table(variants: Mapping[str, Any]) -> str:
    rows = []
    for name, runs in variants.items():
        values, true = spread([run["value"] for run in runs], 2), runs[0]["true"]
        rows.append([name, str(len(runs)), values, f"{true:.2f}"])
    return table(["largest weight", "seeds", "learnt value", "value by the formula"], rows)


def lag_table(ablations: Mapping[str, Any]) -> str:
    """CartPole-v1 with stale fragments: returns of training, the last ones and over the run."""
    rows = []
    for ablation, rate in RATES.items():
        for name, runs in ablations.get(ablation, {}).items():
            lag, _, weights = name.removeprefix("lag ").partition(", ")
            returns = [spread([run[key] for run in runs], 0) for key in ("last", "mean")]
            sizes = spread([run["effective_sample_size"] for run in runs], 2)
            rows.append([rate, lag, weights, str(len(runs)), *returns, sizes])
    head = [
        "rate", "updates behind", "weights", "seeds", "last return", "mean return",
        "effective samples",
    ]  # fmt: skip
    return table(head, rows)


def swings(variants: Mapping[str, Any]) -> dict[str, dict[int, list[float]]]:
    """Errors of the seeds, by correction and lag; at lag 0 there is nothing to correct."""
    found: dict[str, dict[int, list[float]]] = {}
    for name, runs in variants.items():
        lag, _, correction = name.removeprefix("lag ").partition(", ")
        found.setdefault(correction, {})[int(lag)] = [run["error"] for run in runs]
    for own in found.values():
        own.setdefault(0, found["clipped"][0])
    return {name: dict(sorted(own.items())) for name, own in found.items()}


def swing_table(variants: Mapping[str, Any]) -> str:
    found = swings(variants) if variants else {}
    lags = sorted({lag for own in found.values() for lag in own})
    rows = [
        [str(lag), *(spread(own[lag], 2) if lag in own else "" for own in found.values())]
        for lag in lags
    ]
    head = ["updates behind", *(f"weights: {name}" for name in found)]
    return table(head, rows)


def swing_picture(variants: Mapping[str, Any]) -> str:
    curves, names = [], {}
    for index, (name, own) in enumerate(swings(variants).items()):
        seeds = zip(*own.values(), strict=False)  # those that every lag has
        runs = [[(float(lag), error) for lag, error in zip(own, run, strict=True)] for run in seeds]
        curves.append(curve(name, index, runs))
        names[index] = f"weights: {name}"
    return picture([Panel("error of the value", curves, "updates behind")], names)


def tasks_table(tasks: Mapping[str, Any]) -> str:
    rows = []
    for name, row in tasks.items():
        finals = [run["final"] for run in row["runs"]]
        goal = row["goal"]
        reached = "" if goal is None else f"{row['reached']} of {len(finals)} reach {goal:g}"
        rows.append(
            [name, settings_of(row), f"{row['n_steps']:,}", str(len(finals)), spread(finals),
             f"{row['random']:.1f}" if isinstance(row["random"], float) else "", reached]
        )  # fmt: skip
    head = [
        "task", "preset, and what is changed", "transitions", "seeds",
        "last return (lowest to highest seed)", "random play", "goal",
    ]  # fmt: skip
    return table(head, rows)


def minatar_table(tasks: Mapping[str, Any]) -> str:
    """Training returns beside those that MinAtar's authors publish for as many frames."""
    rows = []
    for name, published in MINATAR_AUTHORS.items():
        if name in tasks:
            runs = tasks[name]["runs"]
            row = [name.removeprefix("minatar-"), str(len(runs))]
            for millions, theirs in zip(MILLIONS, published, strict=True):
                row += [spread([trained(run, 1_000_000 * millions) for run in runs]), f"{theirs:g}"]
            rows.append(row)
    columns = [f"{whose}, {n} million frames" for n in MILLIONS for whose in ("rlreg", "authors")]
    return table(["game", "seeds", *columns], rows)


def trained(run: Mapping[str, Any], step: int) -> float:
    """The return of training at the point of the curve that is nearest to a step."""
    _, found = min(run["training"], key=lambda point: abs(point[0] - step))
    return float(found)


def settings_of(row: Mapping[str, Any]) -> str:
    """The preset, and single values over it; a component is named by its type alone."""
    changes = {**row["settings"], **row.get("engine", {})}
    parts = [f"`{row['preset']}`"]
    for name, value in changes.items():
        plain = value["type"] if isinstance(value, Mapping) else "null" if value is None else value
        parts.append(f"`{name}: {plain}`")
    return ", ".join(parts)


def tasks_panel(name: str, row: Mapping[str, Any]) -> Panel:
    runs = [[(float(point[0]), float(point[1])) for point in run["curve"]] for run in row["runs"]]
    shortest = min(map(len, runs))
    levels = [] if row["goal"] is None else [("goal", row["goal"])]
    return Panel(name, [curve(name, 0, [run[:shortest] for run in runs])], "transitions", levels)
