"""The contract of the Weights & Biases logger: its settings, and no wandb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rlreg import LoggerFactory

if TYPE_CHECKING:
    from .logger import WandbRun


class WandbLogger(LoggerFactory):
    """Writes settings, metrics and checkpoints of a run to Weights & Biases."""

    type: Literal["wandb"] = "wandb"
    project: str = Field(
        "rlreg", min_length=1, max_length=128, description="Project. Default: ours, rlreg."
    )
    entity: str | None = Field(
        None, max_length=128, description="User or team; null takes your own. Default: wandb, null."
    )
    mode: Literal["auto", "online", "offline"] = Field(
        "auto",
        description="Whether to upload at once or to leave files for `wandb sync`; auto does what "
        "WANDB_MODE says, online without it. Default: wandb, auto.",
    )
    run_name: str | None = Field(
        None,
        max_length=128,
        description="Name of the run; null takes that of the run folder. Default: ours, null.",
    )
    group: str | None = Field(
        None, max_length=128, description="Group of the run, e.g. of seeds. Default: wandb, null."
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        (), max_length=32, description="Tags of the run. Default: wandb, none."
    )
    log_checkpoints: bool = Field(
        False, description="Whether to upload each checkpoint as a file. Default: ours, false."
    )

    def create(self) -> WandbRun:
        """Builds the logger; nothing is contacted before the run starts."""
        from .logger import WandbRun

        return WandbRun(self)
