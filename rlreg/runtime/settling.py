"""From a run as written to one that can begin: filled in, and nothing of the other regime."""

from __future__ import annotations

from collections.abc import Iterator

from rlreg.errors import ConfigError, Problem
from rlreg.problems import shown
from rlreg.run_config import RunConfig
from rlreg.run_defaults import fill_in


def settle_run(run: RunConfig) -> RunConfig:
    """Fills in what depends on the regime, and refuses what belongs to the other one.

    Raises:
        ConfigError: With everything that does not fit.
    """
    is_online = run.learnable.regime == "online"
    problems = list(_misplaced(run, is_online))
    if problems:
        raise ConfigError(problems)
    return fill_in(run)


def _misplaced(run: RunConfig, is_online: bool) -> Iterator[Problem]:
    return _misplaced_online(run) if is_online else _misplaced_offline(run)


def _misplaced_offline(run: RunConfig) -> Iterator[Problem]:
    name = run.learnable.get_type()
    if run.env is not None:
        hint = "the environment to evaluate in is evaluation.env"
        yield Problem(("env",), f"{name!r} learns from a data set", shown(run.env), hint)
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
        yield Problem(("dataset",), f"{name!r} learns from an environment", shown(run.dataset))
    if run.env is None:
        hint = "for example --env CartPole-v1"
        yield Problem(("env",), f"{name!r} needs an environment to train in", hint=hint)
    if run.train.n_steps is not None and run.train.n_epochs is not None:
        yield Problem(("train", "n_epochs"), "give n_steps or n_epochs, not both")
