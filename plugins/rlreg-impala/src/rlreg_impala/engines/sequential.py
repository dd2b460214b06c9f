"""The engine in the learner's own process: the easiest to debug, and always deterministic.

It writes the same tickets as the process engine and fills them when the learner asks, each with the
weights that were current when the ticket was written. So a deterministic run of the process engine
with the same sizes gives the same fragments, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg_impala.acting import Actor
from rlreg_impala.buffers import FragmentBuffers
from rlreg_impala.progress import ENV, PHASE, STARTING, STEP, VERSION, Progress, new_progress
from rlreg_impala.rollouts import (
    ActorState,
    ActorStatus,
    EngineSpec,
    EngineState,
    EnvFactory,
    PolicySpec,
)
from rlreg_impala.streams import Streams

from .slotted import SlottedEngine
from .tickets import Ticket


@dataclass(slots=True)
class _Member:
    """One actor, and what ``health`` says about it."""

    actor: Actor
    progress: Progress
    fragments: int = 0
    error: str = ""


class SequentialEngine(SlottedEngine):
    """Fills a slot when the learner waits for it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(replace(spec, deterministic=True))
        self._members: list[_Member] = []
        self._slots: list[FragmentBuffers] = []
        self._weights: dict[int, NDArray[np.float32]] = {}

    def _launch(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        arrays = self._running().allocate(self.spec.num_slots)
        self._slots = [FragmentBuffers.slot(arrays, slot) for slot in range(self.spec.num_slots)]
        for index in range(self.spec.num_actors):
            progress = new_progress()
            streams = Streams(seeds, index)
            actor = Actor(self.spec, policy_spec, env_factory, streams, progress=progress)
            self._members.append(_Member(actor, progress))

    def _store_weights(self, version: int, weights: NDArray[np.float32]) -> None:
        needed = {ticket.version for ticket in self._ledger.working}
        self._weights = {v: kept for v, kept in self._weights.items() if v in needed}
        self._weights[version] = weights.copy()

    def _able(self) -> Sequence[int]:
        return range(self.spec.num_actors)

    def _send(self, ticket: Ticket) -> None:
        """Nothing: the ticket waits in the ledger."""

    def _advance(self, timeout: float) -> None:
        ticket = self._ledger.working[0]
        member = self._members[ticket.actor]
        member.actor.load_flat(self._weights[ticket.version])
        try:
            member.actor.fill(self._slots[ticket.slot], ticket.version, ticket.sequence)
        except Exception as error:
            member.error = str(error)
            raise
        member.fragments += 1
        self._ledger.arrive(ticket.slot)

    def _buffers(self, slot: int) -> FragmentBuffers:
        return self._slots[slot]

    def _restore_slot(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, values in arrays.items():
            getattr(self._slots[slot], name)[...] = values

    def _actor_states(self) -> list[EngineState]:
        return [member.actor.state() for member in self._members]

    def _restore_actors(self, states: Sequence[EngineState]) -> None:
        for member, state in zip(self._members, states, strict=True):
            member.actor.load_state(state)

    def _relive(self, lives: Sequence[int]) -> None:
        """Never asked for: this engine is deterministic."""
        raise NotImplementedError

    def health(self) -> list[ActorStatus]:
        """Says how each actor is."""
        return [self._status(index, member) for index, member in enumerate(self._members)]

    def _status(self, index: int, member: _Member) -> ActorStatus:
        state: ActorState = "starting" if member.progress[PHASE] == STARTING else "idle"
        if member.error:
            state = "failed"
        elif self._is_stopped:
            state = "stopped"
        env = member.progress[ENV]
        return ActorStatus(
            index=index,
            state=state,
            fragments=member.fragments,
            step=member.progress[STEP],
            env=None if env < 0 else env,
            version=member.progress[VERSION],
            error=member.error,
        )

    def stop(self) -> None:
        """Closes every environment."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for member in self._members:
            member.actor.close()
