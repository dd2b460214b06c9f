"""Policies as files for deployment: ONNX and torch.export, from observations to actions.

The file takes what the environment gives and returns what the environment takes: flattening,
scalers, clipping and categories are inside, and each part of a structured observation is an input
of its own name. Before it gets its name the written file is run and compared with the learnable.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast, get_args

import numpy as np
import torch

from rlreg import __version__
from rlreg.atomic_file import replacing
from rlreg.errors import ConfigError, MissingExtraError, RlregError
from rlreg.runtime.arguments import file_path
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.policy_module import (
    Arrays,
    Kind,
    PolicyModule,
    Port,
    draw,
    named_actions,
    spans,
    structured,
    tensors,
)
from rlreg.runtime.spaces import space_to_json

Format: TypeAlias = Literal["onnx", "torch_export"]

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
class Exported:
    """What was written.

    Attributes:
        path: The file.
        format: ``onnx`` or ``torch_export``.
        kind: ``action`` or ``distribution``.
        inputs: What it takes, in order.
        outputs: What it gives, in order.
        max_difference: Largest difference from the learnable that the check found, relative where
            numbers, or the bounds of the action space, reach beyond 1.
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
    format: Format = "onnx",
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
        ConfigError: If ``path`` is none, ``format`` or ``kind`` is unknown, or the learnable gives
            no distribution.
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
    policy = PolicyModule(own, kind)
    outputs = _outputs(policy)
    target = file_path("export", path)
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
    """Keeps the streams of training where they are, the file free of gradients, torch quiet."""
    streams = learnable.rng_state()
    learnable.train_mode(False)
    parameters = [p for module in learnable.modules().values() for p in module.parameters()]
    trained = [p for p in parameters if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
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
        for parameter in trained:
            parameter.requires_grad_(True)
        learnable.load_rng_state(streams)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- what is exported ---------------------------------------------------------------------------


def _outputs(policy: PolicyModule) -> tuple[Port, ...]:
    """Runs the policy once, which also says early what it cannot do."""
    with _lent(policy.learnable):
        try:
            found = policy(*tensors(draw(policy, _TRACED_SIZE, seed=0)).values())
        except NotImplementedError as error:
            raise ConfigError(str(error)) from error
    return tuple(
        Port(name, str(value.dtype).removeprefix("torch."), tuple(value.shape[1:]))
        for name, value in found.items()
    )


def _metadata(learnable: Learnable, policy: PolicyModule, outputs: Sequence[Port]) -> str:
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


def _trace(policy: PolicyModule) -> torch.export.ExportedProgram:
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


def _traced(policy: PolicyModule) -> torch.export.ExportedProgram:
    sample = tuple(tensors(draw(policy, _TRACED_SIZE, seed=0)).values())
    batch = torch.export.Dim("batch", min=1)
    try:
        return torch.export.export(
            policy, sample, dynamic_shapes={"parts": tuple({0: batch} for _ in sample)}
        )
    except Exception as error:  # torch raises whatever its tracer met
        cause = str(error).strip().splitlines()[0]
        raise ExportError(
            f"{policy.learnable.config.get_type()!r} cannot be traced by torch.export: "
            f"{type(error).__name__}: {cause}. Its act() must be plain torch for any batch: "
            "x.shape[0] instead of len(x), no numpy, no branches on values"
        ) from error


def _write_onnx(
    program: torch.export.ExportedProgram,
    policy: PolicyModule,
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
    policy: PolicyModule,
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
        found = self.module(*tensors(inputs).values())
        return {name: value.numpy() for name, value in found.items()}


Runner: TypeAlias = Callable[[Arrays], Arrays]
_RUNNERS: Mapping[str, Callable[[Path], Runner]] = {
    "onnx": _OnnxRunner,
    "torch_export": _TorchRunner,
}


def _compare(policy: PolicyModule, outputs: Sequence[Port], runner: Runner) -> float:
    """Returns the largest difference between file and learnable over random inputs."""
    worst = 0.0
    for size in BATCH_SIZES:
        inputs = draw(policy, size, seed=size)
        found, expected = runner(inputs), _expected(policy, inputs)
        for port in outputs:
            given, wanted = (arrays[port.name] for arrays in (found, expected))
            if given.shape != wanted.shape:
                raise ExportError(
                    f"the file gives {port.name} of shape {list(given.shape)} for a batch of "
                    f"{size}, the learnable {list(wanted.shape)}"
                )
            distance = np.abs(given.astype(np.float64) - wanted.astype(np.float64))
            size_of_numbers = np.maximum(spans(policy, port), np.abs(wanted))
            difference = float((distance / size_of_numbers).max(initial=0.0))
            if not difference <= TOLERANCE:  # NaN fails too
                raise ExportError(
                    f"the file's {port.name} differs from the learnable's by {difference:.3g} for "
                    f"a batch of {size}; at most {TOLERANCE:g} is allowed"
                )
            worst = max(worst, difference)
    return worst


def _expected(policy: PolicyModule, inputs: Arrays) -> Arrays:
    if policy.kind == "distribution":
        found = policy(*tensors(inputs).values())
        return {name: value.numpy() for name, value in found.items()}
    # Through the front door: its own flattening, in numpy, and its own clipping.
    return named_actions(policy, policy.learnable.predict(structured(policy, inputs)))
