"""One run in its folder: from getting ready to the summary."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlreg.errors import EnvironmentSpecError, LearnerError, RlregError, RunError, VersionWarning
from rlreg.run_config import RunConfig
from rlreg.run_defaults import DEFAULT_DATASET
from rlreg.runtime.checkpoint import Checkpoint, config_of
from rlreg.runtime.data.dataset import TransitionDataset
from rlreg.runtime.data.load import load_dataset
from rlreg.runtime.environments import EnvLike, env_name, looked_at
from rlreg.runtime.evaluation import Evaluation, evaluate_behaviour, references_of
from rlreg.runtime.evaluators import make_evaluators
from rlreg.runtime.judging import Judge
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.lock import differences, lock_from_json, lock_of, unlocked
from rlreg.runtime.logging import LoggerGroup, RunInfo, damage_of, drop_rows_after
from rlreg.runtime.loop import Epoch, RunLoop, RunState, offline_epochs, online_epochs
from rlreg.runtime.offline import OfflineLearnable
from rlreg.runtime.online import OnlineLearnable
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import RunFolder

Status = Literal["finished", "interrupted", "already finished"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave.

    Attributes:
        folder: The run folder.
        status: ``interrupted`` runs go on with :func:`resume`.
        summary: The content of ``summary.json``; of an interrupted run what is known so far.
        learnable: As it is at the end; ``None`` if nothing had to be done.
    """

    folder: Path
    status: Status
    summary: dict[str, Any]
    learnable: Any = None


class Session:
    """A run from its folder to its summary.

    Args:
        folder: Where everything is written.
        run: The resolved run.
        learnable: Not built yet.
        show_progress: Whether to show anything.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.
        peer: Another session of the same run whose data set this one uses.
        is_stacked: Whether the updates are done outside, for several sessions at once.

    Attributes:
        source: The data set as it was loaded, of an offline run.
        dataset: The same, on the device.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunConfig,
        learnable: Learnable,
        show_progress: bool,
        should_stop: Callable[[], bool],
        *,
        peer: Session | None = None,
        is_stacked: bool = False,
    ) -> None:
        self.folder, self.run, self.learnable = folder, run, learnable
        self.should_stop = should_stop
        self.show_progress = show_progress
        self.source: TransitionDataset | None = None if peer is None else peer.source
        self.dataset: TransitionDataset | None = None if peer is None else peer.dataset
        self._is_stacked = is_stacked
        self._display: Display | None = None

    def start(self) -> RunResult:
        """Trains from the beginning."""
        with contextlib.closing(self):
            loop = self.begun()
            try:
                return self._train(loop)
            except Exception as error:
                is_fault = isinstance(error, LearnerError) or not isinstance(error, RlregError)
                if is_fault and not self.folder.last.exists():
                    self.folder.discard()  # code has to be mended: nothing here can go on
                raise

    def go_on(self, checkpoint: Checkpoint | None, *, strict_lock: bool = False) -> RunResult:
        """Trains from a checkpoint, or from the beginning if there is none."""
        with contextlib.closing(self):
            return self._train(self.gone_on(checkpoint, strict_lock=strict_lock))

    def begun(self) -> RunLoop:
        """Makes ready to train from the beginning."""
        try:
            return self._prepared(self._show(), RunState(), None, 0.0)
        except Exception:
            self.folder.discard()  # nothing was trained: --out can be used again
            raise

    def gone_on(self, checkpoint: Checkpoint | None, *, strict_lock: bool = False) -> RunLoop:
        """Makes ready to train from a checkpoint, or from the beginning if there is none."""
        changes = self._changes()
        if changes and strict_lock:
            raise RunError(
                f"{self.folder.path}: {'; '.join(changes)}; install what it began with, or go on "
                "without a strict lock"
            )
        state = RunState()
        if checkpoint is not None:
            self._check_same(checkpoint)
            state = RunState.from_json(checkpoint.run_state)
        self.folder.drop_after(state.step)
        if damage := damage_of(self.folder.metrics):
            changes.append(damage)
        rows = drop_rows_after(self.folder.metrics, state.step if checkpoint else -1)
        wall_s = float(rows[-1].get("wall_s") or 0.0) if rows else 0.0
        display = self._show()
        for change in changes:
            display.note(f"warning: {self.folder.path}: {change}")
        return self._prepared(display, state, checkpoint, wall_s)

    def close(self) -> None:
        """Takes the progress bar away."""
        if self._display is not None:
            self._display.close()

    def _show(self) -> Display:
        settings, figures = self.run.train, {}
        if isinstance(self.learnable, OnlineLearnable):
            figures = dict(self.learnable.live_metrics)
        by_updates = self._shown_unit == "updates"
        length = (settings.n_epochs or 0) * (settings.epoch_length or 0)
        self._display = Display(
            settings.n_steps or length,
            unit=self._shown_unit,
            counts_calls=self._is_online and by_updates,
            is_shown=self.show_progress,
            figures=figures,
        )
        return self._display

    @property
    def _shown_unit(self) -> str:
        """What the bar counts."""
        by_updates = not self._is_online or self.run.train.n_steps is None
        return "updates" if by_updates else "transitions"

    def _num_done(self) -> int:
        """Steps done, in the unit that is shown."""
        if not isinstance(self.learnable, OnlineLearnable):
            return self.learnable.grad_step
        if self.run.train.n_steps is not None:
            return self.learnable.env_steps
        length = self.run.train.epoch_length or 0
        return self.learnable.epoch * length + self.learnable.epoch_updates

    @property
    def _is_online(self) -> bool:
        return isinstance(self.learnable, OnlineLearnable)

    def _check_same(self, checkpoint: Checkpoint) -> None:
        with warnings.catch_warnings():
            # The lock of the run has said it already.
            warnings.simplefilter("ignore", VersionWarning)
            config = config_of(checkpoint.header, checkpoint.path)
        if config != self.run.learnable:
            raise RunError(
                f"{self.folder.path}: the learnable in run.yaml is not the one in "
                f"{checkpoint.path}; a run goes on as it began"
            )

    def _changes(self) -> list[str]:
        lock = self.folder.read_lock()
        then, now = lock_from_json(lock) if lock else [], lock_of(self.run)
        return differences(then, now) or unlocked(then, now)

    # --- getting ready --------------------------------------------------------------------------

    def _prepared(
        self, display: Display, state: RunState, checkpoint: Checkpoint | None, wall_s: float
    ) -> RunLoop:
        """Does everything that can fail before the first update."""
        display.note(f"{self.run.learnable.get_type()} on {self.learnable.device_report}")
        if checkpoint is not None:
            checkpoint.restore(self.learnable)
            if checkpoint.path != self.folder.last:
                display.note(f"{self.folder.last} is gone: {checkpoint.path} is the newest intact")
            display.start_from(self._num_done())
            display.note(
                f"goes on from {self._num_done():,} {self._shown_unit} of {self.folder.path}"
            )
        judge = self._judge_offline(display) if not self._is_online else self._judge_online()
        if not self._is_online and self.learnable.total_steps != self.run.train.n_steps:
            assert self.run.train.n_steps is not None
            self.learnable.set_total_steps(self.run.train.n_steps)
        if not self._is_stacked:
            self._settle_compile(display)
        loggers = LoggerGroup.of(self.run.logging, display.note)
        loggers.start(RunInfo(self.folder.path, self.run, state.step))
        return RunLoop(
            self.folder,
            self.run,
            self.learnable,
            judge=judge,
            loggers=loggers,
            display=display,
            state=state,
            should_stop=self.should_stop,
            wall_s=wall_s,
        )

    def _settle_compile(self, display: Display) -> None:
        """Decides whether updates are compiled and writes it down: a resumed run does the same."""
        if not isinstance(self.learnable, OfflineLearnable):
            return
        assert self.dataset is not None
        assert self.run.train.n_steps is not None
        reason = self.learnable.settle_compile(self.dataset, self.run.train.n_steps)
        if not reason:
            if self.run.compile == "on":
                tag = self.run.learnable.get_type()
                display.note(f"compile: off, because {tag!r} has no compiled updates")
            return
        mode = "on" if self.learnable.is_compiled else "off"
        display.note(f"compile: {mode}, because {reason}")
        if self.run.compile == "auto":
            self.run = self.run.model_copy(update={"compile": mode})
            self.folder.rewrite_run(self.run, compile=reason)

    def _judge_offline(self, display: Display) -> Judge:
        assert self.run.dataset is not None
        assert isinstance(self.learnable, OfflineLearnable)
        dataset = self.source
        if dataset is None:
            dataset = load_dataset(
                self.run.dataset, generate=str(self.run.dataset) == DEFAULT_DATASET
            )
        display.note(f"{dataset!r}\n{dataset.laws}")
        self.learnable.build_with_dataset(dataset)
        env: EnvLike | None = self.run.evaluation.env
        if self.run.evaluation.env == "auto":
            env = dataset.info.eval_env_spec or dataset.info.env_spec
            if env is None:
                display.note(
                    f"{dataset.info.name} names no environment, so nothing is evaluated; "
                    "evaluation.env says where"
                )
        self._check_env(env)
        references = references_of(dataset)
        if references is None and env is not None:
            display.note(f"no reference returns of {dataset.info.name} are known: no scores")
        behaviour: Evaluation | None = evaluate_behaviour(dataset, references=references)
        if behaviour is not None and not math.isfinite(behaviour.mean_return):
            display.note(
                f"the returns in {dataset.info.name} are not finite: no behaviour baseline"
            )
            behaviour = None
        evaluators = make_evaluators(self.run.evaluation.evaluators, self.learnable)
        self.source = dataset
        if self.dataset is None:
            self.dataset = dataset.to(self.learnable.device)
        return Judge(env, references, behaviour, self.dataset, evaluators)

    def _judge_online(self) -> Judge:
        env: EnvLike | None = self.run.evaluation.env
        env = self.run.env if self.run.evaluation.env == "auto" else env
        assert self.run.env is not None
        with looked_at(self.run.env) as made:
            self.learnable.build_with_env(made)
        self._check_env(env)
        return Judge(env, None)

    def _check_env(self, env: EnvLike | None) -> None:
        if env is None:
            return
        try:
            with looked_at(env) as made:
                self.learnable.check_spaces(made.observation_space, made.action_space)
        except EnvironmentSpecError as error:
            raise EnvironmentSpecError(
                f"evaluation in {env_name(env)!r}: {error}; evaluation.env names another one, or "
                "null for none"
            ) from error

    # --- training -------------------------------------------------------------------------------

    def _train(self, loop: RunLoop) -> RunResult:
        try:
            is_finished = loop.go(self._epochs(loop), num_epochs=self.num_epochs, unit=self._unit)
        except BaseException:
            loop.loggers.end({})
            raise
        return self.ended(loop, is_finished=is_finished)

    @property
    def _unit(self) -> str:
        return "env_steps" if self._is_online else "updates"

    def ended(self, loop: RunLoop, *, is_finished: bool) -> RunResult:
        """Writes the summary of a run that has finished, and lets go of its loggers."""
        summary: dict[str, Any] = {}
        try:
            summary = self._summary(loop, self._unit)
            if is_finished:
                self.folder.write_summary(summary)
        finally:
            loop.loggers.end(summary)
        status: Status = "finished" if is_finished else "interrupted"
        return RunResult(self.folder.path, status, summary, self.learnable)

    @property
    def num_epochs(self) -> int | None:
        """Epochs of the whole run, if its settings say."""
        settings = self.run.train
        if self._is_online or settings.n_steps is None:
            return settings.n_epochs
        return -(-settings.n_steps // settings.n_steps_per_epoch)

    def _epochs(self, loop: RunLoop) -> Generator[Epoch]:
        if isinstance(self.learnable, OnlineLearnable):
            return online_epochs(self.learnable, self.run, loop.state, loop.tick)
        assert isinstance(self.learnable, OfflineLearnable)
        assert self.dataset is not None
        return offline_epochs(self.learnable, self.dataset, self.run, loop.state, loop.tick)

    def _summary(self, loop: RunLoop, unit: str) -> dict[str, Any]:
        state, references = loop.state, loop.judge.references
        return {
            "learnable": self.run.learnable.get_type(),
            "seed": self.run.seed,
            "steps": state.step,
            "wall_s": loop.wall_s,
            f"{unit}_per_s": loop.steps_per_s,
            "evaluations": state.evaluations,
            "best": state.best,
            "final": state.evaluations[-1] if state.evaluations else None,
            "baselines": loop.baselines,
            # What scores are relative to; without behaviour, which is one of the baselines.
            "references": references
            and {"min": references.ref_min, "max": references.ref_max, "from": references.source},
            "restarts": int(getattr(self.learnable, "num_restarts", 0)),
        }
