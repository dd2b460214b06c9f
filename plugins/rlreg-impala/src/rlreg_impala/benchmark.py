"""What ``rlreg bench impala`` measures: environments, policy, learner, and all of them together.

The parts take turns in one process, so that a busy machine slows all of them alike; medians over
the rounds are reported. While a part is measured the actors wait for a free slot.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlreg.config import RolloutEngineFactory
from rlreg.runtime.online import BenchmarkRow, training_env_factory

from .batches import FragmentBatch
from .config import IMPALAConfig
from .learner import Learner
from .model import TorchActorCritic
from .trainer import MultiStepIMPALA

DEFAULT_ENV = "CartPole-v1"

_SLICE_S = 0.4
"""Seconds of a part's turn."""

_BUSY = 0.85
"""Share of the time from which on the learner counts as the bottleneck."""

_LEAST_ROUNDS = 3

MakeLearner = Callable[[Any, Any], Learner]
"""Makes a learner, with its model, for an observation space and an action space."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of environment and how it is trained in.

    Attributes:
        name: Which kind.
        factory: Makes one environment, or a vector of ``num_envs``.
        engine: How transitions are collected.
    """

    name: str
    factory: Callable[[], Any]
    engine: RolloutEngineFactory


def workloads(env: Any, engine: RolloutEngineFactory) -> Iterator[Workload]:
    """Yields an environment made one by one, and its native vector form where there is one."""
    chosen = DEFAULT_ENV if env is None else env
    factory = training_env_factory(chosen)
    num_envs = int(getattr(engine, "num_envs", 8))
    with contextlib.closing(factory()) as made:
        is_vector = isinstance(made, VectorEnv)
        spec = getattr(made, "spec", None)
    yield Workload("vector environment" if is_vector else "gym.make", factory, engine)
    if isinstance(chosen, str) and not is_vector and spec and spec.vector_entry_point is not None:
        native = functools.partial(
            gym.make_vec, chosen, num_envs=num_envs, vectorization_mode="vector_entry_point"
        )
        yield Workload("native vector", native, engine)


def measure(
    workload: Workload, make: MakeLearner, options: IMPALAConfig, seconds: float
) -> BenchmarkRow:
    """Measures one kind of environment.

    Args:
        workload: Environments and engine.
        make: Makes model and learner for the spaces of one environment.
        options: The settings.
        seconds: How long, after a warm-up.
    """
    observation_space, action_space = _spaces_of(workload.factory)
    learner, separate = (make(observation_space, action_space) for _ in range(2))
    model = learner.model
    session = MultiStepIMPALA(
        model, workload.engine, None, options, env_factory=workload.factory, learner=learner
    )
    learner.progress.plan("transitions", 10**12)  # schedules stand still
    num_envs = session.engine.spec.num_envs
    with contextlib.ExitStack() as stack:
        stack.callback(session.stop)
        session.start()
        together = _Together(session)
        together.run(2 * _SLICE_S)
        stepping = _Stepping(workload.factory, num_envs, action_space)
        stack.callback(stepping.close)
        parts: dict[str, Callable[[float], float]] = {
            "env_only": stepping.run,
            "inference": _Acting(model, num_envs).run,
            "learner": _Learning(session, separate).run,
            "end_to_end": together.run,
        }
        rates: dict[str, list[float]] = {name: [] for name in parts}
        together.forget()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(rates["env_only"]) < _LEAST_ROUNDS:
            for name, part in parts.items():
                rates[name].append(part(_SLICE_S))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        return _row(workload, medians, together, session)


def _row(
    workload: Workload, rates: dict[str, float], together: _Together, session: MultiStepIMPALA
) -> BenchmarkRow:
    actors = 0 if workload.engine.type == "sequential" else session.engine.spec.num_actors
    figures = {
        "actors": float(actors),
        "cores": float(_num_cores()),
        "learner_utilisation": together.utilisation,
        "transport_share": together.transport_share,
        "transport_cpu_share": together.transport_cpu_share,
        "share_of_env_only": rates["end_to_end"] / (rates["env_only"] * max(actors, 1)),
        "one_core_bound": 1 / (1 / rates["env_only"] + 1 / rates["inference"]),
    }
    bottleneck, knob = diagnose(rates, figures)
    return BenchmarkRow(workload.name, rates, figures, bottleneck, knob)


def diagnose(rates: dict[str, float], figures: dict[str, float]) -> tuple[str, str]:
    """Says which part holds the others back, and what to change.

    Args:
        rates: Transitions per second of ``env_only``, ``inference`` and ``learner``.
        figures: ``actors``, ``cores`` and ``learner_utilisation``.

    Returns:
        The bottleneck and the knob.
    """
    actors, cores = int(figures["actors"]), int(figures["cores"])
    busy = figures["learner_utilisation"]
    if actors == 0:
        return (
            "one process does everything in turn",
            "engine.type: process collects while the learner learns",
        )
    if busy >= _BUSY:
        return (
            f"the learner: busy {busy:.0%} of the time",
            "larger batches (n_rollout_steps, engine.num_envs, actors_batch_size), smaller "
            "networks, or --device cuda",
        )
    env_s, act_s = 1 / rates["env_only"], 1 / rates["inference"]
    if act_s > env_s:
        return (
            f"the policy in the actors: {act_s / (act_s + env_s):.0%} of an actor's step",
            "engine.num_envs: more environments to an actor share one forward pass",
        )
    what = f"the environments: the learner waits {1 - busy:.0%} of the time"
    if cores > actors + 1:
        return what, f"engine.num_actors: {cores - 1} actors find cores here"
    return what, "a cheaper or native vector environment, or engine.type: ray for more cores"


def _num_cores() -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


# --- the parts ----------------------------------------------------------------------------------


def _repeat(step: Callable[[], float], seconds: float) -> float:
    """Calls ``step`` for some time; returns what it gives, per second."""
    total, begun = 0.0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds or not total:
        total += step()
    return total / passed


class _Stepping:
    """The environments of one actor under random actions, with nothing around them."""

    def __init__(self, factory: Callable[[], Any], num_envs: int, action_space: Any) -> None:
        first = factory()
        self._vector = first if isinstance(first, VectorEnv) else None
        rest = 0 if self._vector is not None else num_envs - 1
        self._envs = [first, *(factory() for _ in range(rest))]
        for env in self._envs:
            env.reset(seed=0)
        # Drawn beforehand: gymnasium's drawing may cost more than a step.
        space = copy.deepcopy(action_space)
        space.seed(0)
        self._actions = [space.sample() for _ in range(1009)]
        self._next = 0
        if self._vector is not None:
            self._batches = [self._vector.action_space.sample() for _ in range(101)]

    def run(self, seconds: float) -> float:
        """Returns transitions per second."""
        return _repeat(self._step_all if self._vector is None else self._step_vector, seconds)

    def _step_all(self) -> float:
        actions, place = self._actions, self._next
        for env in self._envs:
            place = (place + 1) % len(actions)
            _, _, terminated, truncated, _ = env.step(actions[place])
            if terminated or truncated:
                env.reset()
        self._next = place
        return len(self._envs)

    def _step_vector(self) -> float:
        assert self._vector is not None
        self._next = (self._next + 1) % len(self._batches)
        self._vector.step(self._batches[self._next])
        return float(self._vector.num_envs)

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()


class _Acting:
    """The policy as an actor runs it."""

    def __init__(self, model: TorchActorCritic, num_envs: int) -> None:
        spec = model.policy_spec()
        self._policy, self._rng = spec.make(), np.random.default_rng(0)
        self._observations = np.zeros((num_envs, *model.plan.shape), dtype=model.plan.dtype)
        self._state = self._policy.initial_state(num_envs)

    def run(self, seconds: float) -> float:
        """Returns transitions per second."""
        return _repeat(self._act, seconds)

    def _act(self) -> float:
        self._policy.act(self._observations, self._state, self._rng)
        return len(self._observations)


class _Learning:
    """A learner of its own, again and again on one batch that was really collected.

    Of its own: a policy that has seen one batch too often would play other episodes.
    """

    def __init__(self, session: MultiStepIMPALA, learner: Learner) -> None:
        fragments = session.engine.collect(session.options.actors_batch_size)
        shared = FragmentBatch.of(fragments, next(learner.model.parameters()).device)
        # A copy: the slots go back to the actors.
        self._batch = FragmentBatch(
            **{name: getattr(shared, name).clone() for name in shared.__slots__}
        )
        self._rows = float(self._batch.is_transition.sum())
        session.engine.release(fragments)
        for fragment in fragments:
            session.ledger.arrive(fragment)
            session.ledger.discard(fragment)
        learner.progress.plan("transitions", 10**12)
        learner.start_schedules(int(self._rows))
        self._learner = learner

    def run(self, seconds: float) -> float:
        """Returns transitions per second."""
        return _repeat(self._update, seconds)

    def _update(self) -> float:
        self._learner.update(self._batch)  # reads its losses, so the device is done
        return self._rows


class _Together:
    """Training as it is."""

    def __init__(self, session: MultiStepIMPALA) -> None:
        self._session = session
        collect, learn = _Clocked(session.intake.collect), _Clocked(session.learner.update)
        self._collect, self._learn = collect, learn
        session.intake.collect = collect  # type: ignore[method-assign, assignment]  # timed
        session.learner.update = learn  # type: ignore[method-assign, assignment]  # timed
        self.forget()

    def forget(self) -> None:
        """Starts the shares anew."""
        self._waited = self._moved = self._passed = 0.0
        self._busy_cpu = self._moved_cpu = 0.0

    def run(self, seconds: float) -> float:
        """Returns transitions per second."""
        # What the actors made while they were not measured is no achievement of this turn.
        for _ in range(self._session.engine.spec.num_slots):
            self._session.update()
        return _repeat(self._update, seconds)

    def _update(self) -> float:
        begun, computed = time.perf_counter(), time.thread_time()
        self._collect.cpu_s = self._learn.cpu_s = 0.0
        metrics = self._session.update()
        self._passed += time.perf_counter() - begun
        busy = time.thread_time() - computed - self._collect.cpu_s
        self._busy_cpu += busy
        self._moved_cpu += busy - self._learn.cpu_s
        self._waited += metrics["time/dequeuing_actors_s"]
        self._moved += metrics["time/collecting_actors_s"] + metrics["time/publishing_s"]
        return metrics["update/transitions"]

    @property
    def utilisation(self) -> float:
        """Share of the time in which the learner does not wait for actors."""
        return 1 - self._waited / self._passed

    @property
    def transport_share(self) -> float:
        """Share of the learner's busy time that joins fragments and publishes weights.

        Where there are more processes than cores, most of it is none of its own: handing a slot
        back wakes an actor, and the learner waits for the core that the actor takes.
        """
        return self._moved / (self._passed - self._waited)

    @property
    def transport_cpu_share(self) -> float:
        """The same of the processor time of the learner's thread: what moving the data costs."""
        return self._moved_cpu / self._busy_cpu


class _Clocked:
    """A method that adds up the processor time of its calls."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.cpu_s = method, 0.0

    def __call__(self, *args: Any) -> Any:
        before = time.thread_time()
        try:
            return self._method(*args)
        finally:
            self.cpu_s += time.thread_time() - before


def measure_all(
    env: Any,
    engine: RolloutEngineFactory,
    make: MakeLearner,
    options: IMPALAConfig,
    seconds: float,
) -> list[BenchmarkRow]:
    """Measures every kind of environment, each with a new model.

    Args:
        env: Id, settings or factory; ``None`` takes CartPole-v1.
        engine: How transitions are collected.
        make: Makes model and learner for the spaces of one environment.
        options: The settings.
        seconds: How long, shared by the kinds.
    """
    chosen = list(workloads(env, engine))
    return [measure(workload, make, options, seconds / len(chosen)) for workload in chosen]


def _spaces_of(factory: Callable[[], Any]) -> tuple[Any, Any]:
    with contextlib.closing(factory()) as made:
        if isinstance(made, VectorEnv):
            return made.single_observation_space, made.single_action_space
        return made.observation_space, made.action_space
