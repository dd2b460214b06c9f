"""Checks of components: does ``create`` give what the kind promises?"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlreg.testing.kit import NotApplicable, Subject, check, checks_in, components, require
from rlreg.testing.toy import Toy, build, toys

_METHODS = {
    "logger": ("start", "metrics", "checkpoint", "end"),
    "observation_scaler": ("fit", "transform", "inverse", "state_dict"),
    "action_scaler": ("fit", "transform", "inverse", "state_dict"),
    "reward_scaler": ("fit", "transform", "inverse", "state_dict"),
    "lr_scheduler": ("step", "state_dict", "load_state_dict"),
}


@check(components)
def create_keeps_the_promise_of_its_kind(subject: Subject) -> None:
    """create() gives an object that does what every member of the kind does."""
    _KINDS.get(subject.kind, _no_toy)(subject)


def _component(subject: Subject) -> Any:
    return subject.config_class()()


def _require_methods(made: Any, kind: str) -> None:
    missing = [name for name in _METHODS[kind] if not callable(getattr(made, name, None))]
    require(not missing, f"create() gives a {type(made).__name__} without {', '.join(missing)}()")


def _encoder(subject: Subject) -> None:
    import torch

    faults = []
    for shape in ((3,), (4, 84, 84), (7, 7, 7)):
        try:
            module = _component(subject).create(shape)
        except Exception as error:  # noqa: BLE001 - encoders are made for one rank of observations
            faults.append(f"{list(shape)}: {error}")
            continue
        size = getattr(module, "output_size", None)
        require(isinstance(size, int), f"its module has output_size = {size!r}, expected an int")
        dtype = torch.uint8 if len(shape) == 3 else torch.float32
        with torch.no_grad():
            features = module.eval()(torch.ones((2, *shape), dtype=dtype))
        require(
            tuple(features.shape) == (2, size),
            f"2 observations {list(shape)} give features {list(features.shape)}, not [2, {size}]",
        )
        return
    require(False, f"create() fails for every shape of observations: {'; '.join(faults)}")


def _optimizer(subject: Subject) -> None:
    import torch

    module = torch.nn.Linear(3, 2)
    before = module.weight.detach().clone()
    optimizer = _component(subject).create(module.named_modules(), 0.1)
    require(
        isinstance(optimizer, torch.optim.Optimizer),
        f"create() gives a {type(optimizer).__name__}, expected a torch Optimizer",
    )
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    require(bool((module.weight != before).any()), "three steps change no parameter")
    optimizer.load_state_dict(optimizer.state_dict())


def _lr_scheduler(subject: Subject) -> None:
    import torch

    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = _component(subject).create(optimizer, 100)
    _require_methods(schedule, "lr_scheduler")
    rates = []
    for _ in range(5):
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    require(all(float(rate) >= 0 for rate in rates), f"it gives the learning rates {rates}")
    schedule.load_state_dict(schedule.state_dict())


def _scaler(subject: Subject) -> None:
    import torch

    toy, kind = Toy("continuous"), subject.kind
    made = _component(subject).create()
    _require_methods(made, kind)
    dataset = toy.dataset()
    name = {"observation_scaler": "observations", "action_scaler": "actions"}.get(kind, "rewards")
    made.fit(dataset)
    values = torch.from_numpy(getattr(dataset, name))
    scaled = made.transform(values)
    require(scaled.shape == values.shape, f"{name} {list(values.shape)} become {scaled.shape}")
    require(bool(torch.isfinite(scaled).all()), f"it makes {name} that are not finite")
    # Clipping and rounding lose something; scaling what was recovered loses nothing more.
    again = made.transform(made.inverse(scaled))
    require(bool(torch.allclose(again, scaled, atol=1e-4)), "inverse() does not undo transform()")
    fresh = _component(subject).create()
    fresh.load_state_dict(made.state_dict())
    require(
        bool(torch.equal(fresh.transform(values), scaled)),
        "load_state_dict() does not restore what fit() learnt",
    )


def _logger(subject: Subject) -> None:
    from rlreg.runtime.logging import RunInfo

    made = _component(subject).create()
    _require_methods(made, "logger")
    with tempfile.TemporaryDirectory() as folder:
        made.start(RunInfo(Path(folder), _run_config()))
        made.metrics(1, {"loss/policy": 0.5, "evaluation/mean_return": float("nan")})
        made.checkpoint(Path(folder) / "step-1.rlreg")
        made.end({"final": None})


def _run_config() -> Any:
    """Returns some run; a logger is told which, and any learnable will do."""
    from rlreg import registry
    from rlreg.files import load_run

    for record in registry.records("learnable"):
        return load_run({"learnable": {"type": registry.reference(record.cls)}})
    raise NotApplicable("no learnable is installed that a run could be about")


def _engine(subject: Subject) -> None:
    """An online learnable that takes engines trains an epoch with this one."""
    from rlreg.errors import MissingExtraError

    if "address" in subject.config_class().model_fields:
        raise NotApplicable(
            "it works through a service at an address, which a check does not start"
        )
    for learner in _online_learnables(subject.distribution):
        toy = next(toys(learner))
        learnable: Any = build(learner, toy)
        children = set(multiprocessing.active_children())
        with _counted(subject.config_class()) as calls:
            try:
                ((_, metrics),) = learnable.train(
                    toy.environment(), n_epochs=1, epoch_length=2, engine=_small_engine(subject)
                )
            except MissingExtraError as error:
                raise NotApplicable(str(error)) from error
        if not calls:
            continue  # it collects in its own way
        where = f"under {learner.id}"
        require(learnable.env_steps > 0, f"{where}: no transition arrives")
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        require(not bad, f"{where}: metrics that are not finite: {bad}")
        left = set(multiprocessing.active_children()) - children
        require(not left, f"{where}: {len(left)} processes are left after the training")
        return
    raise NotApplicable("no learnable is installed that collects through an engine")


def _online_learnables(distribution: str) -> list[Subject]:
    """Returns the learnables that may take an engine, those of its own distribution first."""
    from rlreg import registry

    found = [
        Subject("learnable", record.name, record.distribution, record.cls)
        for record in registry.records("learnable")
        if getattr(record.cls, "regime", "") == "online"
    ]
    return sorted(found, key=lambda item: item.distribution != distribution)


def _small_engine(subject: Subject) -> dict[str, Any]:
    from rlreg.registry import reference

    cls = subject.config_class()
    small = {"num_actors": 1} if "num_actors" in cls.model_fields else {}
    return {"type": reference(cls), **small}


@contextlib.contextmanager
def _counted(cls: Any) -> Iterator[list[str]]:
    """Notes the calls of ``create`` inside the block."""
    calls: list[str] = []
    is_own, create = "create" in vars(cls), cls.create

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(cls.__name__)
        return create(self, *arguments, **options)

    cls.create = counted
    try:
        yield calls
    finally:
        if is_own:
            cls.create = create
        else:
            del cls.create


def _no_toy(subject: Subject) -> None:
    raise NotApplicable(f"the kit has no toy for the kind {subject.kind!r}")


_KINDS: dict[str, Callable[[Subject], None]] = {
    "encoder": _encoder,
    "optimizer": _optimizer,
    "lr_scheduler": _lr_scheduler,
    "observation_scaler": _scaler,
    "action_scaler": _scaler,
    "reward_scaler": _scaler,
    "engine": _engine,
    "logger": _logger,
}

CHECKS = checks_in(globals())
