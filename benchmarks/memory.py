"""How much memory of its own a large data set takes: loaded mapped, sampled, inspected.

    python benchmarks/memory.py [--transitions N] [--out FILE]

Writes a file in D4RL's layout, then loads and inspects it, each in a fresh process in which a
thread notes the most memory that no file is behind (``RssAnon``), less what the imports took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from record import machine, versions, write

OBSERVATION_SIZE, ACTION_SIZE, EPISODE, BLOCK = 17, 6, 1000, 100_000
WATCHED = """
import sys, threading, time
from pathlib import Path
import torch
from rlreg.runtime.data import load_dataset
from rlreg.runtime.data.inspect import inspect

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

before, peak, going = anonymous(), [0.0], True
def watch():
    while going:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.001)  # at 10 ms the short peaks are mostly missed
thread = threading.Thread(target=watch)
thread.start()
path, what = sys.argv[1:]
if what == "load":
    dataset = load_dataset(path, memory_map=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        dataset.sample(256, generator)
else:
    inspect(path)
going = False
thread.join()
print(peak[0] - before)
"""


def make_file(path: Path, transitions: int) -> None:
    """Writes random transitions block by block."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        columns = {
            "observations": (OBSERVATION_SIZE,),
            "actions": (ACTION_SIZE,),
            "rewards": (),
        }
        for name, shape in columns.items():
            rows = file.create_dataset(name, (transitions, *shape), np.float32)
            for start in range(0, transitions, BLOCK):
                size = min(BLOCK, transitions - start)
                rows[start : start + size] = rng.uniform(-1, 1, (size, *shape))
        steps = np.arange(transitions)
        file["terminals"] = np.zeros(transitions, bool)
        file["timeouts"] = steps % EPISODE == EPISODE - 1


def peak_mib(path: Path, what: str) -> float:
    """Returns the most anonymous memory of one step, in MiB."""
    command = [sys.executable, "-c", WATCHED, str(path), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transitions", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, help="benchmarks/results/memory.json if not given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLREG_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "large.hdf5"
        make_file(path, arguments.transitions)
        found = {"file, MiB": path.stat().st_size / 2**20}
        for what, label in (("load", "load mapped, 1,000 batches"), ("inspect", "inspect")):
            found[f"{label}: anonymous memory, MiB"] = peak_mib(path, what)
    document = {
        "title": "Memory of its own that a large data set takes",
        "settings": {
            "transitions": arguments.transitions, "observation_size": OBSERVATION_SIZE,
            "action_size": ACTION_SIZE,
        },
        "machine": machine(),
        "versions": versions("rlreg", "torch", "h5py"),
        "figures": found,
    }  # fmt: skip
    for label, value in found.items():
        print(f"{label}: {value:,.0f}")
    print(f"written: {write('memory', document, arguments.out)}")


if __name__ == "__main__":
    main()
