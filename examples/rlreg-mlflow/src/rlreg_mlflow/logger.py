"""The logger itself: the half that imports mlflow."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from rlreg.runtime.logging import RunInfo

    from .config import MLflowLogger

RUN_ID_FILE = "mlflow-run-id.txt"
_MAX_BATCH = 100  # params in one call, by MLflow's own limit
_MAX_VALUE = 6000  # characters of a param, likewise


class MLflowRun:
    """One run of MLflow, which a resumed run of rlreg goes on with.

    A client of its own: whatever run is active in the program stays so.
    """

    def __init__(self, config: MLflowLogger) -> None:
        self.config = config
        self.client: Any = None
        self.run_id = ""
        self.folder = Path()

    def start(self, run: RunInfo) -> None:
        """Makes the run with its settings, or opens the one that was interrupted."""
        self.folder = run.folder
        self.client = MlflowClient(self.config.tracking_uri)
        path = run.folder / RUN_ID_FILE
        if path.exists():
            self.run_id = path.read_text().strip()
            self.client.update_run(self.run_id, status="RUNNING")
            return
        name = self.config.run_name or run.folder.name
        made = self.client.create_run(self._experiment_id(), run_name=name)
        self.run_id = made.info.run_id
        path.write_text(f"{self.run_id}\n")
        settings = run.config.model_dump(mode="json", by_alias=True)
        params = [Param(key, value[:_MAX_VALUE]) for key, value in flatten(settings)]
        for first in range(0, len(params), _MAX_BATCH):
            self.client.log_batch(self.run_id, params=params[first : first + _MAX_BATCH])
        self.client.log_batch(self.run_id, tags=[RunTag("rlreg.folder", str(run.folder))])

    def _experiment_id(self) -> str:
        known = self.client.get_experiment_by_name(self.config.experiment)
        if known is not None:
            return str(known.experiment_id)
        return str(self.client.create_experiment(self.config.experiment))

    def metrics(self, step: int, row: Mapping[str, float]) -> None:
        """Logs one point of each curve; what is not finite is left out."""
        now = int(time.time() * 1000)
        points = [Metric(key, value, now, step) for key, value in row.items() if _is_finite(value)]
        self.client.log_batch(self.run_id, metrics=points)

    def checkpoint(self, path: Path) -> None:
        """Uploads a checkpoint, if that is wanted."""
        if self.config.log_checkpoints and path.exists():
            self.client.log_artifact(self.run_id, str(path), "checkpoints")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Closes the run: finished if the run folder says so, else to be gone on with."""
        best = summary.get("best") or {}
        if _is_finite(best.get("mean_return")):
            point = Metric(
                "best/mean_return",
                best["mean_return"],
                int(time.time() * 1000),
                int(best.get("step", 0)),
            )
            self.client.log_batch(self.run_id, metrics=[point])
        is_finished = (self.folder / "summary.json").exists()
        self.client.set_terminated(self.run_id, "FINISHED" if is_finished else "KILLED")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted paths and texts of the settings of a run."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}.{index}")
    else:
        yield path, str(value)
