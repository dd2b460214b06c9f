"""The logger itself: the half that imports wandb."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

if TYPE_CHECKING:
    from rlreg.runtime.logging import RunInfo

    from .config import WandbLogger

RUN_ID_FILE = "wandb-run-id.txt"
STEP = "step"


class WandbRun:
    """One run of Weights & Biases, which a resumed run of rlreg goes on with.

    Whatever run is active in the program stays so.
    """

    def __init__(self, config: WandbLogger) -> None:
        self.config = config
        self.run: Any = None
        self.folder = Path()

    def start(self, run: RunInfo) -> None:
        """Makes the run with its settings, or goes on with the one that was interrupted."""
        self.folder = run.folder
        path = run.folder / RUN_ID_FILE
        if not path.exists():
            path.write_text(f"{secrets.token_hex(4)}\n")
        config = self.config
        self.run = wandb.init(
            id=path.read_text().strip(),
            resume="allow",
            reinit="create_new",
            project=config.project,
            entity=config.entity,
            mode=None if config.mode == "auto" else config.mode,
            name=config.run_name or run.folder.name,
            group=config.group,
            tags=config.tags,
            dir=str(run.folder),
            config=run.config.model_dump(mode="json", by_alias=True),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # An axis of our own: wandb's refuses to go back, which a resumed run does.
        self.run.define_metric("*", step_metric=STEP)

    def metrics(self, step: int, row: Mapping[str, float]) -> None:
        """Logs one point of each curve."""
        self.run.log({STEP: step, **row})

    def checkpoint(self, path: Path) -> None:
        """Uploads a checkpoint, if that is wanted."""
        if self.config.log_checkpoints and path.exists():
            self.run.save(str(path), base_path=str(self.folder), policy="now")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Closes the run; one that was interrupted counts as failed until it is gone on with."""
        best = (summary.get("best") or {}).get("mean_return")
        if isinstance(best, float) and math.isfinite(best):
            self.run.summary["best/mean_return"] = best
        self.run.finish(exit_code=0 if (self.folder / "summary.json").exists() else 1)
