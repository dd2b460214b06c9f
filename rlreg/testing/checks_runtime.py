"""Checks of what ``create`` returns, whatever it learns from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rlreg.errors import DeviceError, EnvironmentSpecError, RlregError
from rlreg.testing.kit import (
    Failure,
    Subject,
    check,
    checks_in,
    learnables,
    require,
)
from rlreg.testing.toy import Toy, build, difference, learn, make, snapshot, toys

NUM_UPDATES = 4
_FAR = 100
"""What observations are multiplied by: a policy without bounds leaves them there."""
_ROUNDING = 1e-5


# --- creating and building ----------------------------------------------------------------------


@check(learnables)
def create_makes_no_weights(subject: Subject) -> None:
    """create() is quick and makes no weights: those come with build, fit, train or load."""
    learnable = make(subject)
    require(not learnable.is_built, "it is built right after create()")
    require(not learnable.modules(), f"create() makes {', '.join(learnable.modules())}")


@check(learnables)
def every_form_of_device_is_taken(subject: Subject) -> None:
    """create() takes the whole device grammar and refuses what is none with a DeviceError."""
    import torch

    make(subject)
    config = make(subject).config
    for device in ("cpu", False, ["cuda:99", "cpu"], torch.device("cpu")):
        made = config.create(device)  # type: ignore[arg-type]  # wider than the annotation
        require(made.device == torch.device("cpu"), f"device={device!r} gave {made.device}")
    try:
        config.create("cpux")
    except DeviceError:
        return
    raise Failure("device='cpux' is taken; hand the device to Learnable.__init__")


@check(learnables)
def unbuilt_is_a_named_error(subject: Subject) -> None:
    """Predicting and saving before there are networks is an rlreg error, not a crash."""
    toy = next(toys(subject))
    for name in ("predict", "save"):
        learnable = make(subject)
        given = toy.observations() if name == "predict" else Path(tempfile.gettempdir(), "no.rlreg")
        _require_named(f"{name} before build", getattr(learnable, name), given)


@check(learnables)
def other_spaces_are_refused(subject: Subject) -> None:
    """A learnable refuses spaces that it cannot take, and others than those it was built for."""
    from gymnasium.spaces import Box, Text

    found = list(toys(subject))
    learnable = build(subject, found[0])
    _require_named(
        "building again, for other spaces", learnable.build, Box(0, 1, (5,)), found[0].action_space
    )
    missing = {"continuous", "discrete"} - {toy.name for toy in found}
    unfit = [Text(3), *(Toy(name).action_space for name in missing)]
    for space in unfit:
        try:
            make(subject).build(found[0].observation_space, space)
        except EnvironmentSpecError:
            continue
        raise Failure(f"it can be built for actions {space}; state action_space_kind")


def _require_named(what: str, function: Any, *arguments: Any) -> None:
    try:
        function(*arguments)
    except RlregError:
        return
    except Exception as error:
        raise Failure(
            f"{what} raised {type(error).__name__}: {error}; expected an rlreg error"
        ) from error
    raise Failure(f"{what} passes; expected an rlreg error")


# --- randomness ---------------------------------------------------------------------------------


@check(learnables)
def same_seed_same_result(subject: Subject) -> None:
    """Two learnables with one seed are equal bit for bit, before and after training (CPU)."""
    for toy in toys(subject):
        first, second = build(subject, toy, seed=3), build(subject, toy, seed=3)
        fault = difference(snapshot(first), snapshot(second))
        require(not fault, f"{toy.name}: built with one seed, two learnables differ in {fault}")
        for learnable in (first, second):
            learn(subject, learnable, toy, start=0, stop=NUM_UPDATES)
        fault = difference(snapshot(first), snapshot(second))
        require(not fault, f"{toy.name}: after {NUM_UPDATES} equal updates they differ in {fault}")


@check(learnables)
def another_seed_another_start(subject: Subject) -> None:
    """The seed decides the initial weights."""
    for toy in toys(subject):
        first, second = build(subject, toy, seed=1), build(subject, toy, seed=2)
        require(
            bool(difference(snapshot(first, "networks"), snapshot(second, "networks"))),
            f"{toy.name}: seeds 1 and 2 give equal networks; build_networks must not seed torch",
        )


@check(learnables)
def global_generators_stay_untouched(subject: Subject) -> None:
    """Building, training and predicting draw nothing from the generators of torch and numpy."""
    for toy in toys(subject):
        before = _global_generators()
        learnable = build(subject, toy)
        learn(subject, learnable, toy, start=0, stop=2)
        learnable.sample_action(toy.observations())
        after = _global_generators()
        moved = [name for name in before if before[name] != after[name]]
        require(
            not moved,
            f"{toy.name}: it draws from the global generator of {', '.join(moved)}; use "
            "self.generator",
        )


def _global_generators() -> dict[str, str]:
    import random

    import numpy as np
    import torch

    return {
        "torch": repr(torch.get_rng_state().tolist()),
        # The key changes once in 624 draws, the position with every one.
        "numpy": repr([np.asarray(part).tolist() for part in np.random.get_state()]),  # noqa: NPY002
        "random": repr(random.getstate()),
    }


# --- acting -------------------------------------------------------------------------------------


@check(learnables)
def actions_lie_in_the_space(subject: Subject) -> None:
    """Predict and sample_action give actions of the space; act gives no others to be clipped."""
    import numpy as np

    for toy in toys(subject):
        learnable = build(subject, toy)
        learn(subject, learnable, toy, start=0, stop=2)
        space, observations = toy.action_space, toy.observations(64, seed=9)
        for name in ("predict", "sample_action"):
            actions = getattr(learnable, name)(observations)
            require(
                isinstance(actions, np.ndarray) and actions.dtype == space.dtype,
                f"{toy.name}: {name} gives {_described(actions)}, the space has {space.dtype}",
            )
            outside = [action for action in actions if not space.contains(action)]
            require(not outside, f"{toy.name}: {name} gives {outside[:1]}, which is not in {space}")
        _require_raw_actions(learnable, toy)


def _require_raw_actions(learnable: Any, toy: Toy) -> None:
    """Looks at the best actions before they are clipped; a sample may overshoot."""
    from rlreg.runtime.scalers import MinMaxScaler

    if not isinstance(learnable.action_scaler, MinMaxScaler):
        return  # nothing says what the range should be
    written, returned = learnable.act, []

    def act(*arguments: Any, **options: Any) -> Any:
        returned.append(written(*arguments, **options))
        return returned[-1]

    observations = toy.observations(64, seed=9)
    learnable.act = act
    try:
        for scale in (1,) if toy.is_image else (1, _FAR):
            learnable.predict(observations * scale)
    finally:
        del learnable.act
    for actions in returned:
        largest = float(actions.abs().max())
        require(
            largest <= 1 + _ROUNDING,
            f"{toy.name}: act returns {largest:.4g}; the best continuous actions are in [-1, 1], "
            "like those in a batch, and what is beyond is clipped: end with tanh, or clamp",
        )


@check(learnables)
def one_observation_or_many(subject: Subject) -> None:
    """Predict takes one observation or a batch, as numpy or torch, and answers in kind."""
    import numpy as np
    import torch

    for toy in toys(subject):
        learnable = build(subject, toy)
        observations = toy.observations(5)
        many = learnable.predict(observations)
        one = learnable.predict(observations[1])
        require(len(many) == 5, f"{toy.name}: 5 observations give {len(many)} actions")
        require(
            np.shape(one) == toy.action_space.shape,
            f"{toy.name}: one observation gives {_described(one)}",
        )
        require(
            bool(np.allclose(one, many[1], atol=1e-5)),
            f"{toy.name}: alone an observation gives {one}, in a batch {many[1]}",
        )
        as_torch = learnable.predict(torch.from_numpy(observations))
        require(
            isinstance(as_torch, torch.Tensor) and bool(np.allclose(as_torch.cpu(), many)),
            f"{toy.name}: torch observations give {_described(as_torch)}",
        )


@check(learnables)
def predicting_changes_nothing(subject: Subject) -> None:
    """Predict is deterministic and leaves networks, optimizers and counters as they were."""
    for toy in toys(subject):
        learnable = build(subject, toy)
        learn(subject, learnable, toy, start=0, stop=2)
        before = snapshot(learnable)
        first, second = (learnable.predict(toy.observations()) for _ in range(2))
        require(bool((first == second).all()), f"{toy.name}: asked twice, predict differs")
        fault = difference(before, snapshot(learnable))
        require(not fault, f"{toy.name}: predict changes {fault}")


def _described(value: Any) -> str:
    shape = getattr(value, "shape", "no shape")
    return f"{type(value).__name__} of {getattr(value, 'dtype', '?')} {shape}"


CHECKS = checks_in(globals())
