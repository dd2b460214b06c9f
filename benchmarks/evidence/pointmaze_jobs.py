"""Runs what docs/results.md says about IQL on the point mazes: one job after another, resumable.

    python benchmarks/evidence/pointmaze_jobs.py [--work FOLDER] [--updates N]

`job_list.py` says how a list is run and shared. `pointmaze_collect.py` makes the committed results
of the files. The data comes from `rlreg data generate rlreg/pointmaze/umaze-v0` (and `medium-v0`,
`large-v0`), the peers' environments from `make bench-peers`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_list

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "pointmaze_rlreg.py"
PEERS = HERE.parent / ".peers"
WORK = HERE.parent.parent / "build" / "evidence"
# The same for every program; a curve has a point every `EVERY` updates.
UPDATES, EVERY, ONLINE_STEPS = 30_000, 5_000, 5_000
# What d3rlpy does in half an hour of a core.
HALF_HOUR = 120_000
SEEDS = (0, 1, 2, 3, 4)
MAZES = ("umaze", "medium")
# Where 30,000 updates are too few to say anything.
LONG_MAZE = "large"
# d3rlpy takes twice as long; on umaze it is compared update by update, with all seeds.
D3RLPY_SEEDS = {"umaze": SEEDS, "medium": SEEDS[:3]}

# What d3rlpy's default configuration is, and the paper's order with the same numbers.
AS_D3RLPY = {"update_rule": "d3rlpy"}
AS_PAPER = {"update_rule": "paper", "initialization": "orthogonal"}


def settings_for_mazes(expectile: float, weight_temp: float, shift: float = -1.0) -> dict[str, Any]:
    """The candidates for the preset `iql/pointmaze`; the chosen one is the preset."""
    return {
        **AS_PAPER,
        "expectile": expectile,
        "weight_temp": weight_temp,
        "reward_scaler": {"type": "shift", "shift": shift} if shift else None,
        "observation_scaler": {"type": "standard"},
        "actor_optim_factory": {
            "type": "adam", "lr_scheduler_factory": {"type": "cosine_annealing"},
        },
    }  # fmt: skip


CANDIDATES = {
    "e9-t10": settings_for_mazes(0.9, 10.0),
    "e9-t3": settings_for_mazes(0.9, 3.0),
    "e7-t3": settings_for_mazes(0.7, 3.0),
    "e9-t10-raw": settings_for_mazes(0.9, 10.0, shift=0.0),
    "e7-t10-raw": settings_for_mazes(0.7, 10.0, shift=0.0),
    "e7-t3-raw": settings_for_mazes(0.7, 3.0, shift=0.0),
}
CHOSEN = "e7-t10-raw"


class Jobs:
    """Makes jobs: what `pointmaze_rlreg.py` reads.

    Args:
        work: Where results go, and columns for the peers.
        updates: Of every run.
        peers: The peers' environments.
    """

    def __init__(self, work: Path, updates: int, peers: Path) -> None:
        self._columns, self._peers = work / "columns", peers
        self._updates = updates

    def about(self, maze: str) -> list[dict[str, Any]]:
        """What the data holds, and what returns are compared with."""
        data = {"name": f"{maze}-data", "kind": "data", "maze": maze}
        references = {"name": f"{maze}-references", "kind": "references", "maze": maze}
        return [{**data, "folder": f"{self._columns}-{maze}"}, references]

    def _run(self, name: str, kind: str, maze: str, seed: int, **more: Any) -> dict[str, Any]:
        name = f"{maze}-{name}-{self._updates // 1000}k-{seed}"
        job = {"name": name, "kind": kind, "maze": maze, "seed": seed}
        return {**job, "updates": self._updates, "every": EVERY, **more}

    def iql(self, name: str, maze: str, seed: int) -> dict[str, Any]:
        settings = {**CANDIDATES, "as-d3rlpy": AS_D3RLPY, "as-paper": AS_PAPER}[name]
        return self._run(name, "iql", maze, seed, settings=settings)

    def cloning(self, maze: str, seed: int, name: str = "bc") -> dict[str, Any]:
        return self._run(name, name, maze, seed)

    def _peer(self, name: str, program: str, maze: str, seed: int, **more: Any) -> dict[str, Any]:
        python = str(self._peers / program / "bin" / "python")
        folder = f"{self._columns}-{maze}"
        own = {"python": python, "folder": folder, "batch_size": 256, **more}
        return self._run(name, "peer", maze, seed, **own)

    def d3rlpy(self, way: str, maze: str, seed: int) -> dict[str, Any]:
        own = {"script": "pointmaze_d3rlpy.py", "way": way, "dataset": f"rlreg/pointmaze/{maze}-v0"}
        return self._peer(f"d3rlpy-{way}", "d3rlpy", maze, seed, **own)

    def jax(self, maze: str, seed: int) -> dict[str, Any]:
        own = {"script": "same_algorithm_jax.py", "expectile": 0.7, "weight_temp": 3.0}
        return self._peer("jax", "jax", maze, seed, **own)

    def finetuning(self, maze: str, seed: int) -> dict[str, Any]:
        online = {"steps": ONLINE_STEPS, "every": 1_000, "episodes": 20, "share": 0.5}
        start = self.iql(CHOSEN, maze, seed)["name"]
        return {**self._run("finetuning", "finetuning", maze, seed, start=start), **online}


def jobs(make: Jobs) -> Iterator[dict[str, Any]]:
    """The list, the most telling first."""
    first, *others = SEEDS
    for maze in MAZES:
        yield from make.about(maze)
        for seed in SEEDS:
            yield make.iql(CHOSEN, maze, seed)
            yield make.iql("as-d3rlpy", maze, seed)
        for seed in D3RLPY_SEEDS[maze]:
            yield make.d3rlpy("aligned", maze, seed)
        yield from (make.cloning(maze, seed) for seed in SEEDS)
        yield from (make.d3rlpy("tuned", maze, seed) for seed in SEEDS[:3])
    for seed in SEEDS:
        yield make.jax("umaze", seed)
        yield make.iql("as-paper", "umaze", seed)
    yield from (make.finetuning("umaze", seed) for seed in SEEDS[:3])
    for maze in MAZES:
        yield make.d3rlpy("get_minari", maze, first)
        yield make.cloning(maze, first, "bc10")
        yield from (make.iql(name, maze, first) for name in CANDIDATES)
    for seed in others:
        for maze in MAZES:
            yield make.cloning(maze, seed, "bc10")
            if seed in SEEDS[:3]:
                yield make.d3rlpy("get_minari", maze, seed)


def half_hour_jobs(make: Jobs) -> Iterator[dict[str, Any]]:
    """Four times as long: what d3rlpy does in half an hour, of every way that is compared."""
    for maze in ("medium", "umaze"):
        for seed in D3RLPY_SEEDS["medium"]:
            yield make.iql(CHOSEN, maze, seed)
            yield make.d3rlpy("aligned", maze, seed)
        yield from (make.iql(CHOSEN, maze, seed) for seed in SEEDS[3:])
        for seed in SEEDS:
            yield make.cloning(maze, seed)
            yield make.cloning(maze, seed, "bc10")
    for seed in D3RLPY_SEEDS["medium"]:
        yield from (make.d3rlpy("get_minari", maze, seed) for maze in MAZES)
    yield from make.about(LONG_MAZE)
    for seed in D3RLPY_SEEDS["medium"]:
        yield make.iql(CHOSEN, LONG_MAZE, seed)
        yield make.cloning(LONG_MAZE, seed)
        yield make.cloning(LONG_MAZE, seed, "bc10")
        yield make.d3rlpy("aligned", LONG_MAZE, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    job_list.add_arguments(parser, WORK)
    parser.add_argument("--updates", type=int, default=UPDATES, help="of all but the longest runs")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the peers' environments")
    own = parser.parse_args()
    listed = jobs(Jobs(own.work, own.updates, own.peers))
    longer = half_hour_jobs(Jobs(own.work, HALF_HOUR, own.peers))
    failed = job_list.run_list(
        itertools.chain(listed, longer), PROGRAM, own.work, own.only, own.list
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
