"""Where a store lives: in memory, or mapped from files that are written once per source file.

The cache folder is ``$RLREG_CACHE/datasets`` (default: the user's cache folder). An entry is keyed
by the sha256 of the source files, so a changed file never meets an old store, and is built under a
temporary name and renamed, so a half-written one is never seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import platformdirs

from rlreg.errors import DatasetError, EnvironmentSpecError
from rlreg.runtime.data.build import DatasetBuilder, LoadOptions, assemble
from rlreg.runtime.data.dataset import DatasetInfo, TransitionDataset
from rlreg.runtime.data.laws import Ledger
from rlreg.runtime.data.store import Layout, Store, map_file
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space, space_to_json

# Raised whenever the same file would give another store.
_STORE_VERSION = 1
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What is needed to build a store.

    Attributes:
        files: The files whose content decides the store.
        observation_space: Space of the observations.
        action_space: Space of the actions.
        num_rows: Upper bound of transitions plus episodes.
        fill: Adds everything to a builder and returns the kinds of the episodes.
    """

    files: Sequence[Path]
    observation_space: Space
    action_space: Space
    num_rows: int
    fill: Callable[[DatasetBuilder], Sequence[str]]

    def builder(self, name: str, options: LoadOptions, folder: Path | None) -> DatasetBuilder:
        """Makes the builder that ``fill`` fills."""
        return DatasetBuilder(
            name,
            self.observation_space,
            self.action_space,
            options=options,
            folder=folder,
            capacity=self.num_rows,
        )


def build_dataset(source: SourceFile, options: LoadOptions, info: DatasetInfo) -> TransitionDataset:
    """Builds the data set in memory, or maps it where it would be too large for that.

    Raises:
        DatasetError: The data cannot be used, or the cache folder cannot be written.
    """
    try:
        plan = FlatteningPlan.of(source.observation_space)
        layout = Layout.of(plan, ActionPlan.of(source.action_space))
    except EnvironmentSpecError as cause:
        raise DatasetError(f"{info.name}: {cause}") from cause
    size = layout.row_bytes() * source.num_rows
    if not _wants_map(size, options):
        builder = source.builder(info.name, options, None)
        kinds = source.fill(builder)
        return builder.finish(info, kinds)
    folder = cache_root() / _key(source, options)
    if not (folder / "index.json").is_file():
        _write(source, options, info.name, folder)
    return _open(source, info, folder, layout)


def cache_root() -> Path:
    """The folder of mapped stores: ``$RLREG_CACHE/datasets`` or one in the user's cache folder."""
    return cache_folder() / "datasets"


def cache_folder() -> Path:
    """The folder of what can be made again: ``$RLREG_CACHE``, or one in the user's cache folder."""
    return Path(os.environ.get("RLREG_CACHE") or platformdirs.user_cache_dir("rlreg"))


def available_memory() -> int:
    """Bytes of free physical memory, cgroup limits considered; a large number where unknown."""
    free = 2**62
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        # MemAvailable also counts page cache that can be dropped.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        entries = {line.split(":")[0]: line.split()[1] for line in lines}
        free = max(free, int(entries["MemAvailable"]) * 1024) if free < 2**62 else free
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except (OSError, KeyError, IndexError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - int(used))


def hash_files(files: Sequence[Path]) -> str:
    """Returns the sha256 over the contents of files, in the given order."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _wants_map(size: int, options: LoadOptions) -> bool:
    if options.memory_map is not None:
        return options.memory_map
    limit = options.memory_limit
    return size > (_SHARE_OF_FREE_MEMORY * available_memory() if limit is None else limit)


def _key(source: SourceFile, options: LoadOptions) -> str:
    decisions = asdict(options)
    # Where the store lives does not change what is in it.
    del decisions["memory_map"], decisions["memory_limit"]
    spaces = [space_to_json(source.observation_space), space_to_json(source.action_space)]
    parts = [_STORE_VERSION, hash_files(source.files), decisions, spaces]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _write(source: SourceFile, options: LoadOptions, name: str, folder: Path) -> None:
    builder = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as cause:
        raise DatasetError(
            f"{name}: the cache folder {folder.parent} cannot be written: {cause}. "
            "Set RLREG_CACHE to another one"
        ) from cause
    try:
        builder = source.builder(name, options, temporary)
        kinds = source.fill(builder)
        _, lengths = builder.finish_store()
        np.save(temporary / "lengths.npy", lengths)
        index = {"ledger": asdict(builder.ledger), "kinds": list(kinds)}
        (temporary / "index.json").write_text(json.dumps(index), encoding="utf-8")
        if not (folder / "index.json").is_file():  # another process may have been faster
            temporary.rename(folder)
    except OSError as cause:
        raise DatasetError(
            f"{name}: the store could not be written to {folder.parent}: {cause}. "
            "Free some space or set RLREG_CACHE to another folder"
        ) from cause
    finally:
        if builder is not None:
            builder.abandon()
        shutil.rmtree(temporary, ignore_errors=True)


def _open(source: SourceFile, info: DatasetInfo, folder: Path, layout: Layout) -> TransitionDataset:
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    lengths = np.load(folder / "lengths.npy", allow_pickle=False)
    numbers = map_file(folder / "numbers.bin", (layout.width,), np.dtype(np.float32))
    rows = map_file(folder / "rows.bin", (), np.dtype(np.int64))
    images = None
    if layout.is_image:
        images = map_file(folder / "images.bin", (layout.observation_size,), np.dtype(np.uint8))
    return assemble(
        Store(layout, numbers, rows, images),
        lengths,
        Ledger(**index["ledger"]),
        source.observation_space,
        source.action_space,
        info,
        index["kinds"],
    )
