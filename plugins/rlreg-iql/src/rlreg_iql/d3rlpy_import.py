"""Models of d3rlpy: its ``.d3`` and ``params.json`` files, read without running anything in them.

A ``.d3`` file is a pickle around the bytes of ``torch.save``. The outer pickle is read by an
unpickler that refuses every reference to code, so it can give dicts, text, bytes and numbers and
nothing else; the inner bytes are read by torch with ``weights_only=True``, after their zip
directory was checked.
"""

from __future__ import annotations

import functools
import io
import json
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlreg.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentSpecError,
    FileFormatError,
    LeftOutWarning,
)
from rlreg.open_union import validate
from rlreg_iql.config import IQLConfig
from rlreg_iql.d3rlpy_optimizers import OWNERS, Translate, load_optimizer, optimizer_states
from rlreg_iql.networks import StackedCritics

if TYPE_CHECKING:
    from rlreg.config import DeviceLike
    from rlreg_iql.learnable import IQL

Weights: TypeAlias = dict[str, dict[str, Tensor]]
"""``policy``, ``q_funcs``, ``targ_q_funcs``, ``value_func``: state of each by d3rlpy's names."""

NETWORKS = ("policy", "q_funcs", "targ_q_funcs", "value_func")
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class D3rlpyModel:
    """What a file of d3rlpy holds.

    Attributes:
        config: The settings, as ours.
        observation_shape: Shape of one observation.
        action_size: Dimensions of an action.
        weights: The networks; ``None`` for a ``params.json``.
        version: Version of d3rlpy that wrote it, or empty.
        optimizers: What it holds of ``actor_optim`` and ``critic_optim``.
    """

    config: IQLConfig
    observation_shape: tuple[int, ...]
    action_size: int
    weights: Weights | None
    version: str = ""
    optimizers: Mapping[str, Any] = field(default_factory=dict)


def import_d3rlpy(path: str | os.PathLike[str]) -> tuple[IQLConfig, Weights | None]:
    """Reads config and weights of a ``.d3`` or ``params.json`` file.

    Returns:
        The config, and the weights for :func:`load_weights` (``None`` for a ``params.json``).

    Raises:
        FileFormatError: If the file is missing or unreadable.
        CheckpointError: If it is no intact file of d3rlpy, or holds anything but plain data.
        ConfigError: If it is not IQL, or uses a part that rlreg does not have.
    """
    model = read_d3rlpy(path)
    return model.config, model.weights


def import_file(path: str | os.PathLike[str], device: DeviceLike = "cpu") -> IQL | IQLConfig:
    """Does what ``rlreg import d3rlpy`` needs.

    Returns:
        The learnable of a ``.d3`` file, the config of a ``params.json``.

    Raises:
        CheckpointError, ConfigError, FileFormatError: As :func:`import_d3rlpy`.
    """
    model = read_d3rlpy(path)
    if model.weights is None:
        return model.config
    return _learnable(path, model, model.weights, device)


def convert_d3rlpy(path: str | os.PathLike[str], device: DeviceLike = "cpu") -> IQL:
    """Makes a learnable whose predictions equal those of the file; ``save`` writes the ``.rlreg``.

    The state of the optimizers comes along, so that training goes on where it stood; where it does
    not fit, a :class:`rlreg.errors.LeftOutWarning` says that it goes on with fresh moments.

    Raises:
        CheckpointError: As :func:`import_d3rlpy`, and for a file without weights.
    """
    model = read_d3rlpy(path)
    if model.weights is None:
        raise CheckpointError(f"{path}: a params.json has no weights; give the .d3 file")
    return _learnable(path, model, model.weights, device)


def _learnable(
    path: str | os.PathLike[str], model: D3rlpyModel, weights: Weights, device: DeviceLike
) -> IQL:
    learnable = model.config.create(device)
    learnable.build(*_spaces(model))
    load_weights(learnable, weights)
    translate: dict[str, Translate] = {"policy": _renamed, "value_func": _renamed}
    translate["q_funcs"] = functools.partial(_critic_state, learnable.critics)
    for name in OWNERS:
        try:
            if name not in model.optimizers:
                raise ValueError("the file has none")
            load_optimizer(learnable, name, model.optimizers[name], weights, translate)
        except (ValueError, CheckpointError, ConfigError) as error:
            warnings.warn(
                f"{path}: the state of {name} is not taken over ({error}); training goes on with "
                "fresh moments",
                LeftOutWarning,
                stacklevel=3,
            )
    return learnable


def read_d3rlpy(path: str | os.PathLike[str]) -> D3rlpyModel:
    """Reads a file of d3rlpy; see :func:`import_d3rlpy`."""
    data = _read(Path(path))
    if data.lstrip()[:1] == b"{" or Path(path).suffix.lower() == ".json":
        return _model(path, data, None, "")
    content = _unpickle(path, data)
    weights, optimizers = _tensors(path, content["torch"])
    model = _model(path, content["config"].encode(), weights, content.get("version", ""))
    return replace(model, optimizers=optimizers)


# --- bytes --------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileFormatError(f"{path}: larger than {MAX_BYTES:,} bytes, no model")
        return path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error


class _PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, text, bytes and numbers, and refuses to look up anything else."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("it refers to data outside the file")


def _unpickle(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    try:
        content = _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise CheckpointError(
            f"{path}: not a plain .d3 file, nothing was run: {_reason(error)}"
        ) from error
    if type(content) is not dict:
        raise CheckpointError(f"{path}: not a .d3 file: it holds a {type(content).__name__}")
    for key, kind in (("torch", bytes), ("config", str)):
        if type(content.get(key)) is not kind:
            raise CheckpointError(f"{path}: not a .d3 file: no {kind.__name__} under {key!r}")
    return content


def _reason(error: Exception) -> str:
    """The first line of what an error says, or what it is where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _tensors(path: str | os.PathLike[str], data: bytes) -> tuple[Weights, dict[str, Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
        is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if is_packed or sum(entry.file_size for entry in entries) > len(data):
            raise CheckpointError(f"{path}: its tensors are compressed, which torch never does")
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        # torch's own message goes on for paragraphs and ends with how to run what is in the file.
        raise CheckpointError(
            f"{path}: its tensors cannot be read: it holds more than tensors and plain data"
        ) from error
    except Exception as error:
        raise CheckpointError(f"{path}: its tensors cannot be read: {_reason(error)}") from error
    weights: Weights = {}
    for name in NETWORKS:
        state = content.get(name) if isinstance(content, Mapping) else None
        if not isinstance(state, Mapping) or not all(
            isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
        ):
            raise CheckpointError(f"{path}: no IQL model: {name!r} is no state of a network")
        weights[name] = dict(state)
    return weights, optimizer_states(content)


# --- config -------------------------------------------------------------------------------------

_DROPPED = {"compile_graph"}  # belongs to the run here
_ROWS = {"minimum", "maximum", "mean", "std"}


def _model(
    path: str | os.PathLike[str], text: bytes, weights: Weights | None, version: object
) -> D3rlpyModel:
    try:
        content = _mapping(json.loads(text), "it")
        shape, size = content["observation_shape"], content["action_size"]
        described = _mapping(content["config"], "config")
        kind, settings = described["type"], _mapping(described["params"], "config.params")
    except (ValueError, KeyError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else _reason(error)
        reason = "it nests too deep" if isinstance(error, RecursionError) else reason
        raise CheckpointError(f"{path}: not a configuration of d3rlpy: {reason}") from error
    if kind != "iql":
        raise ConfigError(f"{path}: a model of {kind!r}; only d3rlpy's 'iql' can be imported")
    if not _is_shape(shape) or not _is_shape([size]):
        raise ConfigError(
            f"{path}: observation_shape {shape!r}, action_size {size!r}: only one array of "
            "observations and continuous actions can be imported"
        )
    try:
        plain = {k: _component(value) for k, value in settings.items() if k not in _DROPPED}
        config: IQLConfig = validate(IQLConfig, {**plain, "type": "iql"})
    except ConfigError as error:
        raise ConfigError(error.problems, subject=str(path)) from error
    return D3rlpyModel(config, tuple(shape), size, weights, str(version))


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no mapping")
    return value


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in value
    )


def _component(value: Any, depth: int = 0) -> Any:
    """Turns ``{"type": t, "params": {...}}`` into our flat form, and "none" into null."""
    if depth > 16:
        raise ConfigError("the configuration nests too deep")
    if not (isinstance(value, dict) and set(value) == {"type", "params"}):
        return value
    if value["type"] == "none":
        return None
    settings = value["params"] if isinstance(value["params"], dict) else {}
    flat = {name: _component(part, depth + 1) for name, part in settings.items()}
    for name in _ROWS & flat.keys():
        if isinstance(flat[name], list):
            flat[name] = _flatten(flat[name])
    if value["type"] == "cosine_annealing" and flat.get("last_epoch") == -1:
        del flat["last_epoch"]
    return {**flat, "type": value["type"]}


def _flatten(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat.extend(_flatten(value) if isinstance(value, list) else [value])
    return flat


def _spaces(model: D3rlpyModel) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Spaces in which the file means what it says: d3rlpy keeps shapes, not bounds."""
    shape = model.observation_shape
    scaler = model.config.observation_scaler
    if scaler is not None and scaler.type == "pixel":
        observation_space: spaces.Space[Any] = spaces.Box(0, 255, shape, np.uint8)
    else:  # floats, so that no image is scaled that d3rlpy did not scale
        observation_space = spaces.Box(-math.inf, math.inf, shape, np.float32)
    chosen, size = model.config.action_scaler, model.action_size
    low = np.asarray(getattr(chosen, "minimum", None) or [-1.0] * size, np.float32)
    high = np.asarray(getattr(chosen, "maximum", None) or [1.0] * size, np.float32)
    if low.shape != (size,) or high.shape != (size,) or bool((low > high).any()):
        raise EnvironmentSpecError(
            f"action bounds {low.tolist()} and {high.tolist()} for {size} dimensions"
        )
    action_space = spaces.Box(low, high)
    return observation_space, action_space


# --- weights ------------------------------------------------------------------------------------

_WORDS = {"_fc": "head", "_mu": "mean", "_logstd": "log_std"}


def load_weights(learnable: IQL, weights: Weights) -> None:
    """Loads d3rlpy's networks into a built learnable.

    Args:
        learnable: Built for the spaces of the file.
        weights: What :func:`import_d3rlpy` gave.

    Raises:
        CheckpointError: If names or shapes are other than the learnable's; nothing is loaded then.
    """
    pairs: list[tuple[nn.Module, dict[str, Tensor]]] = [
        (learnable.policy, _renamed(weights["policy"])),
        (learnable.critics, _critic_state(learnable.critics, weights["q_funcs"])),
        (learnable.target_critics, _critic_state(learnable.critics, weights["targ_q_funcs"])),
        (learnable.value, _renamed(weights["value_func"])),
    ]
    for name, (module, state) in zip(NETWORKS, pairs, strict=True):
        _check_state(name, module, state)
    for module, state in pairs:
        module.load_state_dict(state)


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Translates names: ``_encoder._layers.0.weight`` to ``encoder.layers.0.weight``."""
    return {
        ".".join(_WORDS.get(word, word.lstrip("_")) for word in name.split(".")): tensor
        for name, tensor in state.items()
    }


def _critic_state(critics: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not isinstance(critics, StackedCritics):
        return {f"members.{name}": tensor for name, tensor in _renamed(state).items()}
    members: dict[str, dict[int, Tensor]] = {}
    for name, tensor in _renamed(state).items():
        index, _, rest = name.partition(".")
        # The stacked encoder is the layers themselves.
        own = rest.replace("encoder.layers.", "encoder.", 1)
        members.setdefault(own, {})[int(index) if index.isdecimal() else -1] = tensor
    try:
        return {
            name: torch.stack([parts[index] for index in range(len(parts))])
            for name, parts in members.items()
        }
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"q_funcs: the critics are not numbered or not equal: {error}"
        ) from None


def _check_state(name: str, module: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    if own != given:
        keys = sorted(key for key in own.keys() | given.keys() if own.get(key) != given.get(key))
        raise CheckpointError(
            f"{name}: {len(keys)} tensors do not fit, the first is {keys[0]}: the file has "
            f"{given.get(keys[0], 'none')}, the learnable {own.get(keys[0], 'none')}"
        )
    for key, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{name}: {key} is not finite")
