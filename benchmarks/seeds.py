"""Several seeds by `rlreg train --seeds N`, spread or stacked, against one run after the other.

    python benchmarks/seeds.py [--seeds 8] [--updates N] [--out FILE]

All train IQL with default networks on the same data; everything a user waits for counts, the start
of each program included. Rates are updates per second of all seeds together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import load, machine, ratios, spread, versions, write

TOGETHER, ONE_BY_ONE = "--seeds N", "one after the other"
STACKED = "--seeds N --arrange stacked"
COMMON = ("evaluation.n_episodes=1", "evaluation.baselines=[]", "evaluation.every=1000000")


def train(out: Path, updates: int, *words: str) -> None:
    command = [sys.executable, "-m", "rlreg", "train", "iql", "--steps", str(updates), *words]
    command += ["--dataset", "rlreg/pendulum/mixed-v0", "--device", "cpu", "--out", str(out)]
    for setting in COMMON:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=1500, help="of each seed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="benchmarks/results/seeds.json if not given")
    arguments = parser.parse_args()
    before = load()
    total = arguments.seeds * arguments.updates
    rates: dict[str, list[float]] = {TOGETHER: [], STACKED: [], ONE_BY_ONE: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = f"{folder}/minari"
        train(Path(folder) / "first", 10)  # makes the data
        for turn in range(arguments.rounds):
            root = Path(folder) / str(turn)
            for name in list(rates)[:: 1 if turn % 2 else -1]:
                begun = time.perf_counter()
                if name != ONE_BY_ONE:
                    chosen = ["--arrange", "stacked" if name == STACKED else "spread"]
                    chosen += ["--seeds", str(arguments.seeds)]
                    train(root / chosen[1], arguments.updates, *chosen)
                else:
                    for seed in range(arguments.seeds):
                        train(root / str(seed), arguments.updates, "--seed", str(seed))
                rates[name].append(total / (time.perf_counter() - begun))
                print(f"{name}: {rates[name][-1]:.0f} updates/s of all")
    document = {
        "title": "Many seeds, updates per second of all together",
        "settings": {key: getattr(arguments, key) for key in ("seeds", "updates", "rounds")},
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": versions("rlreg", "torch"),
        "unit": "updates/s",
        "rates": {name: spread(own) for name, own in rates.items()},
        "ratios": {ONE_BY_ONE: ratios(rates, ONE_BY_ONE)},
    }
    print(f"written: {write('seeds', document, arguments.out)}")


if __name__ == "__main__":
    main()
