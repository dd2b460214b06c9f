"""How a process that trains one of several seeds knows who started it.

When the parent is killed, its seeds would go on alone; each looks whether it is still there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLE = "RLREG_PARENT_PID"


def environment_of_child(environment: Mapping[str, str]) -> dict[str, str]:
    """Adds to a child's environment variables that this process is its parent."""
    return {**environment, _VARIABLE: str(os.getpid())}


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
