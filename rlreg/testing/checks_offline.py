"""Checks of learnables that learn from a data set."""

from __future__ import annotations

import math
from typing import Any

from rlreg.errors import NonFiniteError, RlregError
from rlreg.testing.kit import Failure, NotApplicable, Subject, check, checks_in, offline, require
from rlreg.testing.toy import Snapshot, Toy, build, difference, snapshot, toys

_HUGE = 1e30
_NUM_UPDATES = 8


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
    """Every update returns finite losses under the same names, and fit those names too."""
    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        losses = _losses(learnable, toy, 1)
        require(bool(losses), f"{toy.name}: update returns no losses")
        for number in range(2, _NUM_UPDATES + 1):
            others = _losses(learnable, toy, number)
            require(
                others.keys() == losses.keys(),
                f"{toy.name}: update 1 returns {sorted(losses)}, update {number} "
                f"{sorted(others)}; return the same names from every update: the row of an epoch "
                "is the mean over all of them",
            )
        ((epoch, metrics),) = learnable.fit(toy.dataset(), 2, 2, show_progress=False)
        done = learnable.grad_step - _NUM_UPDATES
        require(epoch == 1 and done == 2, f"{toy.name}: fit of 2 updates counts {epoch=}, {done=}")
        require(
            set(metrics) == set(losses),
            f"{toy.name}: update returns {sorted(losses)}, fit {sorted(metrics)}",
        )


def _losses(learnable: Any, toy: Toy, number: int) -> dict[str, float]:
    losses: dict[str, float] = learnable.update(toy.batch(seed=number))
    for name, value in losses.items():
        require(
            isinstance(name, str) and isinstance(value, float) and math.isfinite(value),
            f"{toy.name}: update {number} returns {name!r} = {value!r}, expected a finite number",
        )
    return losses


@check(offline)
def terminated_next_state_has_no_influence(subject: Subject) -> None:
    """What follows a termination changes nothing that is learnt."""
    for toy in toys(subject):
        first, second = (
            _after_an_update(subject, toy, is_shifted=shift) for shift in (False, True)
        )
        fault = difference(first, second)
        if fault and difference(first, _after_an_update(subject, toy, is_shifted=False)):
            raise NotApplicable("equal updates differ already; same-seed-same-result says more")
        require(
            not fault,
            f"{toy.name}: another observation after a termination changes {fault}; multiply the "
            "value of next_observations by (1 - terminations), and see that values and targets are "
            "[B]: between [B, 1] and [B] every row meets every other",
        )


def _after_an_update(subject: Subject, toy: Toy, *, is_shifted: bool) -> Snapshot:
    """Does one update, with other observations after terminations if asked for."""
    batch = toy.batch()
    if is_shifted:
        is_end, other = batch["terminations"], toy.batch(seed=5)["next_observations"]
        batch["next_observations"] = batch["next_observations"].copy()
        batch["next_observations"][is_end] = other[is_end]
    learnable: Any = build(subject, toy)
    learnable.update(batch)
    return snapshot(learnable, "networks", "optimizers")


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
