"""The contract of the MLflow logger: its settings, and no mlflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlreg import LoggerFactory

if TYPE_CHECKING:
    from .logger import MLflowRun


class MLflowLogger(LoggerFactory):
    """Writes settings, metrics and checkpoints of a run to MLflow."""

    type: Literal["mlflow"] = "mlflow"
    tracking_uri: str | None = Field(
        None,
        max_length=2000,
        description="Where to, e.g. sqlite:///mlflow.db or http://host:5000; null takes "
        "MLFLOW_TRACKING_URI, or MLflow's own default. Default: MLflow, null.",
    )
    experiment: str = Field(
        "rlreg",
        min_length=1,
        max_length=500,
        description="Experiment, made if it is not there. Default: ours, rlreg.",
    )
    run_name: str | None = Field(
        None,
        max_length=500,
        description="Name of the run; null takes that of the run folder. Default: ours, null.",
    )
    log_checkpoints: bool = Field(
        False, description="Whether to upload each checkpoint as an artifact. Default: ours, false."
    )

    def create(self) -> MLflowRun:
        """Builds the logger; nothing is contacted before the run starts."""
        from .logger import MLflowRun

        return MLflowRun(self)
