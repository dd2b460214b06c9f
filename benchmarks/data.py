"""From a Minari file to a ready store, and batches from it: rlreg in memory and mapped, d3rlpy.

    python benchmarks/data.py [--episodes N] [--rounds N] [--out FILE]

Every turn is a fresh process and, for rlreg, an empty cache; the file is in the page cache of the
system, and what is imported is imported before. d3rlpy is timed with its `get_minari`, and without
Minari (`workers/data_d3rlpy.py`). Rates are transitions per second of loading; what a mapped store
keeps in anonymous memory is under `figures`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from record import load, machine, ratios, spread, versions, write
from turns import HERE, PEERS, is_there

NAME = "rlreg/benchmark-v0"
STEPS, OBSERVATION_SIZE, ACTION_SIZE = 1000, 17, 6
MEMORY, MAPPED = "rlreg, in memory", "rlreg, mapped"
D3RLPY, D3RLPY_H5PY = "d3rlpy", "d3rlpy, without Minari"
AGAIN = "rlreg, mapped, a second time"


def make_file(root: Path, episodes: int) -> Path:
    """Writes a Minari set of random numbers; returns its HDF5 file.

    `get_minari` makes the environment, so one is named, although the numbers are not of it.
    """
    rng = np.random.default_rng(0)
    spaces = {
        "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,)),
        "action_space": gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,)),
    }
    last = np.arange(STEPS) == STEPS - 1
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=rng.standard_normal((STEPS + 1, OBSERVATION_SIZE), dtype=np.float32),
            actions=rng.uniform(-1, 1, (STEPS, ACTION_SIZE)).astype(np.float32),
            rewards=rng.standard_normal(STEPS),
            terminations=np.zeros(STEPS, bool),
            truncations=last,
            infos={},
        )
        for number in range(episodes)
    ]
    minari.create_dataset_from_buffers(
        NAME, buffers, algorithm_name="random numbers", author="rlreg",
        author_email="none", code_permalink="none", description="random numbers",
        data_format="hdf5", env="Pendulum-v1", eval_env="Pendulum-v1", **spaces,
    )  # fmt: skip
    return root / NAME / "data" / "main_data.hdf5"


def output_of(*words: str) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    return done.stdout.split("\n")[-2].split()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000, help=f"of {STEPS} steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="benchmarks/results/data.json if not given")
    arguments = parser.parse_args()
    before, found = load(), versions("rlreg", "torch", "minari")
    rates: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    batches: dict[str, list[float]] = {}
    anonymous: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        root, cache = Path(folder) / "minari", Path(folder) / "cache"
        os.environ.update(MINARI_DATASETS_PATH=str(root), RLREG_CACHE=str(cache))
        path = make_file(root, arguments.episodes)
        print(f"{path.stat().st_size / 2**20:.0f} MiB")
        ours = [sys.executable, str(HERE / "workers/data_rlreg.py"), NAME]
        programs = {MEMORY: [*ours, "memory"], MAPPED: [*ours, "mapped"]}
        if is_there(D3RLPY):
            python = str(PEERS / D3RLPY / "bin" / "python")
            theirs = [python, str(HERE / "workers/data_d3rlpy.py")]
            programs[D3RLPY] = [*theirs, "get_minari", NAME]
            programs[D3RLPY_H5PY] = [*theirs, "h5py", str(path)]
        for turn in range(arguments.rounds):
            for name in list(programs)[:: 1 if turn % 2 else -1]:
                shutil.rmtree(cache, ignore_errors=True)
                seconds, used, per_second, size, more = output_of(*programs[name])
                rates.setdefault(name, []).append(int(size) / float(seconds))
                processor.setdefault(name, []).append(int(size) / float(used))
                if name == MAPPED:
                    seconds, used = output_of(*ours, "mapped")[:2]
                    rates.setdefault(AGAIN, []).append(int(size) / float(seconds))
                    processor.setdefault(AGAIN, []).append(int(size) / float(used))
                batches.setdefault(name, []).append(float(per_second))
                if name == D3RLPY:
                    found[D3RLPY] = more
                elif name == MAPPED:
                    anonymous.append(float(more))
                print(f"{name}: {float(seconds):.2f} s, {float(per_second):,.0f} batches/s")
    mapped = ratios(batches, MEMORY)[MAPPED]
    less = ratios(processor, D3RLPY) if D3RLPY in processor else {}
    document: dict[str, Any] = {
        "title": "Loading a Minari file, transitions per second",
        "settings": {
            "transitions": STEPS * arguments.episodes, "observation_size": OBSERVATION_SIZE,
            "action_size": ACTION_SIZE, "rounds": arguments.rounds,
        },
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": found,
        "unit": "transitions/s",
        "rates": {name: spread(own) for name, own in rates.items()},
        "ratios": {base: ratios(rates, base) for base in (D3RLPY, D3RLPY_H5PY) if base in rates},
        "figures": {
            "batches of 256 per second": {name: spread(own) for name, own in batches.items()},
            "batches, mapped / in memory": mapped,
            **{f"processor time, {D3RLPY} / {name}": own for name, own in less.items()},
            "anonymous memory of a mapped store, MiB": spread(anonymous),
        },
    }  # fmt: skip
    print(f"mapped batches {mapped['median']:.2f} x those in memory")
    print(f"written: {write('data', document, arguments.out)}")


if __name__ == "__main__":
    main()
