"""The engine for those who outgrow one machine: actors in a Ray cluster.

Weights go to the object store once per version; every actor has one call in flight; a fragment is a
mapping of arrays that Ray maps without a copy, and releasing it drops the last reference to it, so
that the object store never fills. Ray is imported by this file only.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import MissingExtraError, RolloutError
from rlreg_impala.buffers import FragmentBuffers
from rlreg_impala.progress import ENV, STEP, VERSION, new_progress
from rlreg_impala.rollouts import (
    ActorState,
    ActorStatus,
    EngineSpec,
    EngineState,
    EnvFactory,
    PolicySpec,
)

from .failures import Failure
from .payload import pack
from .ray_worker import RayWorker
from .slotted import SlottedEngine
from .stillness import Stillness
from .tickets import Ticket

# A cluster may have to start a machine before it can place an actor.
_START_TIMEOUT_S = 600.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 10.0
_PROBE_S = 1.0
_KNOCK_S = 10.0


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as cause:
        raise MissingExtraError(
            "the ray engine needs Ray, which is not installed: pip install 'rlreg-impala[ray]'"
        ) from cause
    return ray


def _knock(address: str | None) -> None:
    """Looks whether somebody listens at ``host:port``; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


@dataclass(slots=True)
class _Member:
    """One actor as the learner sees it.

    Attributes:
        index: Which actor.
        handle: Of the Ray actor; ``None`` between two lives.
        preparing: The call that makes its environments, until it has returned.
        call: The fragment in flight and its ticket.
        queue: Tickets that wait for the call in flight.
        probe: The question for progress in flight.
        progress: The last answer to it.
        calls: How many were made.
        probed_at: When it was asked.
    """

    index: int
    handle: Any = None
    preparing: Any = None
    call: tuple[Any, Ticket] | None = None
    queue: deque[Ticket] = field(default_factory=deque)
    probe: Any = None
    progress: list[int] = field(default_factory=lambda: list(new_progress()))
    calls: int = 0
    probed_at: float = 0.0
    restarts: int = 0
    restart_at: float = 0.0
    fragments: int = 0
    error: str = ""
    failure: Failure | None = None
    stillness: Stillness = field(default_factory=Stillness)

    @property
    def is_busy(self) -> bool:
        """Whether a call is in flight that the actor has to work for."""
        return self.call is not None or self.preparing is not None

    def seems_hung(self, limit: float) -> bool:
        """Whether the actor should have moved by now; to be asked again and again."""
        return self.stillness.exceeds(limit, (self.calls, *self.progress), is_due=self.is_busy)

    def status(self, *, is_stopped: bool) -> ActorStatus:
        """Says how the actor is, as far as the learner knows."""
        env = self.progress[ENV]
        return ActorStatus(
            index=self.index,
            state=self._state(is_stopped=is_stopped),
            restarts=self.restarts,
            fragments=self.fragments,
            step=self.progress[STEP],
            env=None if env < 0 else env,
            version=self.progress[VERSION],
            error=self.error,
        )

    def _state(self, *, is_stopped: bool) -> ActorState:
        if self.failure is not None:
            return "failed"
        if is_stopped:
            return "stopped"
        if self.handle is None:
            return "restarting"
        if self.preparing is not None:
            return "starting"
        return "idle" if self.call is None else "acting"


class RayEngine(SlottedEngine):
    """Actors in a Ray cluster.

    Raises:
        MissingExtraError: If Ray is not installed.
    """

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._ray = _import_ray()
        self._members: list[_Member] = []
        self._fragments: dict[int, FragmentBuffers] = {}
        self._weights: dict[int, Any] = {}
        self._payload: Any = None
        self._worker_class: Any = None
        self._owns_ray = False

    # --- launching --------------------------------------------------------------------------------

    def _launch(
        self, policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence
    ) -> None:
        payload = pack(policy_spec, env_factory, seeds)
        self._connect()
        self._payload = self._ray.put(payload)
        # Two threads: one acts, the other says how far it is.
        make_remote = self._ray.remote(
            num_cpus=self.spec.num_cpus_per_actor,
            max_restarts=0,
            max_concurrency=1,
            concurrency_groups={"probe": 1},
        )
        self._worker_class = make_remote(RayWorker)
        self._members = [_Member(index) for index in range(self.spec.num_actors)]
        for member in self._members:
            self._spawn(member)

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        where = self.spec.address or "on this machine"
        try:
            _knock(self.spec.address)
            self._ray.init(
                address=self.spec.address,
                include_dashboard=None if self.spec.address else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as cause:
            raise RolloutError(f"the Ray cluster {where} cannot be reached: {cause}") from cause
        self._owns_ray = True

    def _spawn(self, member: _Member) -> None:
        life = self._lives[member.index]
        member.handle = self._worker_class.remote(member.index)
        member.preparing = member.handle.prepare.remote(
            life, self.spec, self._running(), self._payload
        )
        member.probed_at = time.monotonic()
        member.stillness.begin()

    # --- what the base asks for -------------------------------------------------------------------

    def _store_weights(self, version: int, weights: NDArray[np.float32]) -> None:
        needed: set[int] = set()
        if self.spec.deterministic:
            needed = {ticket.version for ticket in self._ledger.working}
        self._weights = {v: ref for v, ref in self._weights.items() if v in needed}
        self._weights[version] = self._ray.put(weights)

    def _able(self) -> Sequence[int]:
        return [member.index for member in self._members if member.handle is not None]

    def _assign(self) -> None:
        # Whoever has finished meanwhile can begin anew at once, not only when the learner waits.
        self._harvest(0.0)
        super()._assign()

    def _send(self, ticket: Ticket) -> None:
        member = self._members[ticket.actor]
        member.queue.append(ticket)
        self._next_call(member)

    def _next_call(self, member: _Member) -> None:
        if member.preparing is not None or member.call is not None or not member.queue:
            return
        ticket = member.queue.popleft()
        version = ticket.version if self.spec.deterministic else self._version
        reference = member.handle.fill.remote(self._weights[version], version, ticket.sequence)
        member.call = reference, ticket
        member.calls += 1

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._fragments.pop(ticket.slot, None)

    def _buffers(self, slot: int) -> FragmentBuffers:
        return self._fragments[slot]

    def _restore_slot(self, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._fragments[slot] = FragmentBuffers(**arrays)

    def _advance(self, timeout: float) -> None:
        for member in self._members:
            if member.failure is not None:
                self._raise(member, member.failure)
        self._harvest(timeout)
        now = time.monotonic()
        for member in self._members:
            if member.handle is None:
                if now >= member.restart_at:
                    self._spawn(member)
                    self._assign()
            else:
                self._watch(member, now)

    def _harvest(self, timeout: float) -> None:
        """Books every call that has returned."""
        waiting = {}
        for member in self._members:
            for reference in (member.preparing, member.call and member.call[0], member.probe):
                if reference is not None:
                    waiting[reference] = member
        if not waiting:
            time.sleep(timeout)
            return
        references = list(waiting)
        ready, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            member = waiting[reference]
            if member.handle is not None:
                self._book(member, reference)

    def _book(self, member: _Member, reference: Any) -> None:
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            place = (
                f"after step {member.progress[STEP]}" if member.progress[STEP] else "at its start"
            )
            what = str(error).strip().splitlines()[0]
            result = Failure(f"actor {member.index} died {place}: {type(error).__name__}: {what}")
        if isinstance(result, Failure):
            self._bury(member, result)
        elif reference == member.preparing:
            member.preparing = None
            self._next_call(member)
        elif reference == member.probe:
            member.probe = None
            member.progress = result
        elif member.call is not None and reference == member.call[0]:
            _, ticket = member.call
            self._fragments[ticket.slot] = FragmentBuffers(**result)
            self._ledger.arrive(ticket.slot)
            member.call = None
            member.fragments += 1
            self._next_call(member)

    # --- hangs and deaths -------------------------------------------------------------------------

    def _watch(self, member: _Member, now: float) -> None:
        """Asks an actor that works on a call for long how far it is."""
        limit = self.spec.actor_timeout
        if member.preparing is not None:
            limit = max(limit, _START_TIMEOUT_S)
        if member.seems_hung(limit):
            env, step = max(member.progress[ENV], 0), member.progress[STEP] + 1
            where = f"environment {env}, step {step}"
            if member.preparing is not None:
                where = "while it was starting; does the cluster have CPUs for it?"
            self._bury(
                member, Failure(f"actor {member.index} made no step for {limit:g} s: {where}")
            )
        elif (
            member.is_busy
            and member.probe is None
            and now - member.probed_at > min(_PROBE_S, limit / 4)
        ):
            member.probed_at = now
            method = member.handle.progress.options(concurrency_group="probe")
            member.probe = method.remote()

    def _bury(self, member: _Member, failure: Failure) -> None:
        self._end(member)
        member.error = failure.message
        self._ledger.reclaim(member.index)
        budget = 0 if self.spec.deterministic else self.spec.max_restarts
        if failure.is_final or member.restarts >= budget:
            member.failure = failure
            self._raise(member, failure)
        delay = min(_FIRST_DELAY_S * 2.0**member.restarts, _LONGEST_DELAY_S)
        member.restart_at = time.monotonic() + delay
        member.restarts += 1
        self._lives[member.index] += 1
        self._assign()

    def _end(self, member: _Member) -> None:
        if member.handle is not None:
            with contextlib.suppress(Exception):  # it may be dead, or the cluster gone
                self._ray.kill(member.handle, no_restart=True)
        member.handle = member.preparing = member.call = member.probe = None
        member.queue.clear()
        member.progress = list(new_progress())

    def _raise(self, member: _Member, failure: Failure) -> None:
        note = f" (restarted {member.restarts} times, max_restarts = {self.spec.max_restarts})"
        if self.spec.deterministic:
            note = " (in deterministic mode an actor cannot be replaced)"
        raise failure.error(note)

    # --- checkpoints ------------------------------------------------------------------------------

    def _relive(self, lives: Sequence[int]) -> None:
        self._lives[:] = lives
        for member in self._members:
            self._end(member)
            self._spawn(member)

    def _prepared(self) -> None:
        while any(member.preparing is not None for member in self._members):
            self._advance(1.0)

    def _actor_states(self) -> list[EngineState]:
        self._prepared()
        states: list[EngineState] = self._get([m.handle.state.remote() for m in self._members])
        # Ray's arrays are read-only views of its store.
        return [{name: array.copy() for name, array in state.items()} for state in states]

    def _restore_actors(self, states: Sequence[EngineState]) -> None:
        self._prepared()
        pairs = zip(self._members, states, strict=True)
        for result in self._get([member.handle.load_state.remote(s) for member, s in pairs]):
            if isinstance(result, Failure):
                raise result.error()

    def _get(self, references: list[Any]) -> list[Any]:
        try:
            results: list[Any] = self._ray.get(references)
        except self._ray.exceptions.RayError as error:
            raise RolloutError(f"an actor died: {error}") from error
        return results

    # --- health and the end -----------------------------------------------------------------------

    def health(self) -> list[ActorStatus]:
        """Says how each actor is, as far as is known without waiting."""
        if not self._is_stopped and self._members:
            for member in self._members:
                if member.handle is not None and member.preparing is None and not member.probe:
                    method = member.handle.progress.options(concurrency_group="probe")
                    member.probe = method.remote()
            self._harvest(0.05)
        return [member.status(is_stopped=self._is_stopped) for member in self._members]

    def stop(self) -> None:
        """Ends every actor, and Ray too where this engine started it."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for member in self._members:
            self._end(member)
        self._fragments.clear()
        self._weights.clear()
        self._payload = None
        if self._owns_ray:
            self._ray.shutdown()
