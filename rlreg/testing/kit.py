"""Checks, what they are run on, and what comes of it.

A check is a function of one subject (a distribution, a learnable or a component); its first
docstring line says what it proves. It returns if the promise is kept, raises :class:`Failure` if it
is broken and :class:`NotApplicable` if there is nothing to look at.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlreg import registry
from rlreg.blocking import normalize
from rlreg.config import KINDS, LearnableConfig
from rlreg.errors import UnknownNameError, did_you_mean
from rlreg.faults import package_of, place_in
from rlreg.open_union import OpenUnion

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Failure(AssertionError):  # noqa: N818 - reads as what it is: the check's verdict
    """A promise is broken; the message says which, with the value and what to do.

    Attributes:
        traceback: The plugin's own traceback, where there is one.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class NotApplicable(Exception):  # noqa: N818 - no error, but the reason why nothing was checked
    """There is nothing to check; the message says why."""


def require(condition: bool, message: str) -> None:
    """Fails the running check unless ``condition`` holds."""
    if not condition:
        raise Failure(message)


@dataclass(frozen=True, slots=True)
class Subject:
    """What checks look at.

    Attributes:
        kind: ``plugin`` (a distribution), ``learnable`` or a component kind.
        name: Distribution or tag.
        distribution: Who provides it; ``local`` for what was registered by call.
        cls: The config class; ``None`` for a distribution.
        settings: Fields of a learnable to set in checks that build it.
    """

    kind: str
    name: str
    distribution: str
    cls: type[OpenUnion] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short name that no other subject of the distribution has: ``bc``, ``encoder.simba``."""
        return self.name if self.kind in ("plugin", "learnable") else f"{self.kind}.{self.name}"

    @property
    def id(self) -> str:
        """Qualified name of a class."""
        return f"{self.distribution}/{self.name}"

    @property
    def is_local(self) -> bool:
        """Whether it was registered by call, so that other processes do not know it."""
        return self.distribution == registry.LOCAL

    @property
    def regime(self) -> str:
        """``offline``, ``online``, or empty."""
        return str(getattr(self.cls, "regime", ""))

    def config_class(self) -> type[OpenUnion]:
        """Returns the config class; checks of a class are only run where there is one."""
        assert self.cls is not None
        return self.cls


@dataclass(frozen=True, slots=True)
class Check:
    """One promise.

    Attributes:
        name: Short and readable: ``same-seed-same-result``.
        proves: The promise in one sentence.
        applies_to: Whether a subject makes this promise.
        run: The check itself.
    """

    name: str
    proves: str
    applies_to: Callable[[Subject], bool]
    run: Callable[[Subject], None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        subject: Its label.
        check: Name of the check.
        proves: The promise in one sentence.
        status: ``passed``, ``failed`` or ``skipped``.
        message: Why it failed or was skipped.
        traceback: Where the plugin raised, if it raised.
        seconds: How long it took.
    """

    subject: str
    check: str
    proves: str
    status: str
    message: str
    traceback: str
    seconds: float


# --- which subjects a check is for --------------------------------------------------------------


def plugins(subject: Subject) -> bool:
    """Applies to distributions."""
    return subject.kind == "plugin"


def configs(subject: Subject) -> bool:
    """Applies to every config class: learnables and components."""
    return subject.cls is not None


def learnables(subject: Subject) -> bool:
    """Applies to learnables."""
    return subject.kind == "learnable"


def offline(subject: Subject) -> bool:
    """Applies to learnables that learn from a data set."""
    return learnables(subject) and subject.regime == "offline"


def online(subject: Subject) -> bool:
    """Applies to learnables that learn from an environment."""
    return learnables(subject) and subject.regime == "online"


def components(subject: Subject) -> bool:
    """Applies to components."""
    return configs(subject) and not learnables(subject)


# --- the checks ---------------------------------------------------------------------------------


def check(applies_to: Callable[[Subject], bool]) -> Callable[[Callable[[Subject], None]], Check]:
    """Makes a function a check: its name and the first line of its docstring are the check's."""

    def decorate(function: Callable[[Subject], None]) -> Check:
        proves = (function.__doc__ or "").strip().partition("\n")[0]
        return Check(function.__name__.replace("_", "-"), proves, applies_to, function)

    return decorate


def checks_in(namespace: Mapping[str, Any]) -> tuple[Check, ...]:
    """Returns the checks of a module in the order in which it defines them."""
    return tuple(value for value in namespace.values() if isinstance(value, Check))


def list_checks() -> tuple[Check, ...]:
    """Returns every check of the kit, the quick ones first."""
    from rlreg.testing import (
        checks_component,
        checks_config,
        checks_offline,
        checks_online,
        checks_parts,
        checks_plugin,
        checks_runtime,
        checks_saving,
    )

    modules = (
        checks_plugin,
        checks_config,
        checks_component,
        checks_runtime,
        checks_parts,
        checks_saving,
        checks_offline,
        checks_online,
    )
    return tuple(found for module in modules for found in module.CHECKS)


def kinds() -> tuple[str, ...]:
    """Returns every kind of config class: ``learnable`` and those of components."""
    return ("learnable", *KINDS)


# --- subjects -----------------------------------------------------------------------------------


def find_subjects(name: str, settings: Mapping[str, Any] | None = None) -> list[Subject]:
    """Finds what a name means to the kit.

    Args:
        name: A distribution (``rlreg-bc``; ``bc`` too, if there is an ``rlreg-bc``), which stands
            for all it provides, or the id of one learnable.
        settings: Fields of the learnables to set in checks that build them.

    Raises:
        UnknownNameError: If it is neither.
    """
    settings = dict(settings or {})
    distribution = _distribution_named(name)
    if distribution is None:
        return [_subject_of(_learnable_named(name), settings)]
    records = [
        record
        for kind in kinds()
        for record in registry.records(kind)
        if normalize(record.distribution) == normalize(distribution)
    ]
    plugin = Subject("plugin", distribution, distribution, None, settings)
    return [plugin, *(_subject_of(record, settings) for record in records)]


def _subject_of(record: registry.Record, settings: Mapping[str, Any]) -> Subject:
    return Subject(record.kind, record.name, record.distribution, record.cls, settings)


def _distribution_named(name: str) -> str | None:
    known = {normalize(p.distribution): p.distribution for p in registry.list_plugins()}
    return known.get(normalize(name)) or known.get(f"rlreg-{normalize(name)}")


def _learnable_named(name: str) -> registry.Record:
    try:
        record = registry.resolve("learnable", name)
    except UnknownNameError as error:
        installed = sorted({plugin.distribution for plugin in registry.list_plugins()})
        near = did_you_mean(name, [*installed, *(r.name for r in registry.records("learnable"))])
        listed = near or f"installed plugins: {', '.join(installed) or 'none'}"
        raise UnknownNameError(
            f"{name!r} is neither an installed plugin nor a learnable; {listed}"
        ) from error
    assert issubclass(record.cls, LearnableConfig)
    return record


# --- running ------------------------------------------------------------------------------------


def cases(subjects: list[Subject]) -> Iterator[tuple[Check, Subject]]:
    """Yields every check with every subject it is for, subject by subject."""
    checks = list_checks()
    for subject in subjects:
        for each in checks:
            if each.applies_to(subject):
                yield each, subject


def run_checks(name: str, settings: Mapping[str, Any] | None = None) -> Iterator[CheckResult]:
    """Runs the kit on a distribution or a learnable, one check for each ``next()``.

    Args:
        name: See :func:`find_subjects`.
        settings: Fields of the learnables to set in checks that build them.

    Raises:
        UnknownNameError: If there is no such distribution or learnable.
    """
    subjects = find_subjects(name, settings)
    return (run_check(each, subject) for each, subject in cases(subjects))


def run_check(check: Check, subject: Subject) -> CheckResult:
    """Runs one check; whatever the plugin raises is a failure and not the end."""
    status, message, trace = PASSED, "", ""
    started = time.perf_counter()
    try:
        check.run(subject)
    except NotApplicable as reason:
        status, message = SKIPPED, str(reason)
    except Failure as failure:
        status, message, trace = FAILED, str(failure), failure.traceback
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit included: it is the plugin's fault
        status, message = FAILED, f"it raised {_described(error, subject)}"
        trace = _plugin_traceback(error)
    seconds = time.perf_counter() - started
    return CheckResult(
        subject.label, check.name, check.proves, status, message, trace, round(seconds, 3)
    )


def _described(error: BaseException, subject: Subject) -> str:
    """Returns type, message and, where the plugin's own code raised, file and line."""
    packages = {
        package_of(info)
        for info in registry.list_plugins()
        if normalize(info.distribution) == normalize(subject.distribution) and info.value
    }
    places = [place for package in packages if (place := place_in(error, package))]
    return f"{type(error).__name__}: {error}" + (f" ({places[0]})" if places else "")


def _plugin_traceback(error: BaseException) -> str:
    """Renders where the plugin raised, without the frames of the kit."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        if not frame.tb_frame.f_globals.get("__name__", "").startswith("rlreg.testing"):
            break
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))
