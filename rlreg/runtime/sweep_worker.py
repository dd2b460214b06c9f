"""One worker of a sweep: takes a trial, trains it, watches its metrics, says what came of it."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlreg.errors import RlregError, RunError
from rlreg.overrides import plain
from rlreg.runtime.logging import METRICS_FILE, read_metrics
from rlreg.runtime.sweep import StopFunction, SweepPlan, open_study
from rlreg.runtime.train import train
from rlreg.search_space import Parameter, apply_sample

if TYPE_CHECKING:
    from optuna import Study, Trial

MAX_FAILURES = 3
"""Failures in a row, from the first trial on, after which something else must be wrong."""

_LOOK_S = 0.2


class Watcher:
    """Reports the metrics of a running trial, and ends it if it lags or the sweep is to stop."""

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
            if isinstance(value, int | float) and math.isfinite(value):
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
        study: Its trials.
        should_stop: Asked every few updates.
    """

    def __init__(
        self, path: Path, plan: SweepPlan, study: Study, should_stop: StopFunction
    ) -> None:
        self.path, self.plan, self.study, self.should_stop = path, plan, study, should_stop
        self.space, self.run_config = plan.space, plan.trial_run
        self._num_failed, self._has_worked = 0, False

    def run(self, ticket: int) -> bool:
        """Runs one trial.

        Args:
            ticket: Its number among all, which gives its stream of random numbers: a sweep that
                was interrupted goes on as if it had not been.

        Returns:
            Whether it ended; ``False`` if the sweep is to stop.

        Raises:
            RunError: If the first trials all fail.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        seeds = np.random.SeedSequence([self.plan.seed, ticket])
        self.study.sampler = TPESampler(seed=int(seeds.generate_state(1)[0]))
        if self.should_stop():
            return False
        trial = self.study.ask()
        values = self.space.sample(lambda parameter: suggest(trial, parameter))
        folder = self.path / "trials" / f"{trial.number:04d}"
        trial.set_user_attr("settings", plain(values))
        trial.set_user_attr("folder", str(folder))
        watcher = Watcher(trial, folder / METRICS_FILE, self.plan, self.should_stop)
        try:
            run = apply_sample(self.run_config, values)
            train(run, out=folder, show_progress=False, should_stop=watcher)
            watcher.look()
        except RlregError as error:
            self._failed(trial, f"{type(error).__name__}: {error}")
            return True
        if watcher.is_stopped:
            # Left as running: whoever goes on with the sweep tries it again.
            return False
        if watcher.is_pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        elif watcher.last is None:
            self._failed(trial, f"the run logged no finite {self.plan.metric!r}")
            return True
        else:
            self.study.tell(trial, watcher.last)
        self._has_worked = True
        return True

    def _failed(self, trial: Trial, reason: str) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr("error", reason)
        self.study.tell(trial, state=TrialState.FAIL)
        self._num_failed += 1
        if not self._has_worked and self._num_failed >= MAX_FAILURES:
            raise RunError(f"the first {MAX_FAILURES} trials failed; the last one: {reason}")


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


def work(path: str, tickets: Any, end: int, stop: Any, threads: int) -> None:
    """Runs trials in a process of its own until no ticket is left."""
    import optuna
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and tells us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(path)
    plan = SweepPlan.read(folder)
    worker = Worker(folder, plan, open_study(folder, plan), stop.is_set)
    while True:
        with tickets.get_lock():
            ticket = tickets.value
            tickets.value += 1
        if ticket >= end or not worker.run(ticket):
            return
