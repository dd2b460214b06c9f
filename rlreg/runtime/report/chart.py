"""Line charts as SVG text: axes, bands, lines, and what a reader of the page needs to know of them.

Own and small, so that a report needs no plotting library and loads nothing. Colours are classes of
the page's style sheet, which knows light and dark; each group has a dash pattern of its own, for
those who do not tell the colours apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from rlreg.runtime.report.curves import Curve

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 36
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 4")
NUM_COLORS = 6


def line_chart(
    title: str, curves: Sequence[Curve], *, x_label: str, levels: Iterable[tuple[str, float]] = ()
) -> Markup:
    """Draws the curves of one metric.

    Args:
        title: Name of the metric.
        curves: At least one.
        x_label: What is counted along the horizontal axis.
        levels: Name and value of horizontal lines to compare with.
    """
    levels = list(levels)
    xs = [x for curve in curves for points in curve.runs for x, _ in points]
    ys = [y for curve in curves for points in curve.runs for _, y in points]
    ys += [y for curve in curves for _, *ends in curve.interval for y in ends]
    ys += [y for _, y in levels]
    frame = _Frame(_widened(min(xs), max(xs), 0.0), _widened(min(ys), max(ys), 0.05))
    text = f"{title} against {x_label}: {', '.join(_in_words(curve) for curve in curves)}."
    body = [*frame.axes(x_label), *(frame.level(*level) for level in levels)]
    for curve in curves:
        body += frame.curve(curve)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" data-metric="{}" '
        'data-x="{} {}" data-y="{} {}">\n{}\n</svg>'
    ).format(WIDTH, HEIGHT, text, title, *map(repr, (*frame.x, *frame.y)), Markup("\n").join(body))


def _in_words(curve: Curve) -> str:
    (_, first), (_, last) = curve.middle[0], curve.middle[-1]
    return f"{curve.group} from {number(first)} to {number(last)}"


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    margin = (high - low) * share or (0.0 if high > low else abs(high) * 0.05 or 0.5)
    return low - margin, high + margin


class _Frame:
    """From data to places on the drawing."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join("{:.3f},{:.3f}".format(*self.place(x, y)) for x, y in points)

    def axes(self, x_label: str) -> list[Markup]:
        parts = []
        for value in ticks(*self.y):
            _, y = self.place(self.x[0], value)
            parts.append(
                Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                    LEFT, WIDTH - RIGHT, y, y
                )
            )
            parts.append(_text(LEFT - 6, y + 4, number(value), "end"))
        for value in ticks(*self.x, count=4):
            x, _ = self.place(value, self.y[0])
            parts.append(_text(x, HEIGHT - BOTTOM + 15, number(value), "middle"))
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle"))
        return parts

    def level(self, name: str, value: float) -> Markup:
        _, y = self.place(self.x[0], value)
        line = Markup('<line class="level" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, WIDTH - RIGHT, y, y
        )
        return line + _text(WIDTH - RIGHT - 2, y - 4, name, "end")

    def curve(self, curve: Curve) -> list[Markup]:
        color, parts = f"c{curve.index % NUM_COLORS}", []
        if curve.interval:
            upper = [(step, high) for step, _, high in curve.interval]
            lower = [(step, low) for step, low, _ in reversed(curve.interval)]
            parts.append(
                Markup('<polygon class="band {}" points="{}"/>').format(
                    color, self.path(upper + lower)
                )
            )
            parts += [self._line(points, f"seed {color}") for points in curve.runs]
        parts.append(self._line(curve.middle, f"middle {color}", DASHES[curve.index % len(DASHES)]))
        return parts

    def _line(self, points: Sequence[tuple[float, float]], classes: str, dash: str = "") -> Markup:
        if len(points) == 1:
            x, y = self.place(*points[0])
            return Markup('<circle class="{}" cx="{:.3f}" cy="{:.3f}" r="3"/>').format(
                classes, x, y
            )
        dashes = Markup(' stroke-dasharray="{}"').format(dash) if dash else ""
        return Markup('<polyline class="{}"{} points="{}"/>').format(
            classes, dashes, self.path(points)
        )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, escape(text)
    )


def legend_sample(index: int) -> Markup:
    """Draws the line of a group for the legend."""
    return Markup(
        '<svg class="sample" viewBox="0 0 30 10" aria-hidden="true"><polyline class="middle c{}" '
        'stroke-dasharray="{}" points="0,5 30,5"/></svg>'
    ).format(index % NUM_COLORS, DASHES[index % len(DASHES)] or "none")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns round numbers from ``low`` to ``high``, about ``count`` of them."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def number(value: float) -> str:
    """Writes a number as short as a reader of a chart needs it."""
    size = abs(value)
    scale: Callable[[float], str] = "{:.3g}".format
    if size >= 1e9 or (size and size < 1e-3):
        return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")
    if size >= 1e6:
        return f"{scale(value / 1e6)}M"
    if size >= 1e4:
        return f"{scale(value / 1e3)}k"
    return f"{value:.4g}"
