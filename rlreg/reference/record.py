"""One record per config class: what the reference, the command line and commented files show.

Types and ranges are read from the class's JSON Schema, so that what is shown is what is checked.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from rlreg import registry
from rlreg.blocking import normalize
from rlreg.config import KINDS, LearnableConfig, Preset
from rlreg.open_union import OpenUnion
from rlreg.reference.groups import group_fields
from rlreg.reference.history import Change, history_of
from rlreg.reference.prose import take_paper
from rlreg.reference.shapes import shape_of
from rlreg.run_config import RunConfig
from rlreg.schema import json_schema

_SOURCE = re.compile(r"\s*\bDefault: (?P<source>.+?)\.?\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """One field as a reader sees it.

    Attributes:
        name: Key in files.
        type: ``number``, ``list of integers``, ``encoder or null``, ...
        range: ``0 < x <= 1``, ``relu, tanh``, ``1 to 64 items``; empty where anything goes.
        default: Plain data; ``None`` also where there is no default (``is_required``).
        is_required: Whether a file must state it.
        description: What it does, without the sentence on its default.
        source: Where the default comes from, e.g. ``paper, table 3``; empty where nobody says.
        kinds: Component kinds it takes.
        section: Name of the settings class it holds, for the nested parts of a run.
    """

    name: str
    type: str
    range: str
    default: Any
    is_required: bool
    description: str
    source: str
    kinds: tuple[str, ...] = ()
    section: str = ""


@dataclass(frozen=True, slots=True)
class ClassRecord:
    """One config class as a reader sees it.

    Attributes:
        cls: The class.
        kind: ``learnable``, a component kind, or ``run`` for a part of the run file.
        name: Its tag; for a part of the run file its class name.
        reference: Shortest name that means it: the tag, or ``distribution/tag``.
        slug: ``reference`` in a form that is a file name on every system.
        id: Qualified name.
        summary: First line of the docstring.
        details: The rest of it.
        regime: ``offline``, ``online`` or empty.
        distribution: Who provides it.
        version: The provider's version.
        fields: Every field but the tag.
        presets: Presets of a learnable.
        paper: What its docstring cites on a line that starts with ``Paper:``.
        schema_version: The version of a learnable's schema.
        history: What each version of the schema changed, newest first.
    """

    cls: type[BaseModel]
    kind: str
    name: str
    reference: str
    slug: str
    id: str
    summary: str
    details: str
    regime: str
    distribution: str
    version: str
    fields: tuple[FieldRecord, ...]
    presets: tuple[registry.PresetRecord, ...] = ()
    paper: str = ""
    schema_version: int = 1
    history: tuple[Change, ...] = ()

    @property
    def groups(self) -> dict[str, tuple[FieldRecord, ...]]:
        """The fields by the name of their group; components and parts of a run have one."""
        if self.kind != "learnable":
            return {"": self.fields} if self.fields else {}
        return group_fields(self.cls, self.fields)

    @property
    def provenance(self) -> str:
        """Distribution and version in words."""
        if self.distribution == registry.LOCAL:
            return "registered in this process"
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def import_path(self) -> tuple[str, str]:
        """Module and name of the class."""
        return self.cls.__module__, self.cls.__qualname__

    def as_json(self) -> dict[str, Any]:
        """Returns the record as plain data."""
        return {
            "name": self.name,
            "id": self.id,
            "kind": self.kind,
            "summary": self.summary,
            "details": self.details,
            "paper": self.paper,
            "regime": self.regime,
            "distribution": self.distribution,
            "version": self.version,
            "fields": [
                {
                    "name": item.name,
                    "type": item.type,
                    "range": item.range,
                    "default": item.default,
                    "required": item.is_required,
                    "description": item.description,
                    "source": item.source,
                    "kinds": list(item.kinds),
                }
                for item in self.fields
            ],
            "presets": [preset_as_json(item.preset) for item in self.presets],
        }


def preset_as_json(preset: Preset) -> dict[str, Any]:
    """Returns a preset as plain data."""
    from rlreg.overrides import plain

    return {
        "id": preset.id,
        "summary": preset.summary,
        "source": preset.source,
        "settings": plain(preset.settings),
    }


# --- records ------------------------------------------------------------------------------------


def record_of(cls: type[BaseModel]) -> ClassRecord:
    """Describes a registered class, or a part of the run file."""
    summary, details = _docstring(cls)
    paper, details = take_paper(details)
    fields = _fields(cls)
    if not issubclass(cls, OpenUnion):
        return ClassRecord(
            cls, "run", cls.__name__, "run", "run", "rlreg/run", summary, details, "", "rlreg",
            _own_version(), fields,
        )  # fmt: skip
    known = registry.provenance(cls)
    reference = registry.reference(cls)
    presets = registry.list_presets(known.name) if known.kind == "learnable" else []
    return ClassRecord(
        cls=cls,
        kind=known.kind,
        name=known.name,
        reference=reference,
        slug=known.name if reference == known.name else _qualified_slug(known),
        id=known.id,
        summary=summary,
        details=details,
        regime=str(getattr(cls, "regime", "")),
        distribution=known.distribution,
        version=known.version,
        fields=fields,
        presets=tuple(presets),
        paper=paper,
        schema_version=_schema_version(cls),
        history=history_of(getattr(cls, "migrations", ())),
    )


def _schema_version(cls: type[BaseModel]) -> int:
    info = cls.model_fields.get("schema_version")
    return int(info.default) if info is not None else 1


def _qualified_slug(known: registry.Record) -> str:
    # A tag has no dot, so that a qualified slug never equals a bare one.
    return f"{re.sub(r'[^a-z0-9-]', '-', normalize(known.distribution))}.{known.name}"


def _own_version() -> str:
    from rlreg import __version__

    return __version__


def _docstring(cls: type[BaseModel]) -> tuple[str, str]:
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    return (lines[0] if lines else ""), "\n".join(lines[1:]).strip()


def _fields(cls: type[BaseModel]) -> tuple[FieldRecord, ...]:
    schema = json_schema(cls, scope="all")
    definitions = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    return tuple(
        _field(name, node, definitions, is_required=name in required)
        for name, node in schema.get("properties", {}).items()
        if not (name == "type" and issubclass(cls, OpenUnion))
    )


def _field(
    name: str, node: Mapping[str, Any], definitions: Mapping[str, Any], *, is_required: bool
) -> FieldRecord:
    shape = shape_of(node)
    text = str(node.get("description", ""))
    if not text and name == "schema_version":
        text = str(LearnableConfig.model_fields[name].description)
    if not text and shape.section:
        text = str(definitions[shape.section].get("description", "")).partition("\n")[0]
    match = _SOURCE.search(text)
    return FieldRecord(
        name=name,
        type=shape.type,
        range=shape.range,
        default=node.get("default"),
        is_required=is_required,
        description=text[: match.start()].strip() if match else text,
        source=" ".join(match["source"].split()) if match else "",
        kinds=shape.kinds,
        section=shape.section,
    )


# --- everything installed -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KindRecord:
    """A component kind and its members."""

    kind: str
    title: str
    summary: str
    members: tuple[ClassRecord, ...]
    used_by: tuple[tuple[ClassRecord, FieldRecord], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything a reference shows."""

    learnables: tuple[ClassRecord, ...]
    kinds: tuple[KindRecord, ...]
    run: ClassRecord
    sections: tuple[ClassRecord, ...]

    def members(self, kind: str) -> tuple[ClassRecord, ...]:
        """Returns the members of a kind."""
        return next((item.members for item in self.kinds if item.kind == kind), ())


def collect_reference(learnables: list[str] | None = None) -> Reference:
    """Describes every installed component and the given learnables (all of them by default).

    Raises:
        UnknownNameError: If one of ``learnables`` is not installed.
    """
    if learnables is None:
        found = registry.records("learnable")
    else:
        found = [registry.resolve("learnable", name) for name in learnables]
    chosen = tuple(record_of(item.cls) for item in found)
    members = {
        kind: tuple(record_of(item.cls) for item in registry.records(kind)) for kind in KINDS
    }
    owners = [*chosen, *(record for many in members.values() for record in many)]
    run = record_of(RunConfig)
    kinds = tuple(
        KindRecord(
            kind=kind,
            title=kind.replace("_", " "),
            summary=_docstring(cls)[0].removeprefix("Kind: "),
            members=members[kind],
            used_by=tuple(
                (owner, item)
                for owner in [run, *owners]
                for item in owner.fields
                if kind in item.kinds
            ),
        )
        for kind, cls in KINDS.items()
    )
    return Reference(chosen, kinds, run, _sections(RunConfig))


def _sections(cls: type[BaseModel]) -> tuple[ClassRecord, ...]:
    """Describes the settings classes that the run file nests."""
    from rlreg import run_config

    records: dict[str, ClassRecord] = {}
    pending = [record_of(cls)]
    while pending:
        for item in pending.pop(0).fields:
            if item.section and item.section not in records:
                records[item.section] = record_of(getattr(run_config, item.section))
                pending.append(records[item.section])
    return tuple(records.values())
