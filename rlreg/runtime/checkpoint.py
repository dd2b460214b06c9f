"""Checkpoints: ``.rlreg`` files that restore a learnable and cannot run code.

The container is in `rlreg.archive`, the state in `rlreg.runtime.state`; here they meet the
config, the spaces and the lock. Nothing in a file depends on time, host or path, and nothing is
ever unpickled.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from rlreg import archive, registry
from rlreg.atomic_file import replacing
from rlreg.config import LearnableConfig
from rlreg.creation import create
from rlreg.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentSpecError,
    RlregError,
    VersionWarning,
)
from rlreg.migrations import migrate
from rlreg.open_union import validate
from rlreg.runtime.arguments import file_path
from rlreg.runtime.build_limit import BuildLimit, bytes_in
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.lock import (
    LockEntry,
    differences,
    installed,
    lock_from_json,
    lock_of,
    lock_to_json,
    new_settings,
    qualify,
    require_installed,
    unlocked,
)
from rlreg.runtime.spaces import Space, space_from_json, space_to_json
from rlreg.runtime.state import (
    TRAINER_PARTS,
    WEIGHT_PARTS,
    flatten_state,
    learnable_state,
    restore_learnable,
    restore_weights,
    unflatten_state,
)

if TYPE_CHECKING:
    from rlreg.config import DeviceLike

PathLike = str | os.PathLike[str]

_METADATA_KEY = "rlreg"
_MAX_TENSOR_HEADER = 100_000_000  # safetensors' own limit


@dataclass(frozen=True, slots=True)
class Header:
    """What a checkpoint says about itself, read without its weights.

    Attributes:
        config: The learnable's settings as written, ``type`` included.
        observation_space: What it was built for.
        action_space: What it was built for.
        lock: Distribution, version and schema of every id it uses.
    """

    config: dict[str, Any]
    observation_space: Space
    action_space: Space
    lock: tuple[LockEntry, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint, checked but not yet in a learnable."""

    path: Path
    header: Header
    state: dict[str, Any]
    run_state: dict[str, Any]

    def restore(self, learnable: Learnable) -> None:
        """Builds the learnable if need be and puts the state into it.

        Raises:
            CheckpointError: If the learnable is built for other spaces or has other networks.
        """
        try:
            spaces = self.header.observation_space, self.header.action_space
            _build_for(learnable, *spaces, self.state)
            restore_learnable(learnable, self.state)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error


# --- writing ------------------------------------------------------------------------------------


def save(
    learnable: Learnable, path: PathLike, *, run_state: Mapping[str, Any] | None = None
) -> None:
    """Writes a checkpoint; the file is complete or not there.

    Args:
        learnable: A built learnable.
        path: Where to; an existing file is replaced only when the new one is on the disk.
        run_state: What a run needs to go on, besides the learnable.

    Raises:
        ConfigError: If ``path`` is no path of a file.
        NotBuiltError: If the learnable has no networks yet.
        CheckpointError: If the file cannot be written, or the state holds something unsavable.
    """
    archive.write_archive(file_path("save", path), encode(learnable, run_state or {}))


def encode(learnable: Learnable, run_state: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the members of a checkpoint; equal learnables give equal bytes."""
    state = learnable_state(learnable)
    trainer = {name: state[name] for name in TRAINER_PARTS} | {"run": dict(run_state)}
    document, tensors = flatten_state(trainer)
    return {
        "config.json": archive.to_json(_config_to_json(learnable.config)),
        "spaces.json": archive.to_json(_spaces_to_json(learnable)),
        "lock.json": archive.to_json(lock_to_json(lock_of(learnable.config))),
        archive.WEIGHTS: _encode_weights(learnable, state),
        "trainer.json": archive.to_json(document),
        "trainer.safetensors": safetensors.torch.save(tensors),
    }


def save_weights(learnable: Learnable, path: PathLike) -> None:
    """Writes networks and scalers as one safetensors file.

    Raises:
        NotBuiltError: If the learnable has no networks yet.
        CheckpointError: If the file cannot be written.
    """
    target = file_path("save_model", path)
    content = _encode_weights(learnable, learnable_state(learnable))
    try:
        with replacing(target) as file:
            file.write(content)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{target}: could not be written: {reason}") from error


def _encode_weights(learnable: Learnable, state: Mapping[str, Any]) -> bytes:
    document, tensors = flatten_state({name: state[name] for name in WEIGHT_PARTS})
    header = {"state": document, "spaces": _spaces_to_json(learnable)}
    # One key: safetensors writes its metadata in no fixed order.
    return safetensors.torch.save(tensors, {_METADATA_KEY: archive.to_json(header).decode()})


def _config_to_json(config: LearnableConfig) -> dict[str, Any]:
    return {**config.model_dump(mode="json"), "type": registry.reference(type(config))}


def _spaces_to_json(learnable: Learnable) -> dict[str, Any]:
    learnable.require_built()
    assert learnable.spaces is not None
    return {
        "observation_space": space_to_json(learnable.spaces.observation_space),
        "action_space": space_to_json(learnable.spaces.action_space),
    }


# --- reading ------------------------------------------------------------------------------------


def load(path: PathLike, device: DeviceLike = "auto", *, strict_lock: bool = False) -> Any:
    """Loads a checkpoint: networks, scalers, optimizers, RNG streams and counters.

    Args:
        path: A ``.rlreg`` file.
        device: Where to put it (see :class:`rlreg.DeviceSpec`).
        strict_lock: Refuse code of another version than the file was made with, instead of warning.

    Returns:
        The learnable, ready to predict and to train on.

    Raises:
        CheckpointError: If the file is no intact checkpoint, its plugin is missing, or its state
            does not fit the networks that its config gives here.
        ConfigError: If its config is not valid with the installed version.
        DeviceUnavailableError: If this machine has no such device.
    """
    checkpoint = read_checkpoint(path)
    config = config_of(checkpoint.header, checkpoint.path, strict_lock=strict_lock)
    learnable = create(config, device=device)
    if not isinstance(learnable, Learnable):
        raise CheckpointError(f"{path}: {config.get_type()!r} creates no rlreg.Learnable")
    checkpoint.restore(learnable)
    return learnable


def read_checkpoint(path: PathLike) -> Checkpoint:
    """Reads and checks a whole checkpoint, without making a learnable of it.

    Raises:
        CheckpointError: If the file is no intact checkpoint.
    """
    source = _as_path(path)
    members = archive.read_archive(source)
    header = _header_of(source, members)
    state, _ = _decode_weights(source, members[archive.WEIGHTS])
    document = archive.parse_json(source, "trainer.json", members["trainer.json"])
    tensors = _decode_tensors(source, "trainer.safetensors", members["trainer.safetensors"])
    trainer = _unflatten(source, document, tensors)
    run_state = trainer.pop("run", {})
    return Checkpoint(source, header, {**state, **trainer}, run_state)


def _as_path(path: PathLike) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"expected the path of a .rlreg file, got {path!r}")
    return Path(path)


def read_header(path: PathLike) -> Header:
    """Reads config, spaces and lock of a checkpoint; its weights stay on the disk.

    Raises:
        CheckpointError: If the file is no checkpoint.
    """
    source = _as_path(path)
    return _header_of(source, archive.read_header_members(source))


def config_of(header: Header, path: Path, *, strict_lock: bool = False) -> LearnableConfig:
    """Returns the config of a checkpoint, validated with what is installed.

    A config of an older schema version goes through its migrations; what they did, and every
    other difference of version, is a :class:`VersionWarning`.

    Raises:
        CheckpointError: If a plugin is missing, or is another version and ``strict_lock`` is set.
        ConfigError: If the config is not valid with the installed version.
    """
    data = qualify(header.config, header.lock)
    _require(path, [entry for entry in header.lock if not entry.path])
    try:
        report = _migrate(data, header.lock)
        config: LearnableConfig = validate(LearnableConfig, data)
    except ConfigError as error:
        _require(path, header.lock)  # only now: a migration may have dropped what is not there
        changed = "; ".join(differences(header.lock, installed(header.lock)))
        subject = f"{path}: its config is not valid here{f' ({changed})' if changed else ''}"
        raise ConfigError(error.problems, subject=subject) from error
    changes = [
        *differences(header.lock, lock_of(config)),
        *(f"migrated {step}" for step in report),
        *new_settings(data, config),
    ]
    # A field that was renamed, or is new, is not in the lock either: that is said above.
    changes = changes or unlocked(header.lock, lock_of(config))
    if changes and strict_lock:
        raise CheckpointError(
            f"{path}: {'; '.join(changes)}; install what it was made with, or go without a strict "
            "lock"
        )
    if changes:
        warnings.warn(f"{path}: {'; '.join(changes)}", VersionWarning, stacklevel=3)
    return config


def _require(path: Path, lock: Sequence[LockEntry]) -> None:
    try:
        require_installed(lock)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _migrate(data: dict[str, Any], lock: tuple[LockEntry, ...]) -> list[str]:
    """Brings the config of a checkpoint to today's schema version, in place."""
    tag = data.get("type")
    if not isinstance(tag, str):
        return []  # which validation reports
    root = next((entry for entry in lock if not entry.path), None)
    writer = "" if root is None or root.is_local else f"{root.distribution} {root.version}"
    return migrate(registry.resolve("learnable", tag).cls, data, written_with=writer)


def load_weights(learnable: Learnable, path: PathLike) -> None:
    """Reads networks and scalers from a file of ``save_weights`` or from a checkpoint.

    Raises:
        CheckpointError: If the file is damaged or belongs to other networks; nothing is changed.
    """
    source = _as_path(path)
    state, spaces = _decode_weights(source, _weights_in(source))
    try:
        _build_for(learnable, *_parse_spaces(spaces), state)
        restore_weights(learnable, state)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _weights_in(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
            file.seek(0)
            return archive.read_archive(path)[archive.WEIGHTS] if is_zip else file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def _build_for(
    learnable: Learnable, observation_space: Space, action_space: Space, state: Mapping[str, Any]
) -> None:
    try:
        with BuildLimit(bytes_in(state)):
            learnable.build(observation_space, action_space)
    except EnvironmentSpecError as error:
        raise CheckpointError(str(error)) from error


def _header_of(path: Path, members: Mapping[str, bytes]) -> Header:
    config = archive.parse_json(path, "config.json", members["config.json"])
    spaces = archive.parse_json(path, "spaces.json", members["spaces.json"])
    lock = archive.parse_json(path, "lock.json", members["lock.json"])
    try:
        observation_space, action_space = _parse_spaces(spaces)
        entries = lock_from_json(lock)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return Header(config, observation_space, action_space, tuple(entries))


def _parse_spaces(data: Mapping[str, Any]) -> tuple[Space, Space]:
    parts = data.get("observation_space"), data.get("action_space")
    try:
        observation, action = (
            space_from_json(part if isinstance(part, dict) else {}) for part in parts
        )
    except (RlregError, MemoryError, RecursionError) as error:
        raise CheckpointError(f"its spaces cannot be read: {error}") from error
    return observation, action


# --- tensors ------------------------------------------------------------------------------------


def _decode_weights(path: Path, content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors = _decode_tensors(path, archive.WEIGHTS, content)
    metadata = _tensor_metadata(content).get(_METADATA_KEY)
    if not isinstance(metadata, str):
        raise CheckpointError(f"{path}: holds tensors, but no rlreg wrote them")
    header = archive.parse_json(path, archive.WEIGHTS, metadata.encode())
    spaces = header.get("spaces")
    if not isinstance(spaces, dict):
        raise CheckpointError(f"{path}: {archive.WEIGHTS} has no spaces")
    return _unflatten(path, header.get("state"), tensors), spaces


def _decode_tensors(path: Path, name: str, content: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path}: {name} is damaged: {error}") from error


def _tensor_metadata(content: bytes) -> dict[str, Any]:
    """Reads the metadata of a file that safetensors has accepted."""
    (length,) = struct.unpack_from("<Q", content)
    assert length <= min(len(content), _MAX_TENSOR_HEADER)
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__")
    return metadata if isinstance(metadata, dict) else {}


def _unflatten(path: Path, document: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    try:
        state = unflatten_state(document, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: its state is no mapping")
    return state
