"""Writes the tables and pictures of docs/results.md from the JSON files in benchmarks/results/.

    python benchmarks/evidence/report.py [--check]

The page is written by hand; what stands between `[//]: # (begin NAME)` and `[//]: # (end NAME)` is
replaced, and docs/pictures/ holds the curves. A section whose results are not there stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import report_impala
import report_impala_engines
import report_impala_peers
import report_locomotion
import report_pointmaze
import report_same_start

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
PICTURES = ROOT / "docs" / "pictures"

_BLOCK = re.compile(
    r"(\[//\]: # \(begin (?P<name>[\w-]+)\)\n\n)(?P<body>.*?)(\[//\]: # \(end (?P=name)\))",
    re.DOTALL,
)

# From the name of a results file to what makes blocks and pictures of its content.
SECTIONS: dict[str, ModuleType] = {
    "evidence_pointmaze": report_pointmaze,
    "evidence_same_start": report_same_start,
    "evidence_locomotion": report_locomotion,
    "evidence_impala": report_impala,
    "evidence_impala_peers": report_impala_peers,
    "evidence_impala_engines": report_impala_engines,
}


def render(results: Path = RESULTS) -> tuple[dict[str, str], dict[str, str]]:
    """Returns all blocks as Markdown and all pictures as SVG, by name."""
    tables: dict[str, str] = {}
    pictures: dict[str, str] = {}
    for name, section in SECTIONS.items():
        path = results / f"{name}.json"
        tables.update(dict.fromkeys(section.BLOCKS, report_pointmaze.NOT_RUN))
        if path.is_file():
            own_tables, own_pictures = section.render(json.loads(path.read_text(encoding="utf-8")))
            tables.update(own_tables)
            pictures.update(own_pictures)
    return tables, pictures


def filled(page: str, tables: dict[str, str]) -> str:
    """Puts the tables into the page.

    Raises:
        KeyError: The page has a block that no results file fills, or none for a table.
    """
    wanted = {match["name"] for match in _BLOCK.finditer(page)}
    if wanted != set(tables):
        raise KeyError(f"blocks and tables differ: {sorted(wanted ^ set(tables))}")
    return _BLOCK.sub(lambda m: f"{m[1]}{tables[m['name']].rstrip()}\n\n{m[4]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if anything is out of date")
    is_check = parser.parse_args().check
    tables, pictures = render()
    page = PAGE.read_text(encoding="utf-8")
    files = {PAGE: filled(page, tables)}
    files.update({PICTURES / f"{name}.svg": text for name, text in pictures.items()})
    stale = [
        path for path, text in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    if is_check and stale:
        sys.exit(f"out of date: {', '.join(map(str, stale))}; run benchmarks/evidence/report.py")
    for path in [] if is_check else stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
