"""Makes benchmarks/results/evidence_pointmaze.json of the files that `pointmaze_jobs.py` left.

python benchmarks/evidence/pointmaze_collect.py [--work FOLDER] [--add]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pointmaze_jobs import CANDIDATES, CHOSEN, HALF_HOUR, LONG_MAZE, MAZES, UPDATES, WORK
from pointmaze_task import FIRST_SEED, NUM_CURVE_EPISODES, NUM_EPISODES
from record import RESULTS, machine, write

NAME = "evidence_pointmaze"
_NAME = re.compile(r"(?P<maze>umaze|medium|large)-(?P<group>.+)-\d+k-(?P<seed>\d+)")


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


def collect(work: Path, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads every finished job.

    Args:
        work: Where the jobs left their files.
        known: Results to which they are added; a run that was done anew replaces the older one.

    Raises:
        SystemExit: A maze's data is not what it was in `known`.
    """
    documents = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*.json"))
    ]
    known = known or {}
    data = {**known.get("data", {})}
    # What every score was measured with; a controller's episodes differ in their last digit.
    references = {**_about(documents, "references"), **known.get("references", {})}
    for maze, found in _about(documents, "data").items():
        if data.setdefault(maze, found)["content_hash"] != found["content_hash"]:
            sys.exit(f"{found['id']} is not the data set of the results that are to be added to")
    versions = {**known.get("versions", {})}
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
        "data": data,
        "references": references,
        **{
            name: _runs(documents, references, length, known.get(name, []))
            for name, length in (("runs", UPDATES), ("half_hour_runs", HALF_HOUR))
        },
    }  # fmt: skip


def _about(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """What jobs that train nothing found out, by maze."""
    return {
        document["job"]["maze"]: {k: v for k, v in document.items() if k not in ("job", "versions")}
        for document in documents
        if document["job"]["kind"] == kind
    }


def _runs(
    documents: list[dict[str, Any]],
    references: dict[str, Any],
    length: int,
    known: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The runs of one length, in the order of the tables."""
    found = {_place(run): run for run in known}
    for document in documents:
        if document["job"].get("updates") == length:
            run = run_of(document, references[document["job"]["maze"]])
            found[_place(run)] = run
    return [found[place] for place in sorted(found)]


def _place(run: dict[str, Any]) -> tuple[int, str, int]:
    return (*MAZES, LONG_MAZE).index(run["maze"]), run["group"], run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--add", action="store_true", help="to the committed results")
    own = parser.parse_args()
    known = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8")) if own.add else None
    print(write(NAME, collect(own.work, known)))


if __name__ == "__main__":
    main()
