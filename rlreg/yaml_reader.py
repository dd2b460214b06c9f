"""Reading YAML 1.2 into plain Python, with the place of every value.

The events of ruamel's parser are built into values here: its constructor resolves tags and dates
and drops the positions, its composer skips the check for duplicate keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from rlreg.errors import FileFormatError

KeyPath = tuple[str | int, ...]

MAX_NODES = 200_000
MAX_NESTING = 200
MAX_DIGITS = 1000  # the largest float has 309
TOO_LARGE = "number too large"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a value and its key start, counted from 1; the key of an item is the item."""

    line: int
    column: int
    key_line: int
    key_column: int


def fail(name: str, line: int, column: int, message: str) -> NoReturn:
    """Refuses a document at a place.

    Raises:
        FileFormatError: Always.
    """
    raise FileFormatError(f"{name}:{line}:{column}: {message}")


_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)\Z")
_NAN = re.compile(r"\.(nan|NaN|NAN)\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?\Z")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def plain_scalar(text: str) -> Any:
    """Returns what an unquoted scalar means in the core schema of YAML 1.2.

    ``3e-4`` is a number, ``no`` and ``1_000`` are strings, ``010`` is ten.

    Raises:
        ValueError: If it is a date, or an integer of more than a thousand digits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS and any(form.match(text) for form in (_INT, _OCTAL, _HEX)):
        raise ValueError(TOO_LARGE)
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text, 0)
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        return float(text)
    if _INF.match(text):
        return float(text.replace(".", "").lower())
    if _NAN.match(text):
        return float("nan")
    if _DATE.match(text):
        raise ValueError(f"{text!r} is a date for some readers; write it in quotes")
    return text


class _YamlBuilder:
    """Builds plain data from the events of a YAML parser."""

    def __init__(self, name: str, events: Iterator[Any]) -> None:
        self.name = name
        self.events = events
        self.positions: dict[KeyPath, Position] = {}
        self.anchors: dict[str, tuple[KeyPath, Any]] = {}
        self.open_anchors: set[str] = set()
        self.n_nodes = 0

    def fail(self, event: Any, message: str) -> NoReturn:
        mark = event.start_mark
        fail(self.name, mark.line + 1, mark.column + 1, message)

    def build(self) -> Any:
        """Returns the value of the only document of the stream."""
        result: Any = None
        n_documents = 0
        for event in self.events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                n_documents += 1
                if n_documents > 1:
                    self.fail(event, "a second document starts here; one file holds one config")
                if event.version not in (None, (1, 2)):
                    self.fail(event, "rlreg reads YAML 1.2; remove the %YAML line")
            elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                result = self.node(event, (), event)
        if n_documents == 0:
            raise FileFormatError(f"{self.name}: the file is empty")
        return result

    def node(self, event: Any, path: KeyPath, key: Any) -> Any:
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self.fail(event, f"more than {MAX_NODES} values; this is no config")
        if len(path) > MAX_NESTING:
            self.fail(event, f"nested more than {MAX_NESTING} deep")
        mark, key_mark = event.start_mark, key.start_mark
        self.positions[path] = Position(
            mark.line + 1, mark.column + 1, key_mark.line + 1, key_mark.column + 1
        )
        if type(event).__name__ == "AliasEvent":
            return self.alias(event, path)
        if event.tag is not None:
            self.fail(event, f"tags such as {event.tag} are not used in a config; remove it")
        if event.anchor is not None:
            self.open_anchors.add(event.anchor)
            self.anchors.pop(event.anchor, None)
        value = self.value(event, path)
        if event.anchor is not None:
            self.open_anchors.discard(event.anchor)
            self.anchors[event.anchor] = (path, value)
        return value

    def value(self, event: Any, path: KeyPath) -> Any:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            return self.scalar(event)
        if kind == "SequenceStartEvent":
            return self.sequence(path)
        return self.mapping(path)

    def scalar(self, event: Any) -> Any:
        if event.style is not None:
            return str(event.value)
        try:
            return plain_scalar(str(event.value))
        except ValueError as error:
            self.fail(event, str(error))

    def sequence(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while type(event := next(self.events)).__name__ != "SequenceEndEvent":
            items.append(self.node(event, (*path, len(items)), event))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while type(event := next(self.events)).__name__ != "MappingEndEvent":
            key = self.key(event)
            if key in result:
                first = self.positions[(*path, key)].key_line
                self.fail(event, f"the key {key!r} is already set in line {first}")
            result[key] = self.node(next(self.events), (*path, key), event)
        return result

    def key(self, event: Any) -> str:
        if type(event).__name__ != "ScalarEvent":
            self.fail(event, "a key must be a plain string")
        if event.tag is not None or event.anchor is not None:
            self.fail(event, "a key has neither tag nor anchor")
        if event.style is None and event.value == "<<":
            self.fail(event, "merge keys (<<) are not part of YAML 1.2; write the keys out")
        key = self.scalar(event)
        if not isinstance(key, str):
            self.fail(event, f"a key must be a string; write {str(event.value)!r} in quotes")
        return key

    def alias(self, event: Any, path: KeyPath) -> Any:
        if event.anchor in self.open_anchors:
            self.fail(event, f"*{event.anchor} stands inside the value it refers to")
        if event.anchor not in self.anchors:
            self.fail(event, f"*{event.anchor} refers to an anchor that is not defined above")
        source, value = self.anchors[event.anchor]
        return self.copy(value, source, path, event)

    def copy(self, value: Any, source: KeyPath, target: KeyPath, event: Any) -> Any:
        """Copies an anchored value node by node, so that aliases of aliases meet the cap too."""
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self.fail(event, f"its aliases expand to more than {MAX_NODES} values")
        if len(target) > MAX_NESTING:
            self.fail(event, f"nested more than {MAX_NESTING} deep")
        self.positions.setdefault(target, self.positions[source])
        if isinstance(value, dict):
            return {
                key: self.copy(item, (*source, key), (*target, key), event)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [
                self.copy(item, (*source, index), (*target, index), event)
                for index, item in enumerate(value)
            ]
        return value


def build_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, Position]]:
    """Returns the value of a YAML text, of any kind, and the positions in it.

    Raises:
        FileFormatError: With line and column.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    builder = _YamlBuilder(name, YAML(typ="safe", pure=True).parse(text))
    try:
        return builder.build(), builder.positions
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(str(error.problem or error.context or "not YAML").split())
        if mark is None:
            raise FileFormatError(f"{name}: {message}") from None
        fail(name, mark.line + 1, mark.column + 1, message)
    except YAMLError as error:
        raise FileFormatError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    except FileFormatError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # The parser lets some malformed escapes and directives fall through as what they hit.
        raise FileFormatError(f"{name}: not YAML: {error or type(error).__name__}") from error
