"""The table of benchmarks/results/evidence_same_start.json."""

from __future__ import annotations

from typing import Any

from report_pointmaze import LOSSES, table

BLOCKS = ("same-start",)


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the block of the page; there is no picture."""
    own, other = document["losses"], document["losses_of_d3rlpy"]
    rows = []
    for name, title in LOSSES.items():
        pairs = list(zip(own[name], other[name], strict=True))
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
