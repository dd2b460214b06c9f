"""Reads the episodes of a Minari data set kept as HDF5."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError, MissingExtraError
from rlreg.runtime.data.episodes import RawEpisode
from rlreg.runtime.data.hdf5 import array, child, open_hdf5, read_array
from rlreg.runtime.spaces import Space

_FLAGS = ("terminations", "truncations")


def read_hdf5_episodes(
    path: Path,
    name: str,
    num_episodes: int,
    observation_space: Space,
    action_space: Space,
    *,
    with_success: bool = False,
) -> Iterator[RawEpisode]:
    """Reads one episode after the other.

    Args:
        path: The HDF5 file.
        name: What error messages call the data set.
        num_episodes: How many it has.
        observation_space: Space of the observations.
        action_space: Space of the actions.
        with_success: Read from the infos after which steps the state was a success.

    Raises:
        DatasetError: The file is no HDF5, or an episode is missing or damaged.
    """
    with open_hdf5(path) as file:
        for index in range(num_episodes):
            try:
                group = child(file, f"episode_{index}")
                yield _read_episode(group, index, observation_space, action_space, with_success)
            except (KeyError, OSError, ValueError) as cause:
                raise DatasetError(
                    f"{name}: episode {index} is missing or damaged: {cause}"
                ) from cause


def decode_images(frames: Sequence[bytes | None], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decodes JPEG frames to ``[len(frames), *shape]``; zeros where there is none."""
    try:
        from PIL import Image
    except ImportError as cause:  # pragma: no cover - minari[hdf5] brings pillow
        raise MissingExtraError("JPEG frames need pillow: pip install pillow") from cause
    result = np.zeros((len(frames), *shape), dtype=np.uint8)
    for row, frame in enumerate(frames):
        if frame is not None:
            result[row] = np.asarray(Image.open(io.BytesIO(frame)))
    return result


def after_steps(success: NDArray[Any], steps: int) -> NDArray[np.bool_]:
    """Success after each step: infos with T + 1 entries start with the reset's."""
    flat = np.asarray(success).reshape(len(success), -1)[:, 0].astype(np.bool_)
    return flat[len(flat) - steps :] if len(flat) >= steps else np.zeros(steps, np.bool_)


def _read_episode(
    group: Any, index: int, observation_space: Space, action_space: Space, with_success: bool
) -> RawEpisode:
    rewards = read_array(group, "rewards")
    success = None
    if with_success and "infos" in group and "success" in (infos := child(group, "infos")):
        success = after_steps(read_array(infos, "success"), len(rewards))
    terminations, truncations = (_as_flags(read_array(group, name)) for name in _FLAGS)
    return RawEpisode(
        index,
        _read_part(group, "observations", observation_space),
        _read_part(group, "actions", action_space),
        rewards.reshape(-1),
        terminations,
        truncations,
        success=success,
        kind=_kind(group),
    )


def _kind(group: Any) -> str:
    kind = group.attrs.get("kind", "")
    return kind if isinstance(kind, str) else ""


def _as_flags(values: NDArray[Any]) -> NDArray[np.bool_]:
    return values.astype(np.bool_).reshape(-1)


def _read_part(group: Any, name: str, space: Space) -> object:
    if isinstance(space, spaces.Dict):
        # In the order of the space: the file's own order is alphabetical.
        parts = child(group, name)
        return {key: _read_part(parts, str(key), part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        members, parts = enumerate(space.spaces), child(group, name)
        return tuple(_read_part(parts, f"_index_{index}", part) for index, part in members)
    shape = tuple(space.shape or ())
    if _may_be_frames(space) and (node := array(group, name)).ndim != len(shape) + 1:
        return decode_images([bytes(np.asarray(frame)) for frame in node[()]], shape)
    return read_array(group, name)


def _may_be_frames(space: Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) > 1
