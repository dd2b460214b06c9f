"""From what a reader found to a finished data set: checks, packing, and the proof of the laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError
from rlreg.runtime.data.dataset import DatasetInfo, Episodes, TransitionDataset
from rlreg.runtime.data.laws import Ledger, compare
from rlreg.runtime.data.store import Block, Layout, Store, StoreWriter, rows_within_budget
from rlreg.runtime.data.sums import probe_sum
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space

# Numbers beyond this are finite, but their squares overflow float32 in the first loss.
LARGEST_USABLE = 1e18
_NUM_SHOWN = 5
# Blocks of fewer rows are checked and packed together: a short episode costs as much as a long one.
_JOINED_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a user may decide about a load.

    Attributes:
        allow_non_finite: Let NaN, inf and numbers beyond 1e18 in.
        clip_actions: Clip continuous actions to the bounds of the action space.
        cut_after_success: End each episode (as truncated) with its first successful step.
        split_at_breaks: End an episode where ``next_observations[i] != observations[i + 1]``.
        memory_map: Keep the store in mapped files; None decides by its size.
        memory_limit: Bytes above which None maps; half of the free memory by default.
    """

    allow_non_finite: bool = False
    clip_actions: bool = False
    cut_after_success: bool = False
    split_at_breaks: bool = False
    memory_map: bool | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("allow_non_finite", "clip_actions", "cut_after_success", "split_at_breaks"):
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_):
                raise DatasetError(f"{name}: expected True or False, got {value!r}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the transitions of a block stand in the file.

    Attributes:
        episodes: ``[n]`` number of the episode in the file.
        steps: ``[n]`` step within that episode.
    """

    episodes: NDArray[Any]
    steps: NDArray[Any]

    def extra(self, breaks: NDArray[np.bool_]) -> Place:
        """The places of the observations that follow the breaks."""
        return Place(self.episodes[breaks], self.steps[breaks] + 1)


class DatasetBuilder:
    """Checks blocks, packs them, and makes the data set once all are in.

    Args:
        name: What error messages call the data.
        observation_space: Space of the observations.
        action_space: Space of the actions.
        options: What the user decided.
        folder: Where to write the store; None keeps it in memory.
        capacity: Expected number of rows.
    """

    def __init__(
        self,
        name: str,
        observation_space: Space,
        action_space: Space,
        *,
        options: LoadOptions | None = None,
        folder: Path | None = None,
        capacity: int = 0,
    ) -> None:
        self.name = name
        self.plan = FlatteningPlan.of(observation_space)
        self.action_plan = ActionPlan.of(action_space)
        self.options = options or LoadOptions()
        self.ledger = Ledger()
        layout = Layout.of(self.plan, self.action_plan)
        self.row_bytes = layout.row_bytes()
        self._writer = StoreWriter(layout, folder, capacity)
        self._most_rows = rows_within_budget(self.row_bytes, _JOINED_ROWS)
        self._pending: list[tuple[Block, Place]] = []
        self._num_pending = self._num_transitions = 0
        self._lengths: list[NDArray[Any]] = []
        self._offenders: list[str] = []

    def add(self, block: Block, place: Place, lengths: Sequence[int] | NDArray[Any]) -> None:
        """Takes in a block.

        Args:
            block: Flattened transitions.
            place: Where they stand in the file.
            lengths: Lengths of the episodes that end in this block.

        Raises:
            DatasetError: A category lies outside its space.
        """
        self._check_categories(block.actions, place)
        if self.options.clip_actions and not self.action_plan.is_discrete:
            block = self._clip(block)
        self.ledger.episodes += len(lengths)
        self._lengths.append(np.asarray(lengths, dtype=np.int64))
        if self._num_pending + len(block) > self._most_rows:
            self._pack()
        self._pending.append((block, place))
        self._num_pending += len(block)

    def _pack(self) -> None:
        """Checks and packs the blocks that wait for it."""
        if not self._pending:
            return
        block = Block.joined([block for block, _ in self._pending])
        parts = (block.observations, block.extra, block.actions, block.rewards)
        if not all(_is_usable(part) for part in parts):
            for own, place in self._pending:
                self._check_finite("observations", own.observations, place)
                self._check_finite("observations", own.extra, place.extra(own.breaks))
                self._check_finite("actions", own.actions, place)
                self._check_finite("rewards", own.rewards, place)
        value, magnitude = probe_sum(block.observations, block.actions, self._num_transitions)
        self.ledger.probe += value
        self.ledger.probe_magnitude += magnitude
        self._num_transitions += len(block)
        self._writer.append(block)
        self._pending, self._num_pending = [], 0

    def finish_store(self) -> tuple[Store, NDArray[np.int64]]:
        """Closes the writing and returns the store and the lengths of its episodes.

        Raises:
            DatasetError: Numbers are not finite, or there are no transitions.
        """
        self._pack()
        if self._offenders and not self.options.allow_non_finite:
            shown = "; ".join(self._offenders[:_NUM_SHOWN])
            raise DatasetError(
                f"{self.name}: {self.ledger.non_finite:,} numbers are NaN, infinite or beyond "
                f"{LARGEST_USABLE:g} (the first: {shown}). Repair the data: "
                "`rlreg data inspect` lists everything; `--set dataset.allow_non_finite=true`, in "
                "Python allow_non_finite=True, loads it as it is"
            )
        if self._num_transitions and self.ledger.terminations == self.ledger.left_out_terminations:
            self.ledger.note(
                "no step terminates: a continuing task, episodes only end by truncation"
            )
        if self._num_transitions == 0:
            notes = "".join(f"; {note}" for note in self.ledger.notes)
            raise DatasetError(f"{self.name}: no transition could be read{notes}")
        return self._writer.finish(), np.concatenate(self._lengths)

    def finish(self, info: DatasetInfo, kinds: Sequence[str] = ()) -> TransitionDataset:
        """Makes the data set and proves its laws.

        Raises:
            DatasetError: Numbers are not finite, a law is broken, or there are no transitions.
        """
        store, lengths = self.finish_store()
        return assemble(
            store, lengths, self.ledger, self.plan.space, self.action_plan.space, info, kinds
        )

    def abandon(self) -> None:
        """Closes files after a failure."""
        self._writer.abandon()

    def _clip(self, block: Block) -> Block:
        space = self.action_plan.space
        if not isinstance(space, spaces.Box):
            return block
        low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
        clipped = np.clip(block.actions, low, high)
        changed = int((clipped != block.actions).any(axis=1).sum())
        if changed:
            self.ledger.note("actions clipped to the action space", changed)
        return Block(
            block.observations,
            clipped,
            block.rewards,
            block.terminations,
            block.truncations,
            block.intervals,
            block.breaks,
            block.extra,
        )

    def _check_finite(self, what: str, values: NDArray[Any], place: Place) -> None:
        if _is_usable(values):
            return
        flat = values.reshape(len(values), -1)
        bad = ~(np.abs(flat) <= LARGEST_USABLE)
        self.ledger.non_finite += int(bad.sum())
        for row, column in np.argwhere(bad)[:_NUM_SHOWN].tolist():
            if len(self._offenders) < _NUM_SHOWN:
                where = f"episode {place.episodes[row]}, index {place.steps[row]}"
                self._offenders.append(
                    f"{what} in {where}, component {column}: {flat[row, column]}"
                )

    def _check_categories(self, actions: NDArray[Any], place: Place) -> None:
        space = self.action_plan.space
        if isinstance(space, spaces.Discrete):
            low, sizes = np.asarray(space.start), np.asarray(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            low, sizes = space.start.ravel(), space.nvec.ravel()
        else:
            return
        outside = ((actions < low) | (actions >= low + sizes)).reshape(len(actions), -1).any(axis=1)
        if bool(outside.any()):
            row = int(np.argmax(outside))
            raise DatasetError(
                f"{self.name}: {int(outside.sum()):,} actions lie outside {space}, the first, "
                f"{actions[row].tolist()}, in episode {place.episodes[row]}, "
                f"index {place.steps[row]}"
            )


def _is_usable(values: NDArray[Any]) -> bool:
    """Whether all numbers are finite, and their squares as well."""
    if values.dtype.kind != "f" or values.size == 0:
        return True
    # A NaN makes both NaN and the comparisons false.
    return bool(values.min() >= -LARGEST_USABLE and values.max() <= LARGEST_USABLE)


def assemble(
    store: Store,
    lengths: NDArray[np.int64],
    ledger: Ledger,
    observation_space: Space,
    action_space: Space,
    info: DatasetInfo,
    kinds: Sequence[str] = (),
) -> TransitionDataset:
    """Makes a data set of a finished store and proves its laws.

    Raises:
        DatasetError: A law is broken; the message is the report.
    """
    laws = compare(ledger, store.count())
    laws.require(info.name)
    return TransitionDataset(
        store,
        observation_space=observation_space,
        action_space=action_space,
        episodes=Episodes(store, lengths, kinds),
        laws=laws,
        info=info,
    )
