"""Learning from an environment: the loop around an author's ``train_iterations``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from rlreg.config import RolloutEngineFactory
from rlreg.errors import ConfigError, EnvironmentSpecError, LearnerError, not_written
from rlreg.run_defaults import EPOCH_LENGTH
from rlreg.runtime.arguments import functions, metrics_logger, named_functions, whole_number
from rlreg.runtime.environments import close_env, env_factory
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.update_results import require_finite

Metrics: TypeAlias = dict[str, float]
Evaluator: TypeAlias = Callable[[Any], float]
"""Called with the learnable at the end of an epoch."""
Callback: TypeAlias = Callable[[Any, int, int], None]
"""Called with the learnable, the epoch and the transitions so far, at the end of an epoch."""
Tick: TypeAlias = Callable[[int], None]
"""Called with the transitions of an update, or 0 while waiting; what it raises ends training."""


@dataclass(slots=True)
class MetricMeans:
    """Means of metrics over updates; a name ending in ``/max`` gives the largest value.

    Attributes:
        totals: Sums so far, or largest values.
        counts: How often each was given.
    """

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of one update."""
        for name, given in metrics.items():
            value, held = float(given), self.totals.get(name)
            if held is None:
                self.totals[name] = value
            else:
                self.totals[name] = max(held, value) if name.endswith("/max") else held + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def result(self) -> Metrics:
        """Returns the means so far."""
        return {
            name: total if name.endswith("/max") else total / self.counts[name]
            for name, total in self.totals.items()
        }

    def clear(self) -> None:
        """Forgets all, for another epoch."""
        self.totals.clear()
        self.counts.clear()


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """What was measured with one kind of environment.

    Attributes:
        name: Which kind.
        rates: Transitions per second of each part, and of all parts together as ``end_to_end``.
        figures: Other numbers; shares are in [0, 1].
        bottleneck: The part that holds the others back, and why.
        knob: What to change about it.
    """

    name: str
    rates: Mapping[str, float]
    figures: Mapping[str, float] = field(default_factory=dict)
    bottleneck: str = ""
    knob: str = ""

    def to_json(self) -> dict[str, Any]:
        """Gives the row as values for JSON."""
        return asdict(self)


class OnlineLearnable(Learnable):
    """A learnable that is trained by acting in an environment.

    An author writes ``build_networks``, ``act`` and::

        def train_iterations(self, env):
            while True:
                ...  # collect, one update
                self.env_steps += transitions_of_this_update
                yield {"loss/policy": loss}

    ``env`` is then a factory: something that makes as many copies of the environment as are needed.
    The generator is closed when training ends, for whatever reason: free what it holds in a
    ``finally``. ``self.engine`` is what the run says about collecting, or ``None``.

    Who waits for environments calls ``self.still_waiting()`` now and then, so that training can be
    stopped meanwhile; who keeps counters in checkpoints (``extra_state``) keeps all three of them.

    Attributes:
        live_metrics: Captions and names of the metrics that a terminal shows while a run trains.
        env_steps: Transitions trained on so far.
        engine: How transitions are collected; ``None`` leaves it to the learnable.
        epoch: Epochs done so far.
        epoch_updates: Updates done of an epoch that was interrupted.
    """

    live_metrics: ClassVar[Mapping[str, str]] = {
        "episode return": "episode/return_mean",
        "evaluation": "evaluation/mean_return",
    }
    env_steps = 0
    epoch = 0
    epoch_updates = 0
    _tick: Tick | None = None
    _means: MetricMeans | None = None
    engine: RolloutEngineFactory | None = None

    def train_iterations(self, env: Callable[[], Any]) -> Iterator[Metrics]:
        """Trains for ever, one update each ``next()``. Written by the author.

        Args:
            env: Makes an environment, or a vector environment, each time it is called.
        """
        raise not_written(self.config.get_type(), self, "train_iterations")

    def plan_run(self, unit: str, amount: int) -> None:
        """Told before training how much is to come. Optional for the author.

        Args:
            unit: ``transitions`` or ``updates``.
            amount: How many from here on.
        """

    def epoch_metrics(self, means: Metrics) -> Metrics:
        """Returns the metrics of an epoch, from the means over its updates.

        Optional for the author: the place for checks, and for what makes sense once an epoch only.
        """
        return means

    def still_waiting(self) -> None:
        """Raises what ends training, if that was asked for; for authors to call while they wait."""
        if self._tick is not None:
            self._tick(0)

    def benchmark(
        self, env: Any, engine: RolloutEngineFactory | None, seconds: float
    ) -> list[BenchmarkRow]:
        """Measures how fast it trains here; what ``rlreg bench`` prints.

        Optional for the author: this one knows only the rate of the whole. Write it to measure the
        parts, to name the one that holds the others back and the setting that changes that.

        Args:
            env: Id, settings, spec or factory; ``None`` leaves the choice to the learnable.
            engine: How transitions are collected.
            seconds: How long to measure, after a warm-up.

        Raises:
            ConfigError: If it needs an environment and none is given.
        """
        if env is None:
            raise ConfigError(f"bench {self.config.get_type()}: say in which environment: --env ID")
        trainer = self.trainer(env, n_epochs=1_000_000, epoch_length=1, engine=engine)
        try:
            next(trainer)
            begun, before = time.perf_counter(), self.env_steps
            while (passed := time.perf_counter() - begun) < seconds:
                next(trainer)
        finally:
            trainer.close()  # type: ignore[attr-defined]  # it is a generator
        return [BenchmarkRow("env", {"end_to_end": (self.env_steps - before) / passed})]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Learnable.load_state_dict`; forgets an epoch that was interrupted here."""
        super().load_state_dict(state)
        self._means = None

    # --- the loop -------------------------------------------------------------------------------

    def train(
        self,
        env: Any,
        *,
        n_steps: int | None = None,
        n_epochs: int | None = None,
        epoch_length: int | None = None,
        engine: RolloutEngineFactory | Mapping[str, Any] | None = None,
        evaluators: Mapping[str, Evaluator] | None = None,
        callbacks: Sequence[Callback] = (),
        logger: Any = None,
    ) -> list[tuple[int, Metrics]]:
        """Trains in an environment; see :meth:`trainer`.

        Returns:
            Epoch (from 1) and mean metrics of each epoch.

        Raises:
            NonFiniteError: If a loss of an epoch, or a weight at its end, is not finite.
        """
        trainer = self.trainer(
            env,
            n_steps=n_steps,
            n_epochs=n_epochs,
            epoch_length=epoch_length,
            engine=engine,
            evaluators=evaluators,
            callbacks=callbacks,
            logger=logger,
        )
        found, before = [], self.grad_step
        for epoch, metrics in trainer:
            require_finite(self, metrics, self.grad_step - before)
            found.append((epoch, metrics))
            before = self.grad_step
        return found

    def trainer(
        self,
        env: Any,
        *,
        n_steps: int | None = None,
        n_epochs: int | None = None,
        epoch_length: int | None = None,
        engine: RolloutEngineFactory | Mapping[str, Any] | None = None,
        evaluators: Mapping[str, Evaluator] | None = None,
        callbacks: Sequence[Callback] = (),
        logger: Any = None,
        tick: Tick | None = None,
        partial: MetricMeans | None = None,
    ) -> Iterator[tuple[int, Metrics]]:
        """Trains epoch by epoch: each ``next()`` runs one and gives ``(epoch, metrics)``.

        Between two epochs the learnable can be evaluated and saved. Close the iterator to stop
        early: actors are ended then.

        Args:
            env: Id, settings, spec or factory. An environment is taken for its spec: training needs
                copies.
            n_steps: Transitions to train on, from here; the last update may exceed it.
            n_epochs: Or epochs, of ``epoch_length`` updates each.
            epoch_length: Updates of an epoch; 25 unless given.
            engine: How transitions are collected; the learnable chooses if none is given.
            evaluators: Called with the learnable after each epoch.
            callbacks: Called with the learnable, epoch and transitions so far after each epoch.
            logger: Anything with ``metrics(step, dict)``; nothing is written without one.
            tick: Called after each update and while waiting; what it raises ends training at a
                point from which it can go on. An epoch that is complete then is given out first.
            partial: Metrics of an epoch that was interrupted and is finished first; kept up to
                date, so that it can be saved at any tick.

        Raises:
            ConfigError: If not exactly one of ``n_steps`` and ``n_epochs`` is given, or another
                argument is none of its kind.
            EnvironmentSpecError: If the environment cannot be made or has other spaces.
        """
        length = EPOCH_LENGTH if epoch_length is None else epoch_length
        _check_lengths(n_steps, n_epochs, length)
        judges = named_functions("evaluators", evaluators)
        called, logger = functions("callbacks", callbacks), metrics_logger("logger", logger)
        factory = training_env_factory(env)
        self.build_with_factory(factory)
        self.engine = _engine_of(engine)
        self._tick = tick
        if partial is not None or self._means is None:
            self._means = MetricMeans() if partial is None else partial
        if n_steps is not None:
            self.plan_run("transitions", n_steps)
        elif n_epochs is not None:
            self.plan_run("updates", n_epochs * length)
        return self._epochs(factory, n_steps, n_epochs, length, judges, called, logger)

    def build_with_factory(self, factory: Callable[[], Any]) -> None:
        """Builds for the spaces of what a factory makes, and closes that again."""
        env = factory()
        try:
            self.build_with_env(env)
        finally:
            close_env(env)

    def _stopped(self, count: int) -> Exception | None:
        """Counts the transitions of an update; returns what shall end training, if anything."""
        try:
            if self._tick is not None:
                self._tick(count)
        except Exception as error:  # noqa: BLE001 - whoever asks for the end chooses how
            return error
        return None

    def _epochs(
        self,
        factory: Callable[[], Any],
        n_steps: int | None,
        n_epochs: int | None,
        length: int,
        evaluators: Mapping[str, Evaluator],
        callbacks: Sequence[Callback],
        logger: Any,
    ) -> Iterator[tuple[int, Metrics]]:
        last_step = None if n_steps is None else self.env_steps + n_steps
        last_epoch = None if n_epochs is None else self.epoch + n_epochs
        means, stopped = self._means, None
        assert means is not None
        iterations = self.train_iterations(factory)
        try:
            while not _reached(self.env_steps, last_step) and not _reached(self.epoch, last_epoch):
                is_whole = False
                begun = None if self.epoch_updates else self.env_steps
                while not is_whole:
                    before = self.env_steps
                    means.add(next(iterations))
                    self.epoch_updates += 1
                    is_whole = self.epoch_updates >= length or _reached(self.env_steps, last_step)
                    stopped = self._stopped(self.env_steps - before)
                    if stopped is not None and not is_whole:
                        raise stopped
                if last_step is not None and self.env_steps == begun:
                    own = f"{type(self).__name__}.train_iterations"
                    raise LearnerError(f"{own}: {length:,} updates left env_steps at {begun:,}")
                self.epoch, self.epoch_updates = self.epoch + 1, 0
                metrics = self.epoch_metrics(means.result())
                means.clear()
                for name, evaluator in evaluators.items():
                    metrics[name] = float(evaluator(self))
                for callback in callbacks:
                    callback(self, self.epoch, self.env_steps)
                if logger is not None:
                    logger.metrics(self.env_steps, metrics)
                yield self.epoch, metrics
                if stopped is not None:
                    raise stopped
        finally:
            close = getattr(iterations, "close", None)
            if close is not None:
                close()


def training_env_factory(env: Any) -> Callable[[], Any]:
    """Returns what makes copies of an environment, for actors that each need their own.

    Args:
        env: Id, settings, spec or factory; or an environment that was made from a spec.

    Raises:
        EnvironmentSpecError: If an environment without a spec was given: it cannot be copied.
    """
    if isinstance(env, gymnasium.Env | VectorEnv):
        spec = env.spec
        if spec is None:
            raise EnvironmentSpecError(
                f"{type(env).__name__} was not made by gymnasium.make and cannot be copied for the "
                "actors; give its id, or a factory: train(lambda: MyEnv())"
            )
        if isinstance(env, VectorEnv):
            return lambda: gymnasium.make_vec(spec)
        return env_factory(spec)
    return env_factory(env)


def _engine_of(
    engine: RolloutEngineFactory | Mapping[str, Any] | None,
) -> RolloutEngineFactory | None:
    if engine is None or isinstance(engine, RolloutEngineFactory):
        return engine
    from rlreg.open_union import validate

    try:
        validated: RolloutEngineFactory = validate(RolloutEngineFactory, engine)
    except ConfigError as error:
        problems = [replace(one, path=("engine", *one.path)) for one in error.problems]
        raise ConfigError(problems) from error
    return validated


def _check_lengths(n_steps: int | None, n_epochs: int | None, epoch_length: int) -> None:
    if (n_steps is None) == (n_epochs is None):
        given = "neither" if n_steps is None else "both"
        raise ConfigError(
            f"n_steps, n_epochs: expected one of them, got {given}; n_steps counts transitions, "
            "n_epochs counts epochs of epoch_length updates"
        )
    for name, value in (
        ("n_steps", n_steps),
        ("n_epochs", n_epochs),
        ("epoch_length", epoch_length),
    ):
        if value is not None:
            whole_number(name, value)


def _reached(done: int, last: int | None) -> bool:
    return last is not None and done >= last
