"""``train(run)`` and ``resume(folder)``: what the command line calls, and notebooks too."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlreg.config import LearnableConfig
from rlreg.creation import create
from rlreg.errors import (
    EnvironmentSpecError,
    RlregError,
    RunError,
    VersionWarning,
)
from rlreg.files import load_run
from rlreg.run_config import RunConfig
from rlreg.runtime.checkpoint import Checkpoint, config_of, read_checkpoint
from rlreg.runtime.data.dataset import References, TransitionDataset
from rlreg.runtime.data.load import load_dataset, locate
from rlreg.runtime.environments import EnvLike, env_name, make_env
from rlreg.runtime.evaluation import evaluate_behaviour, references_of
from rlreg.runtime.evaluators import make_evaluators
from rlreg.runtime.judging import Judge
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.lock import differences, lock_from_json, lock_of
from rlreg.runtime.logging import LoggerGroup, RunInfo, drop_rows_after
from rlreg.runtime.loop import Epoch, RunLoop, RunState, offline_epochs, online_epochs
from rlreg.runtime.offline import OfflineLearnable
from rlreg.runtime.online import OnlineLearnable
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import RunFolder, default_folder, require_empty
from rlreg.runtime.settling import DEFAULT_DATASET
from rlreg.runtime.settling import settle_run as settle_run

RunLike = RunConfig | LearnableConfig | Mapping[str, Any] | str | os.PathLike[str]
Status = Literal["finished", "interrupted", "already finished"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave.

    Attributes:
        folder: The run folder.
        status: ``interrupted`` runs go on with :func:`resume`.
        summary: The content of ``summary.json``; of an interrupted run what is known so far.
        learnable: As it is at the end; ``None`` if nothing had to be done.
        references: What its scores are relative to, if anything is.
    """

    folder: Path
    status: Status
    summary: dict[str, Any]
    learnable: Any = None
    references: References | None = None


def train(
    run: RunLike,
    *,
    out: str | os.PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    preset: str | None = None,
    seeds: int = 1,
    show_progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Trains a learnable and writes a run folder.

    Args:
        run: A run, a learnable's config, a mapping of either, a file, or the id of a learnable.
        out: The run folder, new or empty; ``runs/<name>/<UTC time>-s<seed>`` by default.
        overrides: ``"key.path=value"``, applied last.
        preset: Settings applied beneath the run.
        seeds: How many runs, with seeds from ``run.seed`` on, side by side on the cores.
        show_progress: Whether to show a bar or lines on stderr.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.

    Raises:
        ConfigError: With everything that is wrong with the run.
        MissingDatasetError: If the data set is not on this machine.
        EnvironmentSpecError: If the environment cannot be made or does not fit the data.
        DeviceUnavailableError: If this machine has no such device.
        RunError: If ``out`` is not empty.
    """
    source = run if isinstance(run, RunConfig | LearnableConfig | Mapping | str) else Path(run)
    settled = settle_run(load_run(source, overrides=overrides, preset=preset))
    path = Path(out) if out is not None else default_folder(str(settled.name), settled.seed)
    require_empty(path)
    learnable = make_learnable(settled)
    _find_what_is_named(settled)
    if seeds > 1:
        from rlreg.runtime.seeds import train_seeds

        return train_seeds(settled, path, seeds, show_progress, should_stop)
    folder = RunFolder.create(path, settled)
    with folder.held():
        return _Session(folder, settled, learnable, show_progress, should_stop).start()


def resume(
    folder: str | os.PathLike[str],
    *,
    strict_lock: bool = False,
    show_progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Goes on with a run from its last checkpoint; without one it starts from the beginning.

    Args:
        folder: A run folder.
        strict_lock: Refuse code of another version than the run began with, instead of warning.
        show_progress: Whether to show a bar or lines on stderr.
        should_stop: Asked every few updates; ``True`` ends training with a checkpoint.

    Raises:
        RunError: If the folder is no run folder, or a process is running in it.
        CheckpointError: If the checkpoint is damaged or was made by something not installed.
    """
    path = Path(folder)
    from rlreg.runtime.seeds import is_seeds_folder, resume_seeds

    if is_seeds_folder(path):
        return resume_seeds(path, show_progress, should_stop, strict_lock=strict_lock)
    opened = RunFolder.open(path)
    opened.require_begun()
    summary = opened.read_summary()
    if summary is not None:
        return RunResult(path, "already finished", summary)
    with opened.held():
        run = settle_run(opened.read_run())
        checkpoint = read_checkpoint(opened.last) if opened.last.exists() else None
        session = _Session(opened, run, make_learnable(run), show_progress, should_stop)
        return session.go_on(checkpoint, strict_lock=strict_lock)


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
    if run.dataset is not None and run.dataset != DEFAULT_DATASET:
        locate(run.dataset)
    for env in (run.env, run.evaluation.env):
        if env not in (None, "auto"):
            make_env(env).close()


# --- one run in its folder ----------------------------------------------------------------------


class _Session:
    """A run from its folder to its summary."""

    def __init__(
        self,
        folder: RunFolder,
        run: RunConfig,
        learnable: Learnable,
        show_progress: bool,
        should_stop: Callable[[], bool],
    ) -> None:
        self.folder, self.run, self.learnable = folder, run, learnable
        self.should_stop = should_stop
        self.show_progress = show_progress
        self.dataset: TransitionDataset | None = None

    def start(self) -> RunResult:
        """Trains from the beginning."""
        with self._display(0) as display:
            try:
                loop = self._prepared(display, RunState(), None, 0.0)
            except RlregError:
                self.folder.discard()  # nothing was trained: --out can be used again
                raise
            return self._train(loop)

    def go_on(self, checkpoint: Checkpoint | None, *, strict_lock: bool = False) -> RunResult:
        """Trains from a checkpoint, or from the beginning if there is none."""
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
        rows = drop_rows_after(self.folder.metrics, state.step if checkpoint else -1)
        wall_s = float(rows[-1].get("wall_s") or 0.0) if rows else 0.0
        with self._display(state.step + state.partial.num_steps) as display:
            for change in changes:
                display.note(f"warning: {self.folder.path}: {change}")
            return self._train(self._prepared(display, state, checkpoint, wall_s))

    @contextlib.contextmanager
    def _display(self, done: int) -> Iterator[Display]:
        train_settings = self.run.train
        length = (train_settings.n_epochs or 0) * (train_settings.epoch_length or 0)
        total = train_settings.n_steps or length
        unit = "transitions" if self._is_online else "updates"
        display = Display(total, done=done, unit=unit, is_shown=self.show_progress)
        try:
            yield display
        finally:
            display.close()

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
        return differences(lock_from_json(lock), lock_of(self.run)) if lock else []

    # --- getting ready --------------------------------------------------------------------------

    def _prepared(
        self, display: Display, state: RunState, checkpoint: Checkpoint | None, wall_s: float
    ) -> RunLoop:
        """Does everything that can fail before the first update."""
        display.note(f"{self.run.learnable.get_type()} on {self.learnable.device_report}")
        if checkpoint is not None:
            checkpoint.restore(self.learnable)
            display.note(f"goes on from step {self.learnable.grad_step:,} of {self.folder.path}")
        judge = self._judge_offline(display) if not self._is_online else self._judge_online()
        if not self._is_online and self.learnable.total_steps != self.run.train.n_steps:
            assert self.run.train.n_steps is not None
            self.learnable.set_total_steps(self.run.train.n_steps)
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
            return
        mode = "on" if self.learnable.is_compiled else "off"
        display.note(f"compile: {mode}, because {reason}")
        if self.run.compile == "auto":
            self.run = self.run.model_copy(update={"compile": mode})
            self.folder.rewrite_run(self.run, compile=reason)

    def _judge_offline(self, display: Display) -> Judge:
        assert self.run.dataset is not None
        assert isinstance(self.learnable, OfflineLearnable)
        dataset = load_dataset(self.run.dataset, generate=self.run.dataset == DEFAULT_DATASET)
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
        behaviour = evaluate_behaviour(dataset, references=references)
        evaluators = make_evaluators(self.run.evaluation.evaluators, self.learnable)
        self.dataset = dataset.to(self.learnable.device)
        return Judge(env, references, behaviour, self.dataset, evaluators)

    def _judge_online(self) -> Judge:
        env: EnvLike | None = self.run.evaluation.env
        env = self.run.env if self.run.evaluation.env == "auto" else env
        assert self.run.env is not None
        with contextlib.closing(make_env(self.run.env)) as made:
            self.learnable.build_with_env(made)
        self._check_env(env)
        return Judge(env, None)

    def _check_env(self, env: EnvLike | None) -> None:
        if env is None:
            return
        try:
            with contextlib.closing(make_env(env)) as made:
                self.learnable.check_spaces(made.observation_space, made.action_space)
        except EnvironmentSpecError as error:
            raise EnvironmentSpecError(
                f"evaluation in {env_name(env)!r}: {error}; evaluation.env names another one, or "
                "null for none"
            ) from error

    # --- training -------------------------------------------------------------------------------

    def _train(self, loop: RunLoop) -> RunResult:
        unit = "env_steps" if self._is_online else "updates"
        summary: dict[str, Any] = {}
        try:
            is_finished = loop.go(self._epochs(loop), num_epochs=self._num_epochs, unit=unit)
            summary = self._summary(loop, unit)
            if is_finished:
                self.folder.write_summary(summary)
        finally:
            loop.loggers.end(summary)
        status: Status = "finished" if is_finished else "interrupted"
        return RunResult(self.folder.path, status, summary, self.learnable, loop.judge.references)

    @property
    def _num_epochs(self) -> int | None:
        settings = self.run.train
        if self._is_online or settings.n_steps is None:
            return settings.n_epochs
        return -(-settings.n_steps // settings.n_steps_per_epoch)

    def _epochs(self, loop: RunLoop) -> Generator[Epoch]:
        if isinstance(self.learnable, OnlineLearnable):
            return online_epochs(self.learnable, self.run, loop.tick)
        assert isinstance(self.learnable, OfflineLearnable)
        assert self.dataset is not None
        return offline_epochs(self.learnable, self.dataset, self.run, loop.state, loop.tick)

    def _summary(self, loop: RunLoop, unit: str) -> dict[str, Any]:
        state = loop.state
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
            "restarts": int(getattr(self.learnable, "num_restarts", 0)),
        }
