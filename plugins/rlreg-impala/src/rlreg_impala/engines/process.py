"""The engine of one machine: actor processes that write fragments into shared memory.

What travels through pipes are numbers of slots; observations and weights stay where they are. The
learner alone hands out slots, and waits for pipes and process sentinels together, so that a death
wakes it at once and it knows what the dead actor had.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import pickle
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import ConfigError, RolloutError
from rlreg.parent_process import working_folder_left_out
from rlreg_impala.buffers import FragmentBuffers
from rlreg_impala.fork_server import program_left_out, single_threaded_children, start_server
from rlreg_impala.progress import restart_progress
from rlreg_impala.rollouts import ActorStatus, EngineSpec, EngineState, EnvFactory, PolicySpec

from .members import Member
from .payload import pack
from .shared import SharedArrays, SharedBlock, SharedPlan
from .slotted import SlottedEngine
from .tickets import Ticket
from .worker import ANSWER, DONE, FAILED, FILL, LATEST, LOAD, STATE, STOP, run_actor

_STOP_GRACE_S = 1.0
_POLL_S = 0.5


class ProcessEngine(SlottedEngine):
    """Actors in processes of their own.

    Raises:
        ConfigError: If the start method is not there or is fork, which hangs after torch has run.
    """

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        available = multiprocessing.get_all_start_methods()
        method = spec.start_method or ("forkserver" if "forkserver" in available else "spawn")
        if method == "fork" or method not in available:
            raise ConfigError(
                f"engine: start_method = {method!r}: expected one of "
                f"{', '.join(sorted(set(available) - {'fork'}))}"
            )
        self._context: Any = multiprocessing.get_context(method)
        self._members: list[Member] = []
        self._block: SharedBlock | None = None
        self._arrays: SharedArrays | None = None
        self._plan: SharedPlan | None = None
        self._payload = b""
        self._buffer_of: dict[int, int] = {}
        self._last_errors = [""] * spec.num_actors
        self._stop_at_exit: Any = None

    # --- launching --------------------------------------------------------------------------------

    def _launch(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        self._payload = pack(policy_spec, env_factory, seeds)
        spec = self.spec
        # A buffer for every ticket whose weights must stay, one for the latest, one to write to.
        buffers = spec.num_slots + 2 if spec.deterministic else 2
        self._plan = SharedPlan(self._running(), spec.num_slots, spec.num_actors, buffers)
        self._block = SharedBlock(self._plan.num_bytes)
        self._arrays = SharedArrays(self._block, self._plan)
        self._members = [
            Member(index, self._arrays.progress(index)) for index in range(spec.num_actors)
        ]
        self._stop_at_exit = _stop_at_exit(self)
        atexit.register(self._stop_at_exit)
        for member in self._members:
            self._spawn(member)

    def _spawn(self, member: Member) -> None:
        restart_progress(member.progress)
        ours, theirs = self._context.Pipe()
        life = self._lives[member.index]
        process = self._context.Process(
            target=run_actor,
            name=f"rlreg-actor-{member.index}",
            args=(member.index, life, self.spec, self._plan, self._block, self._payload, theirs),
        )
        try:
            start_server(self._context)  # anew, if it has died
            with single_threaded_children(), program_left_out(), working_folder_left_out():
                process.start()
        except (OSError, EOFError) as cause:  # the end of file: the server died meanwhile
            ours.close()
            why = str(cause) or "the server that it is forked from has died"
            raise RolloutError(f"actor {member.index} cannot be started: {why}") from cause
        finally:
            theirs.close()
        member.begin(process, ours)

    # --- what the base asks for -------------------------------------------------------------------

    @property
    def _shared(self) -> SharedArrays:
        assert self._arrays is not None
        return self._arrays

    def _store_weights(self, version: int, weights: NDArray[np.float32]) -> None:
        spared: set[int] = set()
        if self.spec.deterministic:
            needed = {ticket.version for ticket in self._ledger.working}
            self._buffer_of = {v: b for v, b in self._buffer_of.items() if v in needed}
            spared = set(self._buffer_of.values())
        self._buffer_of[version] = self._shared.write_weights(version, weights, spared)

    def _able(self) -> Sequence[int]:
        return [member.index for member in self._members if member.is_alive]

    def _send(self, ticket: Ticket) -> None:
        buffer = self._buffer_of[ticket.version] if self.spec.deterministic else LATEST
        member = self._members[ticket.actor]
        member.send(FILL, ticket.slot, ticket.version, buffer, ticket.sequence)

    def _buffers(self, slot: int) -> FragmentBuffers:
        return self._shared.slots[slot]

    def _restore_slot(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, values in arrays.items():
            getattr(self._shared.slots[slot], name)[...] = values

    def _advance(self, timeout: float) -> None:
        for member in self._members:
            if member.is_failed:
                self._raise(member)
        self._wait(timeout)
        now = time.monotonic()
        for member in self._members:
            if not member.is_alive:
                if now >= member.restart_at:
                    self._spawn(member)
                    self._assign()
            elif member.seems_hung(
                self.spec.actor_timeout, has_work=self._ledger.load(member.index) > 0
            ):
                member.failure = member.hung(self.spec.actor_timeout)
                self._bury(member)

    def _wait(self, timeout: float) -> None:
        """Waits for messages and deaths, and books both."""
        waiting: dict[Any, Member] = {}
        for member in self._members:
            if member.is_alive:
                waiting[member.pipe] = waiting[member.process.sentinel] = member
            else:
                timeout = min(timeout, max(member.restart_at - time.monotonic(), 0.0))
        for source in wait(list(waiting), timeout):
            member = waiting[source]
            if not member.is_alive:
                continue  # buried for the other of its two sources
            self._read(member)
            if source is not member.pipe or not member.process.is_alive():
                self._read(member)  # what it sent between the first look and its death
                self._bury(member)

    def _read(self, member: Member) -> None:
        for kind, content in member.messages():
            if kind == DONE:
                member.fragments += self._ledger.arrive(content) is not None
            elif kind == FAILED:
                member.failure = content

    # --- deaths -----------------------------------------------------------------------------------

    def _bury(self, member: Member) -> None:
        """Takes the slots of an actor that is dead or hung, and replaces it if it may be."""
        member.process.join(0.2)  # its exit code comes a moment after its end
        failure = member.died()
        member.kill()
        self._last_errors[member.index] = failure.message
        self._ledger.reclaim(member.index)
        budget = 0 if self.spec.deterministic else self.spec.max_restarts
        if failure.is_final or member.restarts >= budget:
            member.failure, member.is_failed = failure, True
            self._raise(member)
        member.schedule_restart()
        self._lives[member.index] += 1
        self._assign()

    def _raise(self, member: Member) -> NoReturn:
        assert member.failure is not None
        note = f" (restarted {member.restarts} times, max_restarts = {self.spec.max_restarts})"
        if self.spec.deterministic:
            note = " (in deterministic mode an actor cannot be replaced)"
        raise member.failure.error(note)

    # --- checkpoints ------------------------------------------------------------------------------

    def _relive(self, lives: Sequence[int]) -> None:
        self._lives[:] = lives
        for member in self._members:
            member.kill()
            self._spawn(member)

    def _actor_states(self) -> list[EngineState]:
        for member in self._members:
            member.send(STATE)
        return [self._answer(member) for member in self._members]

    def _restore_actors(self, states: Sequence[EngineState]) -> None:
        for member, state in zip(self._members, states, strict=True):
            member.send(LOAD)
            with contextlib.suppress(OSError):
                if member.pipe is not None:
                    member.pipe.send_bytes(pickle.dumps(state))
        for member in self._members:
            self._answer(member)

    def _answer(self, member: Member) -> Any:
        """Waits for an actor's answer; a death or a hang ends the wait."""
        while True:
            sources: list[Any] = [member.pipe, member.process.sentinel]
            wait(sources, _POLL_S)
            for kind, content in member.messages():
                if kind == ANSWER:
                    return content
                if kind == FAILED:
                    member.failure = content
            if not member.process.is_alive():
                self._bury(member)
            if member.seems_hung(self.spec.actor_timeout, has_work=True):
                member.failure = member.hung(self.spec.actor_timeout)
                self._bury(member)

    # --- health and the end -----------------------------------------------------------------------

    def health(self) -> list[ActorStatus]:
        """Says how each actor is, without waiting."""
        return [
            member.status(is_stopped=self._is_stopped, error=self._last_errors[member.index])
            for member in self._members
        ]

    def num_waiting(self) -> int:
        """Counts the fragments that are ready; see :class:`RolloutEngine`."""
        for member in self._members:
            self._read(member)
        return super().num_waiting()

    def stop(self) -> None:
        """Ends every actor: politely, and after a second at once."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            if self._arrays is not None:
                self._arrays.request_stop()
            for member in self._members:
                self._read(member)
                # One that is still importing would not hear it.
                member.send(STOP) if member.is_ready else member.kill()
            self._wait_for_ends(time.monotonic() + _STOP_GRACE_S)
        finally:
            # Also when a second Ctrl-C comes meanwhile.
            for member in self._members:
                member.kill()
            if self._block is not None:
                self._block.close_descriptor()
            if self._stop_at_exit is not None:
                atexit.unregister(self._stop_at_exit)

    def _wait_for_ends(self, deadline: float) -> None:
        while left := [member.process.sentinel for member in self._members if member.is_alive]:
            left = [sentinel for sentinel in left if not wait([sentinel], 0)]
            remaining = deadline - time.monotonic()
            if not left or remaining <= 0:
                return
            wait(left, remaining)


def _stop_at_exit(engine: ProcessEngine) -> Any:
    """Returns what stops an engine that was forgotten, without keeping it alive."""
    reference = weakref.ref(engine)

    def stop() -> None:
        forgotten = reference()
        if forgotten is not None:
            forgotten.stop()

    return stop
