"""One record per config class: what the reference, the command line and commented files show.

Types and ranges are read from the class's JSON Schema, so that what is shown is what is checked.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from rlreg import registry
from rlreg.blocking import normalize
from rlreg.config import KINDS, LearnableConfig, Preset
from rlreg.manifest import describe_member
from rlreg.manifest_index import Entry, Index, read_index
from rlreg.open_union import OpenUnion
from rlreg.reference.groups import group_fields
from rlreg.reference.history import Change
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
        import_path: Module and name of the class.
        defaults: An instance without settings, as plain data.
        field_groups: Names of fields by the title under which the class wants them.
    """

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
    import_path: tuple[str, str] = ("", "")
    defaults: Mapping[str, Any] = field(default_factory=dict)
    field_groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, tuple[FieldRecord, ...]]:
        """The fields by the name of their group; components and parts of a run have one."""
        if self.kind != "learnable":
            return {"": self.fields} if self.fields else {}
        return group_fields(self.field_groups, self.fields)

    @property
    def provenance(self) -> str:
        """Distribution and version in words."""
        if self.distribution == registry.LOCAL:
            return "registered in this process"
        return f"{self.distribution} {self.version}".rstrip()

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
    if not issubclass(cls, OpenUnion):
        summary, details = _split(cls.__doc__)
        with registry.without_discovery():  # its fields are core's, whatever is installed
            schema = json_schema(cls, scope="own")
        return ClassRecord(
            kind="run",
            name=cls.__name__,
            reference="run",
            slug="run",
            id="rlreg/run",
            summary=summary,
            details=details,
            regime="",
            distribution="rlreg",
            version=_own_version(),
            fields=_fields(schema, has_tag=False),
            import_path=(cls.__module__, cls.__qualname__),
        )
    known = registry.provenance(cls)
    presets = registry.list_presets(known.name) if known.kind == "learnable" else []
    return described_record(
        describe_member(cls), known.distribution, known.version, registry.reference(cls), presets
    )


def described_record(
    item: Mapping[str, Any],
    distribution: str,
    version: str,
    reference: str,
    presets: Sequence[registry.PresetRecord],
) -> ClassRecord:
    """Describes a class by what `rlreg.manifest.describe_member` says of it.

    Args:
        item: What it says.
        distribution: Who provides the class.
        version: The provider's version.
        reference: Shortest name that means the class.
        presets: The presets of a learnable.
    """
    schema = item["own_schema"]
    summary, details = _split(schema.get("description"))
    paper, details = take_paper(details)
    return ClassRecord(
        kind=item["kind"],
        name=item["name"],
        reference=reference,
        slug=item["name"] if reference == item["name"] else _slug(distribution, item["name"]),
        id=f"{distribution}/{item['name']}",
        summary=summary,
        details=details,
        regime=item.get("regime", ""),
        distribution=distribution,
        version=version,
        fields=_fields(schema, has_tag=True),
        presets=tuple(presets),
        paper=paper,
        schema_version=int(item.get("schema_version", 1)),
        history=tuple(
            Change(change["version"], tuple(change["steps"])) for change in item.get("history", ())
        ),
        import_path=(item["class"][0], item["class"][1]),
        defaults={**item["defaults"], "type": reference},
        field_groups=item.get("field_groups", {}),
    )


def _slug(distribution: str, name: str) -> str:
    # A tag has no dot, so that a qualified slug never equals a bare one.
    return f"{re.sub(r'[^a-z0-9-]', '-', normalize(distribution))}.{name}"


def _own_version() -> str:
    from rlreg import __version__

    return __version__


def _split(text: str | None) -> tuple[str, str]:
    """Returns the first line of a docstring, and the rest of it."""
    lines = inspect.cleandoc(text or "").splitlines()
    return (lines[0] if lines else ""), "\n".join(lines[1:]).strip()


def _fields(schema: Mapping[str, Any], *, has_tag: bool) -> tuple[FieldRecord, ...]:
    definitions = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    return tuple(
        _field(name, node, definitions, is_required=name in required)
        for name, node in schema.get("properties", {}).items()
        if not (name == "type" and has_tag)
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

    Imports no plugin where all of them have fresh manifests.

    Raises:
        UnknownNameError: If one of ``learnables`` is not installed.
    """
    chosen, members = _from_manifests(learnables) or _from_registry(learnables)
    owners = [*chosen, *(record for many in members.values() for record in many)]
    run = record_of(RunConfig)
    kinds = tuple(
        KindRecord(
            kind=kind,
            title=kind.replace("_", " "),
            summary=_split(cls.__doc__)[0].removeprefix("Kind: "),
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


Found = tuple[tuple[ClassRecord, ...], dict[str, tuple[ClassRecord, ...]]]
"""The learnables, and the components by kind."""


def _from_registry(learnables: list[str] | None) -> Found:
    if learnables is None:
        found = registry.records("learnable")
    else:
        found = [registry.resolve("learnable", name) for name in learnables]
    chosen = tuple(record_of(item.cls) for item in found)
    return chosen, {
        kind: tuple(record_of(item.cls) for item in registry.records(kind)) for kind in KINDS
    }


def _from_manifests(learnables: list[str] | None) -> Found | None:
    index = read_index()
    if index is None:
        return None
    if learnables is None:
        chosen = [written_record(index, entry) for entry in index.of_kind("learnable")]
    else:
        found = [index.find("learnable", name) for name in learnables]
        if None in found:
            return None  # the registry knows best what is wrong with the name
        chosen = [written_record(index, entry) for entry in found if entry is not None]
    return tuple(chosen), {
        kind: tuple(written_record(index, entry) for entry in index.of_kind(kind)) for kind in KINDS
    }


def written_record(index: Index, entry: Entry) -> ClassRecord:
    """Describes a class by what is written in manifests, its presets included."""
    presets = index.presets_of(entry.name) if entry.kind == "learnable" else []
    return described_record(entry.item, entry.distribution, entry.version, entry.name, presets)


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
