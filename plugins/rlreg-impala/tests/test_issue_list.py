"""docs/impala-issues.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
LIST = TESTS.parents[2] / "docs" / "impala-issues.md"


def test_every_test_that_the_list_names_exists():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", LIST.read_text())
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (TESTS / file).read_text()
    ]
    assert missing == []


def test_every_row_has_a_test():
    rows = [line for line in LIST.read_text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == 34
    assert all("::test_" in row for row in rows)
