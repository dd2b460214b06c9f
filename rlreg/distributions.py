"""The distributions on this machine that have entry points of the group ``rlreg``.

Read from the metadata folders one by one. ``importlib.metadata.entry_points()`` would raise on a
malformed file of any unrelated package, and importing it costs more than all of this scan; it is
used for what does not lie in a folder (zip files on the path).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

_VALUE = re.compile(r"[A-Za-z_][\w.]*(\s*:\s*[A-Za-z_][\w.]*)?(\s*\[.*\])?\Z")


class Distribution(NamedTuple):
    """A distribution with ``rlreg`` entry points.

    Attributes:
        name: As its metadata spells it, or as its folder is called if there is none.
        version: Empty if the metadata has none.
        location: Folder of the metadata.
        entry_points: Name and value of each.
        fault: Why the entry points cannot be read; empty if they can.
    """

    name: str
    version: str
    location: str
    entry_points: tuple[tuple[str, str], ...]
    fault: str = ""


def scan(group: str) -> Iterator[Distribution]:
    """Yields the distributions with entry points of ``group``, in the order of ``sys.path``."""
    seen: set[str] = set()
    for entry in sys.path:
        folder = os.path.realpath(entry or os.getcwd())
        if folder in seen:
            continue
        seen.add(folder)
        if os.path.isfile(folder):
            yield from _scan_archive(folder, group)
        else:
            yield from _scan_folder(folder, group)


def _scan_folder(folder: str, group: str) -> Iterator[Distribution]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    wanted = f"[{group}]".encode()
    for name in names:
        if not name.endswith((".dist-info", ".egg-info")):
            continue
        place = os.path.join(folder, name)
        content = _read_bytes(f"{place}{os.sep}entry_points.txt")
        if wanted in content and (text := _decode(content)):
            yield _distribution(place, text, group)


def _scan_archive(path: str, group: str) -> Iterator[Distribution]:
    import importlib.metadata

    try:
        found = list(importlib.metadata.distributions(path=[path]))
    except Exception:  # noqa: BLE001 - a stranger's archive may fail in any way
        return
    for item in found:
        text = item.read_text("entry_points.txt") or ""
        if f"[{group}]" in text:
            headers = item.read_text("METADATA") or ""
            place = f"{path}/{_header(headers, 'Name') or 'unknown'}.dist-info"
            yield _distribution(place, text, group, headers)


def _distribution(place: str, text: str, group: str, headers: str | None = None) -> Distribution:
    if headers is None:
        headers = _read(os.path.join(place, "METADATA")) or _read(os.path.join(place, "PKG-INFO"))
    stem = os.path.basename(place).rpartition(".")[0].partition("-")[0]
    name, version = _header(headers, "Name") or stem, _header(headers, "Version")
    points, fault = _parse(text, group)
    return Distribution(name, version, place, points, fault)


def _read(path: str) -> str:
    return _decode(_read_bytes(path))


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # not readable, so nobody can tell that it is a plugin of ours


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""


def _header(headers: str, name: str) -> str:
    for line in headers.splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key == name:
            return value.strip()
    return ""


def _parse(text: str, group: str) -> tuple[tuple[tuple[str, str], ...], str]:
    points: list[tuple[str, str]] = []
    section = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group:
            name, equals, value = (part.strip() for part in line.partition("="))
            if not (equals and name and _VALUE.match(value)):
                return (), f"entry_points.txt, line {number}: expected name = module, got {line!r}"
            points.append((name.strip("\"'"), value))
    return tuple(points), ""
