"""Weights from the files that people have: ``.rlreg``, safetensors, torch's own."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rlreg.errors import CheckpointError
from rlreg.runtime.checkpoint import read_checkpoint
from rlreg.runtime.state import unflatten_state

from .limits import unexpected


def read_state(source: str | Path | BinaryIO) -> Mapping[str, Any]:
    """Reads a state dict: of a trainer, or of a model alone.

    Nothing is unpickled but tensors and plain values (torch's ``weights_only``).

    Args:
        source: Path or binary file.

    Raises:
        CheckpointError: If it is none of the formats, or damaged.
        ConfigError: If the source is neither a path nor a binary file.
    """
    if not isinstance(source, str | Path) and not hasattr(source, "read"):
        raise unexpected("file_path", "a path or an open binary file", source)
    if isinstance(source, str | Path):
        name = str(source)
        try:
            content = Path(source).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be read: {error.strerror or error}") from error
    else:
        name, content = str(getattr(source, "name", "file")), source.read()
        if not isinstance(content, bytes):
            raise unexpected("file_path", "a file opened for reading bytes", source)
    if content[:2] == b"PK" and _is_rlreg(content):
        return _of_rlreg(content)
    if content[:2] == b"PK" or content[:1] == b"\x80":
        return _of_torch(name, content)
    return _of_safetensors(name, content)


def check_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Raises unless weights fit a model, before anything is changed.

    Raises:
        CheckpointError: With the first missing, surplus, misshapen or non-finite entry.
    """
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"weights: expected a state dict, got {type(weights).__name__}")
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys(), key=str):
        if name not in weights:
            raise CheckpointError(f"the state has no {name!r}: it belongs to another model")
        if name not in own:
            raise CheckpointError(f"the state has {name!r}, which this model has not")
        given = weights[name]
        if not isinstance(given, Tensor) or given.shape != own[name].shape:
            shape = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise CheckpointError(
                f"{name}: expected shape {list(own[name].shape)}, got {shape}: the state belongs "
                "to another model or environment"
            )
        if given.is_complex() or (given.is_floating_point() and not torch.isfinite(given).all()):
            raise CheckpointError(f"{name}: holds numbers that are not finite: training diverged")


def _is_rlreg(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "weights.safetensors" in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _of_rlreg(content: bytes) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.rlreg"
        path.write_bytes(content)
        state = read_checkpoint(path).state
    networks = state.get("networks", {})
    if "model" not in networks:
        raise CheckpointError("the checkpoint is not one of IMPALA: it has no network 'model'")
    model: Mapping[str, Any] = networks["model"]
    return model


def _of_torch(name: str, content: bytes) -> Mapping[str, Any]:
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        # torch's own words recommend to load the file anyway, which would run whatever it holds.
        what = "is damaged, or no file of torch.save"
        if isinstance(error, pickle.UnpicklingError):
            what = "holds other objects than tensors and plain values, and could run code"
        raise CheckpointError(
            f"{name}: {what}; expected the state_dict() of a trainer or of a model"
        ) from error
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{name}: expected a state dict, got {type(state).__name__}")
    return state


def _of_safetensors(name: str, content: bytes) -> Mapping[str, Any]:
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        if "rlreg" not in metadata:
            return tensors
        state = unflatten_state(json.loads(metadata["rlreg"])["state"], tensors)
        model: Mapping[str, Any] = state["networks"]["model"]
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{name}: is no .rlreg, safetensors or torch file: {error}"
        ) from error
    return model
