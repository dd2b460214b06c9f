"""Policies as files for deployment: ONNX and torch.export, from observations to actions.

The file takes what the environment gives and returns what the environment takes: flattening,
scalers, clipping and categories are inside, and each part of a structured observation is an input
of its own name. Before it gets its name the written file is run and compared with the learnable.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rlreg import __version__
from rlreg.errors import ConfigError, MissingExtraError, RlregError
from rlreg.runtime.archive import replacing
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.spaces import Leaf, space_to_json

Format: TypeAlias = Literal["onnx", "torch_export"]
Kind: TypeAlias = Literal["action", "distribution"]
Arrays: TypeAlias = dict[str, NDArray[Any]]

FORMATS: tuple[Format, ...] = get_args(Format)
KINDS: tuple[Kind, ...] = get_args(Kind)
METADATA = "rlreg"
"""Name under which a file states its inputs, spaces and origin, as JSON."""

TOLERANCE = 1e-5
BATCH_SIZES = (1, 7)
_TRACED_SIZE = 2  # torch takes 0 and 1 for constants
_ONNX_MODULES = ("onnx", "onnxscript", "onnxruntime")


class ExportError(RlregError):
    """A policy that cannot be exported, or whose file does not do what the learnable does."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an exported policy.

    Attributes:
        name: ``observation``, ``observation.goal``, ``action``, ``mean``, ...
        dtype: ``float32``, ``int64`` or ``uint8``.
        shape: Of one item; the batch comes first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        format: ``onnx`` or ``torch_export``.
        kind: ``action`` or ``distribution``.
        inputs: What it takes, in order.
        outputs: What it gives, in order.
        max_difference: Largest difference from the learnable that the check found, relative where
            numbers are beyond 1.
    """

    path: Path
    format: Format
    kind: Kind
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_difference: float

    def to_json(self) -> dict[str, Any]:
        """Gives plain values."""
        return {**asdict(self), "path": str(self.path)}


def export(
    learnable: Learnable,
    path: str | os.PathLike[str],
    *,
    format: Format = "onnx",  # noqa: A002 - the name everybody gives it
    kind: Kind = "action",
) -> Exported:
    """Writes the policy to a file, runs the file and compares it with the learnable.

    Args:
        learnable: Built; its scalers fitted.
        path: Where to; an existing file is replaced only by one that passed the comparison.
        format: ``onnx`` (needs the extra ``export``) or ``torch_export`` (``.pt2``).
        kind: ``action``: the best action. ``distribution``: the parameters of the policy's
            distribution in the environment's units (``mean`` and ``std``, or ``logits``), where the
            learnable writes :meth:`Learnable.action_distribution`.

    Raises:
        ConfigError: If ``format`` or ``kind`` is unknown, or the learnable gives no distribution.
        NotBuiltError: If there are no networks.
        MissingExtraError: If a package for ONNX is not installed.
        ExportError: If torch cannot trace the policy, or file and learnable disagree. No file is
            left behind then.
    """
    _check_choice("format", format, FORMATS)
    _check_choice("kind", kind, KINDS)
    learnable.require_built()
    for scaler in learnable.scalers().values():
        if scaler.subject != "reward":
            scaler.require_fitted()
    if format == "onnx":
        _require_onnx()
    own = _on_cpu(learnable)
    policy = _PolicyModule(own, kind)
    outputs = _outputs(policy)
    target = Path(path)
    try:
        with _lent(own), replacing(target) as file:
            program = _trace(policy)
            metadata = _metadata(learnable, policy, outputs)
            _WRITERS[format](program, policy, outputs, metadata, file)
            file.flush()
            difference = _compare(policy, outputs, _RUNNERS[format](Path(file.name)))
    except OSError as error:
        raise ExportError(f"{target}: could not be written: {error.strerror or error}") from error
    return Exported(target, format, kind, policy.ports, outputs, difference)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r}: expected one of {', '.join(known)}")


def _require_onnx() -> None:
    for name in _ONNX_MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingExtraError(
                f"export to ONNX needs {name}: pip install 'rlreg[export]'"
            ) from error


def _on_cpu(learnable: Learnable) -> Learnable:
    """Returns the learnable, or a copy on the CPU, so that a file asks for no accelerator."""
    if learnable.device.type == "cpu":
        return learnable
    assert learnable.spaces is not None
    own = cast("Learnable", cast("Any", learnable.config).create("cpu"))
    own.prepare(seed=learnable.seed, compile="off")
    own.build(learnable.spaces.observation_space, learnable.spaces.action_space)
    own.load_state_dict(learnable.state_dict())
    return own


@contextlib.contextmanager
def _lent(learnable: Learnable) -> Iterator[None]:
    """Keeps the streams of training where they are, and torch quiet."""
    streams = learnable.rng_state()
    learnable.train_mode(False)
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        # A policy that cannot be traced is an error of ours; the rest are remarks of torch to its
        # own developers.
        with warnings.catch_warnings(), torch.no_grad(), learnable.private_rng():
            warnings.simplefilter("ignore")
            yield
    finally:
        learnable.load_rng_state(streams)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- what is exported ---------------------------------------------------------------------------


class _PolicyModule(nn.Module):
    """From the environment's observations to the environment's actions, in torch alone."""

    def __init__(self, learnable: Learnable, kind: Kind) -> None:
        super().__init__()
        assert learnable.spaces is not None
        self.learnable, self.kind, self.spaces = learnable, kind, learnable.spaces
        self.leaves = self.spaces.observation_plan.leaves
        self.ports = tuple(Port(leaf.name, _dtype(leaf), _shape(leaf)) for leaf in self.leaves)
        # Registered, so that the exporter finds the parameters under their names.
        self.parts = nn.ModuleDict({**learnable.modules(), **learnable.scalers()})

    def forward(self, *parts: Tensor) -> dict[str, Tensor]:
        """Maps one tensor for each leaf of the observation to the outputs by name."""
        observations = self.learnable.scale_observations(self._flatten(parts))
        if self.kind == "distribution":
            return self._distribution(observations)
        actions = self.learnable.act(observations, True)
        if self.learnable.action_scaler is not None:
            actions = self.learnable.action_scaler.inverse(actions)
        return {"action": self._shaped(actions)}

    def _distribution(self, observations: Tensor) -> dict[str, Tensor]:
        found = dict(self.learnable.action_distribution(observations))
        scaler = self.learnable.action_scaler
        for name, value in found.items():
            if scaler is not None and name == "mean":
                found[name] = scaler.inverse(value)
            elif scaler is not None and name == "std":
                found[name] = scaler.inverse_distance(value)
            if name in ("mean", "std"):
                found[name] = self._shaped(found[name])
        return found

    def _shaped(self, actions: Tensor) -> Tensor:
        return actions.reshape(actions.shape[0], *(self.spaces.action_space.shape or ()))

    def _flatten(self, parts: Sequence[Tensor]) -> Tensor:
        plan = self.spaces.observation_plan
        columns = [_encoded(leaf, part) for leaf, part in zip(self.leaves, parts, strict=True)]
        if len(columns) == 1:
            return columns[0].reshape(parts[0].shape[0], *plan.shape)
        return torch.cat([column.float().flatten(start_dim=1) for column in columns], dim=1)


def _encoded(leaf: Leaf, values: Tensor) -> Tensor:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return functional.one_hot(values - int(space.start), int(space.n)).float()
    if isinstance(space, spaces.MultiDiscrete):
        rows = values.flatten(start_dim=1)
        counts, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        hot = [
            functional.one_hot(rows[:, index] - start, count)
            for index, (start, count) in enumerate(zip(starts, counts, strict=True))
        ]
        return torch.cat(hot, dim=1).float()
    return values


def _dtype(leaf: Leaf) -> str:
    if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
        return "int64"
    is_bytes = isinstance(leaf.space, spaces.Box) and leaf.space.dtype == np.uint8
    return "uint8" if is_bytes else "float32"


def _shape(leaf: Leaf) -> tuple[int, ...]:
    return tuple(int(side) for side in leaf.space.shape or ())


def _outputs(policy: _PolicyModule) -> tuple[Port, ...]:
    """Runs the policy once, which also says early what it cannot do."""
    with _lent(policy.learnable):
        try:
            found = policy(*_tensors(_draw(policy, _TRACED_SIZE, seed=0)).values())
        except NotImplementedError as error:
            raise ConfigError(str(error)) from error
    return tuple(
        Port(name, str(value.dtype).removeprefix("torch."), tuple(value.shape[1:]))
        for name, value in found.items()
    )


def _metadata(learnable: Learnable, policy: _PolicyModule, outputs: Sequence[Port]) -> str:
    content = {
        "rlreg": __version__,
        "learnable": learnable.config.get_type(),
        "kind": policy.kind,
        "inputs": [asdict(port) for port in policy.ports],
        "outputs": [asdict(port) for port in outputs],
        "observation_space": space_to_json(policy.spaces.observation_space),
        "action_space": space_to_json(policy.spaces.action_space),
    }
    return json.dumps(content, sort_keys=True)


# --- writing ------------------------------------------------------------------------------------


def _trace(policy: _PolicyModule) -> torch.export.ExportedProgram:
    """Traces the policy, without the critics and whatever else actions do not depend on."""
    program = _traced(policy)
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    used = {
        names[node.name].split(".")[1]
        for node in program.graph.nodes
        if node.name in names and node.users
    }
    unused = policy.parts.keys() - used
    for name in unused:
        del policy.parts[name]
    return _traced(policy) if unused else program


def _traced(policy: _PolicyModule) -> torch.export.ExportedProgram:
    sample = tuple(_tensors(_draw(policy, _TRACED_SIZE, seed=0)).values())
    batch = torch.export.Dim("batch", min=1)
    try:
        return torch.export.export(
            policy, sample, dynamic_shapes={"parts": tuple({0: batch} for _ in sample)}
        )
    except Exception as error:  # torch raises whatever its tracer met
        raise ExportError(
            f"{policy.learnable.config.get_type()!r} cannot be traced by torch.export: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0]}. Its act() must be plain "
            "torch for any batch: x.shape[0] instead of len(x), no numpy, no branches on values"
        ) from error


def _write_onnx(
    program: torch.export.ExportedProgram,
    policy: _PolicyModule,
    outputs: Sequence[Port],
    metadata: str,
    file: BinaryIO,
) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            written = torch.onnx.export(
                program,
                input_names=[port.name for port in policy.ports],
                output_names=[port.name for port in outputs],
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise ExportError(f"torch.onnx cannot translate the policy: {error}") from error
    assert written is not None
    model = written.model_proto
    model.producer_name, model.producer_version = "rlreg", __version__
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = "batch"  # torch numbers it; there is only one
    model.metadata_props.add(key=METADATA, value=metadata)
    file.write(model.SerializeToString())


def _write_torch(
    program: torch.export.ExportedProgram,
    policy: _PolicyModule,
    outputs: Sequence[Port],
    metadata: str,
    file: BinaryIO,
) -> None:
    torch.export.save(program, cast("io.BytesIO", file), extra_files={METADATA: metadata})


_WRITERS = {"onnx": _write_onnx, "torch_export": _write_torch}


# --- running what was written -------------------------------------------------------------------


class _OnnxRunner:
    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def __call__(self, inputs: Arrays) -> Arrays:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))


class _TorchRunner:
    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.module = torch.export.load(cast("io.BytesIO", file)).module()

    def __call__(self, inputs: Arrays) -> Arrays:
        found = self.module(*_tensors(inputs).values())
        return {name: value.numpy() for name, value in found.items()}


_RUNNERS = {"onnx": _OnnxRunner, "torch_export": _TorchRunner}


def _compare(
    policy: _PolicyModule, outputs: Sequence[Port], runner: _OnnxRunner | _TorchRunner
) -> float:
    """Returns the largest difference between file and learnable over random inputs."""
    worst = 0.0
    for size in BATCH_SIZES:
        inputs = _draw(policy, size, seed=size)
        found, expected = runner(inputs), _expected(policy, inputs)
        for port in outputs:
            given, wanted = (arrays[port.name] for arrays in (found, expected))
            if given.shape != wanted.shape:
                raise ExportError(
                    f"the file gives {port.name} of shape {list(given.shape)} for a batch of "
                    f"{size}, the learnable {list(wanted.shape)}"
                )
            distance = np.abs(given.astype(np.float64) - wanted.astype(np.float64))
            difference = float((distance / np.maximum(1.0, np.abs(wanted))).max(initial=0.0))
            if not difference <= TOLERANCE:  # NaN fails too
                raise ExportError(
                    f"the file's {port.name} differs from the learnable's by {difference:.3g} for "
                    f"a batch of {size}; at most {TOLERANCE:g} is allowed"
                )
            worst = max(worst, difference)
    return worst


def _expected(policy: _PolicyModule, inputs: Arrays) -> Arrays:
    if policy.kind == "distribution":
        found = policy(*_tensors(inputs).values())
        return {name: value.numpy() for name, value in found.items()}
    # Through the front door: its own flattening, in numpy, and its own clipping.
    return {"action": policy.learnable.predict(_observations(policy, inputs))}


def _observations(policy: _PolicyModule, inputs: Arrays) -> Any:
    """Puts named inputs back into the structure of the observation space."""

    def build(space: spaces.Space[Any], keys: tuple[str | int, ...]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: build(part, (*keys, key)) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(build(part, (*keys, i)) for i, part in enumerate(space.spaces))
        return inputs[Leaf(keys, space, 0, 0).name]

    return build(policy.spaces.observation_space, ())


def _draw(policy: _PolicyModule, size: int, seed: int) -> Arrays:
    """Draws a batch of observations for each input; unbounded components are normal."""
    found: Arrays = {}
    for leaf, port in zip(policy.leaves, policy.ports, strict=True):
        space = copy.deepcopy(leaf.space)  # the learnable's own keeps its stream
        space.seed(seed)
        rows = [np.asarray(space.sample()) for _ in range(size)]
        found[port.name] = np.stack(rows).astype(port.dtype)
    return found


def _tensors(arrays: Arrays) -> Mapping[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
