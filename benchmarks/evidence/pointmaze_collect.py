"""Makes benchmarks/results/evidence_pointmaze.json of the files that `pointmaze_jobs.py` left.

python benchmarks/evidence/pointmaze_collect.py [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pointmaze_jobs import CANDIDATES, CHOSEN, HALF_HOUR, UPDATES, WORK
from pointmaze_task import FIRST_SEED, NUM_CURVE_EPISODES, NUM_EPISODES
from record import machine, write

_NAME = re.compile(r"(?P<maze>umaze|medium)-(?P<group>.+)-\d+k-(?P<seed>\d+)")


def run_of(document: dict[str, Any], references: dict[str, float]) -> dict[str, Any]:
    """One run: what the tables and curves need."""
    match = _NAME.fullmatch(document["job"]["name"])
    assert match is not None, document["job"]["name"]
    final = document["final"]
    found = {
        "maze": match["maze"],
        "group": match["group"],
        "seed": int(match["seed"]),
        "updates": document["job"]["updates"],
        "return": final["mean_return"],
        "score": score(final["mean_return"], references),
        "success_rate": final["success_rate"],
        "curve": [[point["update"], point["mean_return"]] for point in document["curve"]],
        "cpu_s": document["cpu_s"],
    }
    for name in ("losses", "transitions", "rewards_seen"):
        if name in document:
            found[name] = document[name]
    return found


def score(mean_return: float, references: dict[str, float]) -> float:
    """Percent of the way from random play to the controller, as D4RL normalises."""
    low, high = references["random"], references["controller"]
    return 100 * (mean_return - low) / (high - low)


def collect(work: Path) -> dict[str, Any]:
    """Reads every finished job."""
    documents = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*.json"))
    ]
    by_kind: dict[str, dict[str, Any]] = {"data": {}, "references": {}}
    for document in documents:
        kind = document["job"]["kind"]
        if kind in by_kind:
            kept = {k: v for k, v in document.items() if k not in ("job", "versions")}
            by_kind[kind][document["job"]["maze"]] = kept
    references = by_kind["references"]
    by_length = {
        length: [
            run_of(document, references[document["job"]["maze"]])
            for document in documents
            if document["job"]["kind"] not in by_kind
            and document["job"]["maze"] in references
            and document["job"]["updates"] == length
        ]
        for length in (UPDATES, HALF_HOUR)
    }
    versions: dict[str, str] = {}
    for document in documents:
        versions.update(document["versions"])
    return {
        "title": "IQL on point mazes",
        "settings": {
            "updates": UPDATES, "half_hour_updates": HALF_HOUR, "batch_size": 256,
            "episodes": NUM_EPISODES, "curve_episodes": NUM_CURVE_EPISODES,
            "first_seed": FIRST_SEED, "chosen": CHOSEN, "candidates": CANDIDATES,
        },
        "machine": machine(),
        "versions": dict(sorted(versions.items())),
        "data": by_kind["data"],
        "references": references,
        "runs": sorted(by_length[UPDATES], key=_place),
        "half_hour_runs": sorted(by_length[HALF_HOUR], key=_place),
    }  # fmt: skip


def _place(run: dict[str, Any]) -> tuple[bool, str, int]:
    return run["maze"] != "umaze", run["group"], run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK)
    print(write("evidence_pointmaze", collect(parser.parse_args().work)))


if __name__ == "__main__":
    main()
