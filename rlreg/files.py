"""Config files: reading, merging with presets and overrides, and writing.

The public face of `rlreg.documents` (parsing with positions), `rlreg.overrides` (layers and
origins) and `rlreg.yaml_text` (canonical and commented YAML).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlreg import registry
from rlreg.config import LearnableConfig
from rlreg.documents import SUFFIXES, Document, is_file_reference, read_document
from rlreg.errors import (
    CheckpointError,
    ConfigError,
    Problem,
    RlregError,
    UnknownNameError,
    VersionWarning,
    did_you_mean,
    format_path,
)
from rlreg.migrations import Migration, migrate
from rlreg.open_union import validate
from rlreg.overrides import Origin, Override, Settings, apply_overrides, parse_override, plain
from rlreg.problems import order_problems
from rlreg.run_config import RunConfig
from rlreg.yaml_reader import KeyPath, Position
from rlreg.yaml_text import commented_yaml, dump_yaml

__all__ = [
    "SUFFIXES",
    "Document",
    "Origin",
    "Override",
    "Position",
    "Settings",
    "apply_overrides",
    "collect",
    "commented_yaml",
    "dump_yaml",
    "is_file_reference",
    "load_config",
    "load_run",
    "parse_override",
    "read_document",
    "settle_settings",
]

Source = str | Path | Mapping[str, Any] | LearnableConfig | RunConfig


def load_config(
    source: Source, *, overrides: Iterable[str | Override] = (), preset: str | None = None
) -> LearnableConfig | RunConfig:
    """Reads and validates a config.

    Args:
        source: A file (.yaml, .yml, .toml, .json, .rlreg), a run folder, or a mapping.
        overrides: ``"key.path=value"``, applied last.
        preset: Id of a preset, applied beneath the file.

    Returns:
        A run if the source has ``learnable``, a learnable if it has ``type``.

    Raises:
        FileFormatError: If the file cannot be read or parsed.
        ConfigError: With everything that is wrong, each at its place, in the document's order.
    """
    return settle_settings(collect(source, overrides=overrides, preset=preset))


def load_run(
    source: Source, *, overrides: Iterable[str | Override] = (), preset: str | None = None
) -> RunConfig:
    """Like :func:`load_config`, but always gives a run.

    Args:
        source: As in :func:`load_config`, or the id of a learnable.
        overrides: ``"key.path=value"``; a key of the run or of the learnable.
        preset: Id of a preset, with or without the learnable in front.

    Raises:
        UnknownNameError: If ``source`` is neither a file nor an id.
        FileFormatError: If the file cannot be read or parsed.
        ConfigError: With everything that is wrong.
    """
    config = settle_settings(collect(source, overrides=overrides, preset=preset, as_run=True))
    assert isinstance(config, RunConfig)
    return config


def collect(
    source: Source,
    *,
    overrides: Iterable[str | Override] = (),
    preset: str | None = None,
    as_run: bool = False,
) -> Settings:
    """Merges preset, file and overrides without validating the result.

    Args:
        source: A file, run folder, mapping or config; with ``as_run`` also the id of a learnable.
        overrides: What the command line sets.
        preset: Id of a preset.
        as_run: Whether to put a learnable into a run.

    Raises:
        FileFormatError: If the file cannot be read or parsed.
        ConfigError: If the root is neither a run nor a learnable, or the preset does not fit it.
    """
    document = _document_of(source, accept_id=as_run)
    _require_root(document)
    if _is_record(source):
        _settle_tags(document)
        _bring_up(document)
    if as_run and "learnable" not in document.data:
        document = _in_run(document)
    settings = Settings(document.path)
    if "learnable" in document.data:
        learnable = document.data["learnable"]
        tag = learnable.get("type") if isinstance(learnable, dict) else None
        settings.data = {"learnable": {} if tag is None else {"type": tag}}
    else:
        settings.data = {"type": document.data["type"]}
    if preset is not None:
        if not isinstance(preset, str):
            raise ConfigError(f"preset: expected its name, got {preset!r}")
        _add_preset(settings, preset)
    settings.add_document(document)
    settings.add_overrides(overrides)
    return settings


def settle_settings(settings: Settings) -> LearnableConfig | RunConfig:
    """Validates merged settings.

    Raises:
        ConfigError: With everything that is wrong, each at its place.
    """
    _refuse_other_versions(settings)
    config: LearnableConfig | RunConfig | None = None
    try:
        config = validate(settings.root, settings.data)
        found = order_problems(config)
    except ConfigError as error:
        found = [_with_cause(settings, item) for item in error.problems]
    located = [settings.locate(item) for item in found]
    problems = [problem for _, problem in sorted(located, key=lambda item: item[0])]
    problems += settings.problems
    if config is None or problems:
        raise ConfigError(problems)
    return config


def _with_cause(settings: Settings, problem: Problem) -> Problem:
    """Says of a key that is not there which flag changed the type it was written for.

    A mapping in a file replaces one of another type, so that only ``--set`` leaves such keys.
    """
    parent = problem.path[:-1]
    if not problem.on_key or not parent:
        return problem
    key, tag = settings.origin_of(problem.path), settings.origin_of((*parent, "type"))
    if tag.layer != "flag" or key.layer in ("flag", "default"):
        return problem
    place = format_path(parent)
    hint = f"{tag.text} changed the part it was for; write all of it: {place}={{type: ...}}"
    return replace(problem, hint=hint)


def _document_of(source: Source, *, accept_id: bool) -> Document:
    if isinstance(source, RunConfig | LearnableConfig | Mapping):
        return Document("", plain(source))
    text = str(source)
    if accept_id and isinstance(source, str) and not is_file_reference(text):
        try:
            record = registry.resolve("learnable", text)
        except UnknownNameError:
            if Path(text).is_dir():  # a folder was meant: say what is wrong with it
                return read_document(text)
            raise
        return Document("", {"type": registry.reference(record.cls)})
    return read_document(source)


def _is_record(source: Source) -> bool:
    """Whether rlreg itself wrote it, in full: a checkpoint or a run folder."""
    if not isinstance(source, str | Path):
        return False
    return str(source).endswith(".rlreg") or Path(source).is_dir()


def _settle_tags(document: Document) -> None:
    """Reads bare tags as the lock says; a damaged one is told by who needs it."""
    if document.lock is not None:
        from rlreg.runtime.lock import lock_from_json, settle_tags

        with contextlib.suppress(CheckpointError):
            settle_tags(document.data, lock_from_json(document.lock))


def _bring_up(document: Document) -> None:
    """Migrates the record of an older schema version, with the report as a warning.

    A file that somebody wrote is left to `rlreg migrate`, which edits it where they see it.
    """
    learnable = document.data.get("learnable", document.data)
    tag = learnable.get("type") if isinstance(learnable, dict) else None
    if not isinstance(tag, str):
        return
    try:
        cls = registry.resolve("learnable", tag).cls
    except RlregError:
        return  # which validation says at its place
    version = learnable.get("schema_version")
    if not isinstance(version, int) or version >= cls.model_fields["schema_version"].default:
        return
    try:
        report = migrate(cls, learnable)
    except ConfigError as error:
        raise ConfigError(error.problems, subject=document.path) from error
    warnings.warn(f"{document.path}: migrated {'; '.join(report)}", VersionWarning, stacklevel=4)


def _require_root(document: Document) -> None:
    if "learnable" in document.data or "type" in document.data:
        return
    for key in document.data:
        for wanted in ("learnable", "type"):
            if did_you_mean(str(key), [wanted]):
                origin = document.origin((key,), on_key=True)
                hint = f"did you mean {wanted!r}?"
                raise ConfigError([Problem((key,), "no such key", "", hint, origin, on_key=True)])
    message = "expected `learnable` (a run) or `type` (a learnable) at the top"
    raise ConfigError([Problem((), message, origin=document.origin(()))])


def _in_run(document: Document) -> Document:
    """Puts the document of a learnable under ``learnable``; places stay what they were."""
    positions = {("learnable", *path): at for path, at in document.positions.items()}
    if () in document.positions:
        positions[()] = document.positions[()]
    return Document(document.path, {"learnable": document.data}, positions)


def _add_preset(settings: Settings, preset: str) -> None:
    cls = settings.learnable_class()
    if cls is None:
        return  # the learnable's tag is wrong, which validation says better
    tag = cls.get_type()
    qualified = preset if "/" in preset else f"{tag}/{preset}"
    record = registry.get_preset(qualified)
    if record.preset.learnable != tag:
        raise ConfigError(f"preset {preset!r} is for {record.preset.learnable!r}, not for {tag!r}")
    settings.add_preset(record.preset)


def _remedy(path: str, distribution: str, *, is_newer: bool) -> str:
    if is_newer:
        return f"upgrade it: pip install --upgrade {distribution}" if distribution else ""
    return f"bring it up to date: rlreg migrate {path}" if path else ""


def _refuse_other_versions(settings: Settings) -> None:
    """Says that a config was written for another version, instead of listing its unknown keys."""
    cls = settings.learnable_class()
    if cls is None:
        return
    given = settings.learnable.get("schema_version")
    current = cls.model_fields["schema_version"].default
    if isinstance(given, bool) or not isinstance(given, int | float) or given == current:
        return
    is_newer = given > current
    steps: tuple[Migration, ...] = getattr(cls, "migrations", ())
    if not is_newer and given not in {step.from_version for step in steps}:
        return  # no version that there ever was: validation says what is expected
    record = registry.provenance(cls)
    is_local = record.distribution == registry.LOCAL
    source = (
        "what this program registered" if is_local else f"{record.distribution} {record.version}"
    )
    prefix: KeyPath = ("learnable",) if settings.is_run else ()
    problem = Problem(
        (*prefix, "schema_version"),
        f"written for schema version {given} of {cls.get_type()}; this is version {current} from "
        f"{source}",
        hint=_remedy(settings.name, "" if is_local else record.distribution, is_newer=is_newer),
    )
    raise ConfigError([settings.locate(problem)[1]])
