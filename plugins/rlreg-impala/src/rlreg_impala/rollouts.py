"""The seam between acting and learning: what an engine is given, and what it hands over.

The learner sees fragments and one of three engines; it never sees processes, slots or Ray. An
engine sees a policy specification and environments; it never sees a loss. This file imports neither
torch nor any engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import ConfigError

EnvFactory: TypeAlias = str | Callable[[], Any]
"""A gymnasium id, or a callable that makes one environment or one whole vector environment."""

EngineState: TypeAlias = dict[str, NDArray[Any]]
"""Numeric arrays by name: what a checkpoint keeps of an engine."""


# ----------------------------------------------------------------------------------- the policy


class ActionCodec(Protocol):
    """How the columns of a fragment's ``actions`` become actions of the environment."""

    @property
    def width(self) -> int:
        """Columns W of one action."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """What a fragment keeps: int64 where every part is a category, float32 otherwise."""

    def to_env(self, actions: NDArray[Any]) -> Any:
        """Turns ``[N, W]`` into the batch ``[N, ...]`` that a vector environment takes.

        An array, or a dict or tuple of arrays for a structured action space.
        """


class ActingPolicy(Protocol):
    """What an actor runs: the policy alone, on the CPU, without autograd."""

    @property
    def num_weights(self) -> int:
        """Length of the flat float32 vector that ``load_flat`` takes."""

    def load_flat(self, weights: NDArray[np.float32]) -> None:
        """Takes new weights ``[num_weights]``; the array is reused, so it must be copied."""

    def initial_state(self, n: int) -> NDArray[np.float32]:
        """Returns the core's state before the first step of an episode, ``[n, S]``; S may be 0."""

    def act(
        self, observations: NDArray[Any], state: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
        """Samples one action per environment.

        Args:
            observations: Flat, ``[N, *O]``, of the dtype of the flattening plan.
            state: ``[N, S]``, already reset where an episode begins.
            rng: The only source of randomness.

        Returns:
            Actions ``[N, W]``, their joint log-probabilities ``[N]`` and the next state ``[N, S]``.
        """


class PolicySpec(Protocol):
    """Builds the acting policy in another process; must survive cloudpickle."""

    @property
    def observation_space(self) -> Any:
        """Space of one observation, as the environment declares it."""

    @property
    def action_space(self) -> Any:
        """Space of one action, as the environment declares it."""

    @property
    def codec(self) -> ActionCodec:
        """How the policy's action columns become actions of the environment."""

    def make(self) -> ActingPolicy:
        """Builds the policy; its weights are whatever they are until ``load_flat``."""


# --------------------------------------------------------------------------------- the fragments


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FragmentArrays:
    """The arrays of T steps of the N environments of one actor, as they are written and read.

    All are time-major. Row ``t`` is the step from ``observations[t]``; row T of the observations is
    row 0 of the actor's next fragment, so no step is lost.

    How an episode ends is written down so that the learner need not know the autoreset mode:

    - ``terminations[t]``: no bootstrap. It wins over a truncation of the same step, so the two are
      never both true.
    - ``truncations[t]``: bootstrap from the true last observation. That is ``observations[t + 1]``
      where row ``t + 1`` is a reset row, and otherwise the entry of ``final_observations`` whose
      ``final_rows`` is ``(t, n)``.
    - ``resets[t]``: the environment ignored the action and began a new episode; the row is no
      transition and must be masked. The mask reaches over the border between two fragments.
    - ``starts[t]``: ``observations[t]`` is the first of an episode, so the state of a recurrent
      core is the initial one before this row.

    Attributes:
        observations: Flat observations, ``[T + 1, N, *O]``.
        actions: ``[T, N, W]``, columns of the policy's codec.
        log_probs: Joint log-probability of the actions under the acting policy, ``[T, N]``.
        rewards: ``[T, N]``, float32.
        terminations: ``[T, N]``, bool.
        truncations: ``[T, N]``, bool.
        resets: ``[T, N]``, bool.
        starts: ``[T + 1, N]``, bool.
        core_state: State of the core before row 0, ``[N, S]``.
        final_rows: ``(t, n)`` of each truncated step after which the environment was reset at once,
            ``[F, 2]``, in order of t, then n.
        final_observations: The true last observations of these steps, ``[F, *O]``.
        episode_returns: Undiscounted returns of the episodes that ended, in order, ``[E]``.
        episode_lengths: Their lengths in steps, ``[E]``.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    core_state: NDArray[np.float32]
    final_rows: NDArray[np.int64]
    final_observations: NDArray[Any]
    episode_returns: NDArray[np.float64]
    episode_lengths: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fragment(FragmentArrays):
    """T consecutive steps of the N environments of one actor, under one version of the weights.

    The arrays are views of memory that belongs to the engine: they are valid until the fragment is
    released, and must not be written.

    Attributes:
        actor_id: Index of the actor.
        version: Version of the weights that chose every action of the fragment.
        sequence: Number of the fragment among those of its actor, from 0.
        seconds: Time the actor spent on it.
        handle: The engine's own note of where the memory is.
    """

    actor_id: int
    version: int
    sequence: int
    seconds: float = 0.0
    handle: Any = None

    @property
    def num_rows(self) -> int:
        """Rows of all environments, reset rows included: T * N."""
        return int(self.rewards.size)

    @property
    def num_masked(self) -> int:
        """Reset rows, which are no transitions."""
        return int(np.count_nonzero(self.resets))

    @property
    def num_transitions(self) -> int:
        """Real transitions: what the environments really stepped."""
        return self.num_rows - self.num_masked


# ----------------------------------------------------------------------------------- the engines

ActorState = Literal["starting", "idle", "acting", "restarting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """How one actor is.

    Attributes:
        index: Which actor.
        state: ``idle`` means that it waits for the learner to release a fragment.
        pid: Its process, or ``None`` where it has none.
        restarts: How often it was replaced.
        fragments: Fragments it has handed over, all its predecessors included.
        step: Steps of its environments so far (of each, reset steps included).
        env: The environment it is stepping or stepped last, or ``None`` before the first step.
        version: Weights of the fragment it works on, or ``-1`` before the first.
        error: Why it was replaced or failed last; empty when it never was.
    """

    index: int
    state: ActorState
    pid: int | None = None
    restarts: int = 0
    fragments: int = 0
    step: int = 0
    env: int | None = None
    version: int = -1
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything an engine must know that is neither policy nor environment.

    Attributes:
        num_actors: Actors A.
        num_envs: Environments N of one actor.
        unroll_length: Steps T of a fragment.
        num_slots: Fragments in existence at once: being made, waiting, or held by the learner. With
            B fragments in a batch and fragments used in the order in which they were begun, a
            fragment is at most ``ceil(num_slots / B) - 1`` updates old.
        deterministic: Whether one seed fixes every bit: fragments are handed over in a fixed order
            and each is made with the weights that were current when its slot was released. A dead
            actor cannot be replaced then.
        max_restarts: How often each actor may be replaced.
        actor_timeout: Seconds without a step of any environment after which an actor that should be
            acting counts as hung.
        start_method: Of processes: forkserver, spawn or fork; ``None`` picks the best there is.
        address: Of a Ray cluster; ``None`` starts or joins the local one.
        num_cpus_per_actor: What Ray reserves for an actor.
    """

    num_actors: int = 1
    num_envs: int = 8
    unroll_length: int = 16
    num_slots: int = 2
    deterministic: bool = False
    max_restarts: int = 3
    actor_timeout: float = 300.0
    start_method: str | None = None
    address: str | None = None
    num_cpus_per_actor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_actors", "num_envs", "unroll_length", "num_slots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine: {name} = {getattr(self, name)}: expected at least 1")
        if self.max_restarts < 0 or not self.actor_timeout > 0:
            raise ConfigError("engine: max_restarts must be at least 0, actor_timeout above 0")

    @classmethod
    def of(cls, config: Any, *, unroll_length: int, batch_size: int) -> EngineSpec:
        """Reads a registered engine component.

        The number of slots follows from Maze's queue factor: the batch that the learner holds, and
        beside it a queue of ``ceil(batch_size * queue_out_of_sync_factor)`` fragments, but at least
        one for each actor to work on. A component without a queue factor is one that makes its
        fragments when they are asked for: its slots are one batch.

        Args:
            config: An engine component; settings it does not have keep their defaults.
            unroll_length: Steps T of a fragment.
            batch_size: Fragments in a batch of the learner.
        """
        names = [
            "num_actors", "num_envs", "deterministic", "max_restarts", "actor_timeout",
            "start_method", "address", "num_cpus_per_actor",
        ]  # fmt: skip
        given = {name: getattr(config, name) for name in names if hasattr(config, name)}
        factor = getattr(config, "queue_out_of_sync_factor", None)
        slots = batch_size
        if factor is not None:
            slots += max(math.ceil(batch_size * factor), int(given.get("num_actors", 1)))
        return cls(unroll_length=unroll_length, num_slots=slots, **given)


class RolloutEngine(ABC):
    """Where actors live: in this process, in others on this machine, or in a Ray cluster.

    The order of calls is ``start``, ``publish(0, ...)``, then any number of ``collect``,
    ``publish`` and ``release`` (publish before release: a released slot is filled with the newest
    weights), and ``stop`` in a ``finally``. An engine is used from one thread.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    @abstractmethod
    def start(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        """Makes the actors; returns before they are ready.

        Args:
            policy_spec: What builds the policy inside an actor.
            env_factory: What makes environments inside an actor. A callable that gives a single
                environment is called ``num_envs`` times, one that gives a vector environment once.
            seeds: Root of every stream: actor, environment and fragment each get their own child.

        Raises:
            EnvironmentSpecError: If an environment cannot be made or used (may also come later).
            MissingExtraError: If the engine needs something that is not installed.
            RolloutError: If the actors cannot be started.
        """

    @abstractmethod
    def publish(self, version: int, flat_weights: NDArray[np.float32]) -> None:
        """Gives new weights to all actors; a fragment under way keeps its own.

        Args:
            version: Larger than the last one.
            flat_weights: ``[num_weights]``, copied.
        """

    @abstractmethod
    def collect(self, n: int, timeout: float | None = None) -> list[Fragment]:
        """Waits for ``n`` fragments.

        Args:
            n: How many; never more than can exist beside those that are not released.
            timeout: Seconds to wait, ``None`` for ever. Actors that hang or die are dealt with
                meanwhile, so even ``None`` ends.

        Returns:
            ``n`` fragments, or none when the time is over; those that are ready stay for the next
            call.

        Raises:
            RolloutError: If an actor failed for good; the message names it and the cause.
        """

    @abstractmethod
    def release(self, fragments: Sequence[Fragment]) -> None:
        """Gives the memory of fragments back; their arrays are not valid any more."""

    @abstractmethod
    def health(self) -> list[ActorStatus]:
        """Says how each actor is, without waiting."""

    def num_waiting(self) -> int:
        """Says how many fragments wait to be collected, as far as is known without waiting."""
        return 0

    @abstractmethod
    def stop(self) -> None:
        """Ends every actor and frees everything; may be called at any time, and twice."""

    @abstractmethod
    def state(self) -> EngineState:
        """Returns what ``load_state`` needs; call it when every fragment is released.

        In deterministic mode it waits until the actors are idle, changes nothing (but see below),
        and an engine that loads it goes on bit for bit: fragments that wait for the learner are
        part of it, environments are brought back by resetting them with the episode's own seed and
        repeating its actions. A vector environment cannot be brought back; its environments are
        reset instead, here as well as there, so that both go on alike and only the episodes that
        were running end early. Otherwise only the counters are kept, so that no stream of random
        numbers is used twice.
        """

    @abstractmethod
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from ``state``; call it after ``start`` and before the first ``publish``.

        Raises:
            CheckpointError: If the state is of an engine with other sizes.
            RolloutError: If an environment does not do the same again under the same seed.
        """
