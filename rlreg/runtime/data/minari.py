"""Reads Minari data sets from their files, HDF5 and Arrow, whichever Minari wrote them.

Reading is done here and not through ``minari.load_dataset`` so that an unknown key in an
environment spec, an unlisted Minari version or a missing environment keeps nobody from the numbers;
and because Minari's Arrow reader hands over the wrong rows once an episode spans several record
batches and loses the last step of an episode that has T observations.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rlreg.errors import DatasetError, MissingExtraError, RlregError
from rlreg.json_text import from_json
from rlreg.runtime.data.build import DatasetBuilder, LoadOptions
from rlreg.runtime.data.cache import SourceFile, build_dataset
from rlreg.runtime.data.dataset import DatasetInfo, References, TransitionDataset
from rlreg.runtime.data.episodes import RawEpisode, add_episode
from rlreg.runtime.data.hdf5 import open_hdf5
from rlreg.runtime.data.minari_hdf5 import after_steps, decode_images, read_hdf5_episodes
from rlreg.runtime.spaces import Space, space_from_json

_HDF5_NAME = "main_data.hdf5"
_METADATA_NAME = "metadata.json"
# pyarrow's writer, as Minari calls it, splits what is longer and may write the parts in any order.
_ARROW_WRITER_ROWS = 32_768
ROW_ORDER_NOTE = (
    "Arrow episodes of more than 32,768 steps, whose rows Minari's writer may have put out of order"
)


def minari_root() -> Path:
    """The folder of local Minari data sets: ``$MINARI_DATASETS_PATH`` or ``~/.minari/datasets``."""
    override = os.environ.get("MINARI_DATASETS_PATH")
    return Path(override) if override else Path.home() / ".minari" / "datasets"


def minari_data_folder(path: Path) -> Path | None:
    """Finds the folder that holds ``metadata.json`` of a Minari data set, from any path into it."""
    candidates = (path / "data", path) if path.is_dir() else (path.parent,)
    return next((folder for folder in candidates if (folder / _METADATA_NAME).is_file()), None)


def load_minari(
    source: str | Path,
    *,
    options: LoadOptions | None = None,
    references: References | None = None,
) -> TransitionDataset:
    """Loads a Minari data set.

    Args:
        source: Id of a local data set, or a path to its folder or HDF5 file.
        options: What to do about odd data, and where to keep the store.
        references: Reference returns; the file's own by default.

    Returns:
        All transitions. An episode with T observations instead of T + 1 is reported and gives T -
        1.

    Raises:
        DatasetError: Nothing is there, the file is damaged, or its data cannot be used.
    """
    file = MinariFile.open(source)
    info = DatasetInfo(
        name=file.name,
        source=str(file.folder),
        env_spec=file.env_spec("env_spec"),
        eval_env_spec=file.env_spec("eval_env_spec"),
        references=references or file.references(),
        metadata=file.metadata,
    )
    chosen = options or LoadOptions()

    def fill(builder: DatasetBuilder) -> Sequence[str]:
        builder.ledger.declared_steps = file.declared_steps
        kinds = []
        for episode in file.episodes(with_success=chosen.cut_after_success):
            if add_episode(builder, episode):
                kinds.append(episode.kind)
        for note in file.doubts():
            builder.ledger.note(note)
        return kinds if any(kinds) else ()

    num_rows = (file.declared_steps or 0) + file.num_episodes
    source_file = SourceFile(
        file.files(), file.observation_space, file.action_space, num_rows, fill
    )
    return build_dataset(source_file, chosen, info)


class MinariFile:
    """An open look at the files of a Minari data set.

    Attributes:
        folder: The ``data`` folder.
        metadata: The content of ``metadata.json``.
        name: Its id.
        data_format: ``hdf5``, ``arrow`` or ``parquet``.
        observation_space: Space of the observations.
        action_space: Space of the actions.
        num_episodes: Episodes the metadata declares.
        declared_steps: Steps the metadata declares, or None.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / _METADATA_NAME
        try:
            self.metadata: dict[str, Any] = from_json(path.read_text(encoding="utf-8"))
            self.num_episodes = int(self.metadata["total_episodes"])
            steps = self.metadata.get("total_steps")
            self.declared_steps = None if steps is None else int(steps)
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise DatasetError(
                f"{path}: not the metadata of a Minari data set: {cause!r}"
            ) from cause
        self.name = str(self.metadata.get("dataset_id", folder.parent.name))
        self.data_format = str(self.metadata.get("data_format", "hdf5"))
        if self.data_format not in {"hdf5", "arrow", "parquet"}:
            raise DatasetError(f"{self.name}: data format {self.data_format!r} is not known")
        self.observation_space = self._space("observation_space")
        self.action_space = self._space("action_space")

    @classmethod
    def open(cls, source: str | Path) -> MinariFile:
        """Opens a data set by id or path.

        Raises:
            DatasetError: There is none, or its metadata cannot be read.
        """
        for path in (Path(source), minari_root() / source):
            folder = minari_data_folder(path) if path.exists() else None
            if folder is not None:
                return cls(folder)
        raise DatasetError(f"no Minari data set at {source} or {minari_root() / source}")

    def files(self) -> list[Path]:
        """All files, in a fixed order."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def env_spec(self, key: str) -> EnvSpec | None:
        """Reads an environment spec; None if there is none or it cannot be understood."""
        text = self.metadata.get(key)
        return env_spec_from_json(text) if isinstance(text, str) else None

    def references(self) -> References | None:
        """Reads the reference returns, if the file has both."""
        low, high = self.metadata.get("ref_min_score"), self.metadata.get("ref_max_score")
        if not isinstance(low, int | float) or not isinstance(high, int | float) or low == high:
            return None
        behavior = self.metadata.get("ref_behavior_score")
        measured = float(behavior) if isinstance(behavior, int | float) else None
        return References(float(low), float(high), measured, f"metadata of {self.name}")

    def episodes(self, *, with_success: bool = False) -> Iterator[RawEpisode]:
        """Reads one episode after the other.

        Args:
            with_success: Read from the infos after which steps the state was a success.

        Raises:
            DatasetError: An episode is missing or damaged.
        """
        if self.data_format != "hdf5":
            return self._arrow_episodes(with_success)
        return read_hdf5_episodes(
            self.folder / _HDF5_NAME,
            self.name,
            self.num_episodes,
            self.observation_space,
            self.action_space,
            with_success=with_success,
        )

    def doubts(self) -> Iterator[str]:
        """What the laws cannot see, because the metadata does not say it or says less."""
        if self.declared_steps is None:
            yield "metadata.json has no total_steps: steps that the files lost would not be noticed"
        if self.data_format != "hdf5":
            has_more = (self.folder / str(self.num_episodes)).exists()
        else:
            with open_hdf5(self.folder / _HDF5_NAME) as file:
                has_more = f"episode_{self.num_episodes}" in file
        if has_more:
            yield (
                f"the files have more episodes than total_episodes of metadata.json says "
                f"({self.num_episodes:,}); those are not read"
            )

    def _space(self, key: str) -> Space:
        text: Any = self.metadata.get(key)
        if text is None:  # old files leave the spaces to the environment
            spec = self.env_spec("env_spec")
            if spec is None:
                raise DatasetError(
                    f"{self.name}: neither {key} nor a usable env_spec in metadata.json"
                )
            try:
                with gymnasium.make(spec) as env:
                    return getattr(env, key)  # type: ignore[no-any-return]
            except (gymnasium.error.Error, ImportError, TypeError, ValueError) as cause:
                raise DatasetError(
                    f"{self.name}: {key} is not in metadata.json and its environment {spec.id} "
                    f"cannot be made: {cause}"
                ) from cause
        try:
            data: dict[str, object] = from_json(text) if isinstance(text, str) else dict(text)
            return space_from_json(data)
        except (RlregError, ValueError, TypeError, AttributeError, RecursionError) as cause:
            raise DatasetError(f"{self.name}: {key}: {cause}") from cause

    # -----------------------------------------------------------------------------------------
    # Arrow

    def _arrow_episodes(self, with_success: bool) -> Iterator[RawEpisode]:
        arrow = _import_arrow()
        for index in range(self.num_episodes):
            folder = self.folder / str(index)
            try:
                data = arrow.dataset(
                    str(folder), format=self.data_format, ignore_prefixes=["_", ".", _METADATA_NAME]
                )
                yield self._arrow_episode(data, folder, index, with_success)
            except (OSError, KeyError, ValueError, TypeError) as cause:
                if isinstance(cause, DatasetError):
                    raise
                raise DatasetError(
                    f"{self.name}: episode {index} is missing or damaged: {cause}"
                ) from cause

    def _arrow_episode(self, data: Any, folder: Path, index: int, with_success: bool) -> RawEpisode:
        names = ["observations", "actions", "rewards", "terminations", "truncations"]
        with_infos = with_success and "infos" in data.schema.names
        table = data.to_table(columns=[*names, *(["infos"] if with_infos else [])])
        columns = {name: _one_chunk(table.column(name)) for name in table.column_names}
        metadata = {}
        if (folder / _METADATA_NAME).is_file():
            metadata = from_json((folder / _METADATA_NAME).read_text(encoding="utf-8"))
        # Minari pads actions and rewards to the number of observations; only the metadata of the
        # episode tells a padded row from a step whose next observation is missing.
        steps = int(metadata.get("total_steps", len(table) - 1))
        success = None
        if with_infos and columns["infos"].type.get_field_index("success") >= 0:
            given = columns["infos"].field("success").to_numpy(zero_copy_only=False)
            success = after_steps(given.astype(np.bool_), steps)
        actions = _read_arrow(columns["actions"], self.action_space)
        flags = {
            name: columns[name].to_numpy(zero_copy_only=False)[:steps].astype(np.bool_)
            for name in ("terminations", "truncations")
        }
        long = steps >= _ARROW_WRITER_ROWS
        ends = flags["terminations"] | flags["truncations"]
        if long and ends.any() and not ends[-1]:
            raise DatasetError(
                f"{self.name}: episode {index}: its rows are out of order, the step that ends it "
                f"is row {int(np.argmax(ends))} of {steps}. Minari's Arrow writer does that to "
                f"episodes of more than {_ARROW_WRITER_ROWS:,} steps; record them as HDF5"
            )
        return RawEpisode(
            index,
            _read_arrow(columns["observations"], self.observation_space),
            _first(actions, steps),
            columns["rewards"].to_numpy(zero_copy_only=False)[:steps],
            flags["terminations"],
            flags["truncations"],
            success=success,
            kind=str(metadata.get("kind", "")),
            doubt=ROW_ORDER_NOTE if long else "",
        )


def env_spec_from_json(text: str) -> EnvSpec | None:
    """Reads an environment spec that any gymnasium may have written.

    Keys this gymnasium does not know are ignored. None where the text is no spec at all.
    """
    known = {item.name for item in dataclasses.fields(EnvSpec) if item.init}
    try:
        data = from_json(text)
        wrappers = data.get("additional_wrappers") or []
        kept = {key: value for key, value in data.items() if key in known}
        kept["additional_wrappers"] = wrappers
        return EnvSpec.from_json(json.dumps(kept))
    except (ValueError, TypeError, AttributeError, gymnasium.error.Error):
        return None


def _read_arrow(column: Any, space: Space) -> object:
    if isinstance(space, spaces.Dict):
        names = space.spaces.items()
        return {key: _read_arrow(column.field(str(key)), part) for key, part in names}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(_read_arrow(column.field(str(index)), part) for index, part in parts)
    shape = tuple(space.shape or ())
    if str(column.type) in {"binary", "large_binary"}:
        return decode_images(column.to_pylist(), shape)
    if hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), *shape)
    return column.to_numpy(zero_copy_only=False)


def _one_chunk(column: Any) -> Any:
    """The whole column as one array; an episode of many steps comes in several record batches."""
    combined = column.combine_chunks()
    chunks = getattr(combined, "num_chunks", None)
    return combined if chunks is None else combined.chunk(0)


def _first(values: object, steps: int) -> object:
    if isinstance(values, Mapping):
        return {key: _first(part, steps) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_first(part, steps) for part in values)
    return np.asarray(values)[:steps]


def _import_arrow() -> Any:
    try:
        import pyarrow.dataset
    except ImportError as cause:
        raise MissingExtraError("Arrow data need pyarrow: pip install 'rlreg[train]'") from cause
    return pyarrow.dataset
