"""Finds a data set by id or path and loads it, whatever its format."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlreg.errors import DatasetError, MissingDatasetError, UnknownNameError, did_you_mean
from rlreg.json_text import from_json
from rlreg.run_config import DatasetSettings
from rlreg.runtime.data.build import LoadOptions
from rlreg.runtime.data.d4rl import is_d4rl, load_d4rl
from rlreg.runtime.data.dataset import References, TransitionDataset
from rlreg.runtime.data.generate import RECIPES
from rlreg.runtime.data.generate import generate as generate_dataset
from rlreg.runtime.data.hdf5 import open_hdf5
from rlreg.runtime.data.minari import load_minari, minari_data_folder, minari_root
from rlreg.runtime.spaces import Space

_HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf")
_OWN_NAMESPACE = "rlreg/"


@dataclass(frozen=True, slots=True)
class LocalDataset:
    """A Minari data set on this machine."""

    dataset_id: str
    path: Path
    num_steps: int
    num_episodes: int
    data_format: str


Source = str | os.PathLike[str] | DatasetSettings


def load_dataset(
    source: Source,
    *,
    download: bool = False,
    generate: bool = False,
    allow_non_finite: bool = False,
    clip_actions: bool = False,
    cut_after_success: bool = False,
    split_at_breaks: bool = False,
    memory_map: bool | None = None,
    memory_limit: int | None = None,
    references: References | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> TransitionDataset:
    """Loads a data set as transitions, and proves that nothing was lost or shifted.

    Args:
        source: Id of a Minari data set (``D4RL/pointmaze/umaze-v2``, ``rlreg/pendulum/mixed-v0``),
            or a path to a Minari folder, its HDF5 file, or a D4RL HDF5 file; or the settings of a
            run's data set, whose options count beside those given here.
        download: Let Minari download an id that is not on this machine.
        generate: Make an id of rlreg's own that is not on this machine.
        allow_non_finite: Let NaN, inf and numbers beyond 1e18 in.
        clip_actions: Clip continuous actions to the bounds of their space.
        cut_after_success: End each episode with its first successful step, as truncated.
        split_at_breaks: End an episode of a D4RL file where its next observations do not continue.
        memory_map: Keep the rows in mapped files of the cache folder; by default only what is
            larger than half of the free memory.
        memory_limit: Bytes above which rows are mapped, in place of half of the free memory.
        references: Reference returns, where the file has none or others are wanted.
        observation_space: For D4RL files, which do not say.
        action_space: For D4RL files, which do not say.
        device: Where batches shall be; rows move there if they fit.
        progress: Called with steps done and steps in all while a data set is generated.

    Returns:
        The data set; its ``laws`` print as the conservation report.

    Raises:
        MissingDatasetError: Nothing by that name is here; the message says how to get it.
        UnknownNameError: rlreg has no such data set of its own.
        DatasetError: The data cannot be used.
    """
    given = source if isinstance(source, DatasetSettings) else DatasetSettings(id="-")
    options = LoadOptions(
        allow_non_finite=_either(allow_non_finite, given.allow_non_finite),
        clip_actions=_either(clip_actions, given.clip_actions),
        cut_after_success=_either(cut_after_success, given.cut_after_success),
        split_at_breaks=_either(split_at_breaks, given.split_at_breaks),
        memory_map=memory_map,
        memory_limit=memory_limit,
    )
    path = locate(source, download=download, generate=generate, progress=progress)
    if path.is_dir():
        dataset = load_minari(path, options=options, references=references)
    else:
        dataset = load_d4rl(
            path,
            options=options,
            observation_space=observation_space,
            action_space=action_space,
            references=references,
        )
    return dataset if device == "cpu" else dataset.to(device)


def _either(own: bool, settings: bool) -> bool:
    return settings if own is False else own  # what is no bool is refused with its name


def locate(
    source: Source,
    *,
    download: bool = False,
    generate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Finds the files of a data set.

    Returns:
        The ``data`` folder of a Minari data set, or a D4RL HDF5 file.

    Raises:
        MissingDatasetError: There is nothing; the message says where it looked and what to do.
        UnknownNameError: rlreg has no such data set of its own.
        DatasetError: What is there is no data set.
    """
    name = _name_of(source)
    path = Path(name).expanduser()
    if not path.is_absolute():
        folder = _folder_of(name)
        if folder is not None:
            return folder
    if path.exists():
        return _locate_path(path)
    if path.is_absolute() or name.startswith((".", "~")) or path.suffix.lower() in _HDF5_SUFFIXES:
        raise MissingDatasetError(f"no data set at {path}: there is no such file or folder")
    if name in RECIPES and generate:
        generate_dataset(name, progress=progress)
    elif name.startswith(_OWN_NAMESPACE):
        raise _missing_own(name)
    elif download:
        _download(name)
    else:
        raise _missing(name)
    folder = _folder_of(name)
    if folder is None:
        raise MissingDatasetError(f"data set {name} is still not in {minari_root()}")
    return folder


def _name_of(source: Source) -> str:
    if isinstance(source, DatasetSettings):
        return source.id
    if not isinstance(source, str | os.PathLike):
        raise DatasetError(f"expected the id or the path of a data set, got {source!r}")
    return os.fspath(source)


def list_local() -> list[LocalDataset]:
    """Lists the Minari data sets on this machine, by id; folders that are none are passed over."""
    root = minari_root()
    found = []
    for path in sorted(root.glob("**/data/metadata.json")) if root.is_dir() else []:
        dataset_id = path.parent.parent.relative_to(root).as_posix()
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue  # under construction
        try:
            data = from_json(path.read_text(encoding="utf-8"))
            steps, episodes = int(data["total_steps"]), int(data["total_episodes"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        data_format = str(data.get("data_format", "hdf5"))
        found.append(LocalDataset(dataset_id, path.parent, steps, episodes, data_format))
    return found


def _folder_of(name: str) -> Path | None:
    candidate = minari_root() / name
    return minari_data_folder(candidate) if candidate.is_dir() else None


def _locate_path(path: Path) -> Path:
    folder = minari_data_folder(path)
    if path.is_dir():
        if folder is None:
            raise DatasetError(f"{path} is no Minari data set: it has no data/metadata.json")
        return folder
    with open_hdf5(path) as file:
        if is_d4rl(file):
            return path
        if folder is not None:
            return folder
        raise DatasetError(
            f"{path} is neither part of a Minari data set (no metadata.json beside it) nor a D4RL "
            f"file (observations, actions, rewards, terminals); it has {sorted(file)[:10]}"
        )


def _missing_own(name: str) -> DatasetError | UnknownNameError:
    if name in RECIPES:
        return MissingDatasetError(
            f"data set {name} is not on this machine (looked in {minari_root()}); "
            f"make it with `rlreg data generate {name}`"
        )
    hint = did_you_mean(name, RECIPES) or f"there are {', '.join(sorted(RECIPES))}"
    return UnknownNameError(f"rlreg has no data set {name!r}; {hint}")


def _missing(name: str) -> MissingDatasetError:
    local = [entry.dataset_id for entry in list_local()]
    hint = did_you_mean(name, [*local, *RECIPES])
    return MissingDatasetError(
        f"data set {name} is not on this machine (looked in {minari_root()} and for a file of that "
        f"name){'; ' + hint if hint else ''}; get it with `minari download {name}`, or "
        "in Python with load_dataset(..., download=True); `rlreg data list` shows what is here and "
        "what rlreg can generate"
    )


def _download(name: str) -> None:
    import minari

    try:
        # Minari prints its progress; stdout belongs to the caller.
        with contextlib.redirect_stdout(sys.stderr):
            minari.download_dataset(name)
    except Exception as cause:  # the storage back ends raise whatever they like
        raise DatasetError(
            f"data set {name} could not be downloaded: {type(cause).__name__}: {cause}"
        ) from cause
