"""The table of benchmarks/results/evidence_same_start.json, beside d3rlpy's own run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from report_pointmaze import LOSSES, NOT_RUN, table

BLOCKS = ("same-start",)
_POINTMAZE = Path(__file__).resolve().parents[1] / "results" / "evidence_pointmaze.json"


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the block of the page; there is no picture."""
    runs = json.loads(_POINTMAZE.read_text(encoding="utf-8"))["runs"]
    seed = document["settings"]["seed"]
    wanted = ("umaze", "d3rlpy-aligned", seed)
    theirs = [run for run in runs if (run["maze"], run["group"], run["seed"]) == wanted]
    if not theirs:
        return {"same-start": NOT_RUN}, {}
    own, other = document["losses"], theirs[0]["losses"]
    rows = []
    for name, title in LOSSES.items():
        pairs = list(zip(own[name], other[name], strict=False))
        apart = max(abs(a - b) / abs(b) for a, b in pairs)
        (first, first_other), (last, last_other) = pairs[0], pairs[-1]
        rows.append(
            [title, f"{first:.5f}", f"{first_other:.5f}", f"{last:.5f}", f"{last_other:.5f}",
             f"{apart:.1%}"]
        )  # fmt: skip
    end = f"{len(own['q_loss']) * own['every']:,}"
    head = [
        "mean over 1,000 updates of", "rlreg, first 1,000", "d3rlpy", f"rlreg, up to {end}",
        "d3rlpy", "furthest apart",
    ]  # fmt: skip
    return {"same-start": table(head, rows)}, {}
