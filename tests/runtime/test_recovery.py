"""What a run goes on from when files are lost, and what happens when a parent is killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import rlreg
from rlreg.cli.main import run as run_cli
from rlreg.errors import CheckpointError, FileFormatError
from rlreg.runtime import sweep_worker
from rlreg.runtime.logging import read_metrics
from rlreg.runtime.report.runs import read_groups


@pytest.fixture
def interrupted(tiny, minari_root, tmp_path):
    """A run of 400 updates, stopped in its third epoch of 100, and where its rows ended."""
    run = {
        "learnable": {"type": "tiny_bc"},
        "device": "cpu",
        "train": {"n_steps": 400, "n_steps_per_epoch": 100},
        "evaluation": {"env": None},
        "checkpoint": {"every_epochs": 1, "keep": 5},
    }
    asked = iter(range(10**9))
    folder = tmp_path / "r"
    stop_in_third = {"should_stop": lambda: next(asked) >= 7, "show_progress": False}
    assert rlreg.train(run, out=folder, **stop_in_third).status == "interrupted"
    assert len(list((folder / "checkpoints").iterdir())) == 2
    return folder


def test_a_lost_last_checkpoint_costs_no_intact_one(interrupted, capfd):
    folder = interrupted
    (folder / "last.rlreg").unlink()
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    before = newest.read_bytes()
    asked = iter(range(10**9))
    result = rlreg.resume(folder, should_stop=lambda: next(asked) >= 1)
    assert result.summary["steps"] == 200
    said = capfd.readouterr().err.replace("\n", "")
    assert f"last.rlreg is gone: {newest} is the newest intact" in said
    assert newest.read_bytes() == before
    assert rlreg.resume(folder, show_progress=False).status == "finished"
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [100, 200, 300, 400]


def test_a_damaged_kept_checkpoint_is_passed_over(interrupted):
    (interrupted / "last.rlreg").unlink()
    older, newest = sorted((interrupted / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    asked = iter(range(10**9))
    stop = {"should_stop": lambda: next(asked) >= 1, "show_progress": False}
    assert rlreg.resume(interrupted, **stop).summary["steps"] == 100
    assert older.exists()


def test_a_damaged_last_checkpoint_names_the_good_one_and_is_left_alone(interrupted):
    last = interrupted / "last.rlreg"
    last.write_bytes(last.read_bytes()[:100])
    newest = sorted((interrupted / "checkpoints").iterdir())[-1]
    with pytest.raises(CheckpointError, match=f"{newest.name} is intact: delete last.rlreg"):
        rlreg.resume(interrupted, show_progress=False)
    assert len(last.read_bytes()) == 100


def test_where_no_checkpoint_can_be_read_nothing_is_replaced(interrupted):
    (interrupted / "last.rlreg").unlink()
    kept = sorted((interrupted / "checkpoints").iterdir())
    for path in kept:
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 2 other checkpoints"):
        rlreg.resume(interrupted, show_progress=False)
    assert [path.read_bytes() for path in kept] == [b"", b""]


def test_metrics_that_are_no_text_stop_no_run(interrupted):
    file = interrupted / "metrics.jsonl"
    file.write_bytes(file.read_bytes().splitlines()[0] + b"\n\xff\xfe\x00\x80\n")
    assert rlreg.resume(interrupted, show_progress=False).status == "finished"
    assert [row["step"] for row in read_metrics(file)] == [100, 300, 400]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": "many"}, "steps: expected a valid integer"),
        ({"final": {"mean_return": 1.0}}, "final.std_return: required"),
        ({"baselines": {"random": {"mean_return": [1]}}}, "baselines.random.mean_return: expected"),
        ({"references": {"min": 0.0, "max": 1.0}}, "references.from: required"),
        ({"best": None, "learnable": None}, "learnable: expected a valid string"),
    ],
)
def test_a_summary_that_was_edited_is_refused_and_can_be_made_anew(
    change, said, interrupted, tmp_path
):
    assert rlreg.resume(interrupted, show_progress=False).status == "finished"
    file = interrupted / "summary.json"
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), **change}))
    for call in (rlreg.resume, lambda folder: read_groups([folder])):
        with pytest.raises(FileFormatError, match=f"summary.json: damaged: {said}"):
            call(interrupted)
    assert run_cli(["report", str(interrupted), "-o", str(tmp_path / "r.html")]) == 2
    file.unlink()
    assert rlreg.resume(interrupted, show_progress=False).status == "finished"
    fixed = {"wall_s", "updates_per_s"}
    again, before = json.loads(file.read_text()), json.loads(whole)
    assert {k: v for k, v in again.items() if k not in fixed} == {
        k: v for k, v in before.items() if k not in fixed
    }


@pytest.mark.parametrize(
    "settings",
    [{}, {"seeds": None}, {"seeds": ["0"]}, {"seeds": []}, {"seeds": [0], "arrangement": "x"}],
    ids=repr,
)
def test_seeds_that_are_not_said_are_refused(settings, interrupted):
    (interrupted / "seeds.json").write_text(json.dumps(settings))
    with pytest.raises(FileFormatError, match=r"seeds.json: damaged: expected a list of seeds"):
        rlreg.resume(interrupted)


# --- parents that are killed --------------------------------------------------------------------


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed as POSIX has it")
def test_seeds_end_with_a_checkpoint_when_their_parent_is_killed(cli_env, tmp_path):
    out = tmp_path / "r"
    settings = ["--set", "train.n_steps_per_epoch=50", "--set", "evaluation.env=null"]
    command = ["train", "tiny_bc", "--device", "cpu", "--steps", "100000000", "--seeds", "2"]
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "rlreg", *command, *settings, "--out", str(out)],
            env=cli_env,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    folders = [out / "seed-0", out / "seed-1"]
    children: list[int] = []
    try:
        assert wait_for(lambda: all((f / "last.rlreg").exists() for f in folders))
        children = [json.loads((f / "running.json").read_text())["pid"] for f in folders]
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert wait_for(lambda: not any((f / "running.json").exists() for f in folders), 30)
    finally:
        for pid in (parent.pid, *children):
            if parent.poll() is None or pid != parent.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    for folder in folders:
        assert (folder / "last.rlreg").exists()
        assert not (folder / "summary.json").exists()


def test_a_worker_of_a_sweep_stops_when_its_parent_is_gone(monkeypatch):
    class Parent:
        alive = True

        def is_alive(self):
            return self.alive

    parent = Parent()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    stop = multiprocessing.get_context("spawn").Event()
    should_stop = sweep_worker.stop_of(stop)
    assert not should_stop()
    parent.alive = False
    assert should_stop()
    parent.alive = True
    stop.set()
    assert should_stop()
