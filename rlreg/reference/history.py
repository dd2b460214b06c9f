"""The migrations of a config in words: what each schema version changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlreg.migrations import Drop, Keep, Migration, Move, Rename, Split
from rlreg.yaml_text import flow


@dataclass(frozen=True, slots=True)
class Change:
    """What a schema version changed, newest first in a history."""

    version: int
    steps: tuple[str, ...]


def history_of(migrations: Sequence[Migration]) -> tuple[Change, ...]:
    """Describes migrations; a step of somebody's own is named by its class."""
    changes = [
        Change(item.from_version + 1, tuple(map(describe, item.steps))) for item in migrations
    ]
    return tuple(reversed(changes))


def describe(step: Any) -> str:
    """Returns one sentence on a migration step; names stand in `backticks`."""
    match step:
        case Rename(old, new):
            return f"`{old}` is now called `{new}`."
        case Move(old, new):
            return f"`{old}` has moved to `{new}`."
        case Split(old, new):
            return f"`{old}` is now {', '.join(f'`{name}`' for name in new)}."
        case Drop(old, reason):
            return f"`{old}` is gone: {reason}."
        case Keep(path, value):
            return f"`{path}` has a new default; older files keep `{flow(value)}`."
    return f"`{type(step).__name__}`."
