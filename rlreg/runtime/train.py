"""``train(run)`` and ``resume(folder)``: what the command line calls, and notebooks too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlreg.config import LearnableConfig
from rlreg.creation import create
from rlreg.errors import (
    CheckpointError,
    ConfigError,
    RunError,
)
from rlreg.files import load_run
from rlreg.run_config import RunConfig
from rlreg.run_defaults import DEFAULT_DATASET
from rlreg.runtime.arguments import function, whole_number
from rlreg.runtime.checkpoint import Checkpoint, read_checkpoint
from rlreg.runtime.data.load import locate
from rlreg.runtime.environments import looked_at
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.offline import OfflineLearnable
from rlreg.runtime.online import OnlineLearnable
from rlreg.runtime.runs import RunFolder, default_folder, is_seeds_folder, require_empty
from rlreg.runtime.session import RunResult as RunResult
from rlreg.runtime.session import Session
from rlreg.runtime.settling import settle_run as settle_run

if TYPE_CHECKING:
    from rlreg.runtime.seeds import Arrangement

RunLike = RunConfig | LearnableConfig | Mapping[str, Any] | str | os.PathLike[str]


def train(
    run: RunLike,
    *,
    out: str | os.PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    preset: str | None = None,
    seeds: int = 1,
    arrangement: Arrangement = "auto",
    show_progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Trains a learnable and writes a run folder.

    Args:
        run: A run, a learnable's config, a mapping of either, a file, or the id of a learnable.
        out: The run folder, new or empty; ``runs/<name>/<UTC time>-s<seed>`` by default.
        overrides: ``"key.path=value"``, applied last.
        preset: Settings applied beneath the run.
        seeds: How many runs, with seeds from ``run.seed`` on.
        arrangement: How several seeds are trained: ``spread`` over the cores, as processes, each
            bit-equal to a run by itself; ``stacked`` into one computation in this process, within
            rounding of it; ``auto`` stacks on a GPU. What cannot be stacked is spread.
        show_progress: Whether to show a bar or lines on stderr.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.

    Raises:
        ConfigError: With everything that is wrong with the run.
        MissingDatasetError: If the data set is not on this machine.
        EnvironmentSpecError: If the environment cannot be made or does not fit the data.
        DeviceUnavailableError: If this machine has no such device.
        RunError: If ``out`` is not empty.
    """
    if not isinstance(run, RunConfig | LearnableConfig | Mapping | str | os.PathLike):
        raise ConfigError(f"train: expected a run, a config, a file or an id, got {run!r}")
    seeds = whole_number("seeds", seeds)
    function("should_stop", should_stop)
    source = run if isinstance(run, RunConfig | LearnableConfig | Mapping | str) else Path(run)
    settled = settle_run(load_run(source, overrides=overrides, preset=preset))
    path = (
        _folder_path("out", out)
        if out is not None
        else default_folder(str(settled.name), settled.seed)
    )
    require_empty(path)
    learnable = make_learnable(settled)
    _find_what_is_named(settled)
    if seeds > 1:
        from rlreg.runtime.seeds import train_seeds

        return train_seeds(settled, path, seeds, show_progress, should_stop, arrangement)
    folder = RunFolder.create(path, settled)
    with folder.held():
        return Session(folder, settled, learnable, show_progress, should_stop).start()


def resume(
    folder: str | os.PathLike[str],
    *,
    strict_lock: bool = False,
    show_progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Goes on with a run from its last checkpoint; without one it starts from the beginning.

    Where ``last.rlreg`` is gone, it goes on from the newest intact file of ``checkpoints/``.

    Args:
        folder: A run folder.
        strict_lock: Refuse code of another version than the run began with, instead of warning.
        show_progress: Whether to show a bar or lines on stderr.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.

    Raises:
        RunError: If the folder is no run folder, or a process is running in it.
        CheckpointError: If the checkpoint is damaged or was made by something not installed.
    """
    path = _folder_path("resume", folder)
    function("should_stop", should_stop)
    if is_seeds_folder(path):
        from rlreg.runtime.seeds import resume_seeds

        return resume_seeds(path, show_progress, should_stop, strict_lock=strict_lock)
    opened = RunFolder.open(path)
    opened.require_begun()
    summary = opened.read_summary()
    if summary is not None:
        return RunResult(path, "already finished", summary)
    with opened.held():
        run = settle_run(opened.read_run())
        checkpoint = last_checkpoint(opened)
        session = Session(opened, run, make_learnable(run), show_progress, should_stop)
        return session.go_on(checkpoint, strict_lock=strict_lock)


def _folder_path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ConfigError(f"{name}: expected the path of a folder, got {value!r}")
    return Path(value)


def last_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """Reads what a run goes on from; ``None`` if nothing was saved yet.

    Raises:
        CheckpointError: If ``last.rlreg`` is damaged, or it is gone and so is every other one that
            could be read. What is lost is for the user to decide: nothing is changed.
    """
    if not folder.last.exists():
        others = [path for path in (*reversed(folder.checkpoints), folder.best) if path.exists()]
        found = _first_intact(others)
        if found is None and others:
            raise CheckpointError(
                f"{folder.last} is gone, and none of the {len(others)} other checkpoints of this "
                "run can be read; delete them to start from the beginning"
            )
        return found
    try:
        return read_checkpoint(folder.last)
    except CheckpointError as error:
        good = _first_intact([*reversed(folder.checkpoints)])
        if good is None:
            raise
        raise CheckpointError(
            f"{error}; {good.path} is intact: delete {folder.last.name}, and resume goes on from it"
        ) from error


def _first_intact(paths: Iterable[Path]) -> Checkpoint | None:
    for path in paths:
        with contextlib.suppress(CheckpointError):
            return read_checkpoint(path)
    return None


# --- getting started ------------------------------------------------------------------------------


def make_learnable(run: RunConfig) -> Learnable:
    """Creates the learnable of a run; no weights are made yet.

    Raises:
        DeviceUnavailableError: If this machine has no such device.
        RunError: If it is none that a run can train.
    """
    device: Any = list(run.device) if isinstance(run.device, tuple) else run.device
    learnable = create(run.learnable, device=device, seed=run.seed, compile=run.compile)
    wanted = OnlineLearnable if run.learnable.regime == "online" else OfflineLearnable
    if not isinstance(learnable, wanted):
        raise RunError(
            f"{run.learnable.get_type()!r} creates a {type(learnable).__name__}; a run trains an "
            f"{wanted.__name__}"
        )
    return learnable


def _find_what_is_named(run: RunConfig) -> None:
    """Raises before anything is written if a data set or an environment is not there."""
    if run.dataset is not None and str(run.dataset) != DEFAULT_DATASET:
        locate(run.dataset)
    for env in (run.env, run.evaluation.env):
        if env not in (None, "auto"):
            with looked_at(env):
                pass
