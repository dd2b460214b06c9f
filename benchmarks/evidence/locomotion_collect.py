"""Makes benchmarks/results/evidence_locomotion.json of what `locomotion_jobs.py` and SAC left.

python benchmarks/evidence/locomotion_collect.py [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locomotion_jobs import LONG, PRESET, UPDATES
from locomotion_rlreg import FIRST_SEED, NUM_EPISODES
from locomotion_sac import BUFFER, LEARNING_STARTS, WORK
from locomotion_sac import NUM_EPISODES as SAC_EPISODES
from record import machine, write

_SAC_FOLDER = re.compile(r"sac-(?P<task>\w+)-(?P<seed>\d+)")


def run_of(document: dict[str, Any]) -> dict[str, Any]:
    """One run: what the tables and curves need."""
    job = document["job"]
    return {
        "task": job["task"],
        "data": job["data"],
        "program": job["kind"],
        "seed": job["seed"],
        "updates": job["updates"],
        "return": document["final"]["mean_return"],
        "curve": [[point["update"], point["mean_return"]] for point in document["curve"]],
        "cpu_s": document["cpu_s"],
    }


def sac_of(folder: Path) -> dict[str, Any]:
    """One training of SAC."""
    match = _SAC_FOLDER.fullmatch(folder.name)
    assert match is not None, folder.name
    curve = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    return {
        "task": match["task"],
        "seed": int(match["seed"]),
        "curve": [[point["steps"], point["mean_return"]] for point in curve],
    }


def collect(work: Path) -> dict[str, Any]:
    """Reads every finished job and every training of SAC.

    Raises:
        SystemExit: A run learnt from other data than the data set of that name now holds.
    """
    paths = sorted((work / "jobs").glob("*.json"))
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    data, versions = {}, {}
    runs: list[dict[str, Any]] = []
    long_runs: list[dict[str, Any]] = []
    for document in documents:
        versions.update(document["versions"])
        if document["job"]["kind"] == "data":
            kept = {k: v for k, v in document.items() if k not in ("job", "versions")}
            data[document["job"]["dataset"]] = kept
    for document in documents:
        job = document["job"]
        kept = {UPDATES.get(job["kind"]): runs, LONG.get(job["kind"]): long_runs}
        if job["kind"] == "data" or job["updates"] not in kept:
            continue
        if document["content_hash"] != data[job["dataset"]]["content_hash"]:
            sys.exit(f"{job['name']} learnt from other data than {job['dataset']} now holds")
        kept[job["updates"]].append(run_of(document))
    folders = sorted(path.parent for path in work.glob("sac-*/curve.json"))
    for folder in folders:
        text = (folder / "versions.json").read_text(encoding="utf-8")
        versions.update(json.loads(text))
    return {
        "title": "IQL on locomotion data made here",
        "settings": {
            "preset": PRESET, "updates": UPDATES, "long_updates": LONG, "batch_size": 256,
            "episodes": NUM_EPISODES, "first_seed": FIRST_SEED, "sac_episodes": SAC_EPISODES,
            "sac": {"learning_starts": LEARNING_STARTS, "buffer_size": BUFFER},
        },
        "machine": machine(),
        "versions": dict(sorted(versions.items())),
        "sac": [sac_of(folder) for folder in folders],
        "data": list(data.values()),
        "runs": runs,
        "long_runs": long_runs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK)
    print(write("evidence_locomotion", collect(parser.parse_args().work)))


if __name__ == "__main__":
    main()
