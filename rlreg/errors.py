"""Every error rlreg raises on purpose, in one tree.

::

    RlregError                        exit code 2: the input or the environment is at fault
    ├── ConfigError (ValueError)      one or more problems of a config, each with its path
    ├── UnknownNameError (LookupError)  no such learnable, component, preset or data set
    ├── AmbiguousNameError (LookupError)  several distributions claim the name
    ├── RegistrationError (ValueError)  a class that cannot be registered
    │   └── DuplicateNameError        the name is taken by another class
    ├── PluginError                   an installed plugin is broken, blocked or incompatible
    │   └── LearnerError              what a learnable's author wrote breaks its promise
    ├── DeviceError (ValueError)      a device that cannot be parsed
    │   └── DeviceUnavailableError    a device this machine does not have
    ├── MissingExtraError (ImportError)  a part of rlreg that is not installed
    ├── FileFormatError (ValueError)  a file that cannot be read or parsed
    ├── DatasetError (ValueError)     data that cannot be used
    │   └── MissingDatasetError       a data set that is not on this machine
    ├── EnvironmentSpecError (ValueError)  an environment that cannot be made or used
    ├── ShapeError (ValueError)       an array of the wrong shape
    ├── NonFiniteError (ValueError)   NaN or inf where numbers are needed
    ├── CheckpointError               a file that is no intact checkpoint
    ├── RunError                      a run folder that cannot be used
    ├── RolloutError                  an actor failed for good
    └── CheckFailedError              exit code 3: a check found something

A message says what happened with the value, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar


class RlregError(Exception):
    """Base class of every error that rlreg raises on purpose."""

    exit_code: ClassVar[int] = 2


class LeftOutWarning(UserWarning):
    """A part of what was given (steps of data, the state of an optimizer) was left out."""


class EndlessEpisodeWarning(UserWarning):
    """An episode of an evaluation has gone on for so long that it may never end."""


class VersionWarning(UserWarning):
    """A file was made with another version of something than the one installed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config.

    Attributes:
        path: Keys from the root of the document to the value, e.g. ``("learnable", "gamma")``.
        message: What is wrong and what was expected, one sentence without the path.
        given: ``repr`` of the offending value, or empty where there is none.
        hint: What to do, e.g. ``did you mean 'gamma'?``; empty where nothing is known.
        origin: Where the value was written, e.g. ``run.yaml:6:59`` or ``--set gamma=2``.
        on_key: Whether the key itself is at fault (an unknown key) and not its value.
    """

    path: tuple[str | int, ...]
    message: str
    given: str = ""
    hint: str = ""
    origin: str = ""
    on_key: bool = field(default=False, compare=False)

    def with_origin(self, origin: str) -> Problem:
        """Returns the same problem with a place written to it."""
        return replace(self, origin=origin)

    def under(self, prefix: Sequence[str | int]) -> Problem:
        """Returns the same problem with ``prefix`` in front of its path."""
        return replace(self, path=(*prefix, *self.path))

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin else ""
        path = format_path(self.path)
        given = f" = {self.given}" if self.given else ""
        subject = f"{path}{given}: " if path or given else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}{subject}{self.message}{hint}"


class ConfigError(RlregError, ValueError):
    """A config is wrong; ``problems`` lists everything that is, in the document's order."""

    def __init__(self, problems: Iterable[Problem] | str, *, subject: str = "") -> None:
        if isinstance(problems, str):
            problems = [Problem((), problems)]
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.subject = subject
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [str(problem) for problem in self.problems]
        if len(lines) == 1:
            return f"{self.subject}: {lines[0]}" if self.subject else lines[0]
        head = (
            f"{self.subject}: {len(lines)} problems" if self.subject else f"{len(lines)} problems"
        )
        return "\n".join([head, *(f"  {line}" for line in lines)])

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_config_error, (self.problems, self.subject))


def _rebuild_config_error(problems: tuple[Problem, ...], subject: str) -> ConfigError:
    return ConfigError(problems, subject=subject)


class UnknownNameError(RlregError, LookupError):
    """No such name; the message lists the nearest ones."""


class AmbiguousNameError(RlregError, LookupError):
    """Several distributions claim the name; the message gives the qualified names."""


class RegistrationError(RlregError, ValueError):
    """A class breaks a rule of the contract and cannot be registered."""


class DuplicateNameError(RegistrationError):
    """The name is taken by another class."""


class PluginError(RlregError):
    """What was asked for belongs to a plugin that is broken or blocked."""


class LearnerError(PluginError):
    """A method that the author of a learnable writes is missing, or gives something unfit."""


class DeviceError(RlregError, ValueError):
    """A device specification that does not follow the grammar."""


class DeviceUnavailableError(DeviceError):
    """A device that this machine does not have; the message says what it has."""


class MissingExtraError(RlregError, ImportError):
    """A part of rlreg that is not installed; the message gives the command."""


class FileFormatError(RlregError, ValueError):
    """A file that is missing, unreadable or not what its suffix says."""


class DatasetError(RlregError, ValueError):
    """Data that cannot be used; the message names episode and index."""


class MissingDatasetError(DatasetError):
    """A data set that is not on this machine; the message says how to get it."""


class EnvironmentSpecError(RlregError, ValueError):
    """An environment that cannot be made, or whose spaces do not fit."""


class ShapeError(RlregError, ValueError):
    """An array whose shape is not the documented one."""

    @classmethod
    def of(cls, name: str, expected: str, given: Sequence[int]) -> ShapeError:
        """Builds the usual message: name, wanted shape, given shape."""
        return cls(f"{name}: expected shape {expected}, got {list(given)}")


class NonFiniteError(RlregError, ValueError):
    """NaN or inf where numbers are needed; nothing was changed."""


class CheckpointError(RlregError):
    """A file that is not an intact rlreg checkpoint, or fits another learnable."""


class RunError(RlregError):
    """A run folder that cannot be created, read or resumed."""


class RolloutError(RlregError):
    """An actor or its environment failed; the message names the actor and the cause."""


class CheckFailedError(RlregError):
    """A check found something; the command did its work and reports it by exit code 3."""

    exit_code: ClassVar[int] = 3


_EXTRAS = {
    "torch": "torch",
    "numpy": "torch",
    "gymnasium": "torch",
    "safetensors": "torch",
    "minari": "train",
    "h5py": "train",
}


def explain_missing(
    error: ModuleNotFoundError, subject: str, *, extra: str | None = None
) -> ImportError:
    """Turns a missing heavy module into the extra to install; any other is returned as it is.

    Args:
        error: What the import raised.
        subject: What needed the module, e.g. ``rlreg.load``.
        extra: The extra to name; that of the module unless given.
    """
    missing = (error.name or "").partition(".")[0]
    if missing not in _EXTRAS:
        return error
    return MissingExtraError(
        f"{subject} needs {missing}, which is not installed: pip install "
        f"'rlreg[{extra or _EXTRAS[missing]}]'"
    )


def not_written(tag: str, owner: object, method: str) -> LearnerError:
    """What to raise where a method is called that the author of a plugin has to write."""
    return LearnerError(f"{tag!r} is not complete: {type(owner).__name__} does not write {method}")


def format_path(path: Sequence[str | int]) -> str:
    """Renders ``("learnable", "units", 1)`` as ``learnable.units[1]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Returns the names of ``known`` that look like ``name``, best first.

    Those that say the same, like ``lr`` and ``learning_rate``, come alone: ``learning_rate`` looks
    like ``learnable``, and means ``lr``.
    """
    import difflib  # only a mistake needs it

    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    same = [by_lower[other] for other in by_lower if _says_the_same(name.lower(), other)]
    if same:
        return sorted(same, key=lambda other: (len(other), other))[:count]
    found = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.6)
    return [by_lower[match] for match in found]


# Words of settings that the libraries of the field, and papers, spell in two ways.
_SPELT = {"lr": "learning_rate", "temp": "temperature", "discount": "gamma", "num": "n"}


def _says_the_same(name: str, other: str) -> bool:
    """Whether ``other`` is ``name`` spelt in another way, or ends with it: ``critic_lr``."""
    if name == other:
        return False
    full, wanted = _in_full(other), _in_full(name)
    return full == wanted or full.endswith(f"_{wanted}")


def _in_full(name: str) -> str:
    return "_".join(_SPELT.get(word, word) for word in name.replace("-", "_").split("_"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``did you mean 'a' or 'b'?``, or an empty string when nothing is near."""
    matches = [repr(match) for match in nearest(name, known)]
    return f"did you mean {' or '.join(matches)}?" if matches else ""
