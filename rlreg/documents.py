"""Reading a config document: plain Python data, and where in the file each value stands.

The parsers stop at the data model that YAML, TOML and JSON share: mappings with string keys, lists,
strings, numbers, booleans and null. What one reader takes for something else than another (tags,
merge keys, dates, duplicate keys) is refused at its place. Nothing here knows what a config is.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from rlreg.archive import parse_json, read_header_members
from rlreg.errors import FileFormatError, format_path
from rlreg.json_text import from_json
from rlreg.yaml_reader import MAX_NESTING, TOO_LARGE, KeyPath, Position, build_yaml, fail

SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".rlreg")
"""What a file of rlreg ends in; anything else on a command line is an id or a run folder."""

RUN_FILE = "run.yaml"
LOCK_FILE = "rlreg.lock"
MAX_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """A config document as it was written.

    Attributes:
        path: Name for messages, as the user gave it; empty for a mapping from memory.
        data: The root mapping.
        positions: Places by path from the root; TOML has them for what stands on its own line,
            a checkpoint has none.
        lock: What a run folder or a checkpoint says of the code that it was made with, if it does.
    """

    path: str
    data: dict[str, Any]
    positions: Mapping[KeyPath, Position] = field(default_factory=dict)
    lock: Mapping[str, Any] | None = None

    def origin(self, path: KeyPath, *, on_key: bool = False) -> str:
        """Returns ``file:line:column`` of a value or key, or the file alone."""
        position = self.positions.get(path)
        if position is None:
            return self.path
        if on_key:
            return f"{self.path}:{position.key_line}:{position.key_column}"
        return f"{self.path}:{position.line}:{position.column}"


def is_file_reference(text: str) -> bool:
    """Whether a command-line argument means a file or a run folder, and not an id."""
    if not text.strip():  # Path("") is the working directory, which nobody means by nothing
        raise FileFormatError("expected a file, a run folder or an id, got an empty text")
    return text.lower().endswith(SUFFIXES) or (Path(text) / RUN_FILE).is_file()


def read_document(source: str | Path) -> Document:
    """Reads a config file, the ``run.yaml`` of a run folder or the config of a checkpoint.

    Raises:
        FileFormatError: If it is missing, unreadable or not what its suffix says; with line and
            column where there is one.
        CheckpointError: If a ``.rlreg`` file is no intact checkpoint.
    """
    if not str(source).strip():
        raise FileFormatError("expected a file or a run folder, got an empty text")
    if not isinstance(source, str | os.PathLike):
        raise FileFormatError(f"expected a file, a run folder or a mapping, got {source!r}")
    path = Path(source)
    name = str(source)
    lock: Mapping[str, Any] | None = None
    if path.is_dir():
        lock = _lock_beside(path)
        path, name = path / RUN_FILE, str(Path(name) / RUN_FILE)
        if not path.is_file():
            raise FileFormatError(
                f"{source}: this folder has no {RUN_FILE}, so it is no run folder"
            )
    if path.suffix.lower() not in SUFFIXES:
        raise FileFormatError(f"{name}: expected a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix.lower() == ".rlreg":
        return _read_checkpoint(path, name)
    document = parse_document(_read_text(path, name), path.suffix.lower(), name)
    return document if lock is None else replace(document, lock=lock)


def parse_document(text: str, suffix: str, name: str) -> Document:
    """Parses the text of a document whose format ``suffix`` names (``.yaml``, ``.toml``, ...)."""
    if suffix == ".json":
        return _parse_json(text, name)
    if suffix == ".toml":
        return _parse_toml(text, name)
    return _parse_yaml(text, name)


def _read_text(path: Path, name: str) -> str:
    _refuse_pipe(path, name)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileFormatError(f"{name}: there is no such file") from None
    except OSError as error:
        raise FileFormatError(f"{name}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise FileFormatError(f"{name}: larger than {MAX_BYTES >> 20} MiB; this is no config")
    return _decode(content, name)


def _refuse_pipe(path: Path, name: str) -> None:
    # Reading a pipe waits until somebody writes to it, which may be never.
    if path.exists() and not path.is_file():
        raise FileFormatError(f"{name}: no regular file")


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise FileFormatError(
            f"{name}:{line}:{column}: not UTF-8 (byte {content[error.start]:#04x})"
        ) from None


def _lock_beside(folder: Path) -> Mapping[str, Any] | None:
    """Reads the lock of a run folder; that it is missing or damaged is told by who needs it."""
    try:
        lock = from_json((folder / LOCK_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return lock if isinstance(lock, dict) else None


def _read_checkpoint(path: Path, name: str) -> Document:
    """Takes config and lock out of a checkpoint, without torch and without reading the weights."""
    _refuse_pipe(path, name)
    if not path.exists():
        raise FileFormatError(f"{name}: there is no such file")
    members = read_header_members(path)
    document = _parse_json(_decode(members["config.json"], name), name, has_positions=False)
    return replace(document, lock=parse_json(path, "lock.json", members["lock.json"]))


def _require_mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise FileFormatError(
            f"{where}: expected a mapping with `learnable` or `type` at the top, got {_kind(data)}"
        )
    return data


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# --- the formats --------------------------------------------------------------------------------


def _parse_yaml(text: str, name: str) -> Document:
    data, positions = build_yaml(text, name)
    return Document(name, _require_mapping(data, f"{name}:1:1"), positions)


# --- JSON ---------------------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t\n\r]*")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON; numbers must be finite")


class _JsonScanner:
    """Walks a JSON text that is known to be well-formed, for positions and duplicate keys."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.positions: dict[KeyPath, Position] = {}

    def place(self, index: int) -> tuple[int, int]:
        line = bisect.bisect_right(self.line_starts, index)
        return line, index - self.line_starts[line - 1] + 1

    def skip(self, index: int) -> int:
        match = _SPACE.match(self.text, index)
        assert match is not None
        return match.end()

    def value(self, index: int, path: KeyPath, key_index: int) -> tuple[Any, int]:
        if len(path) > MAX_NESTING:
            fail(self.name, *self.place(index), f"nested more than {MAX_NESTING} deep")
        self.positions[path] = Position(*self.place(index), *self.place(key_index))
        if self.text[index] == "{":
            return self.mapping(self.skip(index + 1), path)
        if self.text[index] == "[":
            return self.sequence(self.skip(index + 1), path)
        try:
            return self.decoder.raw_decode(self.text, index)
        except ValueError as error:
            message = TOO_LARGE if "digits" in str(error) else str(error)
            fail(self.name, *self.place(index), message)

    def sequence(self, index: int, path: KeyPath) -> tuple[list[Any], int]:
        items: list[Any] = []
        while self.text[index] != "]":
            item, index = self.value(index, (*path, len(items)), index)
            items.append(item)
            index = self.skip(index)
            if self.text[index] == ",":
                index = self.skip(index + 1)
        return items, index + 1

    def mapping(self, index: int, path: KeyPath) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        while self.text[index] != "}":
            key, end = self.decoder.raw_decode(self.text, index)
            if key in result:
                first = self.positions[(*path, key)].key_line
                message = f"the key {key!r} is already set in line {first}"
                fail(self.name, *self.place(index), message)
            colon = self.skip(end)
            result[key], end = self.value(self.skip(colon + 1), (*path, key), index)
            index = self.skip(end)
            if self.text[index] == ",":
                index = self.skip(index + 1)
        return result, index + 1


def _parse_json(text: str, name: str, *, has_positions: bool = True) -> Document:
    if not text.strip():
        raise FileFormatError(f"{name}: the file is empty")
    scanner = _JsonScanner(text, name)
    try:
        # Finds every fault of syntax, which the scanner then need not think of.
        json.loads(text, parse_int=str)
    except json.JSONDecodeError as error:
        fail(name, error.lineno, error.colno, f"not JSON: {error.msg}")
    except RecursionError:
        raise FileFormatError(f"{name}: nested more than {MAX_NESTING} deep") from None
    start = scanner.skip(0)
    data, _ = scanner.value(start, (), start)
    where = ":".join(map(str, (name, *scanner.place(start))))
    return Document(name, _require_mapping(data, where), scanner.positions if has_positions else {})


# --- TOML ---------------------------------------------------------------------------------------

_AT = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|(?P<end>.*))\)")
_KEY = re.compile(
    r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"))*"""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def _parse_toml(text: str, name: str) -> Document:
    if not text.strip():
        raise FileFormatError(f"{name}: the file is empty")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _AT.match(str(error))
        if match is None or match["line"] is None:
            lines = text.splitlines()
            fail(name, len(lines), len(lines[-1]) + 1, f"not TOML: {error}")
        fail(name, int(match["line"]), int(match["column"]), f"not TOML: {match['what']}")
    except RecursionError:
        raise FileFormatError(f"{name}: nested more than {MAX_NESTING} deep") from None
    except ValueError as error:
        message = TOO_LARGE if "digits" in str(error) else f"not TOML: {error}"
        raise FileFormatError(f"{name}: {message}") from None
    positions = dict(_toml_positions(text, data))
    document = Document(name, data, positions)
    _check_toml(data, (), document.origin)
    return document


def _check_toml(value: Any, path: KeyPath, origin: Callable[[KeyPath], str]) -> None:
    if len(path) > MAX_NESTING:
        raise FileFormatError(f"{origin(())}: nested more than {MAX_NESTING} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_toml(item, (*path, key), origin)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_toml(item, (*path, index), origin)
    elif not isinstance(value, str | int | float):
        raise FileFormatError(
            f"{origin(path)}: {format_path(path)} is a date or time; write it in quotes"
        )


def _toml_positions(text: str, data: Any) -> Iterator[tuple[KeyPath, Position]]:
    """Finds what stands on a line of its own; drops guesses that are not in the data."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        stripped = line.strip()
        is_table = stripped.startswith("[")
        match = _KEY.match(stripped.lstrip("[").lstrip() if is_table else stripped)
        if match is None:
            continue
        keys = tuple(part.strip("\"'") for part in _PART.findall(match.group()))
        if is_table:
            table = _through_arrays(keys, counts, is_new=stripped.startswith("[["))
            path, column = table, indent + 1
        else:
            rest = stripped[match.end() :]
            if not rest.lstrip().startswith("="):
                continue
            path = (*table, *keys)
            after = rest.lstrip()[1:]
            column = len(line.rstrip()) - len(after.lstrip()) + 1
        if _exists(data, path):
            yield path, Position(number, column, number, indent + 1)


def _through_arrays(keys: KeyPath, counts: dict[KeyPath, int], *, is_new: bool) -> KeyPath:
    """Returns the path of a table header, with the index of each array of tables on its way."""
    path: KeyPath = ()
    for position, key in enumerate(keys):
        path = (*path, key)
        if is_new and position == len(keys) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _exists(data: Any, path: KeyPath) -> bool:
    for part in path:
        is_item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not is_item and not (isinstance(data, dict) and part in data):
            return False
        data = data[part]
    return True
