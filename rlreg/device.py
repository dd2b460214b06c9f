"""Devices as values: parsed without torch, resolved when something is created.

The grammar: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ``xpu``, an int (that CUDA device),
``True`` (``cuda:0``), ``False`` and ``None`` (``cpu``; both as in d3rlpy), ``("cuda", 1)``, a
``torch.device``, or a list of these, tried in order. Only ``auto`` and a list may fall back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlreg.errors import DeviceError, DeviceUnavailableError, did_you_mean

if TYPE_CHECKING:
    import torch

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
_AUTO_ORDER = ("cuda", "xpu", "mps", "cpu")
_MAX_INDEX = 1023
_NAME = re.compile(r"(?P<type>[a-z]+)(?::(?P<index>0|[1-9][0-9]{0,3}))?\Z")

DEVICE_PATTERN = r"^(auto|(cpu|mps)(:0)?|(cuda|xpu)(:(0|[1-9][0-9]{0,2}))?)$"
"""The strings of the grammar, for the JSON Schema of a run file."""


@dataclass(frozen=True, slots=True)
class Device:
    """One concrete device: a type and, where given, an index."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class ResolvedDevice:
    """The device chosen, and why the earlier choices were not.

    Attributes:
        name: What to give to ``torch.device``.
        report: One sentence for the log, e.g. ``cpu (auto: no cuda, no xpu, no mps)``.
    """

    name: str
    report: str

    @property
    def torch(self) -> torch.device:
        """The device as torch's own type."""
        import torch

        return torch.device(self.name)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What the user asked for.

    Attributes:
        choices: Devices in the order in which they are tried.
        is_auto: Whether ``auto`` was asked for.
    """

    choices: tuple[Device, ...]
    is_auto: bool = False

    @classmethod
    def parse(cls, value: Any) -> DeviceSpec:
        """Parses any form of the grammar; needs no torch.

        Raises:
            DeviceError: If ``value`` does not follow the grammar.
        """
        if isinstance(value, DeviceSpec):
            return value
        if value == "auto" and isinstance(value, str):
            return cls(tuple(Device(kind) for kind in _AUTO_ORDER), is_auto=True)
        if isinstance(value, list) or _is_tuple_of_choices(value):
            return cls._parse_list(value)
        return cls((_parse_one(value),))

    @classmethod
    def _parse_list(cls, values: Any) -> DeviceSpec:
        if not values:
            raise DeviceError("device: the list of fallbacks is empty")
        choices: list[Device] = []
        is_auto = False
        for value in values:
            if isinstance(value, list):
                raise DeviceError("device: a list of fallbacks cannot hold a list")
            part = cls.parse(value)
            is_auto = is_auto or part.is_auto
            choices += [choice for choice in part.choices if choice not in choices]
        return cls(tuple(choices), is_auto=is_auto)

    def __str__(self) -> str:
        return "auto" if self.is_auto else ", ".join(str(choice) for choice in self.choices)

    def resolve(self) -> ResolvedDevice:
        """Picks the first device this machine has.

        Raises:
            DeviceUnavailableError: If there is none of them; the message says what exists.
        """
        refused: list[str] = []
        for choice in self.choices:
            reason = _missing(choice)
            if reason is None:
                return ResolvedDevice(str(choice), self._report(choice, refused))
            refused.append(reason)
        raise DeviceUnavailableError(
            f"device {str(self)!r} is not available: {'; '.join(refused)}; "
            f"this machine has {', '.join(available_devices())}"
        )

    def _report(self, chosen: Device, refused: list[str]) -> str:
        if len(self.choices) == 1:
            return str(chosen)
        return f"{chosen} (asked for {self}{': ' if refused else ''}{'; '.join(refused)})"


def _is_tuple_of_choices(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    is_pair = len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int
    return not is_pair


def _parse_one(value: Any) -> Device:
    if value is None or value is False:
        return Device("cpu")
    if value is True:
        return Device("cuda", 0)
    if isinstance(value, int):
        return Device("cuda", _check_index(value, value))
    if isinstance(value, tuple):
        name, index = value
        device = _parse_name(name)
        if device.index is not None:
            raise DeviceError(f"device {value!r}: the index is given twice")
        return Device(device.type, _check_index(index, value))
    if isinstance(value, str):
        return _parse_name(value)
    kind, index = getattr(value, "type", None), getattr(value, "index", None)
    if isinstance(kind, str) and kind in DEVICE_TYPES and (index is None or type(index) is int):
        return Device(kind, index)
    raise DeviceError(f"device {value!r}: expected {_grammar()}")


def _parse_name(text: str) -> Device:
    match = _NAME.match(text)
    if match is None or match["type"] not in DEVICE_TYPES:
        hint = did_you_mean(text.partition(":")[0], ("auto", *DEVICE_TYPES))
        raise DeviceError(f"device {text!r}: expected {_grammar()}{'; ' + hint if hint else ''}")
    index = None if match["index"] is None else _check_index(int(match["index"]), text)
    if match["type"] in ("cpu", "mps") and index not in (None, 0):
        raise DeviceError(f"device {text!r}: {match['type']} has no device {index}")
    return Device(match["type"], index)


def _check_index(index: int, value: Any) -> int:
    if not 0 <= index <= _MAX_INDEX:
        raise DeviceError(f"device {value!r}: the index must be from 0 to {_MAX_INDEX}")
    return index


def device_problem(text: str) -> str:
    """Says what is wrong with a string that is no device."""
    try:
        _parse_name(text)
    except DeviceError as error:
        return str(error).partition(": ")[2]
    return f"expected {_grammar()}"


def _grammar() -> str:
    return "'auto', 'cpu', 'cuda', 'cuda:1', 'mps', 'xpu', an int, or a list of these"


# --- what this machine has (imports torch) ------------------------------------------------------


def _count(kind: str) -> int:
    """Returns how many devices of a type torch can use here."""
    import torch

    counters: dict[str, Callable[[], int]] = {
        "cpu": lambda: 1,
        "cuda": lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "xpu": lambda: torch.xpu.device_count() if torch.xpu.is_available() else 0,
        "mps": lambda: int(torch.backends.mps.is_available()),
    }
    return counters[kind]()


def _missing(device: Device) -> str | None:
    """Returns why a device cannot be used here, or ``None`` if it can."""
    count = _count(device.type)
    if count == 0:
        return f"no {device.type}{_why_none(device.type)}"
    if device.index is not None and device.index >= count:
        return f"no {device}, only {count} of type {device.type}"
    return None


def _why_none(kind: str) -> str:
    import torch

    if kind == "cuda" and torch.version.cuda is None:
        return " (this torch is built without CUDA)"
    return ""


def available_devices() -> list[str]:
    """Lists the devices torch can use on this machine, e.g. ``["cpu", "cuda:0"]``."""
    found = ["cpu"]
    for kind in ("cuda", "xpu", "mps"):
        count = _count(kind)
        found += ["mps"] if kind == "mps" and count else [f"{kind}:{i}" for i in range(count)]
    return found
