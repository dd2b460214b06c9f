"""Which plugins the user wants off.

Three places say so, each a comma-separated list of distribution or entry-point names:
``RLREG_BLOCK_PLUGINS``, ``RLREG_ONLY_PLUGINS`` and the list that ``rlreg plugins block`` keeps in
the user's config folder. A blocked plugin is never imported, and nothing here imports one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rlreg.errors import FileFormatError
from rlreg.json_text import from_json

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_VARIABLE = "RLREG_BLOCK_PLUGINS"
ONLY_VARIABLE = "RLREG_ONLY_PLUGINS"


def normalize(name: str) -> str:
    """Returns a distribution name in the form of PEP 503: ``My.Plug_in`` -> ``my-plug-in``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _split(text: str) -> frozenset[str]:
    return frozenset(normalize(part.strip()) for part in text.split(",") if part.strip())


def block_file() -> Path:
    """Returns the file in which ``rlreg plugins block`` keeps its list."""
    from pathlib import Path

    return Path(_block_path())


def _block_path() -> str:
    platform: str = sys.platform  # plain, or mypy sees one system only
    if platform.startswith("linux"):  # what platformdirs says there, at a tenth of a listing's time
        home = os.environ.get("XDG_CONFIG_HOME", "").strip() or os.path.expanduser("~/.config")
        return os.path.join(home, "rlreg", "blocked-plugins.json")
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("rlreg"), "blocked-plugins.json")


def read_block_file() -> frozenset[str]:
    """Returns the names blocked for this user.

    Raises:
        FileFormatError: If the file is there but is not a JSON list of names.
    """
    path = _block_path()
    try:
        with open(path, encoding="utf-8") as file:
            names = from_json(file.read())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); delete or mend it") from error
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise FileFormatError(f"{path}: expected a JSON list of names; delete or mend it")
    return frozenset(normalize(name) for name in names)


def write_block_file(names: Iterable[str]) -> None:
    """Replaces the list of blocked names, by rename."""
    from rlreg.atomic_file import write_text

    path = block_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(sorted(normalize(name) for name in names)) + "\n")


class BlockList(NamedTuple):
    """What is off, and why."""

    blocked: frozenset[str]
    only: frozenset[str]
    from_file: frozenset[str]

    @classmethod
    def read(cls) -> BlockList:
        """Reads the environment and the user's file."""
        return cls(
            blocked=_split(os.environ.get(BLOCK_VARIABLE, "")),
            only=_split(os.environ.get(ONLY_VARIABLE, "")),
            from_file=read_block_file(),
        )

    def reason(self, distribution: str, entry_point: str) -> tuple[str, str] | None:
        """Returns why a plugin is off and how to turn it on, or ``None`` if it is on."""
        names = {normalize(distribution), normalize(entry_point)}
        if names & self.blocked:
            return f"named in {BLOCK_VARIABLE}", f"take it out of {BLOCK_VARIABLE}"
        if self.only and not names & self.only:
            return f"not named in {ONLY_VARIABLE}", f"add it to {ONLY_VARIABLE}, or unset that"
        if names & self.from_file:
            return f"blocked in {_block_path()}", f"rlreg plugins unblock {distribution}"
        return None

    def unknown(self, known: Iterable[str]) -> list[str]:
        """Returns what the environment names although no installed plugin is called so.

        Args:
            known: Names of the installed distributions and entry points.
        """
        names = {normalize(name) for name in known}
        return [
            f"{variable} names {name!r}, which no installed plugin is called"
            for variable, wanted in ((BLOCK_VARIABLE, self.blocked), (ONLY_VARIABLE, self.only))
            for name in sorted(wanted - names)
        ]
