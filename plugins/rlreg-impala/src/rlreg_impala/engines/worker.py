"""What runs in an actor's process: a loop that takes tickets from a pipe.

The learner coordinates every end. So the actor ignores Ctrl-C and SIGTERM, which a terminal or a
supervisor sends to the whole group, and watches for the learner's death instead: by the end of the
pipe, and by a thread, because an environment may be in a step that never returns.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from rlreg.parent_process import forget_it_was_left_out
from rlreg_impala.acting import Actor
from rlreg_impala.rollouts import EngineSpec
from rlreg_impala.streams import Streams

from .failures import describe
from .payload import unpack as open_payload
from .shared import SharedArrays, SharedBlock, SharedPlan

COMMAND = struct.Struct("<bqqqq")
"""To the actor: what, slot, version, buffer of the weights, sequence."""

FILL, STATE, LOAD, STOP = range(4)
"""Fill a slot, send the state, take the state that follows, end."""

READY, DONE, FAILED, ANSWER = b"r", b"d", b"f", b"a"
"""From the actor, the first byte: environments are made; slot is full; error; state follows."""

LATEST = -1
"""Instead of a buffer: the newest weights, whatever they are."""


def run_actor(
    index: int,
    life: int,
    spec: EngineSpec,
    plan: SharedPlan,
    block: SharedBlock,
    payload: bytes,
    pipe: Connection,
) -> None:
    """Entry point of the process.

    Args:
        index: Which actor.
        life: How often it was replaced.
        spec: Of the engine.
        plan: Where things are in the block.
        block: Memory shared with the learner.
        payload: Cloudpickle of policy specification, environment factory and root of the streams.
        pipe: To the learner.
    """
    forget_it_was_left_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # the fork server was started with SIGINT blocked
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_die_with_learner, daemon=True).start()
    try:
        arrays = SharedArrays(block, plan)
        _work(arrays, plan, _make_actor(index, life, spec, arrays, payload), pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the learner is gone; nobody to tell
    except BaseException as error:  # noqa: BLE001 - whatever it was, the learner must hear of it
        _tell(index, pipe, error)
        sys.exit(1)


def _die_with_learner() -> None:
    parent, first = parent_process(), os.getppid()
    sentinels = [] if parent is None else [parent.sentinel]
    # Another descriptor of the sentinel may have leaked to a child of an environment, so that its
    # end is never seen; the change of parent is.
    while not wait(sentinels, timeout=2.0) and os.getppid() == first:
        pass
    os._exit(1)


def _make_actor(
    index: int, life: int, spec: EngineSpec, arrays: SharedArrays, payload: bytes
) -> Actor:
    policy_spec, env_factory, seeds = open_payload(payload)
    _use_one_thread()
    progress = arrays.progress(index)
    return Actor(spec, policy_spec, env_factory, Streams(seeds, index, life), progress=progress)


def _use_one_thread() -> None:
    # Torch takes all cores by default; several actors would only get into each other's way.
    import torch

    torch.set_num_threads(1)


def _work(arrays: SharedArrays, plan: SharedPlan, actor: Actor, pipe: Connection) -> None:
    weights = np.empty(plan.layout.num_weights, dtype=np.float32)
    loaded = -1
    pipe.send_bytes(READY)
    while True:
        what, slot, version, buffer, sequence = COMMAND.unpack(pipe.recv_bytes())
        if what == STOP or arrays.should_stop():
            break
        if what == STATE:
            pipe.send_bytes(ANSWER + pickle.dumps(actor.state()))
        elif what == LOAD:
            actor.load_state(pickle.loads(pipe.recv_bytes()))
            pipe.send_bytes(ANSWER)
        else:
            if buffer == LATEST:
                version = arrays.read_weights(weights)
            else:
                arrays.read_buffer(buffer, weights)
            if version != loaded:
                actor.load_flat(weights)
                loaded = version
            if not actor.fill(arrays.slots[slot], version, sequence, arrays.should_stop):
                break
            pipe.send_bytes(DONE + slot.to_bytes(8, "little"))
    actor.close()


def _tell(index: int, pipe: Connection, error: BaseException) -> None:
    failure = describe(index, error, traceback.format_exc())
    with contextlib.suppress(OSError):  # the learner may be gone as well
        pipe.send_bytes(FAILED + pickle.dumps(failure))


def unpack(message: bytes) -> tuple[bytes, Any]:
    """Reads a message of an actor: its kind, and the slot, the state or the failure."""
    kind, rest = message[:1], message[1:]
    if kind == DONE:
        return kind, int.from_bytes(rest, "little")
    return kind, pickle.loads(rest) if rest else None
