"""Processes that are started for a run: what they know of their parent, and of Ctrl-C.

When the parent is killed, its seeds would go on alone; each looks whether it is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

_VARIABLE = "RLREG_PARENT_PID"


def environment_of_child(environment: Mapping[str, str]) -> dict[str, str]:
    """Adds to a child's environment variables that this process is its parent."""
    return {**environment, _VARIABLE: str(os.getpid())}


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Blocks SIGINT here, and for good in processes that are started inside; it is not lost.

    A terminal sends it to the whole group, also to children that have not come far enough to
    ignore it. Where signals cannot be blocked, nothing happens.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ParentProcess:
    """The process that started this one, if it said so.

    What it said is taken out of the environment, so that what an environment of reinforcement
    learning starts in turn does not take it for its parent.
    """

    def __init__(self) -> None:
        said = os.environ.pop(_VARIABLE, "")
        self._pid = int(said) if said.isdecimal() else None

    @property
    def is_gone(self) -> bool:
        """Whether there was one, and it has ended: the system has given this process another."""
        return self._pid is not None and os.getppid() != self._pid
