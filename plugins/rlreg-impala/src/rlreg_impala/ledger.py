"""The accounting law: every sampled row is trained on, discarded, masked, or in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlreg.errors import RolloutError

from .rollouts import Fragment


@dataclass(slots=True)
class Ledger:
    """Where each row went. Rows are counted on arrival, and independently when they are used.

    Attributes:
        sampled: Rows of all fragments that an engine handed over.
        trained: Transitions that an update used, counted from the mask of its loss.
        discarded: Rows of fragments that were too old, masked ones included.
        masked: Reset rows, which are no transitions, of fragments that were used.
        held: Rows of fragments that were handed over and are not used yet.
    """

    sampled: int = 0
    trained: int = 0
    discarded: int = 0
    masked: int = 0
    held: int = 0
    _next: dict[int, int] = field(default_factory=dict)

    def arrive(self, fragment: Fragment) -> None:
        """Books a fragment that an engine handed over.

        Raises:
            RolloutError: If one of its actor's fragments is missing, or came twice.
        """
        actor, number = fragment.actor_id, fragment.sequence
        expected = self._next.setdefault(actor, number)
        if number != expected:
            raise RolloutError(
                f"actor {actor} handed over fragment {number} where {expected} was due: fragments "
                "were lost or doubled"
            )
        self._next[actor] = number + 1
        self.sampled += fragment.num_rows
        self.held += fragment.num_rows

    def discard(self, fragment: Fragment) -> None:
        """Books a fragment that is too old to be used."""
        self.discarded += fragment.num_rows
        self.held -= fragment.num_rows

    def train(self, rows: int, transitions: int) -> None:
        """Books a batch of ``rows`` of which ``transitions`` entered the loss."""
        self.trained += transitions
        self.masked += rows - transitions
        self.held -= rows

    def check(self, masked: int) -> None:
        """Raises unless the law holds.

        Args:
            masked: Reset rows according to the fragments, counted apart from the losses.

        Raises:
            RolloutError: With all terms.
        """
        balance = self.trained + self.discarded + self.masked + self.held
        if self.sampled != balance or self.masked != masked or self.held < 0:
            raise RolloutError(
                f"the accounting does not balance: sampled {self.sampled} rows, but trained "
                f"{self.trained} + discarded {self.discarded} + masked {self.masked} (by the "
                f"fragments {masked}) + in flight {self.held} = {balance}"
            )

    def metrics(self, in_flight: int) -> dict[str, float]:
        """Returns the terms for a log line; ``in_flight`` are rows that the engine still has."""
        return {
            "rows/sampled": self.sampled + in_flight,
            "rows/trained": self.trained,
            "rows/discarded": self.discarded,
            "rows/masked": self.masked,
            "rows/in_flight": self.held + in_flight,
        }

    def forget_numbers(self) -> None:
        """Takes the next fragment of each actor as its first: the engine is a new one."""
        self._next.clear()

    def state(self) -> dict[str, Any]:
        """Returns the counters for a checkpoint."""
        names = ("sampled", "trained", "discarded", "masked")
        return {name: getattr(self, name) for name in names}

    def load(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state` gave; the actors' numbering starts anew."""
        for name, value in state.items():
            setattr(self, name, int(value))
        self.held = 0
        self.forget_numbers()
