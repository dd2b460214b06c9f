"""Against the real library, with a store in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

import rlreg
from rlreg.testing import conformance_tests

test_conformance = conformance_tests("rlreg-mlflow")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of its own for each test."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    return uri


def settings(**logger: Any) -> dict[str, Any]:
    """A short run."""
    return {
        "learnable": {"type": "iql", "batch_size": 8},
        "dataset": "rlreg/pendulum/mixed-v0",
        "device": "cpu",
        "train": {"n_steps": 6, "n_steps_per_epoch": 2},
        "evaluation": {"n_episodes": 1, "baselines": []},
        "logging": [{"type": "jsonl"}, {"type": "mlflow", **logger}],
    }


def test_settings_metrics_and_checkpoints_arrive(tmp_path: Path, store: str) -> None:
    """What metrics.jsonl has, MLflow has."""
    run = settings(experiment="mine", log_checkpoints=True)
    result = rlreg.train(run, out=tmp_path / "run", show_progress=False)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "run"
    assert logged.data.params["learnable.expectile"] == "0.7"
    assert logged.data.params["train.n_steps"] == "6"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    points = client.get_metric_history(logged.info.run_id, "loss/critic_loss")
    assert [(point.step, point.value) for point in points] == [
        (row["step"], row["loss/critic_loss"]) for row in rows if "loss/critic_loss" in row
    ]
    assert logged.data.metrics["best/mean_return"] == result.summary["best"]["mean_return"]
    names = [item.path for item in client.list_artifacts(logged.info.run_id, "checkpoints")]
    assert names
    assert all(name.endswith(".rlreg") for name in names)


def test_a_resumed_run_goes_on_in_the_same_place(tmp_path: Path, store: str) -> None:
    """Interrupted and finished, it is one run."""
    calls = iter(range(1000))
    rlreg.train(
        settings(), out=tmp_path / "run", show_progress=False, should_stop=lambda: next(calls) > 1
    )
    client = MlflowClient(store)
    run_id = (tmp_path / "run" / "mlflow-run-id.txt").read_text().strip()
    assert client.get_run(run_id).info.status == "KILLED"
    rlreg.resume(tmp_path / "run", show_progress=False)
    assert client.get_run(run_id).info.status == "FINISHED"
    assert client.get_metric_history(run_id, "loss/critic_loss")[-1].step == 6


def test_a_store_that_cannot_be_reached_is_said_before_training(tmp_path: Path) -> None:
    """And the folder can be used again."""
    run = settings(tracking_uri="no-such-store://somewhere")
    with pytest.raises(rlreg.RlregError, match="mlflow"):
        rlreg.train(run, out=tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
