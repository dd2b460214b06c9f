"""Who has which slot, and in which order fragments are handed over. Pure bookkeeping.

Only the learner hands out slots, so the ledger needs no memory that is shared and no lock: when an
actor dies, what it had is known exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rlreg.errors import RolloutError


@dataclass(frozen=True, slots=True)
class Ticket:
    """An order to an actor to fill a slot.

    Attributes:
        number: Counts all tickets of the engine.
        slot: Where the fragment goes.
        actor: Who makes it.
        version: Weights that were current when the ticket was written.
        sequence: Number of the fragment among those of its actor.
    """

    number: int
    slot: int
    actor: int
    version: int
    sequence: int


class Ledger:
    """Every slot is free, with an actor, ready, or held by the learner.

    In deterministic mode tickets go to the actors in turn and are handed over by number; otherwise
    a ticket goes to the actor that has the fewest, and the first ready is the first handed over.
    """

    def __init__(self, num_actors: int, num_slots: int, *, deterministic: bool) -> None:
        self.num_slots = num_slots
        self.next_number = 0
        self._num_actors = num_actors
        self._deterministic = deterministic
        self._free = list(range(num_slots))
        self._working: dict[int, Ticket] = {}  # by slot, in the order of writing
        self._ready: list[Ticket] = []
        self._held: dict[int, Ticket] = {}
        self._next_taken = 0
        self._last_ticket = [-1] * num_actors
        # Counted along: with hundreds of actors, counting them anew took longer than an update.
        self._loads = [0] * num_actors
        self.sequences = [0] * num_actors

    @property
    def num_held(self) -> int:
        """Slots that the learner has."""
        return len(self._held)

    @property
    def num_ready(self) -> int:
        """Fragments that wait for the learner."""
        return len(self._ready)

    @property
    def working(self) -> list[Ticket]:
        """Tickets that actors have, oldest first."""
        return list(self._working.values())

    @property
    def ready(self) -> list[Ticket]:
        """Tickets of the fragments that wait, in the order in which they are handed over."""
        key = (lambda ticket: ticket.number) if self._deterministic else None
        return sorted(self._ready, key=key) if key else list(self._ready)

    def load(self, actor: int) -> int:
        """Returns how many tickets an actor has."""
        return self._loads[actor]

    def assign(self, version: int, able: Collection[int]) -> list[Ticket]:
        """Writes a ticket for every free slot, as long as an actor is able to take it."""
        written = []
        while self._free and able:
            actor = self._choose(able)
            if actor not in able:
                break
            slot, sequence = self._free.pop(0), self.sequences[actor]
            ticket = Ticket(self.next_number, slot, actor, version, sequence)
            self.next_number += 1
            self.sequences[actor] += 1
            self._last_ticket[actor] = ticket.number
            self._working[ticket.slot] = ticket
            self._loads[actor] += 1
            written.append(ticket)
        return written

    def _choose(self, able: Collection[int]) -> int:
        if self._deterministic:
            return self.next_number % self._num_actors
        return min(able, key=lambda actor: (self._loads[actor], self._last_ticket[actor]))

    def arrive(self, slot: int) -> Ticket | None:
        """Books a finished fragment; ``None`` if nobody was working on the slot."""
        ticket = self._working.pop(slot, None)
        if ticket is not None:
            self._loads[ticket.actor] -= 1
            self._ready.append(ticket)
        return ticket

    def take(self, n: int) -> list[Ticket] | None:
        """Hands ``n`` fragments to the learner, or none if there are not enough."""
        if len(self._ready) < n:
            return None
        if self._deterministic:
            self._ready.sort(key=lambda ticket: ticket.number)
            if self._ready[n - 1].number != self._next_taken + n - 1:
                return None
        taken, self._ready = self._ready[:n], self._ready[n:]
        self._next_taken += n
        self._held.update((ticket.slot, ticket) for ticket in taken)
        return taken

    def release(self, tickets: Iterable[Ticket]) -> None:
        """Frees slots that the learner has.

        Raises:
            RolloutError: If a fragment was released before.
        """
        for ticket in tickets:
            if self._held.get(ticket.slot) != ticket:
                raise RolloutError(f"fragment {ticket.number} was released before")
            del self._held[ticket.slot]
            self._free.append(ticket.slot)

    def reclaim(self, actor: int) -> list[Ticket]:
        """Frees the slots of a dead actor; what it had finished stays ready.

        The numbers of what is lost are given again, so that an actor's fragments have no gap.
        """
        lost = [ticket for ticket in self._working.values() if ticket.actor == actor]
        if lost:
            self.sequences[actor] = lost[0].sequence
        self._loads[actor] = 0
        for ticket in lost:
            del self._working[ticket.slot]
            self._free.append(ticket.slot)
        return lost

    def restore(
        self, ready: Sequence[tuple[int, int, int]], next_number: int, sequences: Sequence[int]
    ) -> list[Ticket]:
        """Goes on where another ledger was.

        Args:
            ready: Number, version and sequence of the fragments that waited; they get free slots.
            next_number: Of the other ledger.
            sequences: Of the other ledger.

        Returns:
            The tickets of ``ready``.
        """
        restored = [
            Ticket(number, self._free.pop(0), number % self._num_actors, version, sequence)
            for number, version, sequence in ready
        ]
        self._ready.extend(restored)
        self.next_number = next_number
        self.sequences[:] = sequences
        self._next_taken = min([next_number, *(ticket.number for ticket in restored)])
        return restored
