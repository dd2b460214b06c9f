"""What all engines do alike: slots, versions, waiting, and the state of a checkpoint.

An engine of its own kind says how actors are launched, how a ticket reaches one, and how to wait
for something to happen.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import CheckpointError, ConfigError, RolloutError
from rlreg_impala.buffers import FragmentBuffers, FragmentLayout
from rlreg_impala.rollouts import (
    EngineSpec,
    EngineState,
    EnvFactory,
    Fragment,
    PolicySpec,
    RolloutEngine,
)

from .tickets import Ledger, Ticket

# How long to wait at a stretch: bounds the delay of Ctrl-C, of restarts and of the check for hangs.
_POLL_S = 0.5


class SlottedEngine(RolloutEngine):
    """Base of the engines."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._ledger = Ledger(spec.num_actors, spec.num_slots, deterministic=spec.deterministic)
        self._layout: FragmentLayout | None = None
        self._version = -1
        self._lives = [0] * spec.num_actors
        self._is_stopped = False

    # --- what each engine writes ------------------------------------------------------------------

    @abstractmethod
    def _launch(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        """Makes the actors; ``_layout`` is known."""

    @abstractmethod
    def _store_weights(self, version: int, weights: NDArray[np.float32]) -> None:
        """Puts weights where actors find them, sparing versions that tickets still need."""

    @abstractmethod
    def _able(self) -> Sequence[int]:
        """Actors that can take tickets."""

    @abstractmethod
    def _send(self, ticket: Ticket) -> None:
        """Brings a ticket to its actor."""

    @abstractmethod
    def _advance(self, timeout: float) -> None:
        """Waits until something happens, books it, and deals with actors that died or hang."""

    @abstractmethod
    def _buffers(self, slot: int) -> FragmentBuffers:
        """The arrays of a slot that is ready."""

    @abstractmethod
    def _restore_slot(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Fills a slot from a checkpoint."""

    @abstractmethod
    def _actor_states(self) -> list[EngineState]:
        """States of all actors, which are idle."""

    @abstractmethod
    def _restore_actors(self, states: Sequence[EngineState]) -> None:
        """Brings all actors to the states of a checkpoint."""

    @abstractmethod
    def _relive(self, lives: Sequence[int]) -> None:
        """Makes the actors anew, with random streams that no earlier life has used."""

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        """Told when the learner has released fragments; nothing to do for most engines."""

    # --- the six calls ----------------------------------------------------------------------------

    def start(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        """Makes the actors; see :class:`RolloutEngine`."""
        if self._layout is not None:
            raise RolloutError("the engine was started before; make a new one")
        self._layout = FragmentLayout.of(self.spec, policy_spec, policy_spec.make())
        try:
            self._launch(policy_spec, env_factory, seeds)
        except BaseException:
            self.stop()
            raise

    def publish(self, version: int, flat_weights: NDArray[np.float32]) -> None:
        """Gives new weights to all actors; see :class:`RolloutEngine`."""
        layout = self._running()
        if version <= self._version:
            raise RolloutError(f"version {version} was published after {self._version}")
        if flat_weights.shape != (layout.num_weights,) or flat_weights.dtype != np.float32:
            raise RolloutError(
                f"weights of shape {flat_weights.shape} and {flat_weights.dtype}, "
                f"expected ({layout.num_weights},) and float32"
            )
        self._store_weights(version, flat_weights)
        self._version = version
        self._assign()

    def collect(self, n: int, timeout: float | None = None) -> list[Fragment]:
        """Waits for ``n`` fragments; see :class:`RolloutEngine`."""
        self._running()
        if self._version < 0:
            raise RolloutError("no weights were published before collect")
        room = self.spec.num_slots - self._ledger.num_held
        if not 1 <= n <= room:
            raise ConfigError(
                f"collect({n}): the engine has {self.spec.num_slots} slots and "
                f"{self._ledger.num_held} of them are not released; expected 1 to {room}"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        tickets = self._ledger.take(n)
        while tickets is None:
            left = _POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return []
            self._advance(min(left, _POLL_S))
            tickets = self._ledger.take(n)
        return [self._buffers(ticket.slot).fragment(ticket) for ticket in tickets]

    def release(self, fragments: Sequence[Fragment]) -> None:
        """Gives the memory of fragments back; see :class:`RolloutEngine`."""
        self._running()
        tickets: list[Ticket] = [fragment.handle for fragment in fragments]
        self._ledger.release(tickets)
        self._forget(tickets)
        self._assign()

    def num_waiting(self) -> int:
        """Counts the fragments that are ready; see :class:`RolloutEngine`."""
        return self._ledger.num_ready

    def _assign(self) -> None:
        if self._version < 0:
            return
        for ticket in self._ledger.assign(self._version, self._able()):
            self._send(ticket)

    def _running(self) -> FragmentLayout:
        if self._is_stopped:
            raise RolloutError("the engine is stopped")
        if self._layout is None:
            raise RolloutError("the engine is not started")
        return self._layout

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self) -> EngineState:
        """Returns what ``load_state`` needs; see :class:`RolloutEngine`."""
        self._running()
        if self._ledger.num_held:
            raise RolloutError(f"{self._ledger.num_held} fragments are not released")
        if self.spec.deterministic:
            while self._ledger.working:
                self._advance(_POLL_S)
        state: EngineState = {
            "deterministic": np.array(self.spec.deterministic),
            "next_number": np.array(self._ledger.next_number),
            "sequences": np.array(self._ledger.sequences, dtype=np.int64),
            "lives": np.array(self._lives, dtype=np.int64),
        }
        if self.spec.deterministic:
            state.update(self._ready_state())
            for index, actor in enumerate(self._actor_states()):
                state.update((f"actor{index}.{name}", value) for name, value in actor.items())
        return state

    def _ready_state(self) -> EngineState:
        """Returns the fragments that wait, without what depends on time or was there before."""
        ready = self._ledger.ready
        state: EngineState = {
            name: np.array([getattr(ticket, name) for ticket in ready], dtype=np.int64)
            for name in ("number", "version", "sequence")
        }
        for name, shape, dtype in self._running().fields:
            state[f"ready.{name}"] = np.zeros((len(ready), *shape), dtype=dtype)
        for row, ticket in enumerate(ready):
            buffers = self._buffers(ticket.slot)
            fragment = buffers.fragment(None)
            for name, _, _ in self._running().fields:
                if name == "seconds":
                    continue
                values = buffers.header if name == "header" else getattr(fragment, name)
                # Lists of episodes are shorter than the room for them.
                state[f"ready.{name}"][row, : len(values)] = values
        return state

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from ``state``; see :class:`RolloutEngine`."""
        self._running()
        if self._version >= 0:
            raise RolloutError("load_state comes before the first publish")
        actors, is_deterministic = len(state["sequences"]), bool(state["deterministic"])
        if actors != self.spec.num_actors or is_deterministic != self.spec.deterministic:
            raise CheckpointError(
                f"the engine's state is of {actors} actors, deterministic = {is_deterministic}; "
                f"this engine has {self.spec.num_actors} and {self.spec.deterministic}"
            )
        sequences = state["sequences"].tolist()
        if not self.spec.deterministic:
            self._ledger.restore([], int(state["next_number"]), sequences)
            self._relive([life + 1 for life in state["lives"].tolist()])
            return
        self._restore_ready(state, sequences)
        prefixes = [f"actor{index}." for index in range(actors)]
        self._restore_actors(
            [
                {name.removeprefix(p): state[name] for name in state if name.startswith(p)}
                for p in prefixes
            ]
        )

    def _restore_ready(self, state: Mapping[str, NDArray[Any]], sequences: list[int]) -> None:
        rows = [state[name].tolist() for name in ("number", "version", "sequence")]
        ready = list(zip(*rows, strict=True))
        for name, shape, dtype in self._running().fields:
            given = state[f"ready.{name}"]
            if given.shape != (len(ready), *shape) or given.dtype != np.dtype(dtype):
                raise CheckpointError(
                    f"the fragments of the engine's state have {name} {list(given.shape[1:])} of "
                    f"{given.dtype}; this engine has {list(shape)} of {np.dtype(dtype)}"
                )
        if len(ready) > self.spec.num_slots:
            raise CheckpointError(
                f"the engine's state has {len(ready)} fragments, this engine "
                f"{self.spec.num_slots} slots"
            )
        tickets = self._ledger.restore(ready, int(state["next_number"]), sequences)
        for row, ticket in enumerate(tickets):
            fields = {name: state[f"ready.{name}"][row] for name, _, _ in self._running().fields}
            self._restore_slot(ticket.slot, fields)
