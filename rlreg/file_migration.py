"""``rlreg migrate FILE``: brings a config file to today's schema version, comments kept."""

from __future__ import annotations

import io
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from rlreg import registry
from rlreg.atomic_file import write_text
from rlreg.documents import parse_document, read_document
from rlreg.errors import ConfigError, FileFormatError
from rlreg.files import load_config
from rlreg.migrations import guessed_version, migrate


def migrate_file(path: Path, *, dry_run: bool = False) -> list[str]:
    """Migrates the learnable in a YAML or JSON file, in place.

    Args:
        path: A file with a run or a learnable. One that does not state its schema version is of
            the oldest that had a key in it which is gone.
        dry_run: Whether to leave the file as it is and only report.

    Returns:
        What was done, one sentence a step; empty if the file is of today's version.

    Raises:
        FileFormatError: If the file cannot be read, or is TOML (which would lose its comments).
        ConfigError: If it comes from a later version, or is still wrong after the migration.
    """
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise FileFormatError(f"{path}: only YAML and JSON files are migrated in place")
    document, dump = _open(path)
    learnable = document.get("learnable", document)
    tag = learnable.get("type") if isinstance(learnable, MutableMapping) else None
    if not isinstance(tag, str):
        raise ConfigError(
            f"{path}: expected `learnable` (a run) or `type` (a learnable) at the top"
        )
    cls = registry.resolve("learnable", tag).cls
    version = guessed_version(cls, learnable)
    if version is not None:
        learnable["schema_version"] = version
    try:
        report = migrate(cls, learnable)
    except ConfigError as error:
        raise ConfigError(error.problems, subject=str(path)) from error
    if report and not dry_run:
        _replace(path, dump(document))
    elif not report:
        load_config(path)
    return report


def _open(path: Path) -> tuple[Any, Any]:
    data = read_document(path).data  # says with line and column what is wrong with the text
    if path.suffix == ".json":
        return data, lambda data: json.dumps(data, indent=2) + "\n"
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000  # lines are the author's business
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.representer.add_representer(type(None), _null)

    def dump(data: Any) -> str:
        out = io.StringIO()
        yaml.dump(data, out)
        return out.getvalue()

    try:
        return yaml.load(path.read_text(encoding="utf-8-sig")), dump
    except YAMLError as error:
        raise FileFormatError(f"{path}: {' '.join(str(error).split())}") from error


def _null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _replace(path: Path, text: str) -> None:
    """Writes the new text by rename, once it is known to be valid."""
    try:
        load_config(parse_document(text, path.suffix, str(path)).data)
    except ConfigError as error:
        raise ConfigError(error.problems, subject=f"{path} (migrated)") from error
    write_text(path, text)
