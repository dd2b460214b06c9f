"""The run loop: epochs, evaluations, metrics, checkpoints, in the order that survives a kill.

At the end of an epoch: evaluate, write the row, save, and only then go on. So no checkpoint
stands before a row that is missing, and rows past it are dropped on resume. The same loop serves
offline and online learnables; what differs is where epochs come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlreg.atomic_file import sync_folder
from rlreg.errors import CheckpointError
from rlreg.run_config import RunConfig
from rlreg.runtime.checkpoint import save
from rlreg.runtime.data.dataset import TransitionDataset
from rlreg.runtime.evaluation import Evaluation
from rlreg.runtime.judging import Judge
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.logging import LoggerGroup
from rlreg.runtime.offline import Metrics, OfflineLearnable, PartialEpoch
from rlreg.runtime.online import MetricMeans, OnlineLearnable
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import CHECKPOINTS, RunFolder
from rlreg.runtime.update_results import require_finite
from rlreg.starting import end_start


class StopRequested(Exception):  # noqa: N818 - no error: somebody asked for it
    """Ends training at a point from which it can go on."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that has ended.

    Attributes:
        step: Steps of the run so far: updates (offline) or transitions (online).
        metrics: Means over the epoch. Names with a slash are written as they are.
        is_last: Whether it is the run's last one, which is always evaluated.
    """

    step: int
    metrics: Metrics
    is_last: bool


@dataclass(slots=True)
class RunState:
    """Where a run stands, besides its learnable: what every checkpoint of it holds.

    Attributes:
        step: Steps at the end of the last finished epoch.
        epoch: Finished epochs.
        partial: The epoch that was interrupted, if any, of an offline run.
        means: The same of an online run.
        ended: An epoch that has ended, while it is evaluated.
        evaluations: Results so far, each with its ``step``.
        best: The best of them.
        num_stale: Evaluations since the best one.
        is_over: Whether training ended before its last step (patience).
    """

    step: int = 0
    epoch: int = 0
    partial: PartialEpoch = field(default_factory=PartialEpoch)
    means: MetricMeans = field(default_factory=MetricMeans)
    ended: Epoch | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    num_stale: int = 0
    is_over: bool = False

    def to_json(self) -> dict[str, Any]:
        """Gives the state as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunState:
        """Reads what :meth:`to_json` gave.

        Raises:
            CheckpointError: If it is something else, e.g. of a learnable that was saved by hand.
        """
        try:
            found = {**data, "partial": PartialEpoch(**data["partial"])}
            found["means"] = MetricMeans(**data.get("means", {}))  # older files have none
            found["ended"] = Epoch(**data["ended"]) if data.get("ended") else None
            return cls(**found)
        except (TypeError, KeyError) as error:
            raise CheckpointError("the checkpoint was not written by a run") from error


def offline_epochs(
    learnable: OfflineLearnable,
    dataset: TransitionDataset,
    run: RunConfig,
    state: RunState,
    tick: Callable[[int], None],
) -> Generator[Epoch]:
    """Trains epoch by epoch until the run's last step; an interrupted epoch is finished first."""
    total = run.train.n_steps
    assert total is not None
    while learnable.grad_step < total or state.partial.num_steps:
        start = learnable.grad_step - state.partial.num_steps
        count = min(run.train.n_steps_per_epoch, total - start)
        metrics = learnable.train_epoch(dataset, count, partial=state.partial, tick=tick)
        yield Epoch(learnable.grad_step, metrics, is_last=learnable.grad_step >= total)


def online_epochs(
    learnable: OnlineLearnable, run: RunConfig, state: RunState, tick: Callable[[int], None]
) -> Generator[Epoch]:
    """Trains epoch by epoch until the run's last one; ends the actors when closed."""
    settings = run.train
    num_steps = settings.n_steps and settings.n_steps - learnable.env_steps
    num_epochs = settings.n_epochs and settings.n_epochs - learnable.epoch
    if (num_steps is not None and num_steps < 1) or (num_epochs is not None and num_epochs < 1):
        return
    trainer = learnable.trainer(
        run.env,
        n_steps=num_steps,
        n_epochs=num_epochs,
        epoch_length=settings.epoch_length,
        engine=run.engine,
        tick=tick,
        partial=state.means,
    )
    for epoch, metrics in trainer:
        done = learnable.env_steps
        is_last = done >= settings.n_steps if settings.n_steps else epoch == settings.n_epochs
        yield Epoch(done, metrics, is_last)


class RunLoop:
    """Runs the epochs of one run.

    Args:
        folder: Where everything is written.
        run: The resolved run.
        learnable: Built and, on resume, restored.
        judge: How it is evaluated.
        loggers: Where metrics go.
        display: What the user sees.
        state: Where the run stands.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.
        wall_s: Seconds the run had taken before it was interrupted.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunConfig,
        learnable: Learnable,
        *,
        judge: Judge,
        loggers: LoggerGroup,
        display: Display,
        state: RunState,
        should_stop: Callable[[], bool],
        wall_s: float = 0.0,
    ) -> None:
        self.folder, self.run, self.learnable = folder, run, learnable
        self.judge, self.loggers, self.display, self.state = judge, loggers, display, state
        self.baselines: dict[str, Any] = {}
        self._should_stop = should_stop
        self._begun = time.perf_counter() - wall_s
        self._num_ticked = 0
        self._speeds: list[tuple[int, float]] = []
        self._updates_before = learnable.grad_step - state.partial.num_steps

    @property
    def wall_s(self) -> float:
        """Seconds so far, those before an interruption included."""
        return time.perf_counter() - self._begun

    @property
    def steps_per_s(self) -> float:
        """Trained steps over the time in the training loop, without evaluations and first epoch."""
        measured = self._speeds[1:] or self._speeds
        return sum(n for n, _ in measured) / max(sum(s for _, s in measured), 1e-9)

    def advance(self, count: int) -> None:
        """Counts trained steps and shows them."""
        self._num_ticked += count
        self.display.advance(count)

    def tick(self, count: int = 0) -> None:
        """Counts trained steps, and ends training where that was asked for.

        Raises:
            StopRequested: If it was.
        """
        if count:
            self.advance(count)
        if self._should_stop():
            raise StopRequested

    def go(self, epochs: Generator[Epoch], *, num_epochs: int | None, unit: str) -> bool:
        """Trains to the end.

        Returns:
            Whether the run is finished; ``False`` if it was asked to stop, with a checkpoint saved.
        """
        try:
            end_start()
            self.begin()
            if self.state.ended is not None:  # the interruption came before its row
                self.end_epoch(self.state.ended, num_epochs, unit)
            while not self.state.is_over:
                epoch = self._next(epochs)
                if epoch is None:
                    break
                self.end_epoch(epoch, num_epochs, unit)
                self.tick()
            self.finish()
        except StopRequested:
            self.save_last()
            return False
        finally:
            epochs.close()
        return True

    def begin(self) -> None:
        """Does what comes before the first epoch."""
        (self.folder.path / CHECKPOINTS).mkdir(exist_ok=True)
        if self.run.evaluation.at_start and self.state.step == 0 and not self.state.best:
            self._start_row()

    def finish(self) -> None:
        """Does what comes after the last epoch."""
        self.baselines = self.judge.baselines(self.run, self.learnable, self.tick)

    def count_speed(self, n_steps: int, seconds: float) -> None:
        """Notes in how many seconds the steps of an epoch were trained."""
        self._speeds.append((n_steps, seconds))

    def _next(self, epochs: Generator[Epoch]) -> Epoch | None:
        before, begun = self._num_ticked, time.perf_counter()
        epoch = next(epochs, None)
        if epoch is not None:
            metrics = {name: float(value) for name, value in epoch.metrics.items()}
            self.state.ended = Epoch(epoch.step, metrics, epoch.is_last)
        if epoch is not None and self._num_ticked > before:
            self.count_speed(self._num_ticked - before, time.perf_counter() - begun)
        return epoch

    def _start_row(self) -> None:
        row = self._evaluated(self.state.step)
        if row:
            self.loggers.metrics(self.state.step, {"wall_s": self.wall_s, **row})
            self._save_epoch(is_last=False)

    def end_epoch(self, epoch: Epoch, num_epochs: int | None, unit: str) -> None:
        """Evaluates, writes the row and saves.

        Raises:
            NonFiniteError: If a loss or a weight is not finite; nothing is written then, so that
                the last checkpoint is a good one.
        """
        done = self.learnable.grad_step
        require_finite(
            self.learnable,
            epoch.metrics,
            done - self._updates_before,
            after=self._last_good(),
        )
        self._updates_before = done
        number = self.state.epoch + 1
        row = {_grouped(name): value for name, value in epoch.metrics.items()}
        if self._speeds:
            count, seconds = self._speeds[-1]
            row[f"time/{unit}_per_s"] = count / max(seconds, 1e-9)
        result = self._evaluated(epoch.step) if self._is_due(epoch) else {}
        self.loggers.metrics(epoch.step, {"wall_s": self.wall_s, **row, **result})
        self.state.step, self.state.epoch = epoch.step, number
        self.state.partial, self.state.ended = PartialEpoch(), None
        self._save_epoch(is_last=epoch.is_last)
        self.display.epoch(number, num_epochs, {**epoch.metrics, **result})

    def _last_good(self) -> str:
        kept = self.folder.checkpoint_path(self.state.step)
        for path in (kept, self.folder.last):
            if path.exists():
                return f"; the last good checkpoint is {path}"
        return "; no checkpoint was saved before"

    # --- evaluating -----------------------------------------------------------------------------

    def _is_due(self, epoch: Epoch) -> bool:
        every = self.run.evaluation.every
        if epoch.is_last or every is None:
            return epoch.is_last
        return epoch.step // every > self.state.step // every

    def _evaluated(self, step: int) -> Metrics:
        """Evaluates, notes the result in the state, and returns its part of the row."""
        begun = time.perf_counter()
        row: Metrics = {}
        if self.judge.env is not None:
            result = self.judge.evaluate(self.learnable, self.run, self.tick)
            self._note(step, result)
            row = {name: v for name, v in result.to_json().items() if v is not None}
        row |= self.judge.figures(self.learnable)
        self.display.leave_out(time.perf_counter() - begun)
        return {f"evaluation/{name}": float(value) for name, value in row.items()}

    def _note(self, step: int, result: Evaluation) -> None:
        figures = {"step": step, **result.to_json()}
        state = self.state
        state.evaluations.append(figures)
        if state.best is None or result.mean_return >= state.best["mean_return"]:
            state.best, state.num_stale = figures, 0
        else:
            state.num_stale += 1
        patience = self.run.train.patience
        state.is_over = patience is not None and state.num_stale >= patience

    # --- saving ---------------------------------------------------------------------------------

    def _save_epoch(self, *, is_last: bool) -> None:
        """Writes one file and gives it its names; the one that resume reads comes last."""
        state, settings = self.state, self.run.checkpoint
        written = self._write()
        is_kept = state.epoch and (is_last or state.epoch % settings.every_epochs == 0)
        if settings.keep and is_kept:
            self.folder.put(written, self.folder.checkpoint_path(state.step))
        if state.best is not None and state.best["step"] == state.step:
            self.folder.put(written, self.folder.best)
        self._name_last(written)
        self.folder.prune(settings.keep)
        self.loggers.checkpoint(self.folder.last)

    def save_last(self) -> None:
        """Saves what resume reads, wherever the run stands."""
        self._name_last(self._write())
        self.loggers.checkpoint(self.folder.last)

    def _write(self) -> Path:
        path = self.folder.path / ".next.tmp"
        save(self.learnable, path, run_state=self.state.to_json())
        return path

    def _name_last(self, written: Path) -> None:
        try:
            written.replace(self.folder.last)
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{self.folder.last}: could not be written: {reason}") from error
        sync_folder(self.folder.path)


def _grouped(name: str) -> str:
    """Puts a metric into a group: ``loss/critic_loss``, ``train/entropy``."""
    if "/" in name:
        return name
    return f"loss/{name}" if name.endswith("loss") else f"train/{name}"
