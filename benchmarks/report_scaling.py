"""The curves of `scaling.py` and the tables of `ray_simulation.py`, for RESULTS.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

PICTURE = Path("docs/pictures/scaling.svg")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 345, 230, 62, 14, 34, 40
_STYLE = """
svg { color-scheme: light dark; --paper: #ffffff; --quiet: #4a4a4a; --line: #d8d8d8;
  --own: #0b5394; --one: #b3410e; }
@media (prefers-color-scheme: dark) { svg { --paper: #14171a; --quiet: #c8c8c8; --line: #3a3f44;
  --own: #8fc1ff; --one: #ffab7a; } }
rect { fill: var(--paper); } text { font: 12px system-ui, sans-serif; fill: var(--quiet); }
.title { font-weight: 600; } .grid { stroke: var(--line); }
.own { stroke: var(--own); stroke-width: 2; fill: none; } circle { fill: var(--own); }
.one { stroke: var(--one); stroke-dasharray: 4 4; fill: none; }
"""


def spread(value: Mapping[str, float], digits: int = 3) -> str:
    """Writes a median with its quartiles."""
    middle, low, high = (value[key] for key in ("median", "quartile_1", "quartile_3"))
    return f"{middle:,.{digits}g} ({low:,.{digits}g} to {high:,.{digits}g})"


# --- curves ---------------------------------------------------------------------------------------


def curves(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields the section of the curves."""
    yield f"## {document['title']}"
    yield ""
    machines = {
        f"{own['cpu']}, {own['cores']} cores, Python {own['python']}"
        for own in (curve["machine"] for curve in document["curves"].values())
    }
    versions = ", ".join(f"{key} {value}" for key, value in document["versions"].items())
    yield f"{'; '.join(sorted(machines))}; {versions}."
    yield "An exponent of 1 means that twice the work takes twice as long, or gives twice the rate;"
    yield "the last column is the slope between the two largest sizes. Medians and quartiles over"
    yield "rounds in which the sizes take turns."
    yield ""
    yield f"![Costs against sizes, both logarithmic](../{PICTURE})"
    yield ""
    yield "| | sizes | unit | smallest | largest | exponent | at the end |"
    yield "|---|---|---|---|---|---|---|"
    for curve in document["curves"].values():
        sizes = list(curve["values"])
        first, last = (curve["values"][size]["median"] for size in (sizes[0], sizes[-1]))
        yield (
            f"| {curve['title']} | {int(sizes[0]):,} to {int(sizes[-1]):,} {curve['size']} "
            f"| {curve['unit']} | {first:,.3g} | {last:,.3g} | {spread(curve['exponent'], 2)} "
            f"| {spread(curve['exponent_at_the_end'], 2)} |"
        )
    yield ""
    yield from holdups(document["curves"])


def holdups(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields what holds IMPALA back at each size."""
    noted = {name: curve for name, curve in found.items() if "notes" in curve}
    if not noted:
        return
    yield (
        "| | | transitions/s | learner busy | joining, publishing: of its time "
        "| of its processor time | held back by |"
    )
    yield "|---|---|---|---|---|---|---|"
    for curve in noted.values():
        for size, note in curve["notes"].items():
            busy, moved = (
                note[key]["median"] for key in ("learner_utilisation", "transport_share")
            )
            computed = note.get("transport_cpu_share")
            yield (
                f"| {curve['title']} | {int(size):,} {curve['size']} "
                f"| {spread(curve['values'][size])} | {busy:.0%} | {moved:.1%} "
                f"| {'' if computed is None else format(computed['median'], '.1%')} "
                f"| {note['bottleneck']} |"
            )
    yield ""


def picture(document: Mapping[str, Any], columns: int = 3) -> str:
    """Draws every curve on logarithmic axes, with a line of exponent 1 beside it."""
    found = list(document["curves"].values())
    rows = -(-len(found) // columns)
    width, height = columns * _WIDTH, rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f'<style>{_STYLE}</style>\n<rect width="{width}" height="{height}"/>',
    ]
    for index, curve in enumerate(found):
        x, y = index % columns * _WIDTH, index // columns * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *panel(curve), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(curve: Mapping[str, Any]) -> Iterator[str]:
    """Yields the elements of one curve."""
    points = [(float(size), value) for size, value in curve["values"].items()]
    first, middle = points[0][0], points[0][1]["median"]
    # Dashed: what exponent 1 would be, from the first point on as far as the panel goes.
    low = min(value["min"] for _, value in points)
    high = max(value["max"] for _, value in points)
    low, high = low / 1.3, max(high, low * 2) * 1.3
    end = min(points[-1][0], first * high / middle)

    def place(size: float, value: float) -> tuple[float, float]:
        across = math.log(size / first) / math.log(points[-1][0] / first)
        up = math.log(value / low) / math.log(high / low)
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP)

    yield f'<text class="title" x="8" y="16">{escape(curve["title"])}</text>'
    for tick in round_numbers(low, high):
        _, y = place(first, tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>'
    for size, _ in points:
        x, y = place(size, low)
        yield f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{short(size)}</text>'
    label = f"{curve['size']}; {curve['unit']}; exponent {curve['exponent']['median']:.2f}"
    yield (
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{escape(label)}</text>"
    )
    ends = place(first, middle), place(end, middle * end / first)
    if curve["exponent"]["median"] > 0:
        yield '<line class="one" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(
            *ends[0], *ends[1]
        )
    line = " ".join("{:.1f},{:.1f}".format(*place(size, own["median"])) for size, own in points)
    yield f'<polyline class="own" points="{line}"/>'
    for size, own in points:
        (x, y), (_, top), (_, bottom) = (place(size, own[key]) for key in ("median", "max", "min"))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        yield f'<line class="own" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def round_numbers(low: float, high: float) -> list[float]:
    """Returns powers of ten in a range, and 2 and 5 times them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            break
    return found


def short(value: float) -> str:
    """Writes a number as short as a chart needs it."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


# --- Ray ------------------------------------------------------------------------------------------


def simulation(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields the tables of the simulation."""
    yield "| units a layer | actors | updates/s, measured | simulated | simulated / measured |"
    yield "|---|---|---|---|---|"
    for width, sizes in document["validation"].items():
        for actors, row in sizes.items():
            yield (
                f"| {width} | {actors} | {spread(row['measured'])} | {spread(row['predicted'])} "
                f"| {spread(row['ratio'], 2)} |"
            )
    yield ""
    yield (
        "| units a layer | actors | learner | transitions/s | bottleneck | learning | Ray's calls "
        "and bookkeeping | waiting | network | actors busy |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for width, sizes in document["predictions"].items():
        for actors, learners in sizes.items():
            for name, found in learners.items():
                shares = ("learning", "driving", "waiting", "network", "actors")
                yield (
                    f"| {width} | {actors} | {name} | {found['transitions_per_s']:,.3g} "
                    f"| {found['bottleneck']} | "
                    + " | ".join(f"{found[share]:.0%}" for share in shares)
                    + " |"
                )
    yield ""
