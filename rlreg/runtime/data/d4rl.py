"""Reads the original D4RL HDF5 files: flat arrays with ``terminals`` and ``timeouts``.

Such a file has no final observations. Where it has ``next_observations`` all steps are kept;
otherwise the last step of a timed-out episode has no next observation and is left out, and that of
a terminated one is kept with zeros, which the termination masks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlreg.errors import DatasetError
from rlreg.runtime.data.arrays import (
    FlatSource,
    add_flat,
    guess_action_space,
    guess_observation_space,
)
from rlreg.runtime.data.build import DatasetBuilder, LoadOptions
from rlreg.runtime.data.cache import SourceFile, build_dataset
from rlreg.runtime.data.dataset import DatasetInfo, References, TransitionDataset
from rlreg.runtime.data.given_arrays import column, flags
from rlreg.runtime.data.hdf5 import OwnArrays, names_in, open_hdf5
from rlreg.runtime.spaces import Space

REQUIRED_KEYS = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations")
NO_TIMEOUTS_NOTE = "the file has no timeouts: a reset without a terminal cannot be seen"


def load_d4rl(
    path: str | Path,
    *,
    options: LoadOptions | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    references: References | None = None,
) -> TransitionDataset:
    """Loads a D4RL file.

    Args:
        path: The HDF5 file.
        options: What to do about odd data, and where to keep the store.
        observation_space: The file does not say; an unbounded Box by default.
        action_space: The file does not say; by default a Box of [-1, 1], or symmetric up to the
            largest action where one is larger.
        references: Reference returns; unknown by default.

    Returns:
        All transitions that have a next observation or need none.

    Raises:
        DatasetError: The file is not of this kind, damaged, or its data cannot be used.
    """
    path = Path(path)
    with open_d4rl(path) as file:
        source = read_flat(file, path)
        guessed = action_space is None
        observation_space = observation_space or guess_observation_space(source.observations)
        action_space = action_space or guess_action_space(source.actions)

        def fill(builder: DatasetBuilder) -> Sequence[str]:
            if guessed:
                builder.ledger.note(f"the file names no action space; taken as {action_space}")
            if source.truncations is None and source.next_observations is None:
                builder.ledger.note(NO_TIMEOUTS_NOTE)
            add_flat(builder, source)
            return ()

        # At most one final observation per step; usually far fewer.
        ends = source.terminations.sum() + (
            0 if source.truncations is None else source.truncations.sum()
        )
        num_rows = len(source.rewards) + int(ends) + 1
        info = DatasetInfo(name=path.name, source=str(path), references=references)
        source_file = SourceFile([path], observation_space, action_space, num_rows, fill)
        return build_dataset(source_file, options or LoadOptions(), info)


@contextlib.contextmanager
def open_d4rl(path: Path) -> Iterator[Any]:
    """Opens a file; whatever is wrong with its data then names it."""
    with open_hdf5(path) as file:
        try:
            yield file
        except DatasetError as error:
            if str(error).startswith((str(path), path.name)):
                raise
            raise DatasetError(f"{path}: {error}") from error


def read_flat(file: Any, path: Path) -> FlatSource:
    """Views an open D4RL file as a flat source; large arrays stay in the file.

    Raises:
        DatasetError: Arrays are missing, or not in this file.
    """
    held = names_in(file)
    missing = [key for key in REQUIRED_KEYS if key not in held]
    if missing:
        raise DatasetError(
            f"{path}: not a D4RL file, it lacks {', '.join(missing)}; it has {sorted(held)[:10]}"
        )
    there, arrays = [key for key in (*REQUIRED_KEYS, *_OPTIONAL) if key in held], OwnArrays(file)
    try:
        own = {key: arrays.array(file, key) for key in there}
    except ValueError as cause:
        raise DatasetError(f"{path}: {cause}") from cause
    timeouts = own.get("timeouts")
    return FlatSource(
        own["observations"],
        own["actions"],
        column(own["rewards"][()], "rewards"),
        flags(own["terminals"][()], "terminals"),
        None if timeouts is None else flags(timeouts[()], "timeouts"),
        own.get("next_observations"),
    )


def is_d4rl(file: Any) -> bool:
    """Tells whether an open HDF5 file has the arrays of D4RL."""
    return set(REQUIRED_KEYS) <= set(names_in(file))
