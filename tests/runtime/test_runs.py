"""Run folders: one run each, one process at a time, every file whole."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlreg.errors import RunError
from rlreg.files import load_run
from rlreg.runtime.runs import PID_FILE, RunFolder, default_folder, require_empty


@pytest.fixture
def run(tiny):
    return load_run("tiny_bc")


def test_a_new_folder_has_the_run_and_its_lock(run, tmp_path):
    folder = RunFolder.create(tmp_path / "a" / "b", run)
    assert folder.read_run() == run
    ids = {entry["id"] for entry in folder.read_lock()["ids"]}
    assert ids == {
        "local/tiny_bc",
        "rlreg/vector",
        "rlreg/adam",
        "rlreg/cosine_annealing",
        "rlreg/jsonl",
    }
    assert sorted(path.name for path in folder.path.iterdir()) == ["rlreg.lock", "run.yaml"]


def test_a_folder_with_anything_in_it_is_refused(run, tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(RunError, match="is not empty; choose another --out"):
        RunFolder.create(tmp_path, run)
    with pytest.raises(RunError, match="is a file"):
        require_empty(tmp_path / "x")


def test_a_folder_that_cannot_be_made_is_one_clear_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "run", run)


def test_only_run_folders_are_opened(tmp_path):
    with pytest.raises(RunError, match="no such run folder"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(RunError, match=r"has no run\.yaml"):
        RunFolder.open(tmp_path)


def test_a_folder_in_use_is_refused_and_free_afterwards(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    with folder.held(), pytest.raises(RunError, match="is running, as process"):
        folder.held().__enter__()
    with folder.held():
        pass
    assert not (folder.path / PID_FILE).exists()


def test_a_process_that_is_gone_holds_nothing(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    code = (
        "import os; from pathlib import Path; from rlreg.runtime.runs import RunFolder\n"
        f"held = RunFolder(Path({str(folder.path)!r})).held(); held.__enter__(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    holder = json.loads((folder.path / PID_FILE).read_text())
    with folder.held():
        assert json.loads((folder.path / PID_FILE).read_text())["pid"] != holder["pid"]


def test_another_process_with_the_same_number_is_recognised(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    with folder.held():
        content = json.loads((folder.path / PID_FILE).read_text())
    (folder.path / PID_FILE).write_text(json.dumps({**content, "started": "another boot:1"}))
    with folder.held():
        pass


def test_a_run_on_another_machine_is_left_alone(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    (folder.path / PID_FILE).write_text('{"pid": 1, "host": "elsewhere", "started": ""}')
    with pytest.raises(RunError, match="in use by process 1 on elsewhere"):
        folder.held().__enter__()


def test_old_checkpoints_are_pruned_and_leftovers_dropped(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    (folder.path / "checkpoints").mkdir()
    for step in (1, 2, 10, 30):
        folder.checkpoint_path(step).write_text("x")
    (folder.path / ".next.tmp").write_text("half")
    (folder.path / "checkpoints" / ".1-ab.tmp").write_text("half")
    folder.prune(3)
    assert folder.checkpoints == [folder.checkpoint_path(step) for step in (2, 10, 30)]
    folder.drop_after(10)
    assert folder.checkpoints == [folder.checkpoint_path(step) for step in (2, 10)]
    assert not list(folder.path.rglob(".*.tmp"))


def test_a_second_name_replaces_what_had_it(run, tmp_path):
    folder = RunFolder.create(tmp_path / "r", run)
    source = folder.path / "new"
    source.write_text("new")
    folder.best.write_text("old")
    folder.put(source, folder.best)
    assert folder.best.read_text() == "new"


def test_default_folders_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_folder("iql", 3)
    assert first.parent.as_posix() == "runs/iql"
    assert first.name.endswith("Z-s3")
    first.mkdir(parents=True)
    assert default_folder("iql", 3) != first


def test_a_folder_with_a_run_file_only_is_not_resumed(tmp_path):
    (tmp_path / "run.yaml").write_text("learnable: {type: iql}\n")
    with pytest.raises(RunError, match="no run was begun here; start one with: rlreg train"):
        RunFolder.open(tmp_path).require_begun()
