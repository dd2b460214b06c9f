"""What `summary.json` of a run holds, checked when it is read: others may have edited the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlreg.errors import FileFormatError, format_path


class _Part(BaseModel):
    """Numbers are numbers; what later versions add is left alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Figures(_Part):
    """What an evaluation gave; an unknown score is null."""

    mean_return: float
    std_return: float
    n_episodes: int
    normalized_score: float | None = None
    success_rate: float | None = None
    step: int | None = None


class ScoreReferences(_Part):
    """What scores are relative to: those of 0 and of 100, and who says so."""

    low: float = Field(alias="min")
    high: float = Field(alias="max")
    source: str = Field(alias="from")


class Summary(_Part):
    """Of one run that has finished. Folders of earlier versions lack what has a default."""

    learnable: str
    seed: int
    steps: int
    wall_s: float | None = None
    updates_per_s: float | None = None
    env_steps_per_s: float | None = None
    evaluations: list[Figures] = []
    best: Figures | None
    final: Figures | None
    baselines: dict[str, Figures]
    references: ScoreReferences | None = None
    restarts: int = 0


def check_summary(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Returns what was read from a summary, if it is one.

    Raises:
        FileFormatError: With the first part that is missing or of another type.
    """
    try:
        Summary.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].replace("Input should be", "expected").removeprefix("Field ")
        raise FileFormatError(
            f"{path}: damaged: {format_path(first['loc'])}: {problem}; without this file "
            "`rlreg resume` writes it anew from the last checkpoint"
        ) from error
    return value
