"""The committed table of speeds, and the guard that fails when one falls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_says_what_the_results_say():
    done = run("report.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_guard_names_what_fell(tmp_path):
    floors = json.loads((BENCHMARKS / "floors.json").read_text(encoding="utf-8"))
    name = "IQL: update / drawing its batch"
    wanted = dict.fromkeys(floors, 0.0) | {name: 1e9}
    path = tmp_path / "floors.json"
    path.write_text(json.dumps(wanted), encoding="utf-8")
    done = run("guard.py", "--repeats", "2", "--floors", str(path))
    assert done.returncode == 3, done.stderr
    fallen = [line for line in done.stdout.splitlines() if line.endswith("FELL")]
    assert [line.startswith(name) for line in fallen] == [True]
    del wanted[name]
    path.write_text(json.dumps(wanted), encoding="utf-8")
    assert run("guard.py", "--repeats", "2", "--floors", str(path)).returncode == 2
