"""How each cost grows with the work: curves over sizes, and their exponents.

    python benchmarks/scaling.py [--only NAME ...] [--rounds N] [--out FILE]

In a round every size has its turn, so that a busy machine slows all of them. The exponent of a
round is the slope of a straight line through the logarithms (1: twice the work takes twice as
long); its median and quartiles over the rounds are written down, and the slope between the two
largest sizes beside it, because at small sizes most of a cost is there anyway. A curve that is not
measured stays as the results file has it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import RESULTS, load, machine, spread, versions, write
from scaling_costs import COSTS, Cost


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through the logarithms.

    Args:
        sizes: At least two different ones, > 0.
        values: One for each, > 0.
    """
    xs, ys = ([math.log(item) for item in row] for row in (sizes, values))
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    products = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return products / sum((x - middle_x) ** 2 for x in xs)


Samples = dict[str, list[tuple[float, dict[str, Any]]]]
"""By size: figure and notes of each round."""


def measure(cost: Cost, rounds: int) -> Samples:
    """Measures one cost at all its sizes, round by round."""
    samples: Samples = {str(size): [] for size in cost.sizes}
    with tempfile.TemporaryDirectory() as folder, cost.ready(Path(folder)) as turn:
        for number in range(rounds):
            for size in list(cost.sizes)[:: 1 if number % 2 else -1]:
                value, note = turn(size)
                samples[str(size)].append((value, note))
                print(f"{cost.name}, {size:,} {cost.size}: {value:,.4g} {cost.unit}", flush=True)
    return samples


def curve(cost: Cost, samples: Samples, before: float) -> dict[str, Any]:
    """Sums up at least two rounds.

    Args:
        cost: What was measured.
        samples: What came of it.
        before: The load before.
    """
    values = {size: [value for value, _ in own] for size, own in samples.items()}
    found = {
        "title": cost.title, "size": cost.size, "unit": cost.unit,
        "machine": machine(), "load_before": before, "load_after": load(),
        "values": {size: spread(own) for size, own in values.items()},
        **exponents({int(size): own for size, own in values.items()}),
        "samples": samples,
    }  # fmt: skip
    if any(note for own in samples.values() for _, note in own):
        found["notes"] = {
            size: summed_up([note for _, note in own]) for size, own in samples.items()
        }
    return found


def exponents(values: dict[int, list[float]]) -> dict[str, Any]:
    """Returns the exponent over all sizes, and that between the two largest, over the rounds."""
    sizes = list(values)
    rows = list(zip(*values.values(), strict=True))
    return {
        "exponent": spread([exponent(sizes, row) for row in rows]),
        "exponent_at_the_end": spread([exponent(sizes[-2:], row[-2:]) for row in rows]),
    }


def summed_up(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums figures up over rounds; of texts the last one stays."""
    return {
        name: last if isinstance(last, str) else spread([note[name] for note in notes])
        for name, last in notes[-1].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [cost.name for cost in COSTS]
    parser.add_argument("--only", action="append", choices=names, help="may be given again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--add", action="store_true", help="to the rounds that are there already")
    parser.add_argument("--out", type=Path, help="benchmarks/results/scaling.json if not given")
    arguments = parser.parse_args()
    target = arguments.out or RESULTS / "scaling.json"
    for cost in COSTS:
        if arguments.only and cost.name not in arguments.only:
            continue
        before, samples = load(), measure(cost, arguments.rounds)
        # Read anew each time: a curve that took minutes is not lost with the next one.
        kept = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {}
        curves = dict(kept.get("curves", {}))
        if arguments.add and cost.name in curves:
            old = curves[cost.name].get("samples", {})
            samples = {size: [*old.get(size, []), *own] for size, own in samples.items()}
        curves[cost.name] = curve(cost, samples, before)
        document = {
            "title": "How costs grow",
            "versions": versions("rlreg", "torch", "gymnasium", "minari"),
            "curves": {name: curves[name] for name in names if name in curves},
        }
        path = write("scaling", document, target)
        slope = curves[cost.name]["exponent"]
        print(f"{cost.name}: exponent {slope['median']:.2f}; written: {path}", flush=True)


if __name__ == "__main__":
    main()
