"""Arguments of calls: taken where their meaning is plain, refused with their name otherwise."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
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


def named_functions(name: str, value: Any) -> dict[str, Callable[..., Any]]:
    """Reads a mapping from names to functions; None is an empty one.

    Raises:
        ConfigError: If it is none.
    """
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: expected a mapping from names to functions, got {value!r}")
    for key, item in given.items():
        if not isinstance(key, str):
            raise ConfigError(f"{name}: expected names of functions, one is {key!r}")
        function(f"{name}[{key!r}]", item)
    return dict(given)


def function(name: str, value: Any) -> None:
    """Refuses what cannot be called.

    Raises:
        ConfigError: If it is no function.
    """
    if not callable(value):
        raise ConfigError(f"{name}: expected a function, got {value!r}")


def functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """Reads a list or tuple of functions.

    Raises:
        ConfigError: If it is none.
    """
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name}: expected a list of functions, got {value!r}")
    for index, item in enumerate(value):
        function(f"{name}[{index}]", item)
    return tuple(value)


def metrics_logger(name: str, value: Any) -> Any:
    """Reads something with a method ``metrics(step, dict)``, or None.

    Raises:
        ConfigError: If it has none.
    """
    if value is not None and not callable(getattr(value, "metrics", None)):
        raise ConfigError(f"{name}: expected something with metrics(step, dict), got {value!r}")
    return value
