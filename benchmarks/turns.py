"""Programs that take turns, so that whatever else the machine does slows all of them alike.

A worker is a process with an environment of its own. It gets ready, prints one line of JSON about
itself, and then does one turn of work for each line it reads, printing the seconds that took. All
workers stay alive; only the one whose turn it is computes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
# Idle threads of the last worker spin a little before they sleep.
_PAUSE_S = 0.3


def serve(about: dict[str, Any], turn: Callable[[], float]) -> None:
    """What a worker does once it is ready: a turn for each line, until the input ends."""
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        print(repr(turn()), flush=True)


class Worker:
    """A process that waits for its turn.

    Args:
        name: What it is called in results.
        peer: Whose environment it needs; ``None`` for ours.
        arguments: Script in this folder, and its arguments.
        threads: Threads it may use.
    """

    def __init__(self, name: str, peer: str | None, arguments: Sequence[str], threads: int) -> None:
        self.name = name
        python = sys.executable if peer is None else str(PEERS / peer / "bin" / "python")
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(
            [python, str(HERE / arguments[0]), *arguments[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits},
        )
        begun = time.perf_counter()
        self.about: dict[str, Any] = json.loads(self._read())
        self.start_s = time.perf_counter() - begun

    def turn(self) -> float:
        """Lets it work; returns the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")):
                return line  # some peers print greetings
        raise SystemExit(f"{self.name} ended with code {self._process.wait()}")


def is_there(peer: str) -> bool:
    """Whether a peer's environment was built (`make bench-peers`)."""
    return (PEERS / peer / ".installed").is_file()


def take_turns(workers: Sequence[Worker], rounds: int) -> dict[str, list[float]]:
    """Gives each worker a turn in each round, in rotating order; returns seconds by name."""
    seconds: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for number in range(-1, rounds):  # the first round warms up
        shift = number % len(workers)
        for worker in [*workers[shift:], *workers[:shift]]:
            time.sleep(_PAUSE_S)
            taken = worker.turn()
            if number >= 0:
                seconds[worker.name].append(taken)
    return seconds
