"""Looks at a data set the way a doctor does: what is odd, where, and what handles it.

One pass, an episode or a block at a time, over data of any size; and over data that loading
refuses, since that is when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError, RlregError
from rlreg.runtime.data.arrays import guess_action_space, guess_observation_space
from rlreg.runtime.data.build import Place
from rlreg.runtime.data.d4rl import REQUIRED_KEYS, open_d4rl, read_flat
from rlreg.runtime.data.findings import Finding as Finding
from rlreg.runtime.data.findings import Inspection as Inspection
from rlreg.runtime.data.load import Source, locate
from rlreg.runtime.data.minari import MinariFile
from rlreg.runtime.data.store import Layout, rows_within_budget
from rlreg.runtime.data.tally import Piece, Tally
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space

_BLOCK = 65_536
_SMALLEST_JPEG_SIDE = 32


def inspect(source: Source) -> Inspection:
    """Inspects a data set.

    Args:
        source: Id or path, as for ``load_dataset``.

    Returns:
        The findings; those of severity ``problem`` are what a check should fail on.

    Raises:
        MissingDatasetError: There is no such data set.
        DatasetError: It cannot be read at all.
    """
    path = locate(source)
    tally = _inspect_minari(path) if path.is_dir() else _inspect_d4rl(path)
    return tally.result(str(source))


# ----------------------------------------------------------------------------------- reading


def _inspect_minari(folder: Path) -> Tally:
    file = MinariFile(folder)
    tally = Tally(file.action_space)
    if file.references() is None:
        tally.find("missing_references", "the file has no usable ref_min_score and ref_max_score")
    if bool(file.metadata.get("jpeg_encoding", True)):
        for leaf in _image_leaves(file.observation_space):
            tally.find("lossy_images", f"{leaf} is stored as JPEG")
    plan = _plan(tally, FlatteningPlan.of, file.observation_space)
    action_plan = _plan(tally, ActionPlan.of, file.action_space)
    try:
        for raw in file.episodes(with_success=True):
            steps = len(raw.rewards)
            tally.episode(raw.index, raw.rewards, raw.terminations, raw.truncations)
            tally.success(raw.index, raw.success)
            if raw.doubt:
                tally.find("row_order", raw.doubt, episode=raw.index)
            observations = _flatten(tally, plan, raw.observations, raw.index)
            actions = _flatten(tally, action_plan, raw.actions, raw.index)
            if observations is not None:
                tally.lengths(raw.index, steps, len(observations))
            if actions is not None and len(actions) != steps:
                text = f"{len(actions)} actions for {steps} rewards"
                tally.find("lengths", text, episode=raw.index, group="actions")
            where = Place(np.full(steps, raw.index), np.arange(steps))
            size = 0 if observations is None else len(observations)
            seen = Place(np.full(size, raw.index), np.arange(size))
            tally.add(Piece(observations, actions, raw.rewards, where, seen))
    except DatasetError as cause:
        tally.find("damaged", str(cause))
    return tally


def _inspect_d4rl(path: Path) -> Tally:
    with open_d4rl(path) as file:
        source = read_flat(file, path)
        sizes = [len(file[key]) for key in REQUIRED_KEYS]
        total = min(sizes)
        action_space = guess_action_space(source.actions)
        plan = FlatteningPlan.of(guess_observation_space(source.observations))
        action_plan = ActionPlan.of(action_space)
        # The space is a guess from the actions themselves: nothing can lie outside.
        tally = Tally(action_space)
        tally.find("missing_references", "D4RL files have no reference returns")
        if source.truncations is None and source.next_observations is None:
            tally.find("no_timeouts", "a reset without a terminal cannot be seen in this file")
        if len(set(sizes)) > 1:
            tally.find("lengths", f"{', '.join(REQUIRED_KEYS)} have lengths {sizes}")
        truncations = source.truncations
        if truncations is None:
            truncations = np.zeros(total, dtype=np.bool_)
        ends = source.terminations[:total] | truncations[:total]
        starts = np.concatenate([[0], np.flatnonzero(ends) + 1])
        starts = starts[starts < total]
        for episode, (start, stop) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
            part = slice(start, stop)
            flags = source.terminations[part], truncations[part]
            tally.episode(episode, source.rewards[part], *flags)
        numbers: NDArray[Any] = np.cumsum(ends) - ends
        rows = rows_within_budget(Layout.of(plan, action_plan).row_bytes(), _BLOCK)
        for start in range(0, total, rows):
            part = slice(start, min(start + rows, total))
            episodes: NDArray[Any] = numbers[part]
            where = Place(episodes, np.arange(total)[part] - starts[episodes])
            observations = _flatten(tally, plan, file["observations"][part], int(episodes[0]))
            actions = _flatten(tally, action_plan, file["actions"][part], int(episodes[0]))
            tally.add(Piece(observations, actions, source.rewards[part], where, where))
    return tally


def _plan(tally: Tally, make: Any, space: Space) -> Any:
    try:
        return make(space)
    except RlregError as cause:
        tally.find("unsupported_space", str(cause))
        return None


def _flatten(tally: Tally, plan: Any, values: object, episode: int) -> NDArray[Any] | None:
    if plan is None:
        return None
    try:
        return np.asarray(plan.flatten(values))
    except RlregError as cause:
        tally.find("lengths", str(cause), episode=episode)
        return None


def _image_leaves(space: Space, name: str = "observation") -> Iterator[str]:
    """Names the parts that Minari compresses."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _image_leaves(part, f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _image_leaves(part, f"{name}[{index}]")
    elif isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in {2, 3}:
        full = bool(np.all(space.low == 0) and np.all(space.high == 255))
        if full and min(space.shape[:2]) >= _SMALLEST_JPEG_SIDE:
            yield name
