"""Checks of what is saved: is a learnable that was put back the same one?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlreg.testing.kit import NotApplicable, Subject, check, checks_in, learnables, require
from rlreg.testing.toy import Toy, build, difference, learn, run_fresh, snapshot, toys

NUM_UPDATES = 4

_LOAD = """
import sys
import numpy as np
import rlreg
for name in sys.argv[1:]:
    learnable = rlreg.load(name + ".rlreg", device="cpu")
    np.save(name + ".actions.npy", learnable.predict(np.load(name + ".observations.npy")))
"""


# --- saving -------------------------------------------------------------------------------------


@check(learnables)
def state_dict_restores_everything(subject: Subject) -> None:
    """A state put into a new learnable makes it equal, also in what it learns from then on."""
    for toy in toys(subject):
        original = build(subject, toy, seed=1)
        for done in _learning(subject, original, toy):
            resumed = build(subject, toy, seed=2)
            resumed.load_state_dict(original.state_dict())
            _require_same_future(subject, toy, original, resumed, f"{done}, state_dict")


@check(learnables)
def checkpoint_restores_everything(subject: Subject) -> None:
    """A saved and loaded learnable is equal, also in what it learns from then on."""
    from rlreg.runtime.checkpoint import load

    for toy in toys(subject):
        original = build(subject, toy, seed=1)
        for done in _learning(subject, original, toy):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.rlreg"
                original.save(path)
                resumed = load(path, device="cpu")
            _require_same_future(subject, toy, original, resumed, f"{done}, a checkpoint")


def _learning(subject: Subject, original: Any, toy: Toy) -> Iterator[str]:
    """Trains a little, then more; says how far it is.

    The first stop comes after one update: what happens every second or fourth one, by a counter
    that is not saved, would go on in step from any even number.
    """
    if subject.regime == "online":
        learn(subject, original, toy, start=0, stop=NUM_UPDATES)
        yield "after one epoch"
        return
    learn(subject, original, toy, start=0, stop=1)
    yield "after 1 update"
    yield f"after {original.grad_step} updates"


def _require_same_future(
    subject: Subject, toy: Toy, original: Any, resumed: Any, what: str
) -> None:
    """Compares the two now, and after some more updates of both."""
    fault = difference(snapshot(original), snapshot(resumed))
    require(not fault, f"{toy.name}: {what} does not restore {fault}")
    if subject.regime == "online":
        return  # the environment's own state is no part of a learnable's
    start = original.grad_step
    for learnable in (original, resumed):
        learn(subject, learnable, toy, start=start, stop=start + NUM_UPDATES)
    fault = difference(snapshot(original), snapshot(resumed))
    require(
        not fault,
        f"{toy.name}: {what}: from there training goes another way in {fault}; what changes in "
        "training and is no module, optimizer or scaler belongs into extra_state(), and what is "
        "one must be an attribute: things in lists and dicts are not found",
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
