"""A list of jobs, each a process of one thread that leaves one JSON file.

A job whose file is there is left out, so a list can be stopped and started at will, and several
processes can share it: each claims a job before it starts it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def add_arguments(parser: argparse.ArgumentParser, work: Path) -> None:
    """What every list understands."""
    parser.add_argument("--work", type=Path, default=work, help="where the jobs leave their files")
    parser.add_argument("--only", default="", help="jobs whose names hold this text")
    parser.add_argument("--list", action="store_true", help="names and what is there already")


def run_list(
    jobs: Iterable[dict[str, Any]], program: Path, work: Path, only: str = "", is_list: bool = False
) -> int:
    """Runs what is not there yet, in order; returns how many jobs failed.

    Args:
        jobs: What `program` reads; `name` names the file.
        program: Is started with the job as JSON and the file it must leave.
        work: Where the files go.
        only: Jobs whose names hold this text; all if empty.
        is_list: Print the names instead.
    """
    work.mkdir(parents=True, exist_ok=True)
    failed = 0
    for job in jobs:
        out = work / f"{job['name']}.json"
        if only not in job["name"]:
            continue
        if is_list:
            print(f"{'there' if out.is_file() else '     '} {job['name']}")
            continue
        claim = out.with_suffix(".claim")
        if out.is_file() or not _claimed(claim):
            continue
        try:
            failed += not _run(job, program, out)
        finally:
            claim.unlink(missing_ok=True)
    return failed


def _run(job: dict[str, Any], program: Path, out: Path) -> bool:
    begun = time.monotonic()
    environment = {**os.environ, **_ONE_THREAD}
    command = [sys.executable, str(program), json.dumps(job), str(out)]
    code = subprocess.run(command, env=environment, check=False).returncode
    how = "done" if code == 0 and out.is_file() else f"code {code}"
    print(f"{job['name']}: {how}, {time.monotonic() - begun:.0f} s", flush=True)
    return how == "done"


def _claimed(path: Path) -> bool:
    """Whether a job is ours: nobody else works on it, or whoever did is gone."""
    try:
        if Path(f"/proc/{int(path.read_text())}").exists():
            return False
    except (FileNotFoundError, ValueError):
        pass
    path.write_text(str(os.getpid()))
    return True
