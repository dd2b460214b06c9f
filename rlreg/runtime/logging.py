"""Where the metrics of a run go: a file of JSON lines, TensorBoard, or whatever a plugin brings.

A logger is four calls: ``start(run)``, ``metrics(step, row)``, ``checkpoint(path)``,
``end(summary)``. Losing a log is better than losing a run, so one that raises is reported once
and switched off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from rlreg import registry
from rlreg.atomic_file import replacing
from rlreg.errors import MissingExtraError, RlregError, RunError
from rlreg.json_text import from_json

if TYPE_CHECKING:
    from rlreg.config import LoggerFactory
    from rlreg.run_config import RunConfig

METRICS_FILE = "metrics.jsonl"

Row = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a logger is told when a run starts or goes on.

    Attributes:
        folder: The run folder.
        config: The resolved run.
        first_step: Steps already done; rows beyond it are about to be written again.
    """

    folder: Path
    config: RunConfig
    first_step: int = 0


class Logger(Protocol):
    """What a logger component's ``create()`` returns."""

    def start(self, run: RunInfo) -> None:
        """Called once, before the first row."""

    def metrics(self, step: int, row: Row) -> None:
        """Called at the end of each epoch with ``group/name`` numbers."""

    def checkpoint(self, path: Path) -> None:
        """Called after a checkpoint is on the disk."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Called once, when the run is finished or interrupted."""


class JsonlMetrics:
    """Writes ``metrics.jsonl``: one flat object a line, ``step`` and ``wall_s`` first."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def start(self, run: RunInfo) -> None:
        """Opens the file for appending."""
        self._file = (run.folder / METRICS_FILE).open("a", encoding="utf-8")

    def metrics(self, step: int, row: Row) -> None:
        """Writes one line and hands it to the system, so that a killed run keeps it."""
        if self._file is None:
            raise RunError("the logger is not started")
        # JSON has no NaN; a metric that is none is null.
        flat = {key: value if math.isfinite(value) else None for key, value in row.items()}
        self._file.write(json.dumps({"step": step, **flat}, allow_nan=False) + "\n")
        self._file.flush()

    def checkpoint(self, path: Path) -> None:
        """Nothing to do."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorboardMetrics:
    """Writes TensorBoard event files into ``tensorboard/`` of the run folder."""

    def __init__(self) -> None:
        self._writer: Any = None

    def start(self, run: RunInfo) -> None:
        """Opens a new event file; what a resumed run writes again is purged from the old ones.

        Raises:
            MissingExtraError: If tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "the tensorboard logger needs tensorboard: pip install 'rlreg[train]'"
            ) from error
        purge = run.first_step + 1 if run.first_step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

    def metrics(self, step: int, row: Row) -> None:
        """Writes one point of each curve."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def checkpoint(self, path: Path) -> None:
        """Nothing to do."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()


class LoggerGroup:
    """All loggers of a run; each fails alone.

    What goes wrong at the start is the user's to know before hours of training (a missing
    package, a folder that cannot be written) and is raised. Later faults are reported once, and
    that logger is switched off.
    """

    def __init__(self, loggers: Iterable[tuple[str, Any]], report: Callable[[str], None]) -> None:
        self._active = dict(enumerate(loggers))
        self._report = report

    @classmethod
    def of(cls, configs: Iterable[LoggerFactory], report: Callable[[str], None]) -> LoggerGroup:
        """Makes the loggers of a run; each is known by who provides it."""
        return cls([(_label(config), config.create()) for config in configs], report)

    def start(self, run: RunInfo) -> None:
        """Starts every logger.

        Raises:
            RunError: If one cannot be started.
        """
        for name, logger in self._active.values():
            try:
                logger.start(run)
            except RlregError:
                raise
            except Exception as error:
                raise RunError(
                    f"the logger {name!r} could not be started: {type(error).__name__}: {error}"
                ) from error

    def metrics(self, step: int, row: Row) -> None:
        """Hands a row to every logger."""
        self._each("metrics", step, row)

    def checkpoint(self, path: Path) -> None:
        """Tells every logger of a checkpoint."""
        self._each("checkpoint", path)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tells every logger that the run is over."""
        self._each("end", summary)

    def _each(self, call: str, *args: Any) -> None:
        for key, (name, logger) in list(self._active.items()):
            try:
                getattr(logger, call)(*args)
            except Exception as error:  # noqa: BLE001 - a plugin's logger raises whatever it likes
                del self._active[key]
                self._report(
                    f"the logger {name!r} failed and is switched off; training goes on: "
                    f"{type(error).__name__}: {error}"
                )


def _label(config: LoggerFactory) -> str:
    record = registry.provenance(type(config))
    if record.distribution == registry.LOCAL:
        return record.id
    return f"{record.name} of {record.distribution} {record.version}"


# --- the file of metrics ------------------------------------------------------------------------


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads a file of metrics up to what is no row; :func:`damage_of` says where that is."""
    return _read_rows(path)[0]


def damage_of(path: Path) -> str:
    """Says where a file of metrics holds something else than rows; empty where a kill explains it.

    A kill cuts off the last line, and nothing else.
    """
    rows, lines, is_complete = _read_rows(path)
    left_out = len(lines) - len(rows)
    if not left_out or (left_out == 1 and not is_complete):
        return ""
    after = f" and the {left_out - 1:,} after it" if left_out > 1 else ""
    return f"{path.name} is damaged: line {len(rows) + 1:,}{after} cannot be read and is left out"


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], list[bytes], bool]:
    """Returns rows up to what is none, all lines, and whether the last line has its end."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], [], True
    lines, rows = content.splitlines(), []
    for line in lines:
        try:
            row = from_json(line.decode("utf-8"))
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows, lines, content.endswith(b"\n")


def drop_rows_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Removes the rows past a step (and a line that was cut off), and returns those kept."""
    rows = read_metrics(path)
    kept = [row for row in rows if row["step"] <= step]
    if path.exists():
        with replacing(path) as file:
            for row in kept:
                file.write((json.dumps(row, allow_nan=False) + "\n").encode())
    return kept
