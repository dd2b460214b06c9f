"""The same run with several seeds as one computation, each in a run folder of its own.

Every seed has the session, the loop and the files that it has by itself; only the updates are done
together, by what the learnable's `stacked_with` returns. Seeds that stand at different points (one
was saved later than another when the process was killed) catch up first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlreg.documents import RUN_FILE
from rlreg.errors import NonFiniteError, RunError
from rlreg.run_config import RunConfig
from rlreg.run_defaults import DEFAULT_DATASET
from rlreg.runtime.data.dataset import TransitionDataset
from rlreg.runtime.data.load import load_dataset
from rlreg.runtime.loop import Epoch, RunLoop, StopRequested
from rlreg.runtime.offline import CHUNK, OfflineLearnable
from rlreg.runtime.runs import RunFolder
from rlreg.runtime.session import Session
from rlreg.runtime.stacking import NotStackedError, StackedUpdates
from rlreg.runtime.train import last_checkpoint, make_learnable

_UNIT = "updates"


def check_stackable(run: RunConfig) -> None:
    """Tries whether the seeds of a run can be trained as one computation.

    Raises:
        NotStackedError: If not; the message says why.
    """
    if run.learnable.regime != "offline" or run.dataset is None:
        raise NotStackedError("only runs on a data set are stacked")
    if run.compile == "on":
        raise NotStackedError("the run asks for compiled updates")
    members = [_member(run, seed) for seed in (run.seed, run.seed + 1)]
    with contextlib.closing(load_dataset(run.dataset, generate=_is_default(run))) as dataset:
        for member in members:
            member.build_with_dataset(dataset)
            assert run.train.n_steps is not None
            member.set_total_steps(run.train.n_steps)
        members[0].stacked_with(members[1:], dataset)


def _is_default(run: RunConfig) -> bool:
    return str(run.dataset) == DEFAULT_DATASET


def _one(run: RunConfig, seed: int) -> RunConfig:
    # A stacked update is not compiled, and a seed that goes on by itself shall round alike.
    return run.model_copy(update={"seed": seed, "compile": "off"})


def _member(run: RunConfig, seed: int) -> OfflineLearnable:
    learnable = make_learnable(_one(run, seed))
    assert isinstance(learnable, OfflineLearnable)
    return learnable


def train_stacked(
    run: RunConfig,
    folders: Mapping[int, Path],
    *,
    show_progress: bool,
    should_stop: Callable[[], bool],
) -> bool:
    """Trains seeds together, or goes on with them.

    Args:
        run: The resolved run.
        folders: Run folders of the seeds that are not finished, new or begun.
        show_progress: Whether to show how the first of them comes along.
        should_stop: Asked every few updates; ``True`` ends training with checkpoints.

    Returns:
        Whether all are finished.

    Raises:
        NotStackedError: If these learnables cannot be trained together.
        RunError: If a seed met NaN or inf; the others are saved.
    """
    with contextlib.ExitStack() as stack:
        sessions: list[Session] = []
        loops: list[RunLoop] = []
        for seed, path in folders.items():
            is_new = not (path / RUN_FILE).is_file()
            one = _one(run, seed)
            folder = RunFolder.create(path, one) if is_new else RunFolder.open(path)
            stack.enter_context(folder.held())
            session = Session(
                folder,
                one,
                _member(run, seed),
                show_progress and not sessions,
                should_stop,
                peer=sessions[0] if sessions else None,
                is_stacked=True,
            )
            stack.callback(session.close)
            if is_new:
                loops.append(session.begun())
            else:
                loops.append(session.gone_on(last_checkpoint(folder)))
            sessions.append(session)
        return _Crew(sessions, loops).go()


class _Crew:
    """The loops of all seeds, taking turns.

    Args:
        sessions: Of the seeds, ready.
        loops: Theirs.
    """

    def __init__(self, sessions: Sequence[Session], loops: Sequence[RunLoop]) -> None:
        self._sessions, self._loops = list(sessions), list(loops)
        dataset = sessions[0].dataset
        assert dataset is not None
        self._dataset: TransitionDataset = dataset
        self._stacks: dict[tuple[int, ...], StackedUpdates] = {}

    def go(self) -> bool:
        """Trains to the end; ``False`` if it was asked to stop, with checkpoints saved."""
        is_finished = False
        try:
            for loop in self._loops:
                loop.begin()
            while group := self._next_group():
                self._train_epoch(group)
            for loop in self._loops:
                loop.finish()
            is_finished = True
        except StopRequested:
            for loop in self._loops:
                loop.save_last()
        except BaseException:
            for loop in self._loops:
                loop.loggers.end({})
            raise
        for session, loop in zip(self._sessions, self._loops, strict=True):
            session.ended(loop, is_finished=is_finished)
        return is_finished

    def _next_group(self) -> list[RunLoop]:
        """Returns the seeds that are least far, among them those in the same place."""
        waiting = [loop for loop in self._loops if self._is_training(loop)]
        if not waiting:
            return []
        least = min(_place(loop) for loop in waiting)
        return [loop for loop in waiting if _place(loop) == least]

    def _is_training(self, loop: RunLoop) -> bool:
        if loop.state.is_over:
            return False
        return bool(_learnable(loop).grad_step < _total(loop) or loop.state.partial.num_steps)

    def _train_epoch(self, group: list[RunLoop]) -> None:
        first = group[0]
        start, before = _place(first)
        done = before
        count = min(first.run.train.n_steps_per_epoch, _total(first) - start)
        begun = time.perf_counter()
        while done < count:
            n_steps = min(CHUNK - done % CHUNK, count - done)
            self._train_chunk(group, n_steps)
            done += n_steps
            for loop in group:
                loop.advance(n_steps)
            first.tick()
        seconds = time.perf_counter() - begun
        for loop in group:
            if count > before:
                loop.count_speed(count - before, seconds)
            step = _learnable(loop).grad_step
            metrics = {name: total / count for name, total in loop.state.partial.totals.items()}
            epoch = Epoch(step, metrics, is_last=step >= _total(loop))
            loop.end_epoch(epoch, self._sessions[0].num_epochs, _UNIT)
        first.tick()

    def _train_chunk(self, group: list[RunLoop], n_steps: int) -> None:
        if len(group) > 1:
            totals = self._stacked(group).run(self._dataset, n_steps)
            if totals is not None:
                for loop, own in zip(group, totals, strict=True):
                    _note(loop, {name: float(value) for name, value in own.items()}, n_steps)
                return
        # One by one: there is but one, or the plain updates have to find out what is not finite.
        for loop in group:
            self._train_alone(loop, n_steps)

    def _stacked(self, group: list[RunLoop]) -> StackedUpdates:
        members = [_learnable(loop) for loop in group]
        key = tuple(id(member) for member in members)
        if key not in self._stacks:
            self._stacks = {key: members[0].stacked_with(members[1:], self._dataset)}
        return self._stacks[key]

    def _train_alone(self, loop: RunLoop, n_steps: int) -> None:
        learnable = _learnable(loop)
        learnable.train_mode(True)
        try:
            with learnable.private_rng():
                totals = learnable.run_updates(self._dataset, n_steps)
        except NonFiniteError as error:
            for other in self._loops:
                if other is not loop:
                    other.save_last()
            raise RunError(
                f"seed {loop.run.seed}: {error}; the other seeds are saved "
                f"({loop.folder.path.parent})"
            ) from error
        _note(loop, {name: float(value) for name, value in totals.items()}, n_steps)


def _learnable(loop: RunLoop) -> OfflineLearnable:
    assert isinstance(loop.learnable, OfflineLearnable)
    return loop.learnable


def _total(loop: RunLoop) -> int:
    assert loop.run.train.n_steps is not None
    return loop.run.train.n_steps


def _place(loop: RunLoop) -> tuple[int, int]:
    """Where the epoch begins that a seed is in, and how far it is in it."""
    done = loop.state.partial.num_steps
    return _learnable(loop).grad_step - done, done


def _note(loop: RunLoop, totals: Mapping[str, float], n_steps: int) -> None:
    partial = loop.state.partial
    for name, total in totals.items():
        partial.totals[name] = partial.totals.get(name, 0.0) + total
    partial.num_steps += n_steps
