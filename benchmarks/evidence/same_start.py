"""rlreg's update from d3rlpy's initial weights, on the batches that d3rlpy's run drew.

    python benchmarks/evidence/same_start.py [--work FOLDER] [--updates N] [--peers FOLDER]

d3rlpy's side is the job `umaze-d3rlpy-aligned` of `pointmaze_jobs.py`, seed 0. Rounding makes the
two drift apart, so what is compared are means over a thousand updates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402  # the line above is for those below
import torch  # noqa: E402
from offline_runs import LOSSES, ROW  # noqa: E402
from pointmaze_jobs import PEERS, WORK  # noqa: E402
from record import machine, versions, write  # noqa: E402

from rlreg_iql.d3rlpy_import import convert_d3rlpy  # noqa: E402

SEED, BATCH_SIZE = 0, 256
D3RLPY_JOB = f"umaze-d3rlpy-aligned-30k-{SEED}.json"
COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminations")
# As pointmaze_d3rlpy.py makes it.
MAKE = """
import sys, d3rlpy
d3rlpy.seed(int(sys.argv[1]))
algorithm = d3rlpy.algos.IQLConfig().create(device="cpu:0")
algorithm.create_impl((int(sys.argv[2]),), int(sys.argv[3]))
algorithm.save(sys.argv[4])
"""


def start(python: Path, columns: dict[str, Any]) -> Any:
    """Returns a learnable with d3rlpy's initial weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "start.d3"
        sizes = [str(columns[name].shape[1]) for name in ("observations", "actions")]
        subprocess.run([str(python), "-c", MAKE, str(SEED), *sizes, str(path)], check=True)
        return convert_d3rlpy(path)


def losses_of(learnable: Any, columns: dict[str, Any], updates: int) -> dict[str, list[float]]:
    """Returns means over every thousand updates."""
    rng, size = np.random.default_rng(SEED), len(columns["rewards"])
    losses = np.empty((updates, len(LOSSES)))
    for step in range(updates):
        indices = rng.integers(size, size=BATCH_SIZE)
        batch = {name: np.ascontiguousarray(column[indices]) for name, column in columns.items()}
        found = learnable.update(batch)
        losses[step] = [found[name] for name in LOSSES]
    rows = losses[: updates // ROW * ROW].reshape(-1, ROW, len(LOSSES)).mean(axis=1)
    return dict(zip(LOSSES, rows.T.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--peers", type=Path, default=PEERS, help="the peers' environments")
    parser.add_argument("--updates", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.work / "columns-umaze"
    other = json.loads((arguments.work / D3RLPY_JOB).read_text(encoding="utf-8"))["losses"]
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in COLUMNS}
    learnable = start(arguments.peers / "d3rlpy" / "bin" / "python", columns)
    document = {
        "title": "rlreg from d3rlpy's initial weights on d3rlpy's batches",
        "settings": {"seed": SEED, "updates": arguments.updates, "batch_size": BATCH_SIZE},
        "machine": machine(),
        "versions": versions("rlreg", "torch"),
        "losses": {"every": ROW, **losses_of(learnable, columns, arguments.updates)},
        "losses_of_d3rlpy": {name: other[name][: arguments.updates // ROW] for name in LOSSES},
    }
    print(write("evidence_same_start", document))


if __name__ == "__main__":
    main()
