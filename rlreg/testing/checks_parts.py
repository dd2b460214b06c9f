"""Checks of networks and optimizers: does each belong to the others?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlreg.testing.kit import Subject, check, checks_in, learnables, require
from rlreg.testing.toy import build, learn, toys

NUM_UPDATES = 4


@check(learnables)
def every_optimised_parameter_moves(subject: Subject) -> None:
    """Updates change every parameter that an optimizer holds, by its gradient."""
    from rlreg.runtime.optimizers import parameters_in

    for toy in toys(subject):
        learnable = build(subject, toy)
        require(bool(learnable.optimizers()), "no optimizer is an attribute of the learnable")
        held = {
            id(parameter): parameter
            for optimizer in learnable.optimizers().values()
            for parameter in parameters_in(optimizer)
        }
        before = {key: parameter.detach().clone() for key, parameter in held.items()}
        reached = _reached_by_gradients(learnable)
        learn(subject, learnable, toy, start=0, stop=NUM_UPDATES)
        names = _parameter_names(learnable)
        still = [
            names.get(key, "a parameter of no network")
            for key, parameter in held.items()
            if parameter.numel() and bool((parameter == before[key]).all())
        ]
        require(
            not still,
            f"{toy.name}: {NUM_UPDATES} updates leave {', '.join(still[:4])} as they were: they "
            "get no gradient",
        )
        idle = [names.get(key, "?") for key, has_any in reached.items() if not has_any]
        require(
            not idle,
            f"{toy.name}: {', '.join(idle[:4])} move, but no gradient ever reaches them; a target "
            "network belongs into no optimizer",
        )


def _reached_by_gradients(learnable: Any) -> dict[int, bool]:
    """Notes from now on which parameters have a gradient when their optimizer steps."""
    reached: dict[int, bool] = {}

    def note(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                has_any = parameter.grad is not None and bool((parameter.grad != 0).any())
                if parameter.numel():
                    reached[id(parameter)] = reached.get(id(parameter), False) or has_any

    for optimizer in learnable.optimizers().values():
        optimizer.register_step_pre_hook(note)
    return reached


@check(learnables)
def every_trainable_parameter_is_optimised(subject: Subject) -> None:
    """Every parameter that requires a gradient is in an optimizer, or is exempt with a reason."""
    from rlreg.runtime.optimizers import parameters_in

    for toy in toys(subject):
        learnable = build(subject, toy)
        held = {id(p) for each in learnable.optimizers().values() for p in parameters_in(each)}
        trainable = [
            (name, parameter)
            for network, module in learnable.modules().items()
            for name, parameter in module.named_parameters(network)
            if parameter.requires_grad
        ]
        for exempt, reason in learnable.untrained.items():
            require(bool(reason.strip()), f"untrained[{exempt!r}]: say why it is not trained")
            require(
                any(_is_part(name, exempt) for name, _ in trainable),
                f"untrained[{exempt!r}] names nothing that requires a gradient",
            )
        loose = [
            name
            for name, parameter in trainable
            if id(parameter) not in held
            and not any(_is_part(name, exempt) for exempt in learnable.untrained)
        ]
        require(
            not loose,
            f"{toy.name}: no optimizer holds {_listed(loose)}, which require a gradient; give them "
            "to one, make a target network .requires_grad_(False), or state the reason: untrained "
            '= {"name": "reason"} in the class',
        )


def _is_part(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")


def _listed(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@check(learnables)
def every_network_is_saved(subject: Subject) -> None:
    """Every network and optimizer is one that the base class finds and saves."""
    from rlreg.runtime.optimizers import parameters_in

    for toy in toys(subject):
        learnable = build(subject, toy)
        names = _parameter_names(learnable)
        for name, optimizer in learnable.optimizers().items():
            lost = [p for p in parameters_in(optimizer) if id(p) not in names]
            require(
                not lost,
                f"{toy.name}: {name} trains {len(lost)} parameters that no checkpoint keeps; make "
                "their module an attribute of the learnable",
            )
        hidden = _hidden_parts(learnable)
        require(
            not hidden,
            f"{toy.name}: {_listed(hidden)}: things in lists and dicts are not found, so that no "
            "checkpoint keeps them; put modules into an nn.ModuleList or nn.ModuleDict and make "
            "each optimizer and schedule an attribute of its own",
        )


def _hidden_parts(learnable: Any) -> list[str]:
    """Describes modules, optimizers and schedules that only lists and dicts of attributes hold."""
    import torch

    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    known = {id(part) for module in learnable.modules().values() for part in module.modules()}
    for found in (learnable.optimizers(), learnable.schedulers(), learnable.scalers()):
        known |= {id(part) for part in found.values()}
    return [
        f"self.{name} holds a {type(part).__name__}"
        for name, value in vars(learnable).items()
        for part in _contents(value)
        if isinstance(part, kinds) and id(part) not in known
    ]


def _contents(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set) and depth:
        for item in value:
            yield item
            yield from _contents(item, depth - 1)


def _parameter_names(learnable: Any) -> dict[int, str]:
    return {
        id(parameter): f"{network}.{name}"
        for network, module in learnable.modules().items()
        for name, parameter in module.named_parameters()
    }


CHECKS = checks_in(globals())
