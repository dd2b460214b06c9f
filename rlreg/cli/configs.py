"""``rlreg init``, ``validate``, ``explain``, ``diff`` and ``migrate``: commands on config files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlreg.cli.output import echo_json, echo_table, json_option, note
from rlreg.cli.paths import PathOf

if TYPE_CHECKING:
    from rlreg.config import LearnableConfig
    from rlreg.overrides import Settings
    from rlreg.run_config import RunConfig

preset_option = click.option("--preset", metavar="P", help="Preset, beneath the file.")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="K.PATH=VALUE", help="Set a value; repeatable."
)


@click.command()
@click.argument("name", metavar="ID")
@preset_option
@set_option
@click.option("-o", "--output", type=PathOf(), metavar="FILE", help="Write here.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--schema",
    metavar="PATH",
    help="Schema for editor completion, from the folder of FILE; by default "
    "schemas/run.schema.json of this folder, which is made if it is not there.",
)
@json_option
def init(
    name: str,
    *,
    preset: str | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    schema: str | None,
    as_json: bool,
) -> None:
    """Write a run file in which every field is explained, to FILE or to stdout."""
    from rlreg.errors import FileFormatError
    from rlreg.files import commented_yaml, load_run

    if output is not None and output.suffix not in (".yaml", ".yml"):
        raise FileFormatError(f"{output}: the file must end in .yaml or .yml")
    run = load_run(name, preset=preset, overrides=overrides)
    text = commented_yaml(run, schema=schema or _schema_reference(output))
    if output is not None:
        _write(output, text, force=force)
        if schema is None:
            _provide_schema(output)
    if as_json:
        echo_json({"file": None if output is None else str(output), "text": text})
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{output}: written; train it with: rlreg train {output}")


def _schema_reference(output: Path | None) -> str:
    """Returns the way from the folder of a run file to the schema that its editor shall use."""
    from rlreg.cli.editors import RUN_SCHEMA

    if output is None:
        return RUN_SCHEMA
    return Path(os.path.relpath(_schema_file(output), output.parent)).as_posix()


def _schema_file(output: Path) -> Path:
    """A project has one, in the folder where the command runs, or else beside the file."""
    from rlreg.cli.editors import RUN_SCHEMA

    is_inside = output.resolve().is_relative_to(Path.cwd().resolve())
    return (Path() if is_inside else output.parent) / RUN_SCHEMA


def _provide_schema(output: Path) -> None:
    from rlreg.cli.editors import write_run_schema

    path = _schema_file(output)
    if not path.exists():
        write_run_schema(path)
        note(f"{path}: written, for completion in your editor; renew it with rlreg schema install")


def _write(path: Path, text: str, *, force: bool) -> None:
    from rlreg.atomic_file import write_text
    from rlreg.errors import FileFormatError

    if path.exists() and not force:
        raise FileFormatError(f"{path}: exists already; choose another name or give --force")
    try:
        write_text(path, text)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror}") from error


@click.command()
@click.argument("file")
@preset_option
@set_option
@json_option
def validate(file: str, *, preset: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a config file; opens no data and no environment.

    Every fault is reported with file, line and column. A run may leave its environment to
    rlreg train --env.
    """
    from rlreg.files import collect, settle_settings

    settings = collect(file, preset=preset, overrides=overrides)
    config = settle_settings(settings)
    _refuse_misplaced(config, settings)
    what, name = _nature(config)
    if as_json:
        echo_json({"file": file, "valid": True, "kind": what, "learnable": name})
    else:
        click.echo(f"{file}: valid, a {what} of {name}")


def _refuse_misplaced(config: LearnableConfig | RunConfig, settings: Settings) -> None:
    """Raises where a run has what its learnable, offline or online, has no use for."""
    from rlreg.errors import ConfigError
    from rlreg.run_config import RunConfig
    from rlreg.runtime.settling import settle_run  # light, as all that it imports

    if not isinstance(config, RunConfig):
        return
    try:
        settle_run(config)
    except ConfigError as error:
        located = [
            settings.locate(problem)
            for problem in error.problems
            if not (problem.path == ("env",) and config.env is None)
        ]
        problems = [problem for _, problem in sorted(located, key=lambda item: item[0])]
        if problems:
            raise ConfigError(problems) from None


def _nature(config: LearnableConfig | RunConfig) -> tuple[str, str]:
    from rlreg.config import LearnableConfig
    from rlreg.registry import reference

    if isinstance(config, LearnableConfig):
        return "config", reference(type(config))
    return "run", reference(type(config.learnable))


# --- explain ------------------------------------------------------------------------------------


@click.command()
@click.argument("file")
@preset_option
@set_option
@click.option("--changed", is_flag=True, help="Leave out what is a default.")
@json_option
def explain(
    file: str, *, preset: str | None, overrides: tuple[str, ...], changed: bool, as_json: bool
) -> None:
    """Show each value of a config, where it comes from and what is allowed.

    The origin is a default, a preset, a place in the file or a flag; later ones win. What a run
    leaves open is shown as training fills it in.
    """
    from rlreg.cli.explanation import explanation
    from rlreg.files import collect, settle_settings
    from rlreg.run_config import RunConfig
    from rlreg.run_defaults import fill_in
    from rlreg.yaml_text import flow

    settings = collect(file, preset=preset, overrides=overrides)
    config = settle_settings(settings)
    rows = explanation(fill_in(config) if isinstance(config, RunConfig) else config, settings)
    if changed:
        rows = [row for row in rows if row["layer"] != "default"]
    if as_json:
        echo_json({"file": file, "values": rows})
        return
    table = [
        (row["path"], flow(row["value"]), row["origin"], row["allowed"], row["source"])
        for row in rows
    ]
    echo_table(("key", "value", "origin", "allowed", "source of the default"), table)


# --- diff and migrate ---------------------------------------------------------------------------


@click.command()
@click.argument("a")
@click.argument("b")
@json_option
def diff(a: str, b: str, *, as_json: bool) -> None:
    """Compare two configs by meaning: files, run folders, checkpoints or ids.

    Order, comments and values that equal the default make no difference. A run compared with the
    config of a learnable counts by its learnable.
    """
    from rlreg.identity import differences, is_missing

    changes = [
        {"path": path}
        | {side: value for side, value in zip("ab", values, strict=True) if not is_missing(value)}
        for path, values in differences(_load(a), _load(b)).items()
    ]
    if as_json:
        echo_json({"a": a, "b": b, "equal": not changes, "changes": changes})
        return
    if not changes:
        click.echo("no difference")
    from rlreg.yaml_text import flow

    rows = [
        (
            item["path"],
            flow(item["a"]) if "a" in item else "-",
            flow(item["b"]) if "b" in item else "-",
        )
        for item in changes
    ]
    echo_table(("key", a, b), rows)


def _load(name: str) -> LearnableConfig | RunConfig:
    from rlreg.creation import make_config
    from rlreg.files import is_file_reference, load_config

    if is_file_reference(name) or Path(name).exists():
        return load_config(name)
    return make_config(name)


@click.command()
@click.argument("file", type=PathOf())
@click.option("--dry-run", is_flag=True, help="Report what would change and leave the file alone.")
@json_option
def migrate(file: Path, *, dry_run: bool, as_json: bool) -> None:
    """Bring a config file to the installed schema version, in place, comments kept."""
    from rlreg.file_migration import migrate_file

    report = migrate_file(file, dry_run=dry_run)
    if as_json:
        echo_json({"file": str(file), "changed": bool(report) and not dry_run, "steps": report})
        return
    for line in report:
        click.echo(line)
    if not report:
        click.echo(f"{file}: is of the latest schema version; nothing to do")
    elif dry_run:
        click.echo(f"{file}: left as it is")
    else:
        click.echo(f"{file}: migrated")
