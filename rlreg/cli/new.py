"""``rlreg new``: a plugin to start from."""

from __future__ import annotations

from pathlib import Path

import click

from rlreg.cli.output import counted, echo_json, json_option
from rlreg.cli.paths import PathOf

KINDS_HELP = "A component of this kind instead: encoder, optimizer, ..., logger."


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--offline/--online", "is_offline", default=None, help="Learns from data (default), or acting."
)
@click.option("--component", metavar="KIND", help=KINDS_HELP)
@click.option(
    "-o",
    "--output",
    type=PathOf(file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Folder to write rlreg-NAME into; here by default.",
)
@json_option
def new(
    name: str, *, is_offline: bool | None, component: str | None, output: Path, as_json: bool
) -> None:
    """Write ./rlreg-NAME, a complete plugin with a learnable NAME.

    Untouched, it installs, passes rlreg check and trains. It is written whole or not at all.
    """
    from rlreg.scaffold import Project, write

    if component is not None and is_offline is not None:
        raise click.UsageError("a component is neither --offline nor --online")
    regime = "online" if is_offline is False else "offline"
    project = Project(name, regime, component or "")
    folder = write(project, output)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if as_json:
        echo_json(
            {"folder": str(folder), "distribution": project.distribution, "name": name}
            | {"kind": component or "learnable", "files": files}
        )
        return
    click.echo(f"{folder}: {counted(len(files), 'file')}; go on with\n")
    place = folder if folder.is_absolute() else f"./{folder}"
    click.echo(f"  pip install -e '{place}[test]'")
    click.echo(f"  rlreg check {project.distribution}")
    if component is None:
        target = "--env CartPole-v1" if regime == "online" else "--steps 2000"
        click.echo(f"  rlreg train {name} {target}")
