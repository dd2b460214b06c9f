"""What a report is about: runs read from their folders, and which of them belong together."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlreg.errors import LeftOutWarning, RlregError, RunError
from rlreg.identity import PLACES, config_hash
from rlreg.run_config import DatasetSettings, RunConfig
from rlreg.runtime.lock import differences, lock_from_json, lock_of
from rlreg.runtime.logging import damage_of, read_metrics
from rlreg.runtime.runs import RunFolder, is_seeds_folder

SAME = (*PLACES, "seed", "name", "logging", "checkpoint")
"""Keys of a run in which the seeds of one experiment may differ."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as it lies on the disk.

    Attributes:
        label: Its path as the user gave it.
        folder: Its folder.
        run: Its resolved settings.
        rows: The rows of ``metrics.jsonl``.
        summary: ``summary.json``; empty while it is not finished.
        lock: ``rlreg.lock``.
        changes: What is not as it was when the run began, one sentence each.
    """

    label: str
    folder: RunFolder
    run: RunConfig
    rows: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    lock: Mapping[str, Any]
    changes: tuple[str, ...]

    def points(self, metric: str) -> list[tuple[float, float]]:
        """Returns step and value of each row that has a number for a metric."""
        return [
            (float(row["step"]), float(row[metric])) for row in self.rows if _is_number(row, metric)
        ]

    @property
    def num_missing(self) -> int:
        """How many values were no numbers (NaN or infinite) when they were logged."""
        return sum(value is None for row in self.rows for value in row.values())

    @property
    def checkpoint(self) -> Path | None:
        """The best checkpoint, or else the last one."""
        found = (self.folder.best, self.folder.last)
        return next((path for path in found if path.exists()), None)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in nothing but their seeds.

    Attributes:
        name: What the report calls it.
        runs: At least one.
    """

    name: str
    runs: tuple[RunView, ...]

    @property
    def run(self) -> RunConfig:
        """The settings that all of them have, but for the seed."""
        return self.runs[0].run

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics of any run."""
        rows = (row for view in self.runs for row in view.rows)
        return list(dict.fromkeys(name for row in rows for name in row if name != "step"))


def _is_number(row: Mapping[str, Any], metric: str) -> bool:
    value = row.get(metric)
    return isinstance(value, int | float) and math.isfinite(value)


def read_groups(paths: Iterable[str | os.PathLike[str]]) -> list[Group]:
    """Reads run folders and folders of seeds, and puts the seeds of one experiment together.

    Raises:
        RunError: If a path is no run folder, or there is none at all.
        ConfigError: If a run is not valid with what is installed.
    """
    views = list({view.folder.path: view for path in paths for view in _read(Path(path))}.values())
    if not views:
        raise RunError("nothing to report: no run was given")
    together: dict[str, list[RunView]] = {}
    for view in views:
        together.setdefault(config_hash(view.run, ignore=SAME), []).append(view)
    names = _names(list(together.values()))
    return [Group(name, tuple(runs)) for name, runs in zip(names, together.values(), strict=True)]


def _read(path: Path) -> Iterator[RunView]:
    if is_seeds_folder(path):
        found = sorted(path.glob("seed-*/run.yaml"), key=lambda file: _number(file.parent.name))
        for file in found:
            yield _view(file.parent)
        if not found:
            raise RunError(f"{path}: none of its seeds has begun")
        return
    yield _view(path)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2]) if name.rpartition("-")[2].isdecimal() else 0


def _view(path: Path) -> RunView:
    folder = RunFolder.open(path)
    run, lock = folder.read_run(), folder.read_lock()
    changes = differences(lock_from_json(lock), lock_of(run)) if lock else []
    rows, damage = tuple(read_metrics(folder.metrics)), damage_of(folder.metrics)
    if damage:
        warnings.warn(f"{path}: {damage}", LeftOutWarning, stacklevel=2)
        changes.append(damage)
    return RunView(str(path), folder, run, rows, folder.read_summary() or {}, lock, tuple(changes))


def _names(groups: list[list[RunView]]) -> list[str]:
    """Names groups by their folders, as short as tells them apart."""
    paths = [_common(runs) for runs in groups]
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({number})" for number, path in enumerate(paths, start=1)]


def _common(runs: list[RunView]) -> Path:
    folders = [view.folder.path.resolve() for view in runs]
    if len(folders) == 1:
        return folders[0]
    return Path(os.path.commonpath(folders))


# --- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataView:
    """A data set as it is on this machine now.

    Attributes:
        name: As the runs name it.
        figures: Counts and sums.
        laws: Name, figure of the file, figure of the store and whether they agree.
        findings: Severity, kind, message and remedy of each oddity.
        problem: Why none of it is known; empty if it is.
    """

    name: str
    figures: Mapping[str, float]
    laws: tuple[Mapping[str, Any], ...]
    findings: tuple[Mapping[str, Any], ...]
    problem: str = ""


def read_data(groups: Iterable[Group]) -> list[DataView]:
    """Looks at every data set the runs learnt from, once."""
    names = dict.fromkeys(group.run.dataset for group in groups)
    return [_data(source) for source in names if source is not None]


def _data(source: str | DatasetSettings) -> DataView:
    from rlreg.runtime.data.inspect import inspect
    from rlreg.runtime.data.load import load_dataset

    name = str(source)
    try:
        dataset = load_dataset(source)
        try:
            laws: Any = dataset.laws.to_json()["laws"]
        finally:
            dataset.close()
        found: Any = inspect(source).to_json()
    except RlregError as error:
        return DataView(name, {}, (), (), str(error))
    return DataView(name, found["figures"], tuple(laws), tuple(found["findings"]))
