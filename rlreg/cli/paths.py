"""Paths on a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class PathOf(click.Path):
    """A path; an empty text is none (to :class:`pathlib.Path` it is the current folder).

    Args:
        file_okay: Whether it may be a file.
    """

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuses an empty text."""
        if value == "":
            self.fail("expected a path, got an empty text", param, ctx)
        return super().convert(value, param, ctx)
