"""Makes rlreg's own data sets: seeded, reproducible bit for bit, and ordinary Minari data sets.

A recipe plays the episodes; this module writes them. Everything is built under a hidden name in the
Minari root and renamed when complete, so a run that fails or is killed leaves no data set behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlreg.errors import DatasetError, MissingExtraError, UnknownNameError, did_you_mean
from rlreg.runtime.data.minari import minari_root
from rlreg.runtime.data.pendulum import PendulumRecipe
from rlreg.runtime.data.pointmaze import pointmaze_recipes
from rlreg.runtime.data.recipe import CollectedEpisode, Recipe

# Episodes are written this many steps at a time: memory stays flat and the file is opened seldom.
_FLUSH_STEPS = 50_000

# What HDF5 writes besides the numbers, generously.
_FILE_BYTES, _EPISODE_BYTES = 2**20, 2**14

_ALL: tuple[Recipe, ...] = (PendulumRecipe(), *pointmaze_recipes())
RECIPES: dict[str, Recipe] = {recipe.dataset_id: recipe for recipe in _ALL}


@dataclass(frozen=True, slots=True)
class GeneratorInfo:
    """A data set that rlreg can make.

    Attributes:
        dataset_id: What to ask for.
        summary: What it is.
        default_steps: How many steps it has unless told otherwise.
        missing: What to install first; empty if nothing.
    """

    dataset_id: str
    summary: str
    default_steps: int
    missing: str


def list_generators() -> list[GeneratorInfo]:
    """Lists the data sets that rlreg can make, by id."""
    found = []
    for dataset_id, recipe in sorted(RECIPES.items()):
        missing = ""
        try:
            recipe.check()
        except MissingExtraError as cause:
            missing = str(cause)
        found.append(GeneratorInfo(dataset_id, recipe.summary, recipe.default_steps, missing))
    return found


def generate(
    dataset_id: str,
    *,
    n_steps: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Makes one of rlreg's data sets and puts it into the Minari root.

    Args:
        dataset_id: One of ``list_generators()``.
        n_steps: Number of steps; the recipe's default if None.
        seed: Seed of everything random; equal seeds give equal files.
        progress: Called with steps done and steps in all, from time to time.
        overwrite: Replace a data set of that id.

    Returns:
        The folder of the data set.

    Raises:
        UnknownNameError: There is no such recipe.
        MissingExtraError: The environment is not installed.
        DatasetError: The data set is there already, or cannot be written.
    """
    recipe = RECIPES.get(dataset_id)
    if recipe is None:
        hint = did_you_mean(dataset_id, RECIPES) or f"there are {', '.join(sorted(RECIPES))}"
        raise UnknownNameError(f"rlreg has no data set {dataset_id!r} to generate; {hint}")
    return write_recipe(recipe, n_steps=n_steps, seed=seed, progress=progress, overwrite=overwrite)


def write_recipe(
    recipe: Recipe,
    *,
    n_steps: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    made_by: str = "rlreg data generate",
) -> Path:
    """Plays a recipe, one of rlreg's or another one, and puts its data set into the Minari root.

    Args:
        recipe: Plays the episodes.
        n_steps: Number of steps; the recipe's default if None.
        seed: Seed of everything random; equal seeds give equal files.
        progress: Called with steps done and steps in all, from time to time.
        overwrite: Replace a data set of that id.
        made_by: The command that the data set's description names.

    Returns:
        The folder of the data set.

    Raises:
        MissingExtraError: The environment is not installed.
        DatasetError: The data set is there already, or cannot be written.
    """
    dataset_id = recipe.dataset_id
    total = recipe.default_steps if n_steps is None else n_steps
    if total < 1:
        raise DatasetError(f"{dataset_id}: n_steps = {total}: expected at least 1")
    recipe.check()
    target = minari_root() / dataset_id
    if target.exists() and not overwrite:
        raise DatasetError(f"{dataset_id} is already at {target}; overwrite=True replaces it")
    is_parent_new = not target.parent.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=minari_root()))
    except OSError as cause:
        raise DatasetError(f"{dataset_id}: {minari_root()} cannot be written: {cause}") from cause
    try:
        _write(recipe, building / "new" / "data", total, seed, progress or _ignore, made_by)
        _move(building, target, overwrite=overwrite)
    except OSError as cause:
        raise DatasetError(f"{dataset_id} could not be written to {target}: {cause}") from cause
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if is_parent_new:
            with contextlib.suppress(OSError):  # not empty: the data set is in it
                target.parent.rmdir()
    return target


def _move(building: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite and target.exists():
        target.rename(building / "old")
    try:
        (building / "new").rename(target)
    except OSError:
        # Another process may have made the same data set meanwhile; equal seeds, equal files.
        if not target.exists():
            raise


def _ignore(_done: int, _total: int) -> None:
    pass


def _write(
    recipe: Recipe,
    folder: Path,
    total: int,
    seed: int,
    progress: Callable[[int, int], None],
    made_by: str,
) -> None:
    """Plays the recipe into a new Minari storage."""
    storage = _new_storage(recipe, folder)
    returns: list[float] = []
    waiting: list[CollectedEpisode] = []
    done = waiting_steps = 0
    for episode in recipe.episodes(total, seed):
        waiting.append(episode)
        waiting_steps += len(episode.rewards)
        returns.append(float(episode.rewards.sum()))
        if waiting_steps >= _FLUSH_STEPS:
            _flush(storage, waiting, len(returns) - len(waiting))
            waiting, waiting_steps = [], 0
        done += len(episode.rewards)
        progress(done, total)
    if waiting:
        _flush(storage, waiting, len(returns) - len(waiting))
    storage.update_metadata(_metadata(recipe, seed, float(np.mean(returns)), made_by))


def _new_storage(recipe: Recipe, folder: Path) -> Any:
    try:
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as cause:
        raise MissingExtraError("writing data sets needs minari: pip install 'rlreg[train]'") from (
            cause
        )
    observation_space, action_space = recipe.spaces()
    folder.mkdir(parents=True)
    return MinariStorage.new(
        folder,
        observation_space=observation_space,
        action_space=action_space,
        env_spec=recipe.env_specs()[0],
        data_format="hdf5",
    )


def _require_space(folder: Path, episodes: list[CollectedEpisode]) -> None:
    """Raises before the disk is full: HDF5 then ends the process when it closes the file.

    Raises:
        OSError: If the episodes, which are not compressed much, do not fit.
    """
    needed = _FILE_BYTES + sum(_EPISODE_BYTES + _num_bytes(episode) for episode in episodes)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes are needed")


def _num_bytes(episode: CollectedEpisode) -> int:
    parts = [episode.observations, episode.actions, episode.rewards, *episode.infos.values()]
    found = 0
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping | tuple):
            parts += part.values() if isinstance(part, Mapping) else part
        else:
            found += np.asarray(part).nbytes
    return found


def _flush(storage: Any, episodes: list[CollectedEpisode], first: int) -> None:
    _require_space(Path(storage.data_path), episodes)
    # Here and not at module level: importing minari takes a quarter of a second.
    from minari.data_collector import EpisodeBuffer

    storage.update_episodes(
        EpisodeBuffer(
            seed=episode.seed,
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminations,
            truncations=episode.truncations,
            infos=dict(episode.infos) or None,
        )
        for episode in episodes
    )
    kinds = [{"kind": episode.kind} for episode in episodes]
    storage.update_episode_metadata(kinds, range(first, first + len(episodes)))


def _metadata(recipe: Recipe, seed: int, behavior: float, made_by: str) -> dict[str, object]:
    from minari import __version__ as minari_version

    scores = recipe.scores(seed)
    _, eval_spec = recipe.env_specs()
    metadata: dict[str, object] = {
        "dataset_id": recipe.dataset_id,
        "minari_version": minari_version,
        "author": {"rlreg"},
        "algorithm_name": recipe.algorithm,
        "description": f"{recipe.summary}. Made by `{made_by}`, seed {seed}.",
        "requirements": list(recipe.requirements),
        "ref_min_score": scores.random,
        "ref_max_score": scores.controller,
        "ref_behavior_score": behavior if scores.behavior is None else scores.behavior,
        "num_episodes_average_score": scores.num_episodes,
        "seed": seed,
    }
    if eval_spec is not None:
        metadata["eval_env_spec"] = eval_spec.to_json()
    return metadata
