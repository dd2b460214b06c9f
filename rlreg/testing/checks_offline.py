"""Checks of learnables that learn from a data set."""

from __future__ import annotations

import math
from typing import Any

from rlreg.errors import NonFiniteError, RlregError
from rlreg.testing.kit import Failure, Subject, check, checks_in, offline, require
from rlreg.testing.toy import Toy, build, difference, snapshot, toys

_HUGE = 1e30


@check(offline)
def update_changes_the_networks(subject: Subject) -> None:
    """One update changes the networks and counts as one step."""
    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        before = snapshot(learnable, "networks")
        learnable.update(toy.batch())
        after = snapshot(learnable, "networks")
        require(bool(difference(before, after)), f"{toy.name}: an update changes no network")
        require(learnable.grad_step == 1, f"{toy.name}: grad_step is {learnable.grad_step}, not 1")


@check(offline)
def losses_are_finite_numbers(subject: Subject) -> None:
    """Update returns named, finite losses; update and fit return the same names."""
    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        losses = learnable.update(toy.batch())
        require(bool(losses), f"{toy.name}: update returns no losses")
        for name, value in losses.items():
            require(
                isinstance(name, str) and isinstance(value, float) and math.isfinite(value),
                f"{toy.name}: update returns {name!r} = {value!r}, expected a finite number",
            )
        ((epoch, metrics),) = learnable.fit(toy.dataset(), 2, 2, show_progress=False)
        require(epoch == 1 and learnable.grad_step == 3, f"{toy.name}: fit counts {epoch=}")
        require(
            set(metrics) == set(losses),
            f"{toy.name}: update returns {sorted(losses)}, fit {sorted(metrics)}",
        )


@check(offline)
def terminated_next_state_has_no_influence(subject: Subject) -> None:
    """What follows a termination changes nothing that is learnt."""
    for toy in toys(subject):
        states = []
        for shift in (0, 1):
            batch = toy.batch()
            is_end = batch["terminations"]
            other = toy.batch(seed=5)["next_observations"]
            if shift:
                batch["next_observations"] = batch["next_observations"].copy()
                batch["next_observations"][is_end] = other[is_end]
            learnable: Any = build(subject, toy)
            learnable.update(batch)
            states.append(snapshot(learnable, "networks", "optimizers"))
        fault = difference(*states)
        require(
            not fault,
            f"{toy.name}: another observation after a termination changes {fault}; multiply the "
            "value of next_observations by (1 - terminations)",
        )


@check(offline)
def bad_batches_are_named_errors(subject: Subject) -> None:
    """A batch that is incomplete, misshapen or not finite is an rlreg error and changes nothing."""
    for toy in toys(subject):
        for what, batch in _bad_batches(toy).items():
            learnable: Any = build(subject, toy)
            before = snapshot(learnable)
            try:
                learnable.update(batch)
            except RlregError:
                fault = difference(before, snapshot(learnable))
                require(not fault, f"{toy.name}: {what} is refused, but changes {fault}")
                continue
            except Exception as error:
                raise Failure(
                    f"{toy.name}: {what} raised {type(error).__name__}: {error}; expected an rlreg "
                    "error"
                ) from error
            raise Failure(f"{toy.name}: {what} passes; expected an rlreg error")


def _bad_batches(toy: Toy) -> dict[str, dict[str, Any]]:
    import numpy as np

    good = toy.batch()
    without = {name: value for name, value in good.items() if name != "rewards"}
    rewards = good["rewards"].copy()
    rewards[3] = np.nan
    return {
        "a batch without rewards": without,
        "a misspelt name": {**without, "reward": good["rewards"]},
        "a shorter array": {**good, "next_observations": good["next_observations"][:-1]},
        "a flag of 2": {**good, "terminations": good["terminations"] * 2},
        "NaN": {**good, "rewards": rewards},
    }


@check(offline)
def overflow_reaches_no_weight(subject: Subject) -> None:
    """Numbers whose loss overflows stop the update; no weight ever becomes NaN or infinite."""
    import torch

    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        batch = toy.batch()
        batch["rewards"] = batch["rewards"] * _HUGE
        if not toy.is_image:
            batch["observations"] = batch["observations"] * _HUGE
        before = snapshot(learnable, "networks", "optimizers")
        try:
            learnable.update(batch)
        except NonFiniteError:
            fault = difference(before, snapshot(learnable, "networks", "optimizers"))
            require(not fault, f"{toy.name}: the update was stopped, but {fault} has changed")
        for name, tensor in snapshot(learnable, "networks")[1].items():
            require(
                bool(torch.isfinite(tensor).all()),
                f"{toy.name}: {name} is not finite after an update with huge numbers; call "
                "rlreg.runtime.guard.check_step between backward() and step()",
            )


CHECKS = checks_in(globals())
