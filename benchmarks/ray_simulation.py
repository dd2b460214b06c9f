"""IMPALA on Ray with 8, 64 and 512 actors: simulated, with timings recorded on this machine.

    python benchmarks/ray_simulation.py [--width W ...] [--rounds N] [--add] [--out FILE]

`ray_timings.py` times the parts of the real engine, `event_simulation.py` puts them together. With
1 to 4 actors on this machine the simulation is compared with the real engine; with more it is what
one could expect of a cluster, under the assumptions in docs/performance.md: a machine of its own
for the learner, others with 32 actors and as many cores each, 10 Gbit/s to the learner's machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from event_simulation import Cluster, Outcome, Simulation, Timings
from ray_timings import ENVS, PRESET, Parts, local_ray, real_rate, timings_of
from record import RESULTS, load, machine, spread, versions, write

WIDTHS = (64, 512)
REAL, SIMULATED = (1, 2, 3, 4), (8, 64, 512)
PER_NODE = 32
LEARNERS = {"as measured": 1.0, "20 times as fast": 20.0}
CORES = len(os.sched_getaffinity(0))
Samples = dict[tuple[int, int], list[tuple[Timings, float]]]
"""By width and actors: what was recorded in each round, and the rate of the real engine."""


def one_machine(timings: Timings, parts: Parts, actors: int) -> Outcome:
    """Simulates what is measured: everything on the cores of this machine."""
    slots = parts.engine_spec(actors).num_slots
    return Simulation(timings, Cluster(actors, slots, cores=CORES)).run(400)


def cluster(timings: Timings, parts: Parts, actors: int, factor: float) -> Outcome:
    """Simulates a cluster whose learner is faster by a factor."""
    slots = parts.engine_spec(actors).num_slots
    faster = dataclasses.replace(timings, learn=timings.learn / factor)
    return Simulation(faster, Cluster(actors, slots, actors_per_node=PER_NODE)).run(
        10 * actors + 500
    )


def record_round(
    parts: Parts, width: int, sizes: Sequence[int], seconds: float, samples: Samples
) -> None:
    """Records the timings, and the real engine with so many actors, one after the other."""
    with local_ray() as ray:
        timings = timings_of(parts, ray, [*sizes, *SIMULATED])
        for actors in (*sizes, *SIMULATED):
            real = real_rate(parts, actors, seconds) if actors in REAL else 0.0
            samples.setdefault((width, actors), []).append((timings[actors], real))
            print(f"width {width}, {actors} actors: {real:.1f} updates/s", flush=True)


def validation(parts: Parts, samples: list[tuple[Timings, float]], actors: int) -> dict[str, Any]:
    """Compares the simulation with the real engine, round by round."""
    predicted = [one_machine(timings, parts, actors) for timings, _ in samples]
    rates = [outcome.updates_per_s for outcome in predicted]
    return {
        "measured": spread([real for _, real in samples]),
        "predicted": spread(rates),
        "ratio": spread(
            [rate / real for rate, (_, real) in zip(rates, samples, strict=True)]
        ),
        "bottleneck": predicted[-1].bottleneck,
    }  # fmt: skip


def prediction(parts: Parts, timings: Timings, actors: int) -> dict[str, Any]:
    """Simulates a cluster, for each speed of the learner."""
    rows = parts.config.n_rollout_steps * ENVS * parts.config.actors_batch_size
    found = {}
    for name, factor in LEARNERS.items():
        outcome = cluster(timings, parts, actors, factor)
        found[name] = {
            **dataclasses.asdict(outcome), "transitions_per_s": rows * outcome.updates_per_s,
        }  # fmt: skip
    return found


def middle(samples: list[tuple[Timings, float]]) -> Timings:
    """Takes the median of each timing over the rounds."""
    names = [field.name for field in dataclasses.fields(Timings)]
    return Timings(**{
        name: spread([getattr(timings, name) for timings, _ in samples])["median"]
        for name in names
    })  # fmt: skip


def document_of(samples: Samples, parts: dict[int, Parts]) -> dict[str, Any]:
    def by_width(make: Callable[[int, int], Any], sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            str(width): {
                str(actors): make(width, actors) for actors in sizes if (width, actors) in samples
            }
            for width in parts
        }

    return {
        "title": "IMPALA on Ray, simulated from recorded timings",
        "settings": {
            "environment": "CartPole-v1", "preset": PRESET, "environments_of_an_actor": ENVS,
            "steps_of_a_fragment": next(iter(parts.values())).config.n_rollout_steps,
            "actors_of_a_machine": PER_NODE, "gigabit_per_second": 10,
        },
        "versions": versions("rlreg", "rlreg-impala", "torch", "ray"),
        "validation": by_width(
            lambda width, actors: validation(parts[width], samples[width, actors], actors), REAL
        ),
        "predictions": by_width(
            lambda width, actors: prediction(
                parts[width], middle(samples[width, actors]), actors
            ),
            SIMULATED,
        ),
        "samples": by_width(
            lambda width, actors: [
                {"timings": dataclasses.asdict(timings), "real": real}
                for timings, real in samples[width, actors]
            ],
            (*REAL, *SIMULATED),
        ),
    }  # fmt: skip


def samples_in(path: Path) -> Samples:
    """Reads what an earlier run recorded."""
    if not path.is_file():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))["samples"]
    return {
        (int(width), int(actors)): [(Timings(**one["timings"]), one["real"]) for one in own]
        for width, sizes in kept.items()
        for actors, own in sizes.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, choices=WIDTHS, action="append", help="both if not")
    parser.add_argument("--actors", type=int, choices=REAL, action="append", help="all if not")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each real engine")
    parser.add_argument("--add", action="store_true", help="to what is there already")
    parser.add_argument("--out", type=Path, help="benchmarks/results/ray_simulation.json if not")
    arguments = parser.parse_args()
    target = arguments.out or RESULTS / "ray_simulation.json"
    before, samples = load(), samples_in(target) if arguments.add else {}
    parts = {width: Parts(width) for width in WIDTHS}
    for _ in range(arguments.rounds):
        for width in arguments.width or WIDTHS:
            sizes = arguments.actors or REAL
            record_round(parts[width], width, sizes, arguments.seconds, samples)
    known = {width: own for width, own in parts.items() if (width, SIMULATED[0]) in samples}
    document = document_of(samples, known)
    document |= {"machine": machine(), "load_before": before, "load_after": load()}
    for width, sizes in document["validation"].items():
        for actors, row in sizes.items():
            ratio = row["ratio"]["median"]
            print(f"width {width}, {actors} actors: predicted / measured {ratio:.2f}")
    for width, sizes in document["predictions"].items():
        for actors, row in sizes.items():
            for name, found in row.items():
                print(
                    f"width {width}, {actors} actors, learner {name}: "
                    f"{found['transitions_per_s']:,.0f} transitions/s, {found['bottleneck']}"
                )
    print(f"written: {write('ray_simulation', document, target)}")


if __name__ == "__main__":
    main()
