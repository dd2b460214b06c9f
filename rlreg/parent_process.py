"""Processes that are started for a run: what they know of their parent, and of Ctrl-C.

When the parent is killed, its seeds would go on alone; each looks whether it is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping

_VARIABLE = "RLREG_PARENT_PID"
_SAFE_PATH, _LEFT_OUT = "PYTHONSAFEPATH", "RLREG_LEFT_WORKING_FOLDER_OUT"


def environment_of_child(environment: Mapping[str, str]) -> dict[str, str]:
    """Adds to a child's environment variables that this process is its parent."""
    return {**environment, _VARIABLE: str(os.getpid())}


def python_command() -> list[str]:
    """Returns how to start a Python that imports from the working folder only if this one does.

    The command ``rlreg`` does not, but ``python -m`` and ``-c`` would: a file ``random.py`` beside
    the data would run in the child.
    """
    return [sys.executable, *([] if _imports_from_working_folder() else ["-P"])]


@contextlib.contextmanager
def working_folder_left_out() -> Iterator[None]:
    """The same for processes that ``multiprocessing`` starts inside, with ``-c``.

    They call ``forget_it_was_left_out`` once they run: what an environment starts in turn is none
    of ours.
    """
    if _imports_from_working_folder() or _SAFE_PATH in os.environ:
        yield
        return
    own = {_SAFE_PATH: "1", _LEFT_OUT: "1"}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


def forget_it_was_left_out() -> None:
    """Takes out of the environment what ``working_folder_left_out`` put there."""
    if os.environ.pop(_LEFT_OUT, None):
        os.environ.pop(_SAFE_PATH, None)


def _imports_from_working_folder() -> bool:
    here = os.path.realpath(os.curdir)
    return any(os.path.realpath(entry or os.curdir) == here for entry in sys.path)


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
