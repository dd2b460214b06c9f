"""The episodes of a data set, read from its store one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from rlreg.errors import DatasetError
from rlreg.runtime.data.store import Store


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode as arrays (copies).

    Attributes:
        index: Position in the data set.
        observations: ``[T + 1, *O]``; the last one is zeros where the file lacks it (terminated
            only).
        actions: ``[T, *A]``.
        rewards: ``[T]``.
        terminations: ``[T]`` bool.
        truncations: ``[T]`` bool.
        intervals: ``[T]``.
    """

    index: int
    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    intervals: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rewards)


class Episodes(Sequence[EpisodeView]):
    """The episodes of a data set, in the order of the file.

    Attributes:
        lengths: ``[E]`` transitions of each episode.
        starts: ``[E]`` index of each episode's first transition.
        returns: ``[E]`` float64 sums of the rewards in the store.
        kinds: What each episode's metadata calls it (``controller``, ``random``), or empty.
    """

    def __init__(
        self,
        store: Store,
        lengths: NDArray[np.int64],
        kinds: Sequence[str] = (),
        returns: NDArray[np.float64] | None = None,
    ) -> None:
        self._store: Store | None = store
        self.lengths = lengths
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(
            np.int64
        )
        self.kinds = tuple(kinds)
        self.returns = self._sum_rewards(store) if returns is None else returns

    def _sum_rewards(self, store: Store) -> NDArray[np.float64]:
        rewards = store.rewards().astype(np.float64)
        return np.asarray(np.add.reduceat(rewards, self.starts), dtype=np.float64)

    def on(self, store: Store) -> Episodes:
        """Returns the same episodes read from a copy of the store."""
        return Episodes(store, self.lengths, self.kinds, self.returns)

    def close(self) -> None:
        """Lets go of the store; the figures stay, the views do not."""
        self._store = None

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> EpisodeView: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpisodeView]: ...
    def __getitem__(self, index: int | slice) -> EpisodeView | list[EpisodeView]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]  # IndexError and negative indices as for a list
        return self._view(position)

    def __iter__(self) -> Iterator[EpisodeView]:
        return (self._view(position) for position in range(len(self)))

    def _view(self, position: int) -> EpisodeView:
        store = self._store
        if store is None:
            raise DatasetError("the data set of these episodes is closed")
        first = int(self.starts[position])
        indices = torch.arange(first, first + int(self.lengths[position]), device=store.device)
        batch = {name: part.cpu().numpy() for name, part in store.gather(indices).items()}
        final = batch["next_observations"][-1:]
        return EpisodeView(
            index=position,
            observations=np.concatenate([batch["observations"], final]),
            actions=np.ascontiguousarray(batch["actions"]),
            rewards=np.ascontiguousarray(batch["rewards"]),
            terminations=batch["terminations"] > 0,
            truncations=batch["truncations"] > 0,
            intervals=np.ascontiguousarray(batch["intervals"]),
        )
