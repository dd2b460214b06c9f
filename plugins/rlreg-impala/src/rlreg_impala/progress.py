"""What an actor is doing, in a few integers that another process can read at any time.

Single integers are written without a lock: a reader sees the old or the new one, and both are true.
Plain sequences rather than a class with properties, because the acting loop writes one for every
step of every environment.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TypeAlias

Progress: TypeAlias = MutableSequence[int]
"""The row of one actor: a list, or a view of shared memory."""

PHASE, ENV, STEP, VERSION = range(4)
"""Places in a row: what it does, which environment it steps, how many steps, which weights."""

NUM_FIELDS = 4

STARTING, IDLE, ACTING = range(3)
"""Phases: making environments, waiting for a slot, stepping environments."""

_FRESH = (STARTING, -1, 0, -1)


def new_progress() -> Progress:
    """Returns a row of an actor that has not begun."""
    return list(_FRESH)


def restart_progress(row: Progress) -> None:
    """Puts a row into the state before the first step."""
    for place, value in enumerate(_FRESH):
        row[place] = value
