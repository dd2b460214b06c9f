"""``MultiStepIMPALA``: the loop between an engine and a learner, with Maze's names.

The trainer knows the six calls of an engine and never which engine it is.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

from rlreg.config import RolloutEngineFactory
from rlreg.errors import CheckpointError, ConfigError
from rlreg.runtime.evaluation import Evaluation, evaluate
from rlreg.runtime.online import MetricMeans, training_env_factory

from .batches import FragmentBatch
from .config import IMPALAConfig
from .intake import Intake
from .learner import Learner, make_learner, noise_stream
from .limits import check_lengths, check_parts, engine_of, num_threads, require_fit, unexpected
from .metrics import with_aliases
from .model import TorchActorCritic
from .player import Player, evaluate_vector, is_vector
from .policy import FlatWeights
from .restoring import load_all, load_optimizer, split
from .rollouts import EngineState, Fragment, RolloutEngine
from .selection import BestModelSelection
from .weights import check_weights, read_state

Metrics = dict[str, float]
EpochCallback = Callable[[int, Metrics], None]


class MultiStepIMPALA:
    """Trains a model with the fragments of an engine.

    Args:
        model: What learns.
        rollout_actors: An engine that is not started, or an engine component.
        eval_env: Environment, vector environment, id or factory to evaluate in. Training needs
            copies: they are made from the factory, the id or the environment's spec, unless
            ``env_factory`` says otherwise.
        options: The settings.
        env_factory: What makes the environments of the actors.
        learner: Holds optimizer and schedules; made from the options if not given.
        seed: Root of every random stream.
        evaluation_seed: Seed of the first evaluation episode.
        on_epoch: Called with the number of the epoch (from 1) and its metrics.
        on_wait: Called now and then while no fragment comes; what it raises ends training at a
            point from which it can go on.

    Attributes:
        last_evaluation: Result of the last evaluation, or ``None``.
        history: Metrics of each epoch.
        selection: The best model so far and the patience counter.
        intake: What comes from the engine.
        ledger: The account of every row.
    """

    def __init__(
        self,
        model: TorchActorCritic,
        rollout_actors: RolloutEngine | RolloutEngineFactory,
        eval_env: Any,
        options: IMPALAConfig,
        *,
        env_factory: Any = None,
        learner: Learner | None = None,
        seed: int = 0,
        evaluation_seed: int = 10_000,
        on_epoch: EpochCallback | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        check_parts(model, options)
        self.model, self.options = model, options
        self.engine, max_lag = engine_of(rollout_actors, options)
        self.intake = Intake(options.actors_batch_size, max_lag)
        self.ledger = self.intake.ledger
        self.eval_env = eval_env
        self._env_factory = env_factory if env_factory is not None else eval_env
        self.seed, self.evaluation_seed = seed, evaluation_seed
        self.on_epoch, self.on_wait = on_epoch, on_wait
        self._noise = [torch.Generator().manual_seed(seed).get_state()]
        self.learner = learner or make_learner(
            model, options, functools.partial(noise_stream, self._noise)
        )
        self.last_evaluation: Evaluation | None = None
        self.history: list[Metrics] = []
        self.selection = BestModelSelection(None, model)
        self._outer_threads = torch.get_num_threads()
        self.is_started = False
        self._was_started = False
        self._num_evaluations = 0
        self._eval_makes_vectors: bool | None = None
        self._flat = FlatWeights(model.policy)
        self._device = next(model.parameters()).device
        self._engine_state: EngineState | None = None

    # --- Maze's methods -------------------------------------------------------------------------

    def train(
        self,
        n_epochs: int,
        epoch_length: int,
        deterministic_eval: bool,
        eval_repeats: int,
        patience: int | None,
        model_selection: BestModelSelection | None = None,
    ) -> None:
        """Starts the actors, trains, and ends the actors, whatever happens.

        Args:
            n_epochs: Epochs to train, from here; 0 goes on until patience ends it.
            epoch_length: Updates of an epoch, >= 1.
            deterministic_eval: Whether evaluations act by the mode of the policy.
            eval_repeats: Episodes of an evaluation; 0 judges by the last training episodes instead.
            patience: Stop after this many evaluations in a row without improvement; ``None`` never.
            model_selection: Told of each result; keeps the best model.
        """
        try:
            self.train_async(
                n_epochs, epoch_length, deterministic_eval, eval_repeats, patience, model_selection
            )
        finally:
            self.stop()

    def train_async(
        self,
        n_epochs: int,
        epoch_length: int,
        deterministic_eval: bool,
        eval_repeats: int,
        patience: int | None,
        model_selection: BestModelSelection | None = None,
    ) -> None:
        """Trains and leaves the actors running; see :meth:`train`. Call :meth:`stop` at the end."""
        check_lengths(n_epochs, epoch_length, eval_repeats, patience)
        self._use_selection(model_selection)
        if n_epochs:
            self.learner.progress.plan("updates", n_epochs * epoch_length)
        self.start()
        if self._num_evaluations == 0:
            self._judge(deterministic_eval, eval_repeats)
        done = 0
        while (n_epochs == 0 or done < n_epochs) and not self._is_exhausted(patience):
            metrics = self.run_epoch(epoch_length)
            metrics |= self._judge(deterministic_eval, eval_repeats)
            done += 1
            self.history.append(metrics)
            if self.on_epoch is not None:
                self.on_epoch(self.learner.progress.epochs, metrics)
        self._remember_engine()

    def evaluate(self, deterministic: bool, repeats: int) -> None:
        """Plays exactly ``repeats`` seeded episodes; the result is in ``last_evaluation``.

        Args:
            deterministic: Whether to act by the mode of the policy instead of a sample.
            repeats: Episodes, >= 1.
        """
        if self.eval_env is None:
            raise ConfigError("there is no eval_env to evaluate in")
        player = Player(self.model, deterministic=deterministic)
        env, seed = self.eval_env, self.evaluation_seed
        if self._makes_vectors():
            with contextlib.closing(env()) as made:
                self.last_evaluation = evaluate_vector(player, made, repeats, seed)
        else:
            play = evaluate_vector if is_vector(env) else evaluate
            self.last_evaluation = play(player, env, repeats, seed)

    def _makes_vectors(self) -> bool:
        """Whether ``eval_env`` is a factory of vector environments; found out once."""
        if self._eval_makes_vectors is None:
            self._eval_makes_vectors = False
            if callable(self.eval_env):
                with contextlib.closing(self.eval_env()) as made:
                    self._eval_makes_vectors = is_vector(made)
        return self._eval_makes_vectors

    def load_state(self, file_path: str | BinaryIO) -> None:
        """Loads a file: ``.rlreg``, safetensors, or torch's (read through ``weights_only``).

        Args:
            file_path: Path or binary file.

        Raises:
            CheckpointError: If the file is damaged or belongs to another model.
        """
        self.load_state_dict(read_state(file_path))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave, or the weights of a model alone.

        Raises:
            CheckpointError: If it is incomplete or belongs to another model; nothing changes then.
        """
        weights, rest = split(state_dict)
        check_weights(self.model, weights)
        if rest and self.is_started:
            raise CheckpointError("a state of training is loaded before the actors are started")
        if rest:
            load_all(self._loaders(), rest, self.state_dict())
        self.model.load_state_dict(weights)

    def _loaders(self) -> dict[str, Callable[[Any], object]]:
        return {
            "optimizer": functools.partial(load_optimizer, self.learner.optimizer),
            "progress": self.learner.progress.load,
            "trainer": self.load_counters,
            "selection": functools.partial(self.selection.load_state_dict, like=self.model),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns all that training needs to go on: call it between two epochs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "selection": self.selection.state_dict(),
            "progress": self.learner.progress.state(),
            "trainer": self.counters(),
        }

    # --- a session with an engine ---------------------------------------------------------------

    def start(self) -> None:
        """Starts the actors, unless they run."""
        if self.is_started:
            return
        if self._was_started:  # an engine runs once
            self.engine = type(self.engine)(self.engine.spec)
        self._was_started = True
        self.intake.begin()
        spec = self.engine.spec
        self.learner.start_schedules(
            spec.unroll_length * spec.num_envs * self.options.actors_batch_size
        )
        require_fit(self.model, spec)
        factory = training_env_factory(self._env_factory)
        self._outer_threads = torch.get_num_threads()
        try:
            torch.set_num_threads(num_threads(self.model, spec))
            self.engine.start(self.model.policy_spec(), factory, np.random.SeedSequence(self.seed))
            if self._engine_state is not None:
                self.engine.load_state(self._engine_state)
            self.engine.publish(self.learner.progress.updates, self._flat.pack())
        except BaseException:
            torch.set_num_threads(self._outer_threads)
            self.engine.stop()
            raise
        self.is_started = True

    def stop(self) -> None:
        """Ends the actors and keeps what is needed to start them again."""
        if not self.is_started:
            return
        self.is_started = False
        torch.set_num_threads(self._outer_threads)
        self.engine.stop()

    def run_epoch(self, epoch_length: int) -> Metrics:
        """Does ``epoch_length`` updates and returns their mean metrics, with Maze's aliases."""
        means, began = MetricMeans(), time.perf_counter()
        for _ in range(epoch_length):
            means.add(self.update())
        self.learner.progress.epochs += 1
        took = time.perf_counter() - began
        metrics = means.result() | self.epoch_metrics()
        metrics["time/updates_per_s"] = epoch_length / took
        metrics["time/env_steps_per_s"] = metrics["update/transitions"] * epoch_length / took
        return with_aliases(metrics)

    def update(self) -> Metrics:
        """Collects one batch, does one update and publishes the new weights."""
        began, waiting_before = time.perf_counter(), self.engine.num_waiting()
        fragments = self.intake.collect(self.engine, self.learner.progress.updates, self._wait)
        collected, waiting_after = time.perf_counter(), self.engine.num_waiting()
        batch = FragmentBatch.of(fragments, self._device)
        joined = time.perf_counter()
        metrics = self.learner.update(batch)
        self.intake.book(fragments, int(metrics["update/transitions"]))
        metrics |= self._lag(fragments)
        learned = time.perf_counter()
        # In this order: a slot that is handed back is filled with the newest weights.
        self.engine.publish(self.learner.progress.updates, self._flat.pack())
        self.engine.release(fragments)
        metrics["queue/waiting_before"] = float(waiting_before)
        metrics["queue/waiting_after"] = float(waiting_after)
        metrics["time/dequeuing_actors_s"] = collected - began
        metrics["time/collecting_actors_s"] = joined - collected
        metrics["time/publishing_s"] = time.perf_counter() - learned
        return metrics

    def epoch_metrics(self) -> Metrics:
        """Checks the accounting and returns what is read once an epoch.

        Raises:
            RolloutError: If a row was lost or counted twice.
        """
        return self.intake.metrics(self.engine)

    @property
    def num_restarts(self) -> int:
        """How often actors were replaced, as of the last epoch."""
        return self.intake.num_restarts

    def _wait(self, fresh: list[Fragment]) -> None:
        """Lets ``on_wait`` end training, with nothing held and the engine's state kept."""
        if self.on_wait is None:
            return
        try:
            self.on_wait()
        except BaseException:
            self.intake.discard(self.engine, fresh)
            self._remember_engine()
            raise

    def _lag(self, fragments: list[Fragment]) -> Metrics:
        # The update that used them has been counted already.
        lags = [self.learner.progress.updates - 1 - fragment.version for fragment in fragments]
        return {"queue/policy_lag": sum(lags) / len(lags), "queue/policy_lag/max": max(lags)}

    # --- judging --------------------------------------------------------------------------------

    def _use_selection(self, selection: BestModelSelection | None) -> None:
        if not isinstance(selection, BestModelSelection | None):
            raise unexpected("model_selection", "a BestModelSelection or None", selection)
        if selection is not None and selection is not self.selection:
            if self._num_evaluations and selection.best_weights is None:
                selection.load_state_dict(self.selection.state_dict())
            self.selection = selection
        if self.selection.model is None:
            self.selection.model = self.model

    def _judge(self, deterministic: bool, repeats: int) -> Metrics:
        if repeats:
            self.evaluate(deterministic, repeats)
            assert self.last_evaluation is not None
            result = self.last_evaluation.mean_return
        elif self.intake.episodes.returns:
            result = float(np.mean(self.intake.episodes.returns))
        else:
            return {}  # nothing to judge by: no training episode has ended yet
        self._num_evaluations += 1
        self.selection.update(result)
        metrics = {
            "evaluation/best_return": self.selection.best_reward,
            "evaluation/last_improvement": float(self.selection.last_improvement),
        }
        if repeats and self.last_evaluation is not None:
            metrics["evaluation/mean_return"] = self.last_evaluation.mean_return
            metrics["evaluation/std_return"] = self.last_evaluation.std_return
        return metrics

    def _is_exhausted(self, patience: int | None) -> bool:
        return patience is not None and self.selection.last_improvement >= patience

    # --- counters -------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Returns what training needs to go on besides model, optimizer and progress."""
        self._remember_engine()
        return {
            **self.intake.state(),
            "evaluations": self._num_evaluations,
            "noise": self._noise[0],
            "engine": dict(self._engine_state or {}),
        }

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`counters` gave."""
        self.intake.load(state)
        self._num_evaluations = int(state["evaluations"])
        torch.Generator().set_state(state["noise"])  # refuses what is no state
        self._noise[0] = state["noise"]
        self._engine_state = dict(state["engine"]) or None

    def _remember_engine(self) -> None:
        """Keeps where the actors are: streams of random numbers, and episodes where they can be."""
        if self.is_started:
            self._engine_state = self.engine.state()

    def updates(self) -> Iterator[Metrics]:
        """Trains for ever, one update each ``next()``; the actors end with the iterator."""
        self.start()
        try:
            while True:
                yield self.update()
        except GeneratorExit:
            self._remember_engine()
            raise
        finally:
            self.stop()
