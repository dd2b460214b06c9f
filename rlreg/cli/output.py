"""How commands print: one JSON document, or tables that fit the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

MIN_WRAPPED_WIDTH = 24


def json_option(function: F) -> F:
    """Adds ``--json``, passed as ``as_json``."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print exactly one JSON document to stdout."
    )
    return option(function)


_document_stream: TextIO | None = None


@contextlib.contextmanager
def documents_alone() -> Iterator[None]:
    """Inside the block stdout belongs to :func:`echo_json`; what plugins print goes to stderr."""
    global _document_stream
    before, _document_stream = _document_stream, sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _document_stream = before


def echo_json(document: Any, indent: int | None = 2) -> None:
    """Prints a document to stdout."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    click.echo(text, file=_document_stream)


def echo_document(text: str) -> None:
    """Prints a document that is text already, its last line with its end."""
    click.echo(text, file=_document_stream, nl=False)


def note(message: str) -> None:
    """Prints a remark to stderr, where it is in nobody's way."""
    click.echo(message, err=True)


def counted(number: int, thing: str) -> str:
    """Says how many things there are: ``1 finding``, ``2 findings``, ``1,000 steps``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _terminal_width(fallback: int = 120) -> int:
    """Like ``shutil.get_terminal_size``, without the archivers that shutil imports."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or fallback  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return fallback


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows in columns; the last column is wrapped to the width of the terminal."""
    if not rows:
        return
    table = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(header) - 1)]
    used = sum(widths) + 2 * len(widths)
    room = max(MIN_WRAPPED_WIDTH, _terminal_width() - used)
    for index, row in enumerate(table):
        lines = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        head = "".join(cell.ljust(width + 2) for cell, width in zip(row[:-1], widths, strict=True))
        click.echo((head + lines[0]).rstrip())
        for line in lines[1:]:
            click.echo(" " * used + line)
        if index == 0:
            click.echo("".join("-" * width + "  " for width in widths) + "-" * min(room, 40))
