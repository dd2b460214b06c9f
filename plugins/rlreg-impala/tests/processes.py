"""Which processes and shared files there are, read from the system itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

LONG_S = 120
"""How long what must happen may take: no test measures it, it only keeps one from hanging."""


def wait_until(condition, seconds=LONG_S):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def shared_files():
    return set(os.listdir("/dev/shm"))


def of_session(session):
    """Pids of the living processes of a session."""
    return [pid for pid, fields in _stats() if fields[3] == str(session)]


def actors_of(learner):
    """Pids of the living actors of a learner: what its fork server has made."""
    servers = {str(pid) for pid, fields in _stats() if fields[1] == str(learner)}
    return [pid for pid, fields in _stats() if fields[1] in servers]


def _stats():
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            yield int(entry.name), fields
