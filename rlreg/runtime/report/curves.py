"""From the metrics of runs to curves: each seed, what they say together, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlreg.runtime.report.runs import Group
from rlreg.runtime.seeds import statistics_of

MAX_POINTS = 200
"""Points of the curve over seeds; more would not be seen."""

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one group.

    Attributes:
        group: Its name.
        index: Its place among the groups, which gives its colour.
        runs: The points of each seed, as they were logged.
        middle: Interquartile mean over the seeds; of one seed its points.
        interval: Step, lower and upper end of the bootstrap interval; empty for one seed.
    """

    group: str
    index: int
    runs: tuple[Points, ...]
    middle: Points
    interval: list[tuple[float, float, float]]


def curves_of(groups: Sequence[Group], metric: str) -> list[Curve]:
    """Returns the curves of a metric, of the groups that have it."""
    found = []
    for index, group in enumerate(groups):
        runs = tuple(points for view in group.runs if (points := view.points(metric)))
        if runs:
            found.append(Curve(group.name, index, runs, *_together(runs)))
    return found


def _together(runs: tuple[Points, ...]) -> tuple[Points, list[tuple[float, float, float]]]:
    if len(runs) == 1:
        return runs[0], []
    steps = shared_steps(runs)
    values = np.array(
        [np.interp(steps, [x for x, _ in points], [y for _, y in points]) for points in runs]
    )
    middle: Points = []
    interval = []
    for step, column in zip(steps, values.T, strict=True):
        figures = statistics_of(column.tolist())
        middle.append((step, figures["interquartile_mean"]))
        interval.append((step, *figures["interval"]))
    return middle, interval


def shared_steps(runs: Sequence[Points]) -> list[float]:
    """Returns the steps at which all runs have begun and none has ended.

    Online runs log at steps of their own; between them values are interpolated.
    """
    first = max(points[0][0] for points in runs)
    last = min(points[-1][0] for points in runs)
    steps = sorted({step for points in runs for step, _ in points if first <= step <= last})
    if len(steps) <= MAX_POINTS:
        return steps
    chosen = np.linspace(0, len(steps) - 1, MAX_POINTS).round().astype(int)
    return [steps[index] for index in chosen]
