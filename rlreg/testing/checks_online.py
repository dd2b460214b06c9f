"""Checks of learnables that learn from an environment."""

from __future__ import annotations

import math
from typing import Any

from rlreg.testing.kit import Subject, check, checks_in, online, require
from rlreg.testing.toy import build, difference, engine_of, snapshot, toys

_EPOCH_LENGTH = 3


@check(online)
def training_changes_the_networks(subject: Subject) -> None:
    """An epoch of training changes the networks and gives named, finite metrics."""
    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        before = snapshot(learnable, "networks")
        ((epoch, metrics),) = learnable.train(
            toy.environment(), n_epochs=1, epoch_length=_EPOCH_LENGTH, engine=engine_of(subject)
        )
        after = snapshot(learnable, "networks")
        require(epoch == 1, f"{toy.name}: the first epoch has the number {epoch}")
        require(bool(difference(before, after)), f"{toy.name}: training changes no network")
        require(bool(metrics), f"{toy.name}: train_iterations yields no metrics")
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        require(not bad, f"{toy.name}: metrics that are not finite: {bad}")


@check(online)
def transitions_are_counted(subject: Subject) -> None:
    """env_steps counts the transitions trained on, so that n_steps ends the training."""
    for toy in toys(subject):
        learnable: Any = build(subject, toy)
        trainer = learnable.trainer(
            toy.environment(), n_epochs=2, epoch_length=_EPOCH_LENGTH, engine=engine_of(subject)
        )
        counts = [0, *(learnable.env_steps for _ in trainer)]
        require(
            counts == sorted(set(counts)),
            f"{toy.name}: env_steps after each epoch is {counts[1:]}; add the transitions of each "
            "update to self.env_steps",
        )
        learnable.train(toy.environment(), n_steps=1, engine=engine_of(subject))
        require(learnable.env_steps > counts[-1], f"{toy.name}: n_steps=1 trains on nothing")


CHECKS = checks_in(globals())
