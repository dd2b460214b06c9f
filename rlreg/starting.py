"""A command's start, with Python's garbage collector out of the way.

What imports and schemas are made of lives as long as the process. To look through it again and
again is a seventh of the time up to the first update.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_is_starting = False


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Keeps the garbage collector from running until ``end_start``, or the end of the block.

    Where it is off already it stays off.
    """
    global _is_starting
    if _is_starting or not gc.isenabled():
        yield
        return
    _is_starting = True
    gc.disable()
    try:
        yield
    finally:
        if _is_starting:  # nothing long has begun: what the block made may be garbage
            _is_starting = False
            gc.enable()


def end_start() -> None:
    """Lets the collector run again, without what is there by now; outside a start nothing happens.

    Whoever does long work calls this before it.
    """
    global _is_starting
    if _is_starting:
        _is_starting = False
        gc.freeze()
        gc.enable()
