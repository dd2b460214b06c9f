"""The transition store: every number of a transition in one row, every observation once.

An episode of T steps fills T + 1 consecutive rows: T transitions, then a row that holds only the
final observation. The next observation of a transition is therefore the head of the following row,
and a window of one row plus that head is a strided view of the same memory. A batch is one look-up
of row numbers and one ``index_select`` on the windows: no copy of the observations exists, and none
is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlreg.errors import DatasetError
from rlreg.runtime.data.laws import StoreCount
from rlreg.runtime.data.sums import finite_sum, num_broken, num_different, probe_sum
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan
from rlreg.runtime.torch_threads import torch_threads

Batch: TypeAlias = dict[str, Tensor]

# float32 keeps integers exactly up to here, and categories travel in float32 rows.
_LARGEST_CATEGORY = 2**24
_CHUNK = 65_536
# Checks make float64 copies, several at a time: what is handled at once costs some ten times this.
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a transition stand in a row.

    A row of numbers is ``[observation | action | reward, termination, truncation, interval]``;
    image observations are kept apart as uint8 and leave the first part empty.
    """

    observation_shape: tuple[int, ...]
    is_image: bool
    action_shape: tuple[int, ...]
    is_discrete: bool

    @classmethod
    def of(cls, plan: FlatteningPlan, action_plan: ActionPlan) -> Layout:
        """Makes the layout for two spaces.

        Raises:
            DatasetError: A category is too large to be kept exactly.
        """
        nvec = getattr(action_plan.space, "nvec", getattr(action_plan.space, "n", 0))
        start = getattr(action_plan.space, "start", 0)
        if action_plan.is_discrete and np.max(np.abs(start) + np.asarray(nvec)) > _LARGEST_CATEGORY:
            raise DatasetError(f"{action_plan.space} has categories beyond {_LARGEST_CATEGORY:,}")
        return cls(plan.shape, plan.is_image, action_plan.shape, action_plan.is_discrete)

    @property
    def observation_size(self) -> int:
        """Components of one observation."""
        return math.prod(self.observation_shape)

    @property
    def head(self) -> int:
        """Columns of a row that hold the observation: 0 for images."""
        return 0 if self.is_image else self.observation_size

    @property
    def action_size(self) -> int:
        """Columns of a row that hold the action."""
        return math.prod(self.action_shape)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.head + self.action_size + 4

    def row_bytes(self) -> int:
        """Bytes of one row, image included."""
        return 4 * self.width + (self.observation_size if self.is_image else 0) + 8


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive transitions, flattened, on their way into the store.

    Attributes:
        observations: ``[n, *O]``.
        actions: ``[n, *A]``.
        rewards: ``[n]``.
        terminations: ``[n]`` bool.
        truncations: ``[n]`` bool.
        intervals: ``[n]`` steps between the two observations of a transition.
        breaks: ``[n]`` bool; True where the next observation is not the next transition's
            observation.
        extra: ``[k, *O]``, the next observations of the k breaks.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[Any]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    intervals: NDArray[Any]
    breaks: NDArray[np.bool_]
    extra: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rewards)

    @classmethod
    def joined(cls, blocks: Sequence[Block]) -> Block:
        """Puts consecutive blocks one after the other."""
        if len(blocks) == 1:
            return blocks[0]
        names = [item.name for item in fields(cls)]
        return cls(*(np.concatenate([getattr(block, name) for block in blocks]) for name in names))


class StoreWriter:
    """Collects blocks into a store, in memory or in files that are later mapped.

    Args:
        layout: The layout of a row.
        folder: Where to write; None collects in memory.
        capacity: Expected number of rows; memory grows beyond it when needed.
    """

    def __init__(self, layout: Layout, folder: Path | None = None, capacity: int = 0) -> None:
        self._layout = layout
        self._num_rows = 0
        self._sinks: dict[str, _MemorySink | _FileSink] = {}
        shapes: dict[str, tuple[tuple[int, ...], type[Any]]] = {
            "numbers": ((layout.width,), np.float32),
            "rows": ((), np.int64),
        }
        if layout.is_image:
            shapes["images"] = ((layout.observation_size,), np.uint8)
        for name, (shape, dtype) in shapes.items():
            if folder is None:
                self._sinks[name] = _MemorySink(shape, dtype, capacity)
            else:
                self._sinks[name] = _FileSink(folder / f"{name}.bin", shape, dtype)

    def append(self, block: Block) -> None:
        """Adds transitions; the rows of consecutive blocks are consecutive."""
        layout, size = self._layout, len(block)
        breaks = block.breaks
        local = np.arange(size) + np.cumsum(breaks) - breaks  # [n] row of each transition
        after = local[breaks] + 1  # [k] rows of the final observations
        total = size + len(block.extra)
        numbers = self._sinks["numbers"].reserve(total)
        head, tail = layout.head, layout.head + layout.action_size
        numbers[local, head:tail] = block.actions.reshape(size, layout.action_size)
        columns = (block.rewards, block.terminations, block.truncations, block.intervals)
        numbers[local, tail:] = np.stack(columns, axis=1, dtype=np.float32, casting="unsafe")
        numbers[after, head:] = 0.0
        components = layout.observation_size
        pixels = self._sinks["images"].reserve(total) if layout.is_image else numbers
        pixels[local, :components] = block.observations.reshape(size, components)
        pixels[after, :components] = block.extra.reshape(len(block.extra), components)
        self._sinks["rows"].reserve(total - len(after))[:] = local + self._num_rows
        for sink in self._sinks.values():
            sink.commit()
        self._num_rows += total

    def finish(self) -> Store:
        """Returns the store; nothing can be appended afterwards."""
        tensors = {name: sink.finish() for name, sink in self._sinks.items()}
        return Store(self._layout, tensors["numbers"], tensors["rows"], tensors.get("images"))

    def abandon(self) -> None:
        """Closes files after a failure."""
        for sink in self._sinks.values():
            sink.abandon()


class _MemorySink:
    """Rows in memory: lends the next ones to be filled, every number of them."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Any], capacity: int) -> None:
        self._array = np.empty((max(capacity, 1024), *shape), dtype=dtype)
        self._size = self._end = 0

    def reserve(self, count: int) -> NDArray[Any]:
        self._end = self._size + count
        if self._end > len(self._array):
            rows = max(self._end, len(self._array) * 3 // 2)
            grown = np.empty((rows, *self._array.shape[1:]), dtype=self._array.dtype)
            grown[: self._size] = self._array[: self._size]
            self._array = grown
        return self._array[self._size : self._end]

    def commit(self) -> None:
        self._size = self._end

    def finish(self) -> Tensor:
        return torch.from_numpy(self._array[: self._size])

    def abandon(self) -> None:
        pass


class _FileSink:
    """The same on the way into a file."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type[Any]) -> None:
        self._path, self._shape, self._dtype = path, shape, np.dtype(dtype)
        self._file: IO[bytes] = path.open("wb")
        self._rows = np.empty((0, *shape), dtype=dtype)

    def reserve(self, count: int) -> NDArray[Any]:
        if len(self._rows) < count:
            self._rows = np.empty((count, *self._shape), dtype=self._dtype)
        self._pending = self._rows[:count]
        return self._pending

    def commit(self) -> None:
        self._file.write(self._pending.data)

    def finish(self) -> Tensor:
        self._file.close()
        return map_file(self._path, self._shape, self._dtype)

    def abandon(self) -> None:
        self._file.close()


def map_file(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """Maps a file of rows into memory; pages are read when they are sampled."""
    # Mode "c" because torch warns about read-only arrays; nothing ever writes to the pages.
    flat = np.memmap(path, dtype=dtype, mode="c")
    return torch.from_numpy(flat.reshape(-1, *shape))


@dataclass(frozen=True, slots=True)
class Store:
    """The finished store.

    Attributes:
        layout: The layout of a row.
        numbers: ``[R, width]`` float32 rows.
        rows: ``[N]`` int64, the row of each transition.
        images: ``[R, pixels]`` uint8, or None.
    """

    layout: Layout
    numbers: Tensor
    rows: Tensor
    images: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.numbers.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.numbers, self.rows, self.images)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def to(self, device: torch.device) -> Store:
        """Copies the store to a device."""
        images = None if self.images is None else self.images.to(device)
        return Store(self.layout, self.numbers.to(device), self.rows.to(device), images)

    def gather(self, indices: Tensor) -> Batch:
        """Collects transitions; see ``TransitionDataset.gather``."""
        layout = self.layout
        rows = self.rows.index_select(0, indices)  # [B]
        head, tail, width = layout.head, layout.head + layout.action_size, layout.width
        block = _windows(self.numbers, head).index_select(0, rows)  # [B, width + head]
        size = len(indices)
        if self.images is None:
            observations, following = block[:, :head], block[:, width:]
        else:
            pixels = layout.observation_size
            pair = _windows(self.images, pixels).index_select(0, rows)  # [B, 2 * pixels]
            observations, following = pair[:, :pixels], pair[:, pixels:]
        actions = block[:, head:tail]
        if layout.is_discrete:
            actions = actions.long()
        return {
            "observations": observations.view(size, *layout.observation_shape),
            "actions": actions.view(size, *layout.action_shape),
            "rewards": block[:, tail],
            "next_observations": following.view(size, *layout.observation_shape),
            "terminations": block[:, tail + 1],
            "truncations": block[:, tail + 2],
            "intervals": block[:, tail + 3],
        }

    def rewards(self) -> NDArray[np.float32]:
        """Returns the rewards of all transitions, ``[N]``, a copy."""
        column = self.numbers[:, self.layout.head + self.layout.action_size]
        rewards: NDArray[np.float32] = column.cpu().numpy()[self.rows.cpu().numpy()]
        return rewards

    def chunks(
        self, size: int = _CHUNK, start: int = 0, stop: int | None = None
    ) -> Iterator[Batch]:
        """Goes through transitions in order, ``size`` at a time."""
        stop = len(self) if stop is None else stop
        size = rows_within_budget(self.layout.row_bytes(), size)
        for first in range(start, stop, size):
            yield self.gather(torch.arange(first, min(first + size, stop), device=self.device))

    def count(self) -> StoreCount:
        """Counts what the laws compare, through the path that training samples from."""
        # Pieces are small: to wait for other threads costs more than they save, a time slice for
        # each piece on a busy machine.
        with torch_threads(1):
            return self._count()

    def _count(self) -> StoreCount:
        reward_sum = probe = 0.0
        terminations = broken = first = 0
        last: NDArray[Any] | None = None
        for batch in self.chunks():
            arrays = {name: tensor.cpu().numpy() for name, tensor in batch.items()}
            reward_sum += finite_sum(arrays["rewards"])
            terminations += int(np.count_nonzero(arrays["terminations"]))
            probe += probe_sum(arrays["observations"], arrays["actions"], first)[0]
            ends = (arrays["terminations"] + arrays["truncations"]) > 0
            following, own = arrays["next_observations"], arrays["observations"]
            broken += num_broken(following[:-1], own[1:], ends[:-1])
            if last is not None:
                broken += num_different(last, own[:1])
            last = None if ends[-1] else following[-1:].copy()
            first += len(ends)
        return StoreCount(len(self), reward_sum, terminations, probe, broken)


def rows_within_budget(row_bytes: int, most: int) -> int:
    """Says how many rows to handle at once, so that wide rows do not mean large temporaries."""
    return max(1, min(most, _CHUNK_BYTES // row_bytes))


def _windows(rows: Tensor, head: int) -> Tensor:
    """Views ``[R, W]`` as ``[R - 1, W + head]``: each row and the head of the following one."""
    count, width = rows.shape
    return rows.as_strided((count - 1, width + head), (width, 1), rows.storage_offset())
