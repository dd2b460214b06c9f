"""Everything installed as its manifests say: what `show`, schemas and the reference read.

It answers only where it cannot be wrong: every plugin that is on has a fresh manifest, no name is
claimed twice, and this process has neither imported plugins nor registered anything by call.
Elsewhere it says so, and the registry imports the plugins and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlreg import __version__, registry
from rlreg.blocking import BlockList, normalize
from rlreg.config import KINDS, LearnableConfig, Preset
from rlreg.entry_points import find_entry_points, marked
from rlreg.manifest import Manifest, PathListing, describe_member, read_manifest
from rlreg.records import PresetRecord
from rlreg.schema import Flavour, Scope, json_schema, union_schema

_UNIONS = {LearnableConfig.__name__: "learnable"} | {
    cls.__name__: kind for kind, cls in KINDS.items()
}


class Entry(NamedTuple):
    """One class, as `rlreg.manifest.describe_member` says."""

    kind: str
    name: str
    distribution: str
    version: str
    item: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The qualified name."""
        return f"{self.distribution}/{self.name}"


class Index:
    """The classes and presets of core and of every manifest; no name stands for two things."""

    def __init__(self, entries: list[Entry], presets: list[PresetRecord]) -> None:
        self.entries = sorted(entries, key=lambda item: (item.kind, item.name))
        self.presets = sorted(presets, key=lambda item: item.preset.id)

    def of_kind(self, kind: str) -> list[Entry]:
        """Returns the classes of a kind, sorted by name."""
        return [entry for entry in self.entries if entry.kind == kind]

    def find(self, kind: str, reference: str) -> Entry | None:
        """Returns what a bare or fully qualified name means; ``None`` if that is not plain."""
        qualifier, _, name = reference.rpartition("/")
        for entry in self.of_kind(kind):
            is_meant = not qualifier or normalize(entry.distribution) == normalize(qualifier)
            if entry.name == name and is_meant:
                return entry
        return None

    def presets_of(self, learnable: str) -> list[PresetRecord]:
        """Returns the presets of a learnable, sorted by id."""
        return [item for item in self.presets if item.preset.learnable == learnable]

    def schema(self, root: Mapping[str, Any]) -> dict[str, Any] | None:
        """Closes the unions of an own schema over everything; ``None`` if one is unknown here."""
        result = {key: value for key, value in root.items() if key != "$defs"}
        result["$id"] = str(root["$id"]).removesuffix(":own") + ":all"
        definitions: dict[str, Any] = dict(root.get("$defs", {}))
        closed: set[str] = set()
        while unions := {name for name in definitions if _is_union(definitions[name])} - closed:
            for name in sorted(unions):
                if name not in _UNIONS:
                    return None
                closed.add(name)
                definitions[name] = union_schema(
                    {e.name: f"{e.kind}.{e.name}" for e in self.of_kind(_UNIONS[name])}
                )
                for entry in self.of_kind(_UNIONS[name]):
                    own = entry.item["own_schema"]
                    bare = {k: v for k, v in own.items() if k not in ("$schema", "$id", "$defs")}
                    definitions[f"{entry.kind}.{entry.name}"] = bare
                    for key, value in own.get("$defs", {}).items():
                        definitions.setdefault(key, value)
        if definitions:
            result["$defs"] = {key: definitions[key] for key in sorted(definitions)}
        return result


def _is_union(definition: Mapping[str, Any]) -> bool:
    return definition == {"not": {}} or any("if" in item for item in definition.get("allOf", ()))


def read_index() -> Index | None:
    """Reads all manifests; ``None`` where they do not tell everything."""
    if not registry.is_untouched():
        return None
    entries: list[Entry] = []
    presets: list[PresetRecord] = []
    block_list, listing = BlockList.read(), PathListing()
    for info in find_entry_points():
        if marked(info, block_list).status != "ok":
            continue
        manifest = read_manifest(info, listing)
        if manifest is None:
            return None
        entries += _entries(manifest, info.distribution, info.version)
        presets += [
            PresetRecord(Preset(**item), info.distribution, info.version)
            for item in manifest.presets
        ]
    with registry.without_discovery():
        for record in (record for kind in KINDS for record in registry.records(kind)):
            item = describe_member(record.cls)
            entries.append(Entry(record.kind, record.name, "rlreg", __version__, item))
    names = {(entry.kind, entry.name) for entry in entries}
    ids = {item.preset.id for item in presets}
    if len(names) < len(entries) or len(ids) < len(presets):
        return None
    return Index(entries, presets)


def _entries(manifest: Manifest, distribution: str, version: str) -> list[Entry]:
    return [
        Entry(item["kind"], item["name"], distribution, version, item)
        for item in (*manifest.learnables, *manifest.components)
    ]


def installed_schema(
    name: str, *, scope: Scope = "all", flavour: Flavour = "standard"
) -> dict[str, Any]:
    """Like `rlreg.schema.json_schema`, but imports no plugin where manifests tell the same.

    Raises:
        UnknownNameError: If there is no such learnable.
    """
    schema = _written_schema(name, scope)
    if schema is None:
        return json_schema(name, scope=scope, flavour=flavour)
    if flavour == "editor":
        from rlreg.schema_editor import editor_schema

        return editor_schema(schema)
    return schema


def _written_schema(name: str, scope: Scope) -> dict[str, Any] | None:
    index = read_index()
    if index is None:
        return None
    if name == "run":
        with registry.without_discovery():
            own = json_schema("run", scope="own")
    else:
        entry = index.find("learnable", name)
        if entry is None:
            return None
        own = dict(entry.item["own_schema"])
    return own if scope == "own" else index.schema(own)
