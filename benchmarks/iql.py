"""IQL on the CPU against d3rlpy and JAX: the same update rule, default settings, taking turns.

    python benchmarks/iql.py [--rounds N] [--updates N] [--out FILE]

Every program samples its own batches. The peers have the best settings we found for them: all
cores, float32; d3rlpy without the logging of its fit loop; JAX with the data on the device and all
updates of a turn in one scan. A ratio is taken within a round, so that noise hits both sides.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from record import load, machine, ratios, spread, write
from turns import Worker, is_there, take_turns

PLAIN, COMPILED, D3RLPY, JAX = "rlreg plain", "rlreg compiled", "d3rlpy", "jax scan"
PRODUCTS, ONEDNN = "products by torch.mm", "products by oneDNN"


def make_workers(transitions: int, updates: int, threads: int) -> list[Worker]:
    size, count = str(transitions), str(updates)
    wanted: list[tuple[str, str | None, list[str]]] = [
        (COMPILED, None, ["workers/iql_rlreg.py", "on", size, count]),
        (PLAIN, None, ["workers/iql_rlreg.py", "off", size, count]),
        (PRODUCTS, None, ["workers/iql_products.py", count, "torch"]),
        (ONEDNN, None, ["workers/iql_products.py", count, "onednn"]),
        (D3RLPY, "d3rlpy", ["workers/iql_d3rlpy.py", size, count]),
        (JAX, "jax", ["workers/iql_jax.py", size, count]),
    ]
    workers = []
    for name, peer, arguments in wanted:
        if peer is not None and not is_there(peer):
            print(f"{name}: left out; `make bench-peers` builds its environment")
            continue
        workers.append(Worker(name, peer, arguments, threads))
        print(f"{name}: ready after {workers[-1].start_s:.1f} s")
    return workers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--updates", type=int, default=100, help="in a turn")
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="benchmarks/results/iql.json if not given")
    arguments = parser.parse_args()
    before = load()
    workers = make_workers(arguments.transitions, arguments.updates, arguments.threads)
    seconds = take_turns(workers, arguments.rounds)
    for worker in workers:
        worker.close()
    rates = {name: [arguments.updates / s for s in own] for name, own in seconds.items()}
    compared = {
        base: ratios(rates, base) for base in (D3RLPY, JAX, PRODUCTS, ONEDNN) if base in rates
    }
    versions: dict[str, str] = {}
    for worker in workers:
        versions.update(worker.about["versions"])
    document: dict[str, Any] = {
        "title": "IQL updates per second, sampling included",
        "settings": {
            "observation_size": 17, "action_size": 6, "batch_size": 256,
            "transitions": arguments.transitions, "updates_per_turn": arguments.updates,
            "rounds": arguments.rounds, "threads": arguments.threads,
        },
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": versions,
        "compile_s": next(w.about["compile_s"] for w in workers if w.name == COMPILED),
        "unit": "updates/s",
        "rates": {name: {**spread(own), "rounds": own} for name, own in rates.items()},
        "ratios": compared,
    }  # fmt: skip
    path = write("iql", document, arguments.out)
    show(document)
    print(f"written to {path}")


def show(document: dict[str, Any]) -> None:
    for name, own in document["rates"].items():
        parts = [f"{name:>22}: {own['median']:7.1f}/s (best {own['max']:.1f})"]
        for base, others in document["ratios"].items():
            if name in others:
                r = others[name]
                middle = f"{r['quartile_1']:.2f}-{r['quartile_3']:.2f}"
                parts.append(f"{r['median']:.2f} x {base} ({middle})")
        print("   ".join(parts))


if __name__ == "__main__":
    main()
