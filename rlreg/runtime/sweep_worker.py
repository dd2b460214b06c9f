"""One worker of a sweep: takes a trial, trains it, watches its metrics, says what came of it."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlreg.errors import RlregError, RunError
from rlreg.overrides import plain
from rlreg.parent_process import forget_it_was_left_out
from rlreg.runtime.logging import METRICS_FILE, read_metrics
from rlreg.runtime.sweep import StopFunction, SweepPlan, ended_trials, number_of, open_study
from rlreg.runtime.train import train
from rlreg.search_space import Parameter, apply_sample

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

MAX_FAILURES = 3
"""Failures in a row, from the first trial on, after which something else must be wrong."""

_LOOK_S = 0.2


class Watcher:
    """Reports the metrics of a running trial, and ends it if it lags or the sweep is to stop.

    It judges row by row, whenever it gets to see them: a trial that would have been ended at a row
    counts as ended there, even if it was faster than we looked.
    """

    def __init__(
        self, trial: Trial, file: Path, plan: SweepPlan, should_stop: StopFunction
    ) -> None:
        self.trial, self.file, self.plan, self.should_stop = trial, file, plan, should_stop
        self.last: float | None = None
        self.is_pruned = self.is_stopped = False
        self._end = plan.trial_run.train.n_steps or math.inf
        self._num_seen = 0
        self._size = 0
        self._looked = 0.0

    def __call__(self) -> bool:
        """Whether training should end."""
        self.is_stopped = self.is_stopped or self.should_stop()
        if not self.is_stopped and time.monotonic() - self._looked >= _LOOK_S:
            self.look()
        return self.is_stopped or self.is_pruned

    def look(self) -> None:
        """Reads the rows that are new."""
        self._looked = time.monotonic()
        size = self.file.stat().st_size if self.file.exists() else 0
        if size == self._size:
            return
        self._size = size
        rows = read_metrics(self.file)
        for row in rows[self._num_seen :]:
            value = row.get(self.plan.metric)
            if isinstance(value, int | float) and math.isfinite(value) and not self.is_pruned:
                self.last = float(value)
                self.trial.report(self.last, row["step"])
                is_end = row["step"] >= self._end
                self.is_pruned = not is_end and self.trial.should_prune()
        self._num_seen = len(rows)


class Worker:
    """Runs trials one after the other.

    Args:
        path: Folder of the sweep.
        plan: What is searched.
        study: Its trials that have ended.
        should_stop: Asked every few updates.
    """

    def __init__(
        self, path: Path, plan: SweepPlan, study: Study, should_stop: StopFunction
    ) -> None:
        self.path, self.plan, self.study, self.should_stop = path, plan, study, should_stop
        self.space, self.run_config = plan.space, plan.trial_run
        self._num_failed, self._has_worked = 0, False

    def run(self, number: int) -> bool:
        """Runs one trial.

        Args:
            number: Its number among all, which gives its stream of random numbers and what it may
                know: a sweep that was interrupted goes on as if it had not been.

        Returns:
            Whether it ended; ``False`` if the sweep is to stop.

        Raises:
            RunError: If the first trials all fail.
        """
        known = self._await_known(number)
        if known is None:
            return False
        trial = _past(self.plan, number, known).ask()
        values = self.space.sample(lambda parameter: suggest(trial, parameter))
        folder = self.path / "trials" / f"{number:04d}"
        if folder.exists():
            shutil.rmtree(folder)  # of a sweep that was interrupted here
        attributes = {"number": number, "settings": plain(values), "folder": str(folder)}
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        watcher = Watcher(trial, folder / METRICS_FILE, self.plan, self.should_stop)
        try:
            run = apply_sample(self.run_config, values)
            train(run, out=folder, show_progress=False, should_stop=watcher)
            watcher.look()
        except RlregError as error:
            self._failed(trial, f"{type(error).__name__}: {error}")
            return True
        if watcher.is_stopped and not watcher.is_pruned:
            return False
        if watcher.last is None:
            self._failed(trial, f"the run logged no finite {self.plan.metric!r}")
            return True
        self._record(trial, "PRUNED" if watcher.is_pruned else "COMPLETE", watcher.last)
        self._has_worked = True
        return True

    def _await_known(self, number: int) -> list[FrozenTrial] | None:
        """Waits for the trials that this one may know; gives ``None`` if it shall not run."""
        while not self.should_stop():
            num_known = max(0, number - self.plan.num_parallel + 1)
            known = [trial for trial in ended_trials(self.study) if number_of(trial) < num_known]
            if len(known) == num_known:
                return sorted(known, key=number_of)
            time.sleep(_LOOK_S)
        return None

    def _failed(self, trial: Trial, reason: str) -> None:
        trial.set_user_attr("error", reason)
        self._record(trial, "FAIL", None)
        self._num_failed += 1
        if not self._has_worked and self._num_failed >= MAX_FAILURES:
            raise RunError(f"the first {MAX_FAILURES} trials failed; the last one: {reason}")

    def _record(self, trial: Trial, state: str, value: float | None) -> None:
        """Adds a trial to the ended ones; until then nobody but us knows it."""
        from optuna.trial import TrialState, create_trial

        frozen = trial.study.trials[-1]
        ended = create_trial(
            state=TrialState[state],
            value=value,
            params=frozen.params,
            distributions=frozen.distributions,
            user_attrs=frozen.user_attrs,
            intermediate_values=frozen.intermediate_values,
        )
        self.study.add_trial(ended)


def _past(plan: SweepPlan, number: int, known: list[FrozenTrial]) -> Study:
    """Returns a study as if the known trials were all there is: what is asked of it is certain."""
    import optuna

    seeds = np.random.SeedSequence([plan.seed, number])
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=int(seeds.generate_state(1)[0])),
        pruner=pruner if plan.prunes else optuna.pruners.NopPruner(),
        direction="minimize" if plan.minimize else "maximize",
    )
    study.add_trials(known)
    return study


def suggest(trial: Trial, parameter: Parameter) -> Any:
    """Asks Optuna for the value of a parameter."""
    path, low, high = parameter.path, parameter.low, parameter.high
    if parameter.kind == "categorical":
        # Optuna stores plain values; a list goes there as its text.
        texts = {json.dumps(plain(choice)): choice for choice in parameter.choices}
        return texts[trial.suggest_categorical(path, list(texts))]
    assert low is not None
    assert high is not None
    if parameter.kind == "int":
        step = int(parameter.step or 1)
        return trial.suggest_int(path, int(low), int(high), log=parameter.log, step=step)
    return trial.suggest_float(path, low, high, log=parameter.log, step=parameter.step)


def stop_of(event: Any) -> StopFunction:
    """Returns what tells a worker to stop: its parent, or that its parent is gone."""
    parent = multiprocessing.parent_process()
    return lambda: bool(event.is_set()) or (parent is not None and not parent.is_alive())


def work(path: str, missing: list[int], taken: Any, stop: Any, threads: int) -> None:
    """Runs trials in a process of its own, the next that nobody has taken, until none is left."""
    import optuna
    import torch

    forget_it_was_left_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and tells us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(path)
    plan = SweepPlan.read(folder)
    worker = Worker(folder, plan, open_study(folder, plan), stop_of(stop))
    while True:
        with taken.get_lock():
            index = taken.value
            taken.value += 1
        if index >= len(missing) or not worker.run(missing[index]):
            return
