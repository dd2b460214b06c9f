"""Arguments of calls: taken where their meaning is plain, refused with their name otherwise."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

from rlreg.errors import ConfigError


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Reads a whole number: an int, or one of numpy or torch; no float, text or bool.

    Raises:
        ConfigError: If it is none, or below ``least``.
    """
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        number = None if is_bool else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{name} = {value!r}: expected a whole number of at least {least}")
    if number < least:
        raise ConfigError(f"{name} = {number}: must be at least {least}")
    return number


def file_path(name: str, value: Any) -> Path:
    """Reads the path of a file.

    Raises:
        ConfigError: If it is no path, empty, or a folder.
    """
    is_path = isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)
    if not is_path or not os.fspath(value):
        raise ConfigError(f"{name}: expected the path of a file, got {value!r}")
    path = Path(value)
    if path.is_dir():
        raise ConfigError(f"{name}: {str(value)!r} is a folder; expected the path of a file")
    return path
