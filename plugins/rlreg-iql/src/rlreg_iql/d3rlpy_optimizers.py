"""The optimizers of a ``.d3`` file: moments and schedules, so that training really goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rlreg.runtime.optimizers import Schedule, StepExtras

if TYPE_CHECKING:
    from rlreg_iql.learnable import IQL

OWNERS = {"actor_optim": ("policy",), "critic_optim": ("q_funcs", "value_func")}
"""Which networks an optimizer of d3rlpy trains, in the order of its parameters."""
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

State: TypeAlias = Mapping[str, Tensor]
Translate: TypeAlias = Callable[[State], dict[str, Tensor]]
Moments: TypeAlias = dict[str, dict[str, Any]]
"""State of each parameter by its name in d3rlpy's network."""


def optimizer_states(content: Mapping[str, Any]) -> dict[str, Any]:
    """Picks the states of the optimizers out of the tensors of a file."""
    return {name: content[name] for name in OWNERS if isinstance(content.get(name), Mapping)}


def load_optimizer(
    learnable: IQL,
    name: str,
    state: Mapping[str, Any],
    weights: Mapping[str, State],
    translate: Mapping[str, Translate],
) -> None:
    """Takes over moments, and where a schedule stands.

    Args:
        learnable: With the weights of the file.
        name: ``actor_optim`` or ``critic_optim``.
        state: Its state in the file.
        weights: Networks of the file by d3rlpy's names, which give the order of the parameters.
        translate: From the names of a network's parameters to ours.

    Raises:
        ValueError: If it does not fit; nothing is changed then.
    """
    optimizer = getattr(learnable, name)
    moments = _moments(state, name, weights)
    modules: dict[str, nn.Module] = {"policy": learnable.policy, "q_funcs": learnable.critics}
    modules["value_func"] = learnable.value
    found: dict[nn.Parameter, dict[str, Any]] = {}
    for network in OWNERS[name]:
        found |= _of_network(modules[network], moments[network], translate[network])
    position = _position(state)
    for parameter, own in found.items():
        optimizer.state[parameter] = own
    if position is not None and isinstance(optimizer, StepExtras):
        optimizer.prepare()
        if isinstance(optimizer.schedule, Schedule):
            optimizer.schedule.load_state_dict({"num_steps": position})


def _moments(
    state: Mapping[str, Any], name: str, weights: Mapping[str, State]
) -> dict[str, Moments]:
    """Sorts the numbered states of the parameters by network and name."""
    inner = state.get("optim")
    slots = inner.get("state") if isinstance(inner, Mapping) else None
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    if not isinstance(slots, Mapping) or not isinstance(groups, Sequence) or len(groups) != 1:
        raise ValueError("it has no state, or several groups of parameters")
    order = [
        (network, key)
        for network in OWNERS[name]
        for key in weights[network]
        if not key.endswith(_BUFFERS)
    ]
    if slots and set(slots) != set(range(len(order))):
        raise ValueError(f"it is for {len(slots)} parameters, the networks have {len(order)}")
    sorted_by_name: dict[str, Moments] = {network: {} for network in OWNERS[name]}
    for index, (network, key) in enumerate(order):
        if slots:
            sorted_by_name[network][key] = dict(_checked(slots[index], weights[network][key]))
    return sorted_by_name


def _checked(slot: Any, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    for field, value in slot.items() if isinstance(slot, Mapping) else ():
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.shape not in (weight.shape, torch.Size([])):
            raise ValueError(f"its {field!r} does not look like the parameter")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"its {field!r} is not finite")
        yield str(field), value


def _of_network(
    module: nn.Module, moments: Moments, translate: Translate
) -> dict[nn.Parameter, dict[str, Any]]:
    """Gives each of our parameters its state."""
    found: dict[nn.Parameter, dict[str, Any]] = {}
    fields = {field for slot in moments.values() for field in slot}
    for field in sorted(fields):
        if any(field not in slot for slot in moments.values()):
            raise ValueError(f"{field!r} is there for some parameters only")
        own = translate({key: slot[field] for key, slot in moments.items()})
        is_count = all(slot[field].ndim == 0 for slot in moments.values())
        for key, value in own.items():
            parameter = module.get_parameter(key)
            kept = _common(value, field) if is_count else value
            found.setdefault(parameter, {})[field] = kept.detach().clone().to(parameter.device)
    return found


def _common(counts: Tensor, field: str) -> Tensor:
    """Returns the one number of updates of all critics that lie in a stack."""
    if not bool((counts == counts.flatten()[0]).all()):
        raise ValueError(f"{field!r} differs between critics")
    return counts.flatten()[0]


def _position(state: Mapping[str, Any]) -> int | None:
    """Updates that the learning-rate schedule has seen, if there is one."""
    schedule = state.get("lr_scheduler")
    position = schedule.get("last_epoch") if isinstance(schedule, Mapping) else None
    if position is not None and (not isinstance(position, int) or position < 0):
        raise ValueError(f"its schedule stands at {position!r}")
    return position
