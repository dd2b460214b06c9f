"""Sweeps: many short runs of one learnable with settings from its search space, on Optuna.

A sweep is a folder: ``sweep.json`` says what is searched, ``sweep.db`` (SQLite) has every trial,
``trials/`` the run folder of each, and ``best.yaml`` is the run file of the best one. What is
killed goes on from there: a trial that had not ended is tried again with the same settings.

The same seed gives the same trials, also where several run at once: trial ``k`` of a sweep that
runs ``n`` at once is chosen, and ended early, by what trials ``0`` to ``k - n`` gave and by nothing
else. They have ended when it begins, whichever of the others is the fastest.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlreg.atomic_file import write_text
from rlreg.errors import ConfigError, FileFormatError, MissingExtraError, RunError
from rlreg.files import dump_yaml, load_run
from rlreg.identity import config_hash
from rlreg.overrides import plain
from rlreg.parent_process import interrupts_blocked, working_folder_left_out
from rlreg.registry import LOCAL
from rlreg.run_config import RunConfig
from rlreg.runtime.lock import lock_of
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import RunFolder, read_json, to_text
from rlreg.runtime.settling import settle_run
from rlreg.search_space import Space, apply_sample, search_space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

PLAN_FILE, STORE_FILE, BEST_FILE, TRIALS_FILE = (
    "sweep.json",
    "sweep.db",
    "best.yaml",
    "trials.json",
)
DEFAULT_METRIC = "evaluation/mean_return"
REPORTS = 5
"""How often a trial is judged on its way, if the run does not say; each may end a poor one."""

_STUDY, _POLL_S = "sweep", 0.2
StopFunction = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is searched, and by which figure.

    Attributes:
        run: What every trial starts from.
        fixed: Paths that are not searched.
        metric: Name in ``metrics.jsonl``; the last value of a run counts.
        minimize: Whether less is better.
        prunes: Whether trials that lag behind end early.
        seed: Of the search.
        num_parallel: How many trials run at once at most; what a trial may know depends on it.
    """

    run: RunConfig
    fixed: tuple[str, ...] = ()
    metric: str = DEFAULT_METRIC
    minimize: bool = False
    prunes: bool = True
    seed: int = 0
    num_parallel: int = 1

    @property
    def space(self) -> Space:
        """The parameters that are searched."""
        return search_space(type(self.run.learnable)).without(self.fixed)

    @property
    def trial_run(self) -> RunConfig:
        """The run of a trial: judged on its way, its metrics in a file, and nothing for show."""
        run = settle_run(self.run)
        evaluation: dict[str, Any] = {"baselines": ()}
        if run.evaluation.every is None and run.train.n_steps is not None:
            evaluation["every"] = max(1, run.train.n_steps // REPORTS)
        loggers = [plain(item) for item in run.logging]
        if not any(item["type"] == "jsonl" for item in loggers):
            loggers.append({"type": "jsonl"})
        return run.model_copy(
            update={
                "evaluation": run.evaluation.model_copy(update=evaluation),
                "logging": loggers,
                "checkpoint": run.checkpoint.model_copy(update={"keep": 0}),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Gives the plan as plain data."""
        return {
            "run": plain(self.run),
            "fixed": list(self.fixed),
            "metric": self.metric,
            "minimize": self.minimize,
            "prunes": self.prunes,
            "seed": self.seed,
            "num_parallel": self.num_parallel,
            "space": self.space.as_json(),
        }

    @classmethod
    def read(cls, out: Path) -> SweepPlan:
        """Reads the plan of a sweep's folder.

        Raises:
            FileFormatError: If there is none.
        """
        path = out / PLAN_FILE
        data = {**read_json(path)}
        data.pop("space", None)  # which follows from the rest
        try:
            return cls(**{**data, "run": load_run(data["run"]), "fixed": tuple(data["fixed"])})
        except ConfigError as error:
            subject = f"{path}: cannot go on with what is installed, begin a new sweep"
            raise ConfigError(error.problems, subject=subject) from error
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"{path}: damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep gave.

    Attributes:
        folder: The folder of the sweep.
        status: ``finished`` or ``interrupted``.
        trials: Number, state, value, settings and folder of every trial that ended.
        best: The best of them; ``None`` if none was finished.
    """

    folder: Path
    status: str
    trials: list[dict[str, Any]]
    best: dict[str, Any] | None


def is_sweep_folder(path: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (path / PLAN_FILE).is_file()


def sweep(
    plan: SweepPlan,
    out: str | os.PathLike[str],
    trials: int,
    *,
    workers: int | None = None,
    show_progress: bool = True,
    should_stop: StopFunction = lambda: False,
) -> SweepResult:
    """Runs a sweep until it has a number of trials; what is in the folder already counts.

    Args:
        plan: What is searched.
        out: The folder: new, empty, or one with the same plan.
        trials: How many trials in the end.
        workers: How many at once, each in a process of its own; 1 for a new sweep, and for one that
            goes on as many as it began with, which is the most.
        show_progress: Whether to show a line for each trial on stderr.
        should_stop: Asked every few updates; ``True`` ends the sweep, which can go on later.

    Raises:
        ConfigError: If the space is empty.
        RunError: If the folder holds something else, or no trial works.
        MissingExtraError: If Optuna is not installed.
    """
    path = Path(out)
    _require_optuna()
    if not plan.space.parameters:
        raise ConfigError(
            f"nothing to search: {plan.run.learnable.get_type()!r} declares no search space, or "
            "all of it is fixed"
        )
    plan = _prepare(path, plan, workers)
    with RunFolder(path).held():
        study = open_study(path, plan)
        display = Display(trials, unit="trials", is_shown=show_progress)
        try:
            done = _run(path, plan, study, trials, workers, display, should_stop)
        finally:
            display.close()
        return _settle(path, plan, study, "finished" if done else "interrupted")


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("a sweep needs Optuna: pip install 'rlreg[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _prepare(path: Path, plan: SweepPlan, workers: int | None) -> SweepPlan:
    """Returns the plan of the folder, which is made if it is new."""
    if is_sweep_folder(path):
        known = SweepPlan.read(path)
        same = ("fixed", "metric", "minimize", "prunes", "seed")
        if config_hash(known.run) != config_hash(plan.run) or any(
            getattr(known, name) != getattr(plan, name) for name in same
        ):
            raise RunError(f"{path}: holds another sweep; go on with it by `rlreg sweep {path}`")
        return known
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RunError(f"{path} is not empty; choose another --out")
    plan = replace(plan, num_parallel=workers or plan.num_parallel)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / PLAN_FILE, to_text(plan.to_json()))
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
    return plan


def open_study(path: Path, plan: SweepPlan) -> Study:
    """Opens the ended trials of a sweep; several processes may have them open."""
    import sqlite3

    import optuna

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path / STORE_FILE, timeout=60, check_same_thread=False)

    # The address names no file: a path with `?`, `#` or `{}` means something else there.
    storage = optuna.storages.RDBStorage("sqlite:///study", engine_kwargs={"creator": connect})
    return optuna.create_study(
        storage=storage,
        study_name=_STUDY,
        direction="minimize" if plan.minimize else "maximize",
        load_if_exists=True,
    )


# --- running trials -----------------------------------------------------------------------------


def _run(
    path: Path,
    plan: SweepPlan,
    study: Study,
    trials: int,
    workers: int | None,
    display: Display,
    should_stop: StopFunction,
) -> bool:
    """Runs what is missing; returns whether nothing is."""
    from rlreg.runtime.sweep_worker import Worker

    ended = {number_of(trial) for trial in ended_trials(study)}
    display.move_to(min(len(ended), trials))
    missing = [number for number in range(trials) if number not in ended]
    at_once = min(workers or plan.num_parallel, plan.num_parallel, len(missing))
    if any(entry.id.startswith(f"{LOCAL}/") for entry in lock_of(plan.run)):
        at_once = 1  # what was registered by call exists in this process alone
    if at_once > 1:
        return _run_apart(path, plan, study, missing, at_once, display, should_stop)
    worker = Worker(path, plan, study, should_stop)
    for number in missing:
        if not worker.run(number):
            return False
        _show(display, plan, ended_trials(study)[-1])
    return True


def _run_apart(
    path: Path,
    plan: SweepPlan,
    study: Study,
    missing: list[int],
    workers: int,
    display: Display,
    should_stop: StopFunction,
) -> bool:
    from rlreg.runtime.sweep_worker import work

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = max(1, (cores or 1) // workers)
    context = multiprocessing.get_context("spawn")
    with working_folder_left_out():  # by the process that keeps track of semaphores, too
        taken, stop = context.Value("q", 0), context.Event()
    processes = [
        context.Process(target=work, args=(str(path), missing, taken, stop, threads))
        for _ in range(workers)
    ]
    shown = begun = len(ended_trials(study))
    try:
        # Interrupts of a terminal, before a worker can ignore them.
        with working_folder_left_out(), interrupts_blocked():
            for process in processes:
                process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(_POLL_S)
            # The others would wait for the trial of one that has died.
            if should_stop() or any(process.exitcode for process in processes):
                stop.set()
            for trial in ended_trials(study)[shown:]:
                _show(display, plan, trial)
                shown += 1
    finally:
        stop.set()
        for process in processes:
            process.join()
    for trial in ended_trials(study)[shown:]:
        _show(display, plan, trial)
    if any(process.exitcode for process in processes) and not should_stop():
        codes = ", ".join(str(process.exitcode) for process in processes)
        raise RunError(
            f"a worker ended with an error (codes {codes}); `rlreg sweep {path}` goes on"
        )
    return len(ended_trials(study)) - begun >= len(missing)


def ended_trials(study: Study) -> list[FrozenTrial]:
    """Returns the trials that count, in the order in which they ended."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    found = [
        trial
        for trial in study.get_trials(deepcopy=False, states=states)
        if trial.state is not TrialState.FAIL or "error" in trial.user_attrs
    ]
    return sorted(found, key=lambda trial: (str(trial.datetime_complete), trial.number))


def number_of(trial: FrozenTrial) -> int:
    """Returns the number of a trial among all of its sweep; Optuna counts them as they end."""
    return int(trial.user_attrs.get("number", trial.number))


def _show(display: Display, plan: SweepPlan, trial: FrozenTrial) -> None:
    display.advance(1)
    error = trial.user_attrs.get("error", "")
    value = f"{plan.metric} {trial.value:.4g}" if trial.value is not None else ""
    what = error or f"{trial.state.name.lower()}, {value}"
    display.note(f"trial {number_of(trial)}: {what}")


# --- what comes out -----------------------------------------------------------------------------


def _settle(path: Path, plan: SweepPlan, study: Study, status: str) -> SweepResult:
    trials = list(_rows(study))
    finished = [row for row in trials if row["state"] == "complete"]
    best = None
    if finished:
        choose = min if plan.minimize else max
        best = choose(finished, key=lambda row: row["value"])
        run = apply_sample(plan.run, best["settings"])
        head = f"# Trial {best['number']} of {len(trials)}: {plan.metric} {best['value']:.6g}\n"
        if run.train.n_steps is not None:
            steps = f"{run.train.n_steps:,} steps"
            head += f"# It is as long as a trial, {steps}; --steps makes it longer.\n"
        write_text(path / BEST_FILE, head + dump_yaml(run))
    write_text(path / TRIALS_FILE, to_text({"status": status, "best": best, "trials": trials}))
    return SweepResult(path, status, trials, best)


def _rows(study: Study) -> Iterator[dict[str, Any]]:
    for trial in sorted(ended_trials(study), key=number_of):
        yield {
            "number": number_of(trial),
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": trial.user_attrs.get("settings", {}),
            "folder": trial.user_attrs.get("folder", ""),
            "error": trial.user_attrs.get("error", ""),
        }
