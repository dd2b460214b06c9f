"""``rlreg docs``."""

from __future__ import annotations

from pathlib import Path

import click

from rlreg.cli.output import counted, echo_json, json_option
from rlreg.cli.paths import PathOf


@click.group()
def docs() -> None:
    """Build the config reference of everything that is installed."""


@docs.command()
@click.argument("directory", type=PathOf(), metavar="DIR")
@click.option("--learnable", "learnables", multiple=True, metavar="ID", help="Only this learnable.")
@click.option(
    "--guide",
    "guides",
    multiple=True,
    type=PathOf(),
    metavar="PATH",
    help="Add a Markdown file, or those of a folder, as pages.",
)
@json_option
def build(
    directory: Path, learnables: tuple[str, ...], guides: tuple[Path, ...], *, as_json: bool
) -> None:
    """Write the reference to DIR, as Markdown and as HTML that works offline.

    Its page builder.html makes configs in the browser, from the same schemas.
    A folder that holds something else is left alone.
    """
    from rlreg.reference.build import build_reference

    written = build_reference(directory, learnables=list(learnables) or None, guides=guides)
    if as_json:
        echo_json({"directory": str(directory), "files": [str(path) for path in written]})
    else:
        click.echo(f"{directory / 'index.html'}: {counted(len(written), 'file')}")
