"""Whether an actor hangs: it should move, it does not, and that is its own fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

# Longest time between two looks that counts: the learner may have been elsewhere, or stopped
# together with its actors by Ctrl-Z.
_LONGEST_LOOK_S = 1.0


class Stillness:
    """Adds up the time in which an actor that should move did not.

    Time in which the learner did not look does not count, nor does time in which the actor wanted
    to run and others had the cores (Linux says how long that was): a slow machine is no hang.

    Args:
        clock: Seconds from anywhere.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Starts anew, for another process or another task."""
        self._mark: Hashable = None
        self._still_s = 0.0
        self._cores: CoreTimes | None = None
        self._looked_at = self._clock()

    def exceeds(
        self, limit: float, mark: Hashable, *, is_due: bool, pid: int | None = None
    ) -> bool:
        """Looks at an actor; to be asked again and again.

        Args:
            limit: Seconds that it may take.
            mark: How far it is: anything that changes when it moves.
            is_due: Whether it has something to do.
            pid: Its process, where that is on this machine.
        """
        now = self._clock()
        passed, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK_S), now
        if mark != self._mark or not is_due:
            self._mark, self._still_s, self._cores = mark, 0.0, None
            return False
        cores = CoreTimes.of(pid)
        waited = cores.waited_since(self._cores, passed) if cores and self._cores else 0.0
        self._cores = cores
        self._still_s += max(passed - waited, 0.0)
        return self._still_s > limit


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """What Linux says about the main thread of a process.

    Attributes:
        ran_s: Seconds on a core.
        waited_s: Seconds in which it could have run and got no core; known when it gets one.
        wants_core: Whether it runs or waits for a core now.
    """

    ran_s: float
    waited_s: float
    wants_core: bool

    @classmethod
    def of(cls, pid: int | None) -> CoreTimes | None:
        """Reads them; ``None`` where nobody knows."""
        if pid is None:  # most of the time of looking at hundreds of actors elsewhere
            return None
        try:
            ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return cls(int(ran) / 1e9, int(waited) / 1e9, state == "R")
        except (OSError, ValueError, IndexError):
            return None

    def waited_since(self, before: CoreTimes, passed: float) -> float:
        """Seconds of the last ``passed`` in which it waited for a core."""
        if self.wants_core and self.ran_s == before.ran_s:
            return passed  # it waits still, so that the sum does not have it yet
        return self.waited_s - before.waited_s
