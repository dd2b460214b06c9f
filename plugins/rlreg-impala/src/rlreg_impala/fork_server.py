"""The server that actors' processes are forked from; importing this imports no torch.

It has imported torch itself when it is asked for a process, so that an actor takes a fraction of a
second to start. Started early, it imports beside the learner's process instead of after it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from rlreg.parent_process import interrupts_blocked, working_folder_left_out

_PRELOAD = ["rlreg_impala.engines.preloaded"]

_preparation_lock = threading.Lock()

# Variables that keep numerical libraries from starting a thread per core in every actor.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def start_server(context: Any) -> None:
    """Starts the server of a multiprocessing context, unless it runs or there is none.

    It does not wait for the server's imports. The server never hears of Ctrl-C: a terminal sends it
    to the whole group, and Python's server would end with a traceback while it still imports.

    Args:
        context: What ``multiprocessing.get_context`` returns.

    Raises:
        OSError: If it cannot be started.
    """
    if context.get_start_method() != "forkserver":
        return
    from multiprocessing import resource_tracker
    from multiprocessing.forkserver import ensure_running

    context.set_forkserver_preload(_PRELOAD)
    with working_folder_left_out():
        resource_tracker.ensure_running()  # by itself it would lift the block
    with single_threaded_children(), working_folder_left_out(), interrupts_blocked():
        ensure_running()


def start_early(method: str) -> None:
    """Starts the server if it can; what is wrong is said when it is needed.

    Args:
        method: The start method of the actors.
    """
    import multiprocessing

    if method in multiprocessing.get_all_start_methods():
        with contextlib.suppress(OSError):
            start_server(multiprocessing.get_context(method))


@contextlib.contextmanager
def program_left_out() -> Iterator[None]:
    """Lets processes that are started inside import nothing of the program that starts them.

    Python makes them run its file once more, for what they unpickle from it; ours unpickle by
    value. So a script needs no main guard, and what it does is not done again in every actor. Only
    this thread's processes are meant: others may be started elsewhere at the same time.
    """
    from multiprocessing import spawn

    own = threading.get_ident()
    with _preparation_lock:
        original = spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            data = original(name)
            if threading.get_ident() == own:
                data.pop("init_main_from_name", None)
                data.pop("init_main_from_path", None)
            return data

        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = original


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
