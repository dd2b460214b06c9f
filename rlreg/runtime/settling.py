"""From a run as written to one with nothing left open: what depends on the regime is filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlreg.errors import ConfigError, Problem
from rlreg.run_config import RunConfig
from rlreg.runtime.online import EPOCH_LENGTH

DEFAULT_DATASET = "rlreg/pendulum/mixed-v0"
DEFAULT_UPDATES = 10_000
DEFAULT_TRANSITIONS = 100_000


def settle_run(run: RunConfig) -> RunConfig:
    """Fills in what depends on the regime, and refuses what belongs to the other one.

    Raises:
        ConfigError: With everything that does not fit.
    """
    is_online = run.learnable.regime == "online"
    problems = list(_misplaced(run, is_online))
    if problems:
        raise ConfigError(problems)
    train_update: dict[str, Any] = {}
    if is_online and run.train.n_steps is None and run.train.n_epochs is None:
        train_update["n_steps"] = DEFAULT_TRANSITIONS
    if is_online and run.train.n_epochs is not None and run.train.epoch_length is None:
        train_update["epoch_length"] = EPOCH_LENGTH
    if not is_online and run.train.n_steps is None:
        train_update["n_steps"] = DEFAULT_UPDATES
    update: dict[str, Any] = {"train": run.train.model_copy(update=train_update)}
    if run.evaluation.at_start is None:
        update["evaluation"] = run.evaluation.model_copy(update={"at_start": is_online})
    if run.name is None:
        update["name"] = run.learnable.get_type()
    if not is_online and run.dataset is None:
        update["dataset"] = DEFAULT_DATASET
    return run.model_copy(update=update)


def _misplaced(run: RunConfig, is_online: bool) -> Iterator[Problem]:
    return _misplaced_online(run) if is_online else _misplaced_offline(run)


def _misplaced_offline(run: RunConfig) -> Iterator[Problem]:
    name = run.learnable.get_type()
    if run.env is not None:
        hint = "the environment to evaluate in is evaluation.env"
        yield Problem(("env",), f"{name!r} learns from a data set", repr(run.env), hint)
    if run.engine is not None:
        yield Problem(("engine",), f"{name!r} learns from a data set and collects nothing")
    for key in ("n_epochs", "epoch_length"):
        if getattr(run.train, key) is not None:
            hint = "use train.n_steps and train.n_steps_per_epoch"
            yield Problem(("train", key), "is for online learnables", hint=hint)


def _misplaced_online(run: RunConfig) -> Iterator[Problem]:
    name = run.learnable.get_type()
    for key in ("baselines", "evaluators"):
        for chosen in getattr(run.evaluation, key):
            if chosen not in ("random", "behaviour"):
                hint = f"{name!r} learns from an environment"
                yield Problem(("evaluation", key), "needs a data set", chosen, hint)
    if run.dataset is not None:
        yield Problem(("dataset",), f"{name!r} learns from an environment", run.dataset)
    if run.env is None:
        hint = "for example --env CartPole-v1"
        yield Problem(("env",), f"{name!r} needs an environment to train in", hint=hint)
    if run.train.n_steps is not None and run.train.n_epochs is not None:
        yield Problem(("train", "n_epochs"), "give n_steps or n_epochs, not both")
