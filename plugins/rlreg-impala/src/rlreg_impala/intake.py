"""What a trainer takes from an engine, and the account it keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .ledger import Ledger
from .metrics import EpisodeStats, actor_metrics
from .rollouts import Fragment, RolloutEngine

_LONGEST_WAIT_S = 1.0
"""How long a stop that was asked for may go unnoticed while no fragment comes."""


class Intake:
    """Fetches fragments, sends back those that are too old, and books every row.

    Args:
        batch_size: Fragments of an update.
        max_lag: Age in updates beyond which a fragment is discarded; ``None`` keeps all.

    Attributes:
        ledger: Where each row went.
        episodes: Returns of the episodes that ended.
        num_restarts: How often actors were replaced, when that was last asked.
    """

    def __init__(self, batch_size: int, max_lag: int | None) -> None:
        self.batch_size = batch_size
        self.max_lag = max_lag
        self.ledger = Ledger()
        self.episodes = EpisodeStats()
        self.num_restarts = 0
        self._masked = 0
        self._arrived = 0

    def begin(self) -> None:
        """Told that the next fragments come from a new engine."""
        self._arrived = 0
        self.ledger.forget_numbers()

    def collect(
        self, engine: RolloutEngine, updates: int, on_wait: Callable[[list[Fragment]], None]
    ) -> list[Fragment]:
        """Waits for a batch; fragments that are too old go straight back.

        Args:
            engine: Where they come from.
            updates: Updates done so far.
            on_wait: Called now and then with the fragments that are there, while others are not.
        """
        fresh: list[Fragment] = []
        while len(fresh) < self.batch_size:
            missing = self.batch_size - len(fresh)
            while not (collected := engine.collect(missing, _LONGEST_WAIT_S)):
                on_wait(fresh)
            for fragment in collected:
                self.ledger.arrive(fragment)
                self._arrived += 1
                if self.max_lag is not None and updates - fragment.version > self.max_lag:
                    self.discard(engine, [fragment])
                else:
                    fresh.append(fragment)
        return fresh

    def discard(self, engine: RolloutEngine, fragments: Sequence[Fragment]) -> None:
        """Hands fragments back that are not trained on."""
        for fragment in fragments:
            self.ledger.discard(fragment)
            self.episodes.add([fragment])
            engine.release([fragment])

    def book(self, fragments: Sequence[Fragment], transitions: int) -> None:
        """Books a batch of which the loss used so many rows; the fragments are still held."""
        self.ledger.train(sum(fragment.num_rows for fragment in fragments), transitions)
        self._masked += sum(fragment.num_masked for fragment in fragments)
        self.episodes.add(fragments)

    def metrics(self, engine: RolloutEngine) -> dict[str, float]:
        """Checks the accounting and returns what is read once an epoch.

        Raises:
            RolloutError: If a row was lost or counted twice.
        """
        self.ledger.check(self._masked)
        actors = engine.health()
        self.num_restarts = sum(actor.restarts for actor in actors)
        waiting = max(0, sum(actor.fragments for actor in actors) - self._arrived)
        in_flight = waiting * engine.spec.unroll_length * engine.spec.num_envs
        return {
            **self.ledger.metrics(in_flight),
            **self.episodes.metrics(),
            **actor_metrics(actors),
            "queue/waiting": float(waiting),
        }

    def state(self) -> dict[str, Any]:
        """Returns the counters for a checkpoint."""
        return {
            "ledger": self.ledger.state(),
            "masked": self._masked,
            "episodes": self.episodes.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state` gave."""
        self.ledger.load(state["ledger"])
        self._masked = int(state["masked"])
        self.episodes.load(state["episodes"])
