"""A discrete-event simulation of IMPALA on Ray: actors, object store, network, and one learner.

The learner's process is the driver of Ray: it learns, and between two updates it books fragments,
publishes weights and hands out tickets, one thing after the other, in the order of
`rlreg_impala/engines/ray.py` and `slotted.py`. Actors work at the same time as it and as each
other, on cores that may be too few; what crosses machines shares the network of the driver's.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

Process = Generator[Any, Any, None]


class Shared:
    """A resource that active tasks share alike: cores, or the bandwidth of a network.

    Args:
        capacity: Units of work a second of all tasks together.
        most: Units a second that one task can use.
    """

    def __init__(self, capacity: float, most: float) -> None:
        self.capacity, self.most = capacity, most
        self.busy = self._now = 0.0  # units of work done
        self._done = 0.0  # units that each task has got, counted from the beginning of time
        self._tasks: list[tuple[float, int, Process]] = []
        self._numbers = itertools.count()

    def advance(self, now: float) -> None:
        """Lets the tasks work until now."""
        given = self._rate() * (now - self._now)
        self._done += given
        self.busy += given * len(self._tasks)
        self._now = now

    def add(self, work: float, process: Process) -> None:
        """Begins a task; ``process`` goes on at its end."""
        heapq.heappush(self._tasks, (self._done + work, next(self._numbers), process))

    def next_end(self) -> float:
        """Returns when the first task ends if none begins before."""
        if not self._tasks:
            return float("inf")
        return self._now + max(self._tasks[0][0] - self._done, 0.0) / self._rate()

    def pop(self) -> Process:
        """Takes away the task that ends now."""
        ended, _, process = heapq.heappop(self._tasks)
        self._done = max(self._done, ended)  # rounding
        return process

    def _rate(self) -> float:
        return min(self.most, self.capacity / max(len(self._tasks), 1))


class Clock:
    """Runs processes: generators that yield seconds, or a resource and an amount, or a Signal."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timed: list[tuple[float, int, Process]] = []
        self._numbers = itertools.count()
        self._shared: list[Shared] = []

    def resource(self, capacity: float, most: float) -> Shared:
        """Makes a resource."""
        self._shared.append(Shared(capacity, most))
        return self._shared[-1]

    def start(self, process: Process, delay: float = 0.0) -> None:
        """Starts a process."""
        heapq.heappush(self._timed, (self.now + delay, next(self._numbers), process))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Runs until it is over, or nothing can happen any more."""
        while not is_over():
            ends = [resource.next_end() for resource in self._shared]
            first = min(ends, default=float("inf"))
            timed = self._timed[0][0] if self._timed else float("inf")
            if min(first, timed) == float("inf"):
                return
            self.now = min(first, timed)
            for resource in self._shared:
                resource.advance(self.now)
            if timed <= first:
                self._step(heapq.heappop(self._timed)[2])
            else:
                self._step(self._shared[ends.index(first)].pop())

    def _step(self, process: Process) -> None:
        try:
            wanted = next(process)
        except StopIteration:
            return
        if isinstance(wanted, Signal):
            wanted.wait(process)
        elif isinstance(wanted, tuple):
            resource, work = wanted
            resource.add(work, process)
        else:
            self.start(process, wanted)


class Signal:
    """Something that processes wait for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[Process] = []

    def wait(self, process: Process) -> None:
        """Lets a process wait."""
        self._waiting.append(process)

    def send(self) -> None:
        """Wakes whoever waits."""
        for process in self._waiting:
            self._clock.start(process)
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class Timings:
    """What everything takes, in seconds, and how large it is.

    Attributes:
        fill: Processor time of an actor for a fragment.
        fill_wait: Time in which an actor waits in a fragment for something else.
        load: Of an actor to read and take over new weights.
        give_back: Of an actor to put a fragment into the object store.
        latency: From a call to its beginning, and from its end to the driver, together.
        learn: Of the learner to join a batch, update and pack its weights.
        put: Of the driver to put weights into the object store.
        get: Of the driver to book a fragment.
        submit: Of the driver to make a call.
        look: Of the driver to ask Ray what is ready.
        watch: Of the driver to look after all actors.
        ticket: Of the driver to write a ticket.
        fragment_bytes: Of a fragment.
        weight_bytes: Of the policy's weights.
    """

    fill: float
    fill_wait: float = 0.0
    load: float = 0.0
    give_back: float = 0.0
    latency: float = 0.0
    learn: float = 0.0
    put: float = 0.0
    get: float = 0.0
    submit: float = 0.0
    look: float = 0.0
    watch: float = 0.0
    ticket: float = 0.0
    fragment_bytes: float = 0.0
    weight_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the actors are.

    Attributes:
        actors: How many.
        slots: Fragments in existence at once.
        batch_size: Fragments of an update.
        actors_per_node: Of each machine besides the driver's; 0 puts all on the driver's.
        cores: Of the driver's machine. Every other one has a core for each of its actors.
        bandwidth: Bytes a second into and out of the driver's machine, each.
        probe_every: Seconds between two questions to a busy actor; 0 asks none.
    """

    actors: int
    slots: int
    batch_size: int = 1
    actors_per_node: int = 0
    cores: float = 1e9
    bandwidth: float = 1.25e9
    probe_every: float = 1.0


@dataclass(slots=True)
class Outcome:
    """What came of it, after the warm-up.

    Attributes:
        updates_per_s: Of the learner.
        learning: Share of the driver's time in updates.
        driving: Share of it in Ray's calls and in bookkeeping.
        waiting: Share of it without any fragment.
        network: Use of the busier direction of the driver's network.
        actors: Share of their time in which actors make fragments.
        bottleneck: Which of the four holds the others back.
    """

    updates_per_s: float
    learning: float
    driving: float
    waiting: float
    network: float
    actors: float
    bottleneck: str


@dataclass(slots=True, eq=False)
class _Actor:
    node: int
    called: Signal
    waiting_tickets: int = 0
    is_called: bool = False
    last_ticket: int = -1
    loaded: int = -1
    making: float = 0.0

    @property
    def order(self) -> tuple[int, int]:
        """Whoever has the fewest tickets, and has had none for longest, gets the next."""
        return self.waiting_tickets + self.is_called, self.last_ticket


BUSY = 0.85
"""Share of the time from which on something counts as the bottleneck."""


class Simulation:
    """One learner and its actors.

    Args:
        timings: What everything takes.
        cluster: Where the actors are.
    """

    def __init__(self, timings: Timings, cluster: Cluster) -> None:
        self.t, self.cluster = timings, cluster
        self.clock = Clock()
        per_node = cluster.actors_per_node
        self.actors = [
            _Actor(0 if per_node == 0 else 1 + index // per_node, Signal(self.clock))
            for index in range(cluster.actors)
        ]
        nodes = 1 + max(actor.node for actor in self.actors)
        self.cores = [self.clock.resource(cluster.cores, 1.0)]
        self.cores += [self.clock.resource(1e9, 1.0) for _ in range(nodes - 1)]
        self.inward, self.outward = (
            self.clock.resource(cluster.bandwidth, cluster.bandwidth) for _ in range(2)
        )
        self.version = 0
        self.free = cluster.slots
        self.arrived: deque[_Actor] = deque()  # Ray has them, the driver has not looked yet
        self.ready = 0
        self.arrival = Signal(self.clock)
        self._numbers = itertools.count()
        self._pulls: dict[tuple[int, int], Signal | None] = {}  # by node and version
        self.updates, self._probed = 0, 0.0
        self.spent = {"learning": 0.0, "driving": 0.0, "waiting": 0.0}

    def run(self, updates: int) -> Outcome:
        """Simulates so many updates, the first fifth of them as a warm-up.

        Args:
            updates: At least 5.
        """
        self.clock.start(self._driver())
        for actor in self.actors:
            self.clock.start(self._act(actor))
        warm = max(updates // 5, 1)
        self.clock.run(lambda: self.updates >= warm)
        begun, spent = self.clock.now, dict(self.spent)
        moved = self.inward.busy, self.outward.busy
        made = sum(actor.making for actor in self.actors)
        first = self.updates
        self.clock.run(lambda: self.updates >= updates)
        passed = self.clock.now - begun
        shares = {name: (self.spent[name] - spent[name]) / passed for name in spent}
        used = max(self.inward.busy - moved[0], self.outward.busy - moved[1])
        network = used / (self.cluster.bandwidth * passed)
        making = sum(actor.making for actor in self.actors) - made
        acting = making / (passed * len(self.actors))
        rate = (self.updates - first) / passed
        return Outcome(rate, **shares, network=network, actors=acting,
                       bottleneck=_bottleneck(shares, network))  # fmt: skip

    # --- the driver -------------------------------------------------------------------------------

    def _driver(self) -> Process:
        yield from self._assign()
        while True:
            while self.ready < self.cluster.batch_size:
                yield from self._advance()
            self.ready -= self.cluster.batch_size
            yield from self._work("learning", self.t.learn)
            self.version += 1
            yield from self._work("driving", self.t.put)
            yield from self._harvest()
            yield from self._assign()
            self.free += self.cluster.batch_size
            yield from self._harvest()
            yield from self._assign()
            self.updates += 1

    def _advance(self) -> Process:
        """What `RayEngine._advance` does: waits, books, and looks after the actors."""
        if not self.arrived:
            begun = self.clock.now
            yield self.arrival
            self.spent["waiting"] += self.clock.now - begun
        yield from self._harvest()
        yield from self._work("driving", self.t.watch)
        if self.cluster.probe_every:
            due = (self.clock.now - self._probed) / self.cluster.probe_every * len(self.actors)
            self._probed = self.clock.now
            yield from self._work("driving", due * (self.t.submit + self.t.get))

    def _harvest(self) -> Process:
        yield from self._work("driving", self.t.look)
        for _ in range(len(self.arrived)):
            actor = self.arrived.popleft()
            yield from self._work("driving", self.t.get)
            self.ready += 1
            actor.is_called = False
            if actor.waiting_tickets:
                yield from self._call(actor)

    def _assign(self) -> Process:
        while self.free:
            self.free -= 1
            yield from self._work("driving", self.t.ticket)
            actor = min(self.actors, key=lambda one: one.order)
            actor.waiting_tickets += 1
            actor.last_ticket = next(self._numbers)
            if not actor.is_called:
                yield from self._call(actor)

    def _call(self, actor: _Actor) -> Process:
        yield from self._work("driving", self.t.submit)
        actor.waiting_tickets -= 1
        actor.is_called = True
        actor.called.send()

    def _work(self, what: str, seconds: float) -> Process:
        if seconds > 0:
            begun = self.clock.now
            yield self.cores[0], seconds
            self.spent[what] += self.clock.now - begun

    # --- an actor ---------------------------------------------------------------------------------

    def _act(self, actor: _Actor) -> Process:
        while True:
            if not actor.is_called:
                yield actor.called
            version = self.version
            if self.t.latency:
                yield self.t.latency
            begun = self.clock.now
            if version != actor.loaded:
                yield from self._pull(actor.node, version)
                yield self.cores[actor.node], self.t.load
                actor.loaded = version
            yield self.cores[actor.node], self.t.fill
            if self.t.fill_wait:
                yield self.t.fill_wait
            yield self.cores[actor.node], self.t.give_back
            actor.making += self.clock.now - begun
            if actor.node and self.t.fragment_bytes:
                yield self.inward, self.t.fragment_bytes
            self.arrived.append(actor)
            self.arrival.send()
            yield actor.called

    def _pull(self, node: int, version: int) -> Process:
        """Brings weights to a machine, once for all of its actors."""
        if node == 0 or not self.t.weight_bytes:
            return
        key = node, version
        if key not in self._pulls:
            signal = self._pulls[key] = Signal(self.clock)
            yield self.outward, self.t.weight_bytes
            self._pulls[key] = None
            signal.send()
        else:
            pulling = self._pulls[key]
            if pulling is not None:
                yield pulling


def _bottleneck(shares: dict[str, float], network: float) -> str:
    """Names what holds the others back: who of the four never rests."""
    if network >= BUSY:
        return "network"
    if shares["waiting"] > 1 - BUSY:
        return "actors"
    return "learner" if shares["learning"] >= shares["driving"] else "driver"
