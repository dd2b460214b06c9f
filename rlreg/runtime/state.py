"""Everything that changes in training, as one tree that can be saved, compared and restored.

A state is nested mappings of tensors and plain values. Flattened, it is a JSON document and a list
of named tensors: what a checkpoint holds, and all it can hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlreg.errors import CheckpointError, RlregError, did_you_mean
from rlreg.runtime.private_noise import DEVICE_NOISE

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Learnable

State = dict[str, Any]

WEIGHT_PARTS = ("networks", "scalers")
"""What predictions need; the rest of a state is needed to train on."""
TRAINER_PARTS = ("optimizers", "schedulers", "rng", "counters", "extra")

_MARK = "$"
_MAX_DEPTH = 200


# --- of a learnable -----------------------------------------------------------------------------


def learnable_state(learnable: Learnable) -> State:
    """Returns the state of a learnable: networks, scalers, optimizers, RNG streams and counters.

    The tensors are those in use, not copies.

    Raises:
        NotBuiltError: If there are no networks yet.
    """
    learnable.require_built()
    return {
        "networks": {name: _dict(part) for name, part in learnable.modules().items()},
        "scalers": {name: _dict(part) for name, part in learnable.scalers().items()},
        "optimizers": {name: _dict(part) for name, part in learnable.optimizers().items()},
        "schedulers": {name: _dict(part) for name, part in learnable.schedulers().items()},
        "rng": learnable.rng_state(),
        "counters": {
            "grad_step": learnable.grad_step,
            "total_steps": learnable.total_steps,
            "seed": learnable.seed,
        },
        "extra": dict(learnable.extra_state()),
    }


def _dict(part: Any) -> State:
    return dict(part.state_dict())


def restore_learnable(learnable: Learnable, state: Mapping[str, Any]) -> None:
    """Restores what :func:`learnable_state` gave.

    Raises:
        CheckpointError: If the state belongs to other networks; nothing is changed then.
    """
    learnable.require_built()
    _require_parts(state, (*WEIGHT_PARTS, *TRAINER_PARTS))
    _check_weights(learnable, state)
    _check_trainer(learnable, state)
    _apply_or_undo(learnable, state)


def restore_weights(learnable: Learnable, state: Mapping[str, Any]) -> None:
    """Restores networks and scalers alone.

    Raises:
        CheckpointError: If they belong to other networks; nothing is changed then.
    """
    learnable.require_built()
    _require_parts(state, WEIGHT_PARTS)
    _check_weights(learnable, state)
    _apply_or_undo(learnable, {name: state[name] for name in WEIGHT_PARTS})


def _apply_or_undo(learnable: Learnable, state: Mapping[str, Any]) -> None:
    """Applies a state; what the checks could not foresee is taken back."""
    before = _cloned(learnable_state(learnable))
    try:
        _apply(learnable, state)
    except (RlregError, ValueError, TypeError, LookupError, RuntimeError, AttributeError) as error:
        _apply(learnable, before)
        raise CheckpointError(
            f"the state does not fit {learnable.config.get_type()!r}: {error}; nothing was changed"
        ) from error


def _apply(learnable: Learnable, state: Mapping[str, Any]) -> None:
    for name, module in learnable.modules().items():
        module.load_state_dict(state["networks"][name])
    for name, scaler in learnable.scalers().items():
        scaler.load_state_dict(state["scalers"][name])
    if "counters" not in state:
        return
    counters = state["counters"]
    if counters["total_steps"] is not None:
        learnable.set_total_steps(counters["total_steps"])  # schedules exist before they are loaded
    learnable.total_steps = counters["total_steps"]
    for name, optimizer in learnable.optimizers().items():
        # Copies: torch would go on with the very tensors it is given.
        optimizer.load_state_dict(_cloned(state["optimizers"][name]))
    for name, scheduler in learnable.schedulers().items():
        scheduler.load_state_dict(state["schedulers"][name])
    learnable.load_rng_state(state["rng"])
    learnable.grad_step = counters["grad_step"]
    learnable.seed = counters["seed"]
    learnable.load_extra_state(state["extra"])


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _cloned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cloned(item) for item in value)
    return value


# --- checks before anything changes -------------------------------------------------------------


def _require_parts(state: Mapping[str, Any], parts: tuple[str, ...]) -> None:
    if not isinstance(state, Mapping):
        raise CheckpointError(f"expected what state_dict() gave, got a {type(state).__name__}")
    for name in parts:
        if not isinstance(state.get(name), Mapping):
            raise CheckpointError(f"the state has no {name}")


def _check_names(what: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in given:
            raise CheckpointError(f"the state has no {what} {name!r}; {_listed(given)}")
    for name in given:
        if name not in wanted:
            hint = did_you_mean(name, wanted) or _listed(wanted)
            raise CheckpointError(f"the state has an unknown {what} {name!r}; {hint}")


def _listed(names: Mapping[str, Any]) -> str:
    return f"there is {', '.join(map(str, names)) or 'nothing'}"


def _check_weights(learnable: Learnable, state: Mapping[str, Any]) -> None:
    modules = learnable.modules()
    _check_names("network", state["networks"], modules)
    for name, module in modules.items():
        given, wanted = state["networks"][name], module.state_dict()
        if not isinstance(given, Mapping):
            raise CheckpointError(f"network {name!r} of the state is no mapping")
        _check_names(f"tensor of network {name!r}:", given, wanted)
        for key, tensor in wanted.items():
            _check_tensor(f"networks.{name}.{key}", given[key], tensor)
    given = dict(state["scalers"])
    if learnable.spaces is not None and not learnable.spaces.action_plan.takes_scaler:
        given.pop("action_scaler", None)  # older files have one that nothing used
    _check_names("scaler", given, learnable.scalers())
    for name, scaler in learnable.scalers().items():
        _check_scaler(name, state["scalers"][name], scaler.state_dict())


def _check_scaler(name: str, given: Any, current: Mapping[str, Any]) -> None:
    """Compares what is fitted on both sides; one that is not fitted yet has nothing to compare."""
    if not isinstance(given, Mapping):
        raise CheckpointError(f"scaler {name!r} of the state is no mapping")
    for key, value in current.items():
        other = given.get(key)
        if isinstance(value, Tensor) and isinstance(other, Tensor) and value.numel():
            _check_tensor(f"scalers.{name}.{key}", other, value)


def _check_tensor(path: str, given: Any, wanted: Any) -> None:
    if not isinstance(wanted, Tensor):
        return
    if not isinstance(given, Tensor):
        raise CheckpointError(f"{path}: expected a tensor, got {type(given).__name__}")
    if given.shape != wanted.shape:
        raise CheckpointError(
            f"{path}: expected shape {list(wanted.shape)}, got {list(given.shape)}; "
            "the state belongs to other networks"
        )
    if given.dtype != wanted.dtype:
        raise CheckpointError(f"{path}: expected {wanted.dtype}, got {given.dtype}")


def _check_trainer(learnable: Learnable, state: Mapping[str, Any]) -> None:
    optimizers = learnable.optimizers()
    _check_names("optimizer", state["optimizers"], optimizers)
    for name, optimizer in optimizers.items():
        _check_optimizer(name, state["optimizers"][name], optimizer)
    _check_names("schedule", state["schedulers"], learnable.schedulers())
    counters = state["counters"]
    for key in ("grad_step", "total_steps", "seed"):
        value = counters.get(key)
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not is_number and not (key == "total_steps" and value is None):
            raise CheckpointError(f"counters.{key} = {value!r}: expected a whole number")
    for key, stream in learnable.rng_state().items():
        if key != DEVICE_NOISE or key in state["rng"]:  # a state of a CPU lacks the GPU's
            _check_tensor(f"rng.{key}", state["rng"].get(key), stream)


def _check_optimizer(name: str, given: Any, optimizer: torch.optim.Optimizer) -> None:
    groups = given.get("param_groups") if isinstance(given, Mapping) else None
    slots = given.get("state") if isinstance(given, Mapping) else None
    if not isinstance(groups, list) or not isinstance(slots, Mapping):
        raise CheckpointError(f"optimizer {name!r} of the state has no groups of parameters")
    wanted = [len(group["params"]) for group in optimizer.param_groups]
    named = [group.get("params") if isinstance(group, Mapping) else None for group in groups]
    numbered = [own if isinstance(own, list) else [] for own in named]
    if [len(own) for own in numbered] != wanted:
        raise CheckpointError(f"optimizer {name!r} of the state is for other parameters")
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        _check_settings(name, group, own)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for own in numbered for number in own]
    strangers = [number for number in slots if number not in numbers]
    if strangers or not all(isinstance(number, int) for number in numbers):
        raise CheckpointError(
            f"optimizer {name!r} of the state has moments of the parameter {strangers or numbers}, "
            "which it does not have"
        )
    for number, parameter in zip(numbers, parameters, strict=True):
        own = slots.get(number, {})
        if not isinstance(own, Mapping):
            raise CheckpointError(f"optimizers.{name}[{number}]: expected moments, got {own!r}")
        for key, value in own.items():
            # Moments look like their parameter; step counts are scalars.
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                path = f"optimizers.{name}[{number}].{key}"
                expected, got = list(parameter.shape), list(value.shape)
                raise CheckpointError(f"{path}: expected shape {expected}, got {got}")


def _check_settings(name: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises where a number of the optimizer's settings is none: that would fail at an update."""
    for key, value in own.items():
        parts = value if isinstance(value, tuple | list) else [value]
        if key == "params" or not all(_is_number(part) for part in parts):
            continue
        other = given.get(key, value)
        others = other if isinstance(other, tuple | list) else [other]
        if len(others) != len(parts) or not all(_is_number(part) for part in others):
            raise CheckpointError(
                f"optimizers.{name}.{key} = {other!r}: expected one like {value!r}"
            )


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1  # rates of a CUDA graph
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- as JSON and tensors ------------------------------------------------------------------------


def flatten_state(state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Splits a state into a JSON document and the tensors it refers to by name.

    Raises:
        CheckpointError: If it holds something that is neither a plain value nor a tensor.
    """
    tensors: dict[str, Tensor] = {}
    return _to_json(state, "", tensors), tensors


def unflatten_state(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Puts together what :func:`flatten_state` took apart.

    Raises:
        CheckpointError: If the document is malformed, or a tensor is missing or left over.
    """
    used: set[str] = set()
    result = _from_json(document, tensors, used, 0)
    left = sorted(set(tensors) - used)
    if left:
        raise CheckpointError(f"the tensor {left[0]!r} belongs to nothing")
    return result


def _to_json(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, np.generic):
        return _to_json(value.item(), path, tensors)
    if isinstance(value, Tensor):
        return {"$tensor": _store(value, path, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"$array": _store(torch.from_numpy(np.asarray(value, order="C")), path, tensors)}
    if isinstance(value, Mapping):
        return _mapping_to_json(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [_to_json(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise CheckpointError(
        f"{path.lstrip('/')}: a {type(value).__name__} cannot be saved; expected tensors, arrays, "
        "numbers, strings, and mappings and lists of these"
    )


def _mapping_to_json(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    if all(isinstance(key, str) and not key.startswith(_MARK) for key in value):
        return {key: _to_json(item, f"{path}/{key}", tensors) for key, item in value.items()}
    pairs = [
        [_to_json(key, path, tensors), _to_json(item, f"{path}/{key}", tensors)]
        for key, item in value.items()
    ]
    return {"$map": pairs}


def _store(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name = path.lstrip("/")
    while name in tensors:
        name += "'"
    # A copy: safetensors refuses tensors that share memory, and stacked networks do.
    tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return name


def _from_json(value: Any, tensors: Mapping[str, Tensor], used: set[str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise CheckpointError(f"the state nests more than {_MAX_DEPTH} deep")
    if isinstance(value, list):
        return [_from_json(item, tensors, used, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    marks = [key for key in value if key.startswith(_MARK)]
    if not marks:
        return {key: _from_json(item, tensors, used, depth + 1) for key, item in value.items()}
    if len(value) != 1:
        raise CheckpointError(f"the state has a malformed entry {marks[0]!r}")
    return _marked(marks[0], value[marks[0]], tensors, used, depth + 1)


def _marked(
    mark: str, value: Any, tensors: Mapping[str, Tensor], used: set[str], depth: int
) -> Any:
    if mark in ("$tensor", "$array"):
        if not isinstance(value, str) or value not in tensors or value in used:
            raise CheckpointError(f"the state refers to a tensor {value!r} that is not there")
        used.add(value)
        return tensors[value] if mark == "$tensor" else tensors[value].numpy()
    if mark == "$float" and value in ("nan", "inf", "-inf"):
        return float(value)
    if mark == "$tuple" and isinstance(value, list):
        return tuple(_from_json(item, tensors, used, depth) for item in value)
    if mark == "$map" and isinstance(value, list):
        return dict(_pairs(value, tensors, used, depth))
    raise CheckpointError(f"the state has a malformed entry {mark!r}")


def _pairs(
    items: list[Any], tensors: Mapping[str, Tensor], used: set[str], depth: int
) -> Iterator[tuple[Any, Any]]:
    for item in items:
        if not isinstance(item, list) or len(item) != 2 or isinstance(item[0], list):
            raise CheckpointError("the state has a malformed mapping")
        key = _from_json(item[0], tensors, used, depth)
        if isinstance(key, dict | list | Tensor):
            raise CheckpointError("the state has a malformed mapping")
        yield key, _from_json(item[1], tensors, used, depth)
