"""Whose code raised, and where: from a traceback to the plugin and the line at fault."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import PurePath

from rlreg.entry_points import PluginInfo, find_entry_points
from rlreg.errors import PluginError

OWN = "rlreg"


def package_of(info: PluginInfo) -> str:
    """Returns the top-level package that an entry point names."""
    return info.value.partition("[")[0].partition(":")[0].strip().partition(".")[0]


def place_in(error: BaseException, package: str) -> str:
    """Returns the innermost place inside a package that an error came through.

    Args:
        error: What was raised.
        package: A top-level package.

    Returns:
        ``rlreg_bc/learnable.py:12``; empty if the error never was in the package.
    """
    if isinstance(error, SyntaxError) and package in PurePath(error.filename or "").parts:
        return f"{_short(str(error.filename), package)}:{error.lineno}"
    found = [(file, line) for owner, file, line in _frames(error) if owner == package]
    return f"{_short(found[-1][0], package)}:{found[-1][1]}" if found else ""


def fault_of_plugin(error: BaseException) -> PluginError | None:
    """Returns what to say of an error that a plugin raised; ``None`` if it is rlreg's own.

    The innermost frame that belongs to rlreg or to a plugin decides, so that an error of torch
    counts for whoever called torch.
    """
    packages = {package_of(info): info for info in find_entry_points() if info.value}
    owners = [owner for owner, *_ in _frames(error) if owner == OWN or owner in packages]
    if isinstance(error, SyntaxError):
        parts = PurePath(error.filename or "").parts
        owners += [package for package in packages if package in parts]
    if not owners or owners[-1] == OWN:
        return None
    info = packages[owners[-1]]
    cause = " ".join(str(error).split())
    who = f"{info.distribution} {info.version}".strip()
    what = f"{type(error).__name__}: {cause}" if cause else type(error).__name__
    return PluginError(f"{who} raised {what} ({place_in(error, owners[-1])}); {_advice(error)}")


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install what provides the module {error.name.partition('.')[0]!r}"
    return "this is a fault of the plugin, not of rlreg"


def _frames(error: BaseException) -> Iterator[tuple[str, str, int]]:
    """Yields top-level package, file and line of each frame, the outermost first."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        yield owner, frame.f_code.co_filename, line


def _short(file: str, package: str) -> str:
    """Returns a file relative to the folder that its package is in."""
    parts = PurePath(file).parts
    if package not in parts:
        return parts[-1]
    start = len(parts) - 1 - parts[::-1].index(package)
    return "/".join(parts[start:])
