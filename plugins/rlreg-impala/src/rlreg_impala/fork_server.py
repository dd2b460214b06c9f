"""The server that actors' processes are forked from; importing this imports no torch.

It has imported torch itself when it is asked for a process, so that an actor takes a fraction of a
second to start. Started early, it imports beside the learner's process instead of after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

# What every actor imports anyway.
_PRELOAD = ["torch", "rlreg_impala.engines.worker"]

# Variables that keep numerical libraries from starting a thread per core in every actor.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def preload(context: Any) -> None:
    """Tells the server of a multiprocessing context what to import, if it has one.

    Args:
        context: What ``multiprocessing.get_context`` returns.
    """
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(_PRELOAD)


def start_early(method: str) -> None:
    """Starts the server, and does not wait for it; without a server it does nothing.

    Args:
        method: The start method of the actors.
    """
    import multiprocessing

    if method != "forkserver" or method not in multiprocessing.get_all_start_methods():
        return
    from multiprocessing.forkserver import ensure_running

    preload(multiprocessing.get_context(method))
    with single_threaded_children():
        ensure_running()


@contextlib.contextmanager
def single_threaded_children() -> Iterator[None]:
    """Lets processes that are started inside take one thread for numerics."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
