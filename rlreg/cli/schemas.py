"""``rlreg schema``: print, export and compare JSON Schemas."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlreg.cli.output import echo_json, json_option, note

SUFFIX = ".schema.json"


class SchemaGroup(click.Group):
    """Takes ``rlreg schema ID`` for ``rlreg schema print ID``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the hidden command in front where an id stands."""
        first = next((item for item in args if not item.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["print", *args]
        return super().parse_args(ctx, args)


@click.group(cls=SchemaGroup, subcommand_metavar="ID | export DIR | diff OLD NEW")
def schema() -> None:
    """Print the JSON Schema of a learnable (or of run), export schemas, or compare two."""


@schema.command("print", hidden=True)
@click.argument("name", metavar="ID")
@click.option(
    "--scope",
    type=click.Choice(["all", "own"]),
    default="all",
    show_default=True,
    help="Close unions over everything installed, or over rlreg and the learnable's distribution.",
)
@json_option
def print_schema(name: str, *, scope: Any, as_json: bool) -> None:
    """Print the JSON Schema (draft 2020-12) of a learnable, or of run."""
    del as_json  # a schema is JSON already
    from rlreg.schema import dump_schema, json_schema

    click.echo(dump_schema(json_schema(name, scope=scope)), nl=False)


# --- export -------------------------------------------------------------------------------------


@schema.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--check", is_flag=True, help="Write nothing; exit with 3 if a file differs.")
@click.option("--installed", is_flag=True, help="Every installed learnable, over all members.")
@click.option("--learnable", "learnables", multiple=True, metavar="ID", help="Add this learnable.")
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    directory: Path,
    *,
    check: bool,
    installed: bool,
    learnables: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write NAME.schema.json for learnables, and run.schema.json, into DIR.

    Renews the files that DIR has, for schemas that are committed: their unions close over rlreg and
    the learnables' own distributions, so that they do not depend on what else is installed.
    """
    wanted = _texts(directory, learnables, installed=installed)
    differing = [name for name, text in wanted.items() if _read(directory / name) != text]
    if check:
        if as_json:
            echo_json({"directory": str(directory), "differing": differing})
        for name in differing:
            note(
                f"{directory / name}: not what the code gives; run rlreg schema export {directory}"
            )
        ctx.exit(3 if differing else 0)
    directory.mkdir(parents=True, exist_ok=True)
    for name in differing:
        _replace(directory / name, wanted[name])
    if as_json:
        unchanged = [name for name in wanted if name not in differing]
        echo_json({"directory": str(directory), "written": differing, "unchanged": unchanged})
    else:
        click.echo(f"{directory}: {len(differing)} written, {len(wanted)} in all")


def _texts(directory: Path, learnables: Sequence[str], *, installed: bool) -> dict[str, str]:
    """Returns the text of each schema file by its name."""
    from rlreg.registry import records, reference, resolve
    from rlreg.schema import dump_schema, json_schema

    if installed:
        found = records("learnable")
    else:
        present = sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))
        names = dict.fromkeys([*present, *learnables])
        found = [resolve("learnable", name.replace("--", "/")) for name in names if name != "run"]
    scope: Any = "all" if installed else "own"
    texts = {
        f"{reference(item.cls).replace('/', '--')}{SUFFIX}": dump_schema(
            json_schema(item.id, scope=scope)
        )
        for item in found
    }
    owners = {item.distribution for item in found}
    texts[f"run{SUFFIX}"] = dump_schema(json_schema("run", scope=scope, distributions=owners))
    return texts


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


# --- diff ---------------------------------------------------------------------------------------


@schema.command()
@click.argument("old")
@click.argument("new")
@json_option
@click.pass_context
def diff(ctx: click.Context, old: str, new: str, *, as_json: bool) -> None:
    """Compare two schemas, each a schema file or an id; exits with 3 if the change is breaking."""
    from rlreg.schema_diff import compare_schemas

    changes = compare_schemas(_schema(old), _schema(new))
    is_breaking = any(change.is_breaking for change in changes)
    if as_json:
        rows = [{"path": c.path, "message": c.message, "breaking": c.is_breaking} for c in changes]
        echo_json({"breaking": is_breaking, "changes": rows})
    else:
        for change in changes:
            click.echo(
                f"{'breaking' if change.is_breaking else 'ok':9}{change.path}: {change.message}"
            )
        if not changes:
            click.echo("no difference")
    if is_breaking:
        ctx.exit(3)


def _schema(name: str) -> dict[str, Any]:
    from rlreg.errors import FileFormatError
    from rlreg.schema import json_schema

    if not name.endswith(".json"):
        return json_schema(name, scope="own")
    try:
        loaded = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"{name}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{name}: not JSON: {error}") from error
    if not isinstance(loaded, dict) or "$schema" not in loaded:
        raise FileFormatError(f"{name}: not a JSON Schema (it has no $schema)")
    return loaded
