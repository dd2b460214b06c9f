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
from rlreg.runtime.data.given_arrays import flags
from rlreg.runtime.data.hdf5 import OwnArrays, open_hdf5
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
        arrays = OwnArrays(file)
        reader = _EpisodeReader(arrays, observation_space, action_space, with_success)
        for index in range(num_episodes):
            try:
                yield reader.read(arrays.child(file, f"episode_{index}"), index)
            except (DatasetError, KeyError, OSError, ValueError) as cause:
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


class _EpisodeReader:
    def __init__(
        self, arrays: OwnArrays, observation_space: Space, action_space: Space, with_success: bool
    ) -> None:
        self._arrays, self._with_success = arrays, with_success
        self._observation_space, self._action_space = observation_space, action_space

    def read(self, group: Any, index: int) -> RawEpisode:
        rewards = self._arrays.read(group, "rewards")
        terminations, truncations = (self._flags(group, name) for name in _FLAGS)
        return RawEpisode(
            index,
            self._part(group, "observations", self._observation_space),
            self._part(group, "actions", self._action_space),
            rewards.reshape(-1),
            terminations,
            truncations,
            success=self._success(group, len(rewards)) if self._with_success else None,
            kind=_kind(group),
        )

    def _success(self, group: Any, num_steps: int) -> NDArray[np.bool_] | None:
        infos = self._arrays.child(group, "infos") if "infos" in group else ()
        if "success" not in infos:
            return None
        return after_steps(self._arrays.read(infos, "success"), num_steps)

    def _flags(self, group: Any, name: str) -> NDArray[np.bool_]:
        values = self._arrays.read(group, name)
        return values.reshape(-1) if values.dtype == np.bool_ else flags(values, name)

    def _part(self, group: Any, name: str, space: Space) -> object:
        arrays = self._arrays
        if isinstance(space, spaces.Dict):
            # In the order of the space: the file's own order is alphabetical.
            parts = arrays.child(group, name)
            return {key: self._part(parts, str(key), part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            members, parts = enumerate(space.spaces), arrays.child(group, name)
            return tuple(self._part(parts, f"_index_{index}", part) for index, part in members)
        shape = tuple(space.shape or ())
        if _may_be_frames(space) and (node := arrays.array(group, name)).ndim != len(shape) + 1:
            return decode_images([bytes(np.asarray(frame)) for frame in node[()]], shape)
        return arrays.read(group, name)


def _kind(group: Any) -> str:
    kind = group.attrs.get("kind", "")
    return kind if isinstance(kind, str) else ""


def _may_be_frames(space: Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) > 1
