"""``rlreg import``: models of other libraries, through what the installed learnables can read."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlreg.cli.output import echo_json, json_option
from rlreg.cli.paths import PathOf

if TYPE_CHECKING:
    from rlreg.config import LearnableConfig


@click.command()
@click.argument("library", metavar="LIBRARY")
@click.argument("source", metavar="FILE", type=PathOf())
@click.option("-o", "--output", type=PathOf(), required=True, help="File to write.")
@click.option("--learnable", metavar="ID", help="Which learnable reads it, if several could.")
@click.option("--force", is_flag=True, help="Replace the file of -o if it exists.")
@json_option
def import_command(
    *,
    library: str,
    source: Path,
    output: Path,
    learnable: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Convert a model of another library, e.g. rlreg import d3rlpy model.d3 -o model.rlreg.

    Nothing in FILE is run. A file of settings without weights becomes a run file (-o iql.yaml).
    """
    from rlreg.atomic_file import write_text
    from rlreg.errors import FileFormatError
    from rlreg.files import dump_yaml
    from rlreg.runtime.learnable import Learnable

    found = _read(library, source, learnable)
    is_model = isinstance(found, Learnable)
    _check_output(source, output, is_model)
    if output.exists() and not force:
        raise FileFormatError(f"{output}: exists already; choose another name or give --force")
    if isinstance(found, Learnable):
        found.save(output)
        config = found.config
    else:
        config = found
        write_text(output, dump_yaml(config))
    kind = "checkpoint" if is_model else "config"
    if as_json:
        echo_json({"file": str(output), "learnable": config.get_type(), "kind": kind})
        return
    click.echo(f"{output}: {kind} of {config.get_type()!r}, read from {source}")


def _read(library: str, source: Path, learnable: str | None) -> Any:
    """Lets the importers try, and gives what the first one makes of the file."""
    from rlreg.errors import ConfigError

    refusals: list[ConfigError] = []
    for config_class, path in _importers(library, learnable):
        try:
            return _load(config_class, path)(source, "cpu")
        except ConfigError as error:  # a file of another algorithm, or with what we lack
            refusals.append(error)
    raise refusals[0]


def _importers(library: str, learnable: str | None) -> Iterator[tuple[type[LearnableConfig], str]]:
    """Finds the importers of a library among the installed learnables.

    Raises:
        UnknownNameError: If there is none.
    """
    from rlreg import registry
    from rlreg.creation import get_config_class
    from rlreg.errors import UnknownNameError, did_you_mean

    listed = [info.id for info in registry.list_learnables()]
    names = listed if learnable is None else [learnable]
    classes = [get_config_class(name) for name in names]
    offered = {name for config_class in classes for name in config_class.importers}
    if library not in offered:
        known = f"installed learnables read {', '.join(sorted(offered)) or 'none'}"
        hint = did_you_mean(library, offered) or known
        raise UnknownNameError(f"no learnable imports models of {library!r}; {hint}")
    for config_class in classes:
        if library in config_class.importers:
            yield config_class, config_class.importers[library]


def _load(config_class: type[LearnableConfig], path: str) -> Callable[[Path, str], Any]:
    from rlreg.errors import PluginError

    module, _, name = path.partition(":")
    try:
        function: Callable[[Path, str], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(f"{config_class.__name__}.importers: {path!r}: {error}") from error
    return function


def _check_output(source: Path, output: Path, is_model: bool) -> None:
    if is_model and output.suffix != ".rlreg":
        raise click.UsageError(f"{source} is a model with weights: -o must end in .rlreg")
    if not is_model and output.suffix not in (".yaml", ".yml"):
        raise click.UsageError(
            f"{source} holds settings and no weights: -o must end in .yaml, or give the file with "
            "the weights"
        )
