"""``rlreg schema``: print, export and compare JSON Schemas, and make editors use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlreg.cli.output import documents_alone, echo_document, echo_json, json_option, note
from rlreg.cli.paths import PathOf
from rlreg.json_text import from_json

SUFFIX = ".schema.json"
flavour_option = click.option(
    "--flavour",
    type=click.Choice(["standard", "editor"]),
    help="standard: draft 2020-12; editor: the same for YAML language servers (draft-07).",
)


class SchemaGroup(click.Group):
    """Takes ``rlreg schema ID`` for ``rlreg schema print ID``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the hidden command in front where an id stands."""
        first = next((item for item in args if not item.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["print", *args]
        return super().parse_args(ctx, args)


@click.group(cls=SchemaGroup, subcommand_metavar="ID | export DIR | diff OLD NEW | install [DIR]")
def schema() -> None:
    """Print the JSON Schema of a learnable (or of run), export, compare or install schemas."""


@schema.command("print", hidden=True)
@click.argument("name", metavar="ID")
@click.option(
    "--scope",
    type=click.Choice(["all", "own"]),
    default="all",
    show_default=True,
    help="Close unions over everything installed, or over rlreg and the learnable's distribution.",
)
@flavour_option
@json_option
def print_schema(name: str, *, scope: Any, flavour: Any, as_json: bool) -> None:
    """Print the JSON Schema of a learnable, or of run."""
    del as_json  # a schema is JSON already
    from rlreg.manifest_index import installed_schema
    from rlreg.schema import dump_schema

    with documents_alone():
        schema = installed_schema(name, scope=scope, flavour=flavour or "standard")
        echo_document(dump_schema(schema))


# --- export -------------------------------------------------------------------------------------


@schema.command()
@click.argument("directory", type=PathOf(file_okay=False), metavar="DIR")
@click.option("--check", is_flag=True, help="Write nothing; exit with 3 if a file differs.")
@click.option("--installed", is_flag=True, help="Every installed learnable, over all members.")
@click.option("--learnable", "learnables", multiple=True, metavar="ID", help="Add this learnable.")
@flavour_option
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    directory: Path,
    *,
    check: bool,
    installed: bool,
    learnables: tuple[str, ...],
    flavour: str | None,
    as_json: bool,
) -> None:
    """Write NAME.schema.json for learnables, and run.schema.json, into DIR.

    Renews the files that DIR has, for schemas that are committed: their unions close over rlreg and
    the learnables' own distributions, so that they do not depend on what else is installed. What
    `rlreg schema install` wrote, for everything installed, stays so; so does the flavour.
    """
    from rlreg.cli.editors import replace_text

    wanted = _texts(directory, learnables, installed=installed, flavour=flavour)
    differing = [name for name, text in wanted.items() if _read(directory / name) != text]
    if check:
        if as_json:
            echo_json({"directory": str(directory), "differing": differing})
        for name in differing:
            note(
                f"{directory / name}: not what the code gives; run rlreg schema export {directory}"
            )
        ctx.exit(3 if differing else 0)
    for name in differing:
        replace_text(directory / name, wanted[name])
    if as_json:
        unchanged = [name for name in wanted if name not in differing]
        echo_json({"directory": str(directory), "written": differing, "unchanged": unchanged})
    else:
        click.echo(f"{directory}: {len(differing)} written, {len(wanted)} in all")


def _texts(
    directory: Path, learnables: Sequence[str], *, installed: bool, flavour: str | None
) -> dict[str, str]:
    """Returns the text of each schema file by its name."""
    from rlreg.cli.editors import read_schema
    from rlreg.registry import records, reference, resolve
    from rlreg.schema import dump_schema, json_schema
    from rlreg.schema_editor import is_editor_schema

    known = read_schema(directory / f"run{SUFFIX}") or {}
    kept: Any = flavour or ("editor" if is_editor_schema(known) else "standard")
    if installed:
        found = records("learnable")
    else:
        present = sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))
        names = dict.fromkeys([*present, *learnables])
        found = [resolve("learnable", name.replace("--", "/")) for name in names if name != "run"]
    is_open = installed or ":all" in str(known.get("$id", ""))
    scope: Any = "all" if is_open else "own"
    texts = {
        f"{reference(item.cls).replace('/', '--')}{SUFFIX}": dump_schema(
            json_schema(item.id, scope=scope, flavour=kept)
        )
        for item in found
    }
    owners = {item.distribution for item in found}
    run = json_schema("run", scope=scope, distributions=owners, flavour=kept)
    return {**texts, f"run{SUFFIX}": dump_schema(run)}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


# --- install ------------------------------------------------------------------------------------


@schema.command()
@click.argument("directory", type=PathOf(file_okay=False), default=".", metavar="[DIR]")
@click.option(
    "--files",
    "globs",
    multiple=True,
    default=("run.yaml", "*.run.yaml"),
    metavar="GLOB",
    show_default=True,
    help="Which files are run files; repeatable.",
)
@click.option("--vscode/--no-vscode", default=True, help="Register it in .vscode/settings.json.")
@click.option(
    "--pre-commit/--no-pre-commit",
    default=True,
    help="Add a check-jsonschema hook to .pre-commit-config.yaml.",
)
@json_option
def install(
    directory: Path, *, globs: tuple[str, ...], vscode: bool, pre_commit: bool, as_json: bool
) -> None:
    """Make VS Code and pre-commit check the run files of the project in DIR (default: here).

    Writes schemas/run.schema.json for everything installed. Settings that are there stay as they
    are, comments included; where that cannot be done nothing is written.
    """
    from rlreg.cli import editors

    texts = {}
    faces = (
        (vscode, ".vscode/settings.json", editors.vscode_settings, f"./{editors.RUN_SCHEMA}"),
        (pre_commit, ".pre-commit-config.yaml", editors.precommit_config, editors.RUN_SCHEMA),
    )
    for is_wanted, name, edit, reference in faces:
        if is_wanted:
            path = directory / name
            before = editors.read_text(path)
            after = edit(before, str(path), reference, globs)
            texts[path] = after if after != before else None
    written = []
    if editors.write_run_schema(directory / editors.RUN_SCHEMA):
        written.append(directory / editors.RUN_SCHEMA)
    for path, text in texts.items():
        if text is not None:
            editors.replace_text(path, text)
            written.append(path)
    if as_json:
        echo_json({"directory": str(directory), "written": [str(path) for path in written]})
    else:
        for path in written:
            click.echo(f"{path}: written")
        if not written:
            click.echo("all is there already")


# --- diff ---------------------------------------------------------------------------------------


@schema.command()
@click.argument("old")
@click.argument("new")
@json_option
@click.pass_context
def diff(ctx: click.Context, old: str, new: str, *, as_json: bool) -> None:
    """Compare two schemas, each a file of either flavour or an id; 3 if the change is breaking."""
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
    from rlreg.manifest_index import installed_schema

    if not name.endswith(".json"):
        if Path(name).exists():
            raise FileFormatError(
                f"{name}: expected a schema file (.json) or the id of a learnable; compare configs "
                "with: rlreg diff"
            )
        return installed_schema(name, scope="own")
    try:
        loaded = from_json(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"{name}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{name}: not JSON: {error}") from error
    if not isinstance(loaded, dict) or "$schema" not in loaded:
        raise FileFormatError(f"{name}: not a JSON Schema (it has no $schema)")
    return _standard(name, loaded)


def _standard(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Brings both flavours to one, so that a change of flavour is no change."""
    from rlreg.errors import FileFormatError
    from rlreg.schema_editor import DIALECT, is_editor_schema, standard_form

    if is_editor_schema(schema):
        return standard_form(schema)
    if schema["$schema"] != DIALECT:
        raise FileFormatError(
            f"{name}: $schema is {schema['$schema']!r}; expected what rlreg schema export writes, "
            f"{DIALECT} or draft-07 of the editor flavour"
        )
    return schema
