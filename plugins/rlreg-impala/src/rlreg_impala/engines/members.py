"""One actor of the process engine as the learner sees it: its process, its pipe, its troubles."""

from __future__ import annotations

import contextlib
import functools
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from rlreg_impala.progress import ACTING, ENV, PHASE, STARTING, STEP, VERSION, Progress
from rlreg_impala.rollouts import ActorState, ActorStatus

from .failures import Failure
from .stillness import Stillness
from .worker import COMMAND, LATEST, READY, unpack

# A process that imports torch from a cold disk needs its time, whatever a step of the environment
# may take.
_START_TIMEOUT_S = 120.0

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0


def _look_into(pipe: Connection) -> Callable[[], object]:
    """Returns what says, without waiting, whether a message or an end lies in a pipe.

    A pipe's own ``poll`` makes what it needs anew at each call, seven times the time.
    """
    if not hasattr(select, "poll"):  # Windows
        return pipe.poll
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return functools.partial(poller.poll, 0)


@dataclass(slots=True)
class Member:
    """An actor and the process that plays it at the moment.

    Attributes:
        index: Which actor.
        progress: Its row in shared memory.
        process: Its process; ``None`` between two lives.
        pipe: To the process.
        is_ready: Whether its environments are made.
        is_failed: Whether it ended for good.
        restarts: How often it was replaced.
        fragments: Fragments it has handed over.
        failure: Why it was replaced or failed last.
        restart_at: When to replace it.
    """

    index: int
    progress: Progress
    process: Any = None
    pipe: Connection | None = None
    is_ready: bool = False
    is_failed: bool = False
    restarts: int = 0
    fragments: int = 0
    failure: Failure | None = None
    restart_at: float = 0.0
    _stillness: Stillness = field(default_factory=Stillness)
    _has_message: Callable[[], object] = bool

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self.process is not None

    def begin(self, process: Any, pipe: Connection) -> None:
        """Books a process that was just started."""
        self.process, self.pipe, self.is_ready = process, pipe, False
        self._has_message = _look_into(pipe)
        self._stillness.begin()

    def send(
        self, what: int, slot: int = 0, version: int = 0, buffer: int = LATEST, sequence: int = 0
    ) -> None:
        """Sends a command; silently not, if the process is dead: its sentinel will tell."""
        with contextlib.suppress(OSError):
            if self.pipe is not None:
                self.pipe.send_bytes(COMMAND.pack(what, slot, version, buffer, sequence))

    def messages(self) -> Iterator[tuple[bytes, Any]]:
        """Yields what lies in the pipe, without waiting."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe is not None and self._has_message():
                kind, content = unpack(self.pipe.recv_bytes())
                if kind == READY:
                    self.is_ready = True
                yield kind, content

    # --- troubles ---------------------------------------------------------------------------------

    def seems_hung(self, actor_timeout: float, *, has_work: bool) -> bool:
        """Whether the actor should have moved by now; to be asked again and again."""
        limit = actor_timeout if self.is_ready else max(actor_timeout, _START_TIMEOUT_S)
        return self._stillness.exceeds(
            limit,
            tuple(self.progress),
            is_due=has_work or not self.is_ready,
            pid=self.process.pid,
        )

    def hung(self, timeout: float) -> Failure:
        """Describes a hang."""
        where = "while it was starting"
        if self.is_ready:
            env, step = max(self.progress[ENV], 0), self.progress[STEP] + 1
            where = f"environment {env}, step {step}"
        message = f"actor {self.index} made no step for {timeout:g} s: {where}"
        return Failure(message)

    def died(self) -> Failure:
        """Describes a death: what the process said itself, or what its exit code says."""
        if self.failure is not None:
            return self.failure
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        place = f"environment {max(self.progress[ENV], 0)}, step {self.progress[STEP] + 1}"
        hint = ""
        if not self.is_ready:
            place = "while it was starting"
        elif code == -signal.SIGKILL:
            hint = "; the system kills processes that take too much memory"
        message = f"actor {self.index} died ({how}): {place}{hint}"
        return Failure(message)

    def kill(self) -> None:
        """Ends the process at once, even a stopped one, and frees what it held here."""
        if self.process is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
        self.process.join(5.0)
        if self.process.exitcode is not None:
            self.process.close()
        if self.pipe is not None:
            self.pipe.close()
        self.process, self.pipe, self.is_ready = None, None, False

    def schedule_restart(self) -> None:
        """Sets the time of the next life; each delay is twice the last."""
        delay = min(_FIRST_DELAY_S * 2.0**self.restarts, _LONGEST_DELAY_S)
        self.restarts += 1
        self.failure = None
        self.restart_at = time.monotonic() + delay

    # --- health -----------------------------------------------------------------------------------

    def status(self, *, is_stopped: bool, error: str) -> ActorStatus:
        """Says how the actor is."""
        env, pid = self.progress[ENV], None
        if self.process is not None:
            pid = self.process.pid
        return ActorStatus(
            index=self.index,
            state=self._state(is_stopped=is_stopped),
            pid=pid,
            restarts=self.restarts,
            fragments=self.fragments,
            step=self.progress[STEP],
            env=None if env < 0 else env,
            version=self.progress[VERSION],
            error=error,
        )

    def _state(self, *, is_stopped: bool) -> ActorState:
        if self.is_failed:
            return "failed"
        if is_stopped:
            return "stopped"
        if self.process is None:
            return "restarting"
        if not self.is_ready and self.progress[PHASE] == STARTING:
            return "starting"
        return "acting" if self.progress[PHASE] == ACTING else "idle"
