"""Writing a report: one page, nothing loaded from elsewhere, no script."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlreg import __version__
from rlreg.atomic_file import write_text
from rlreg.errors import RunError
from rlreg.files import load_run
from rlreg.identity import config_hash, differences, is_missing
from rlreg.registry import reference
from rlreg.runtime.report.chart import legend_sample, line_chart, number
from rlreg.runtime.report.curves import Curve, curves_of
from rlreg.runtime.report.runs import Group, RunView, read_data, read_groups
from rlreg.runtime.seeds import statistics_of
from rlreg.yaml_text import flow

MAIN = ("evaluation/normalized_score", "evaluation/mean_return", "episode/return_mean")
"""What a learning curve shows, the first that is there before the others."""

NOT_SHOWN = ("evaluation/n_episodes", "wall_s")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and the numbers in it.

    Attributes:
        metric: Name of the metric.
        chart: The drawing.
        curves: What it shows.
    """

    metric: str
    chart: Markup
    curves: Sequence[Curve]


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    title: str = "",
    animations: bool = True,
    data: bool = True,
) -> Path:
    """Writes one self-contained HTML page about runs.

    Args:
        paths: Run folders and folders of seeds; runs that differ in their seed alone are drawn
            together, with an interval over the seeds.
        out: The file; replaced if it exists.
        title: Heading; the names of the runs by default.
        animations: Whether to play an episode with each best policy, where that can be seen.
        data: Whether to look at the data sets the runs learnt from.

    Returns:
        The file.

    Raises:
        RunError: If a path is no run folder, or the file cannot be written.
    """
    target = Path(out)
    if not target.parent.is_dir():
        raise RunError(f"{target}: cannot be written: there is no folder {target.parent}")
    groups = read_groups(paths)
    shown = []
    if animations:
        from rlreg.runtime.report.animation import animate

        shown = [animate(group) for group in groups]
    text = render(
        title=title or f"Report: {', '.join(group.name for group in groups)}",
        groups=groups,
        animations=shown,
        data=read_data(groups) if data else [],
    )
    try:
        write_text(target, text)
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def render(*, title: str, groups: Sequence[Group], animations: Any, data: Any) -> str:
    """Renders the page."""
    metrics = list(dict.fromkeys(name for group in groups for name in group.metrics))
    main = [name for name in MAIN if name in metrics]
    rest = sorted(name for name in metrics if name not in (*MAIN, *NOT_SHOWN))
    context = {
        "title": title,
        "groups": groups,
        "main": [_figure(groups, name) for name in main],
        "diagnostics": _shelves(
            figure for name in rest if (figure := _figure(groups, name)).curves
        ),
        "results": [row for group in groups for row in _results(group)],
        "has_scores": any(_score(view) is not None for group in groups for view in group.runs),
        "baselines": _baselines(groups),
        "differences": _differences(groups),
        "hashes": [(group.name, config_hash(group.run)) for group in groups],
        "animations": animations,
        "data": data,
        "lock": _lock(groups),
        "remarks": [remark for group in groups for view in group.runs for remark in _remarks(view)],
    }
    return _templates().get_template("report.html.j2").render(context) + "\n"


def _templates() -> Environment:
    own, site = PackageLoader("rlreg.runtime.report"), PackageLoader("rlreg.reference")
    result = Environment(
        loader=ChoiceLoader([own, site]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= {"value": flow, "number": number}
    result.globals |= {
        "version": __version__,
        "is_missing": is_missing,
        "sample": legend_sample,
        "place": _place,
    }
    return result


# --- what it shows ------------------------------------------------------------------------------


def _place(group: Group) -> str:
    """Says what a group learnt from."""
    run = group.run
    preposition, given = ("on", run.dataset) if run.env is None else ("in", run.env)
    if given is None:
        return ""
    return f"{preposition} {given if isinstance(given, str) else given.id}"


def _figure(groups: Sequence[Group], metric: str) -> Figure:
    curves = curves_of(groups, metric)
    if not curves:
        return Figure(metric, Markup(""), ())
    key = {"evaluation/mean_return": "mean_return"}.get(metric, "")
    key = key or {"evaluation/normalized_score": "normalized_score"}.get(metric, "")
    levels = _levels(groups, key) if key else []
    return Figure(metric, line_chart(metric, curves, x_label=_unit(groups), levels=levels), curves)


def _shelves(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """Sorts figures by the first part of their names."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.metric.partition("/")[0], []).append(figure)
    return found


def _unit(groups: Sequence[Group]) -> str:
    units = {
        "transitions" if group.run.learnable.regime == "online" else "updates" for group in groups
    }
    return units.pop() if len(units) == 1 else "steps"


def _levels(groups: Sequence[Group], key: str) -> list[tuple[str, float]]:
    """Finds what the runs are compared with, where they agree on it."""
    found: dict[str, set[float]] = {}
    for view in (view for group in groups for view in group.runs):
        for name, figures in view.summary.get("baselines", {}).items():
            if figures.get(key) is not None:
                found.setdefault(name, set()).add(float(figures[key]))
    return [(name, values.pop()) for name, values in found.items() if len(values) == 1]


def _baselines(groups: Sequence[Group]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Lists what runs are compared with; what is the same for several groups stands once."""
    found: list[tuple[list[str], str, Mapping[str, Any]]] = []
    for group in groups:
        for name, figures in group.runs[0].summary.get("baselines", {}).items():
            known = next((item for item in found if item[1:] == (name, figures)), None)
            if known is None:
                found.append(([group.name], name, figures))
            else:
                known[0].append(group.name)
    return [(" and ".join(names), name, figures) for names, name, figures in found]


def _score(view: RunView) -> Any:
    return (view.summary.get("final") or {}).get("normalized_score")


def _results(group: Group) -> list[dict[str, Any]]:
    rows = [_result(group, view) for view in group.runs]
    finals = [row["mean"] for row in rows if row["mean"] is not None]
    if len(finals) > 1:
        together = statistics_of(finals)
        low, high = together["interval"]
        scores = [row["score"] for row in rows if row["score"] is not None]
        score = statistics_of(scores)["interquartile_mean"] if scores else None
        note = (
            f"interquartile mean of {len(finals)} seeds; {together['confidence']:.0%} interval "
            f"{number(low)} to {number(high)}"
        )
        empty = dict.fromkeys(("seed", "steps", "best", "wall_s", "speed"))
        mean, std = together["interquartile_mean"], together["std"]
        figures = {"mean": mean, "std": std, "score": score, "note": note}
        rows.append({**empty, "group": group.name, "is_total": True, **figures})
    return rows


def _result(group: Group, view: RunView) -> dict[str, Any]:
    summary = view.summary
    final, best = summary.get("final") or {}, summary.get("best") or {}
    speed = summary.get("updates_per_s", summary.get("env_steps_per_s"))
    last = view.rows[-1]["step"] if view.rows else 0
    return {
        "group": group.name,
        "is_total": False,
        "seed": view.run.seed,
        "steps": summary.get("steps", last),
        "mean": final.get("mean_return"),
        "std": final.get("std_return"),
        "score": final.get("normalized_score"),
        "best": best.get("mean_return"),
        "wall_s": summary.get("wall_s"),
        "speed": speed,
        "note": "" if summary else "not finished",
    }


def _differences(groups: Sequence[Group]) -> dict[str, Any]:
    """Compares the groups with each other, or a single one with its learnable's defaults."""
    seeds = len({view.run.seed for group in groups for view in group.runs}) > 1
    ignored = {"name", "logging", *(["seed"] if seeds else [])}
    if len(groups) > 1:
        heads, configs = [group.name for group in groups], [group.run for group in groups]
    else:
        heads = ["default", groups[0].name]
        configs = [load_run(reference(type(groups[0].run.learnable))), groups[0].run]
    rows = {
        path: values
        for path, values in differences(*configs).items()
        if path.partition(".")[0].partition("[")[0] not in ignored
    }
    return {"heads": heads, "rows": rows, "is_default": len(groups) == 1}


def _lock(groups: Sequence[Group]) -> list[Mapping[str, Any]]:
    entries: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for view in (view for group in groups for view in group.runs):
        for item in view.lock.get("ids", ()):
            entries.setdefault((item["id"], item["version"], item["schema"]), item)
    return list(entries.values())


def _remarks(view: RunView) -> list[str]:
    remarks = [f"{view.label}: {change}." for change in view.changes]
    if view.num_missing:
        remarks.append(f"{view.label}: {view.num_missing} logged values were no numbers.")
    if view.summary.get("restarts"):
        remarks.append(f"{view.label}: actors were restarted {view.summary['restarts']} times.")
    if not view.rows:
        remarks.append(f"{view.label}: has no metrics; did its logging leave out jsonl?")
    return remarks
