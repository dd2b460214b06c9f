"""How long `rlreg` takes to start: up to the first update, and up to an answer of the shell.

    python benchmarks/startup.py [--rounds N] [--out FILE]

Training is compared with `import torch` followed by reading the data set: as plainly as h5py can
(the stricter base), and by `rlreg.load_dataset`. The commands that need no torch are compared with
`import pydantic, pluggy`. Every turn is a fresh process; bytecode and file are in the page cache.
Processor seconds are those of the process itself up to the event, with one thread, because threads
that wait for one another burn them; of IMPALA, whose actors start in processes of their own, wall
time says more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import load, machine, ratios, spread, versions, write
from turns import HERE

DATASET = "rlreg/pendulum/mixed-v0"
TORCH, PLAIN, LOADED = "import torch", "import torch, read by h5py", "import torch, rlreg's load"
REACHED, UPDATED = "rlreg train iql: first update begins", "rlreg train iql: first update done"
COMPILED = "the same, compiled, compiler's products cached"
BATCH, LEARNT = "rlreg train impala: first batch is there", "rlreg train impala: first update done"
LIGHT = "import pydantic, pluggy"
QUIET = ["evaluation.n_episodes=1", "evaluation.at_start=false"]
Times = dict[str, dict[str, list[float]]]


def programs(folder: Path) -> list[tuple[dict[str, str], list[str]]]:
    """Returns the names of the events of each program, and its arguments."""
    iql = ["offline", "iql", "--dataset", DATASET, "--device", "cpu", "--out", str(folder / "run")]
    impala = ["online", "impala", "--env", "CartPole-v1", "--device", "cpu"]
    impala += ["--out", str(folder / "run")]
    for setting in QUIET:
        impala += ["--set", setting]
    return [
        ({"done": TORCH}, ["base", "torch", DATASET]),
        ({"done": PLAIN}, ["base", "h5py", DATASET]),
        ({"done": LOADED}, ["base", "load", DATASET]),
        ({"reached": REACHED, "done": UPDATED}, [*iql, "--steps", "5000"]),
        ({"done": COMPILED}, [*iql, "--steps", "50000"]),
        ({"reached": BATCH, "done": LEARNT}, [*impala, "--steps", "50000"]),
    ]


def run(words: list[str], events: dict[str, str], times: Times) -> None:
    """Runs a program once; notes processor and wall seconds of its events."""
    command = [sys.executable, str(HERE / "workers" / "startup.py"), *words]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {row["event"]: row for row in rows}
    if done.returncode or not events.keys() <= found.keys():
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    for event, name in events.items():
        times["cpu"].setdefault(name, []).append(found[event]["cpu_s"])
        times["wall"].setdefault(name, []).append(found[event]["at"] - begun)


def light_programs() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Returns command and extra environment of what a shell waits for."""
    rlreg = str(Path(sys.executable).with_name("rlreg"))
    asked = {"_RLREG_COMPLETE": "bash_complete", "COMP_WORDS": "rlreg train i", "COMP_CWORD": "2"}
    return {
        LIGHT: ([sys.executable, "-c", "import pydantic, pluggy"], {}),
        "rlreg --help": ([rlreg, "--help"], {}),
        "rlreg list": ([rlreg, "list"], {}),
        "completion of rlreg train i": ([rlreg], asked),
    }


def run_light(command: list[str], extra: dict[str, str]) -> float:
    """Returns the processor seconds of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **extra})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, rounds: int) -> tuple[Times, dict[str, list[float]]]:
    """Gives every program its turn in each round; the first round warms up."""
    times: Times = {"cpu": {}, "wall": {}}
    light: dict[str, list[float]] = {}
    for turn in range(-1, rounds):
        if turn == 0:
            times, light = {"cpu": {}, "wall": {}}, {}
        for events, words in programs(folder)[:: 1 if turn % 2 else -1]:
            shutil.rmtree(folder / "run", ignore_errors=True)
            run(words, events, times)
        for name, (command, extra) in light_programs().items():
            light.setdefault(name, []).append(run_light(command, extra))
    return times, light


def document_of(times: Times, light: dict[str, list[float]], rounds: int) -> dict[str, Any]:
    cpu, wall = times["cpu"], times["wall"]
    order = [TORCH, PLAIN, LOADED, REACHED, UPDATED, COMPILED, BATCH, LEARNT]
    cpu = {name: cpu[name] for name in order}
    walls = {name: ratios(wall, PLAIN)[name] for name in order if name != PLAIN}
    return {
        "title": "Start-up, processor seconds",
        "settings": {"dataset": DATASET, "rounds": rounds, "threads": 1},
        "versions": versions("rlreg", "torch", "h5py", "pydantic"),
        "unit": "s",
        "is_time": True,
        "rates": {name: spread(own) for name, own in {**cpu, **light}.items()},
        "ratios": {
            PLAIN: ratios(cpu, PLAIN), LOADED: ratios(cpu, LOADED), LIGHT: ratios(light, LIGHT),
        },
        "figures": {
            "wall seconds": {name: spread(wall[name]) for name in order},
            f"wall, x {PLAIN}": walls,
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="benchmarks/results/startup.json if not given")
    arguments = parser.parse_args()
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = f"{folder}/minari"
        os.environ.update(RLREG_CACHE=f"{folder}/cache", OMP_NUM_THREADS="1")
        generate = [sys.executable, "-m", "rlreg", "data", "generate", DATASET]
        subprocess.run(generate, check=True, capture_output=True)
        times, light = measure(Path(folder), arguments.rounds)
    document = document_of(times, light, arguments.rounds)
    document |= {"machine": machine(), "load_before": before, "load_after": load()}
    for base, found in document["ratios"].items():
        for name, ratio in found.items():
            print(f"{name}: {ratio['median']:.2f} x {base}")
    print(f"written: {write('startup', document, arguments.out)}")


if __name__ == "__main__":
    main()
