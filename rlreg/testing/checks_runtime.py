"""Checks of what ``create`` returns, whatever it learns from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rlreg.errors import DeviceError, EnvironmentSpecError, RlregError
from rlreg.testing.kit import (
    Failure,
    NotApplicable,
    Subject,
    check,
    checks_in,
    learnables,
    require,
)
from rlreg.testing.toy import Toy, build, difference, learn, make, run_fresh, snapshot, toys

NUM_UPDATES = 4

_LOAD = """
import sys
import numpy as np
import rlreg
for name in sys.argv[1:]:
    learnable = rlreg.load(name + ".rlreg", device="cpu")
    np.save(name + ".actions.npy", learnable.predict(np.load(name + ".observations.npy")))
"""


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
        "numpy": repr(np.random.get_state()[1].tolist()),  # type: ignore[index]  # noqa: NPY002
        "random": repr(random.getstate()),
    }


# --- learning -----------------------------------------------------------------------------------


@check(learnables)
def every_optimised_parameter_moves(subject: Subject) -> None:
    """Updates change every parameter that an optimizer holds: none is cut off from its loss."""
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


@check(learnables)
def every_network_is_saved(subject: Subject) -> None:
    """Every parameter that an optimizer holds belongs to a network that the base class saves."""
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


def _parameter_names(learnable: Any) -> dict[int, str]:
    return {
        id(parameter): f"{network}.{name}"
        for network, module in learnable.modules().items()
        for name, parameter in module.named_parameters()
    }


# --- acting -------------------------------------------------------------------------------------


@check(learnables)
def actions_lie_in_the_space(subject: Subject) -> None:
    """Predict and sample_action give actions of the space, in its shape and dtype."""
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


# --- saving -------------------------------------------------------------------------------------


@check(learnables)
def state_dict_restores_everything(subject: Subject) -> None:
    """A state put into a new learnable makes it equal, also in what it learns from then on."""
    for toy in toys(subject):
        original = build(subject, toy, seed=1)
        learn(subject, original, toy, start=0, stop=NUM_UPDATES)
        resumed = build(subject, toy, seed=2)
        resumed.load_state_dict(original.state_dict())
        _require_same_future(subject, toy, original, resumed, "state_dict")


@check(learnables)
def checkpoint_restores_everything(subject: Subject) -> None:
    """A saved and loaded learnable is equal, also in what it learns from then on."""
    from rlreg.runtime.checkpoint import load

    for toy in toys(subject):
        original = build(subject, toy, seed=1)
        learn(subject, original, toy, start=0, stop=NUM_UPDATES)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.rlreg"
            original.save(path)
            resumed = load(path, device="cpu")
        _require_same_future(subject, toy, original, resumed, "a checkpoint")


def _require_same_future(
    subject: Subject, toy: Toy, original: Any, resumed: Any, what: str
) -> None:
    fault = difference(snapshot(original), snapshot(resumed))
    require(not fault, f"{toy.name}: {what} does not restore {fault}")
    if subject.regime == "online":
        return  # the environment's own state is no part of a learnable's
    for learnable in (original, resumed):
        learn(subject, learnable, toy, start=NUM_UPDATES, stop=2 * NUM_UPDATES)
    fault = difference(snapshot(original), snapshot(resumed))
    require(
        not fault,
        f"{toy.name}: after {what}, training goes another way in {fault}; what changes in training "
        "and is no module, optimizer or scaler belongs into extra_state()",
    )


@check(learnables)
def checkpoints_are_reproducible(subject: Subject) -> None:
    """Saving twice gives the same bytes: nothing in a checkpoint depends on time, host or path."""
    toy = next(toys(subject))
    learnable = build(subject, toy)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.rlreg" for index in range(2)]
        for path in paths:
            learnable.save(path)
        require(
            paths[0].read_bytes() == paths[1].read_bytes(),
            "two checkpoints of one learnable differ; extra_state() gives something else each time",
        )


@check(learnables)
def fresh_process_predicts_the_same(subject: Subject) -> None:
    """A checkpoint loaded in a fresh process predicts the same actions bit for bit."""
    import numpy as np

    if subject.is_local:
        raise NotApplicable("it was registered by call, so a fresh process does not know it")
    with tempfile.TemporaryDirectory() as folder:
        here = {}
        for toy in toys(subject):
            learnable, stem = build(subject, toy), str(Path(folder) / toy.name)
            learn(subject, learnable, toy, start=0, stop=2)
            learnable.save(f"{stem}.rlreg")
            np.save(f"{stem}.observations.npy", toy.observations())
            here[stem] = learnable.predict(toy.observations())
        run_fresh(_LOAD, *here)
        for stem, actions in here.items():
            there = np.load(f"{stem}.actions.npy")
            require(
                there.dtype == actions.dtype and there.tobytes() == actions.tobytes(),
                f"{Path(stem).name}: here it predicts {actions.tolist()[0]}, in a fresh process "
                f"{there.tolist()[0]} for the same observation",
            )


CHECKS = checks_in(globals())
