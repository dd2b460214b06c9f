"""One block of memory that the learner and its actors share.

It has no name in any file system (a memfd on Linux, an unlinked temporary file elsewhere), so
nothing can be left behind whoever is killed; it does not count against the size of /dev/shm; and it
takes one descriptor however many slots there are. There is no lock in it: only the learner writes
weights, and a slot belongs to one process at a time.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg_impala.buffers import FragmentBuffers, FragmentLayout
from rlreg_impala.progress import NUM_FIELDS, Progress

# Progress rows of two actors lie on different cache lines.
_ROW_BYTES = 64
_FENCE = threading.Lock()


def _fence() -> None:
    """Keeps the processor from reordering memory accesses across this point.

    x86 would not; ARM may. Taking a lock is the barrier that Python has.
    """
    with _FENCE:
        pass


class SharedBlock:
    """Memory without a name; may be an argument of a process that is being started."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _new_descriptor(size) if descriptor is None else descriptor
        self.memory = mmap.mmap(self._descriptor, size)

    def close_descriptor(self) -> None:
        """Makes the block unshareable; memory stays while an array refers to it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._descriptor), self.size)


def _attach(duplicate: Any, size: int) -> SharedBlock:
    block = SharedBlock(size, duplicate.detach())
    block.close_descriptor()
    return block


def _new_descriptor(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rlreg-rollouts")
    else:
        descriptor, path = tempfile.mkstemp(prefix="rlreg-rollouts-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Where things are in the block.

    Attributes:
        layout: Of the fragments.
        num_slots: How many fragments.
        num_actors: How many actors.
        num_buffers: How many sets of weights.
    """

    layout: FragmentLayout
    num_slots: int
    num_actors: int
    num_buffers: int

    @property
    def weights_at(self) -> int:
        """First byte of the weights."""
        return _ROW_BYTES * (1 + self.num_actors) + _aligned(8 * self.num_buffers)

    @property
    def slots_at(self) -> int:
        """First byte of the fragments."""
        return self.weights_at + _aligned(4 * self.num_buffers * self.layout.num_weights)

    @property
    def num_bytes(self) -> int:
        """Size of the block."""
        return self.slots_at + self.layout.num_bytes(self.num_slots)


def _aligned(size: int) -> int:
    return -(-size // _ROW_BYTES) * _ROW_BYTES


class SharedArrays:
    """The block as arrays, the same in every process."""

    def __init__(self, block: SharedBlock, plan: SharedPlan) -> None:
        memory, buffers = block.memory, plan.num_buffers
        self._plan = plan
        self._control = np.ndarray((2,), np.int64, memory)  # stop word, latest weights
        self._versions = np.ndarray(
            (buffers,), np.int64, memory, _ROW_BYTES * (1 + plan.num_actors)
        )
        shape = (buffers, plan.layout.num_weights)
        self._weights = np.ndarray(shape, np.float32, memory, plan.weights_at)
        view = memoryview(memory)[plan.slots_at :]
        arrays = plan.layout.arrays(view, plan.num_slots)
        self.slots = [FragmentBuffers.slot(arrays, slot) for slot in range(plan.num_slots)]
        self._rows = [
            memoryview(memory)[_ROW_BYTES * (1 + i) :][: 8 * NUM_FIELDS].cast("q")
            for i in range(plan.num_actors)
        ]

    def progress(self, actor: int) -> Progress:
        """Row of progress of an actor."""
        row: Any = self._rows[actor]
        return row  # type: ignore[no-any-return]

    def request_stop(self) -> None:
        """Tells every actor to give up what it is doing."""
        self._control[0] = 1

    def should_stop(self) -> bool:
        """Whether the learner wants the actors to end."""
        return bool(self._control[0])

    # --- weights ----------------------------------------------------------------------------------

    def write_weights(self, version: int, weights: NDArray[np.float32], spared: set[int]) -> int:
        """Writes weights into a buffer that is neither the latest nor spared; returns which."""
        latest = int(self._control[1]) % self._plan.num_buffers
        free = (b for b in range(self._plan.num_buffers) if b != latest and b not in spared)
        buffer = next(free)
        self._versions[buffer] = -1
        _fence()
        self._weights[buffer] = weights
        _fence()
        self._versions[buffer] = version
        # Which buffer and which version in one word, so that a reader never sees half of the news.
        self._control[1] = version * self._plan.num_buffers + buffer
        return buffer

    def read_weights(self, out: NDArray[np.float32]) -> int:
        """Copies the latest weights and returns their version."""
        while True:
            version, buffer = divmod(int(self._control[1]), self._plan.num_buffers)
            _fence()
            before = self._versions[buffer]
            out[...] = self._weights[buffer]
            _fence()
            # If the learner has gone round meanwhile, the copy may be half of each.
            if before == version == self._versions[buffer]:
                return version

    def read_buffer(self, buffer: int, out: NDArray[np.float32]) -> None:
        """Copies the weights of a buffer that the learner spares."""
        _fence()
        out[...] = self._weights[buffer]
