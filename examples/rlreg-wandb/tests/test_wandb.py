"""Against the real library, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wandb

import rlreg
from rlreg.testing import conformance_tests

test_conformance = conformance_tests("rlreg-wandb")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves this machine, and nothing is written beside the test's own folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)


def settings(**logger: Any) -> dict[str, Any]:
    """A short run."""
    return {
        "learnable": {"type": "iql", "batch_size": 8},
        "dataset": "rlreg/pendulum/mixed-v0",
        "device": "cpu",
        "train": {"n_steps": 6, "n_steps_per_epoch": 2},
        "evaluation": {"n_episodes": 1, "baselines": []},
        "logging": [{"type": "jsonl"}, {"type": "wandb", **logger}],
    }


def records(folder: Path) -> bytes:
    """Everything that wandb wrote for a later sync, as it lies in the files."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert files, "wandb wrote no run"
    return b"".join(path.read_bytes() for path in files)


def test_settings_metrics_and_checkpoints_arrive(tmp_path: Path) -> None:
    """What metrics.jsonl has, the files for the sync have."""
    run = settings(project="mine", group="seeds", tags=["a"], log_checkpoints=True)
    rlreg.train(run, out=tmp_path / "run", show_progress=False)
    content = records(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    for row in rows:
        for value in (row.get("loss/critic_loss"), row.get("evaluation/mean_return")):
            assert value is None or json.dumps(value).encode() in content
    for word in (b"mine", b"seeds", b"expectile", b"loss/critic_loss", b".rlreg"):
        assert word in content
    assert wandb.run is None


def test_a_resumed_run_goes_on_under_the_same_id(tmp_path: Path) -> None:
    """Interrupted and finished, it is one run."""
    calls = iter(range(1000))
    rlreg.train(
        settings(), out=tmp_path / "run", show_progress=False, should_stop=lambda: next(calls) > 1
    )
    first = (tmp_path / "run" / "wandb-run-id.txt").read_text()
    rlreg.resume(tmp_path / "run", show_progress=False)
    assert (tmp_path / "run" / "wandb-run-id.txt").read_text() == first
    folders = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert all(folder.name.endswith(first.strip()) for folder in folders)
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_run_that_is_active_in_the_program_stays_so(tmp_path: Path) -> None:
    """A notebook that logs by itself is not disturbed."""
    with wandb.init(project="theirs", dir=str(tmp_path)) as theirs:
        rlreg.train(settings(), out=tmp_path / "run", show_progress=False)
        assert wandb.run is theirs
