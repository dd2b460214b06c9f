"""Charts of `rlreg report`, put together into pictures that stand by themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rlreg.runtime.report.chart import DASHES, HEIGHT, WIDTH, line_chart
from rlreg.runtime.report.curves import Curve, Points
from rlreg.runtime.seeds import statistics_of

# The colours of `rlreg report`; both read on white and on dark grounds.
_STYLE = """
svg { color-scheme: light dark; --paper: #ffffff; --quiet: #4a4a4a; --line: #d8d8d8;
  --c0: #0b5394; --c1: #b3410e; --c2: #17663a; --c3: #7a2a8a; --c4: #8a6a00; --c5: #00707a; }
@media (prefers-color-scheme: dark) { svg { --paper: #14171a; --quiet: #c8c8c8; --line: #3a3f44;
  --c0: #8fc1ff; --c1: #ffab7a; --c2: #7fd6a2; --c3: #e0a3ef; --c4: #ecd06f; --c5: #7ddbe3; } }
.paper { fill: var(--paper); }
text { font: 12px system-ui, sans-serif; fill: var(--quiet); paint-order: stroke;
  stroke: var(--paper); stroke-width: 3px; }
.title { font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.level { stroke: var(--quiet); stroke-width: 1.5; stroke-dasharray: 1 4; }
polyline { fill: none; stroke: currentColor; stroke-linejoin: round; }
.middle { stroke-width: 2.25; } .seed { stroke-width: 1; opacity: 0.4; }
circle { fill: currentColor; } .band { fill: currentColor; opacity: 0.18; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
"""
_ROW = 20


@dataclass(frozen=True)
class Panel:
    """One chart of a picture.

    Attributes:
        title: Stands above it.
        curves: Its curves.
        x_label: What is counted along the horizontal axis.
        levels: Names and values of horizontal lines.
    """

    title: str
    curves: Sequence[Curve]
    x_label: str = "updates"
    levels: Sequence[tuple[str, float]] = ()


def curve(name: str, index: int, runs: Sequence[Points]) -> Curve:
    """Thick: interquartile mean; band: its 95 % bootstrap interval; thin: the seeds."""
    if len(runs) == 1:
        return Curve(name, index, tuple(runs), list(runs[0]), [])
    middle: Points = []
    band: list[tuple[float, float, float]] = []
    for points in zip(*runs, strict=True):
        figures = statistics_of([value for _, value in points])
        low, high = figures["interval"]
        middle.append((points[0][0], figures["interquartile_mean"]))
        band.append((points[0][0], low, high))
    return Curve(name, index, tuple(runs), middle, band)


def picture(panels: Sequence[Panel], names: Mapping[int, str], columns: int = 1) -> str:
    """Draws panels in a grid and one legend below.

    Args:
        panels: Row by row.
        names: Of the colours in use.
        columns: Of the grid.
    """
    cell = HEIGHT + _ROW
    rows = -(-len(panels) // columns)
    width = columns * WIDTH
    height = rows * cell + _ROW * (-(-len(names) // columns)) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for index, panel in enumerate(panels):
        x, y = index % columns * WIDTH, index // columns * cell
        chart = line_chart(panel.title, panel.curves, x_label=panel.x_label, levels=panel.levels)
        body = _shorter(str(chart))
        place = f'<svg x="{x}" y="{y + _ROW}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(f'<text class="title" x="{x + 58}" y="{y + 15}">{escape(panel.title)}</text>')
        parts.append(body.replace("<svg ", place, 1))
    for place, (index, name) in enumerate(names.items()):
        x = place % columns * WIDTH + 12
        y = rows * cell + place // columns * _ROW + 8
        dash = f' stroke-dasharray="{DASHES[index]}"' if DASHES[index] else ""
        parts.append(
            f'<polyline class="middle c{index}"{dash} points="{x},{y} {x + 30},{y}"/>'
            f'<text x="{x + 36}" y="{y + 4}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _shorter(chart: str) -> str:
    """Tenths of a pixel are enough, and are the same on every machine; the page's data goes."""
    chart = re.sub(r' data-[a-z]+="[^"]*"', "", chart)
    tenths = re.compile(r"-?\d+\.\d+")
    return re.sub(
        r'(?<=points=")[^"]*(?=")',
        lambda points: tenths.sub(lambda own: f"{float(own[0]):.1f}", points[0]),
        chart,
    )
