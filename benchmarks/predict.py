"""What `predict` adds to the bare network, on the CPU with one thread, in turns.

    python benchmarks/predict.py [--rounds N] [--out FILE]

The bare network is the policy's forward pass on a tensor that is ready; `predict` takes the
observation of an environment and gives its action: it checks, scales, converts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import load, machine, ratios, spread, versions, write

import rlreg
from rlreg.runtime.bench import Workload

CALLS = 200
SCALED = {"observation_scaler": {"type": "standard"}, "action_scaler": {"type": "min_max"}}

BASES = {
    "predict": "network alone",
    "predict, with scalers": "network alone",
    "sample_action": "network alone",
    "predict, 256 rows": "network alone, 256 rows",
}


def functions() -> dict[str, Callable[[], object]]:
    workload = Workload(2000)
    dataset = workload.dataset()
    plain: Any = rlreg.create("iql", device="cpu")
    scaled: Any = rlreg.create("iql", device="cpu", **SCALED)
    for learnable in (plain, scaled):
        learnable.build_with_dataset(dataset)
    rng = np.random.default_rng(0)
    many = rng.standard_normal((256, workload.observation_size), dtype=np.float32)
    one = many[0]
    row, rows = torch.from_numpy(one)[None], torch.from_numpy(many)

    @torch.no_grad()
    def bare(observations: torch.Tensor) -> torch.Tensor:
        return plain.act(observations, True)  # type: ignore[no-any-return]

    return {
        "network alone": lambda: bare(row),
        "predict": lambda: plain.predict(one),
        "predict, with scalers": lambda: scaled.predict(one),
        "sample_action": lambda: plain.sample_action(one),
        "network alone, 256 rows": lambda: bare(rows),
        "predict, 256 rows": lambda: plain.predict(many),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, help="benchmarks/results/predict.json if not given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before, programs = load(), functions()
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(-1, arguments.rounds):
        for name in list(programs)[:: 1 if turn % 2 else -1]:
            function, begun = programs[name], time.thread_time()
            for _ in range(CALLS):
                function()
            if turn >= 0:
                rates[name].append(CALLS / (time.thread_time() - begun))
    added = {}
    for name, base in BASES.items():
        pairs = zip(rates[name], rates[base], strict=True)
        added[name] = spread([1e6 * (1 / own - 1 / other) for own, other in pairs])
    document: dict[str, Any] = {
        "title": "Predictions per second of CPU time",
        "settings": {"rounds": arguments.rounds, "calls": CALLS, "threads": 1},
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": versions("rlreg", "torch"),
        "unit": "calls/s",
        "rates": {name: spread(own) for name, own in rates.items()},
        "ratios": {"network alone": ratios(rates, "network alone")},
        "figures": {"microseconds added to the network": added},
    }
    for name, own in added.items():
        print(f"{name}: {own['median']:.1f} us more than the network")
    print(f"written: {write('predict', document, arguments.out)}")


if __name__ == "__main__":
    main()
