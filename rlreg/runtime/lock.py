"""Which code a run or a checkpoint was made with: distribution, version and schema of every id.

The lock makes "it does not load" say what is missing, "it gives other numbers" what has changed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel

from rlreg import __version__, registry
from rlreg.errors import AmbiguousNameError, CheckpointError, RlregError, format_path
from rlreg.open_union import OpenUnion
from rlreg.schema import json_schema, schema_hash

Path = tuple[str | int, ...]

# They end up in a command that is shown to be copied, and a lock may come from anybody.
_ID = re.compile(r"""[^\s\x00-\x1f\x7f-\x9f'"`$;&|<>\\]+\Z""")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]*\Z")


@dataclass(frozen=True, slots=True)
class LockEntry:
    """One id that a config uses.

    Attributes:
        path: Where in the config, e.g. ``("actor_encoder_factory",)``; empty for the root.
        kind: ``learnable``, ``encoder``, ...
        id: The qualified name, e.g. ``rlreg-iql/iql``.
        version: Version of the distribution; empty for what was registered by call.
        schema: SHA-256 of the own schema, without its texts.
    """

    path: Path
    kind: str
    id: str
    version: str
    schema: str

    @property
    def distribution(self) -> str:
        """The distribution that provides the id."""
        return self.id.rpartition("/")[0]

    @property
    def is_local(self) -> bool:
        """Whether it was registered by call, so that no distribution has it."""
        return self.distribution == registry.LOCAL


def lock_of(config: BaseModel) -> list[LockEntry]:
    """Lists every learnable and component that a config uses."""
    return [_entry(path, item) for path, item in _members(config, ())]


def _members(value: Any, path: Path) -> Iterator[tuple[Path, OpenUnion]]:
    if isinstance(value, OpenUnion):
        yield path, value
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _members(getattr(value, name), (*path, field.alias or name))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _members(item, (*path, index))


def _entry(path: Path, item: OpenUnion) -> LockEntry:
    record = registry.provenance(type(item))
    schema = _own_hash(type(item), registry.generation())
    return LockEntry(path, record.kind, record.id, record.version, schema)


@functools.lru_cache(maxsize=512)
def _own_hash(cls: type[OpenUnion], _generation: int) -> str:
    return schema_hash(_without_texts(json_schema(cls, scope="own")))


def _without_texts(node: Any) -> Any:
    """Leaves out what a schema says to people: a better sentence, or a class's name, is no change.

    Under ``properties`` and ``$defs`` the keys are names of the author's, whatever they are.
    """
    if isinstance(node, list):
        return [_without_texts(item) for item in node]
    if not isinstance(node, dict):
        return node
    texts = ("title", "description", "$id")
    return {
        key: {name: _without_texts(item) for name, item in value.items()}
        if key in ("properties", "$defs")
        else _without_texts(value)
        for key, value in node.items()
        if key not in texts
    }


# --- as JSON ------------------------------------------------------------------------------------


def lock_to_json(entries: Iterable[LockEntry]) -> dict[str, Any]:
    """Gives a lock as values for JSON."""
    return {
        "rlreg": __version__,
        "ids": [{**asdict(entry), "path": list(entry.path)} for entry in entries],
    }


def lock_from_json(data: Mapping[str, Any]) -> list[LockEntry]:
    """Reads what :func:`lock_to_json` gave.

    Raises:
        CheckpointError: If it is something else.
    """
    ids = data.get("ids")
    if not isinstance(ids, list):
        raise CheckpointError("the lock lists no ids")
    return [_entry_from_json(item) for item in ids]


def _entry_from_json(item: Any) -> LockEntry:
    names = ("kind", "id", "version", "schema")
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in names):
        raise CheckpointError(f"the lock has an entry without {', '.join(names)}")
    if not (_ID.match(item["id"]) and _VERSION.match(item["version"])):
        raise CheckpointError(
            f"the lock names {item['id']!r} of version {item['version']!r}, which nothing is called"
        )
    path = item.get("path")
    if not isinstance(path, list) or not all(isinstance(part, str | int) for part in path):
        raise CheckpointError("the lock has an entry without a path")
    return LockEntry(tuple(path), item["kind"], item["id"], item["version"], item["schema"])


# --- comparing with what is installed -----------------------------------------------------------


def require_installed(entries: Iterable[LockEntry]) -> None:
    """Raises unless every id of a lock can be used here.

    Raises:
        CheckpointError: With distribution, version and the command that installs it.
    """
    missing: dict[str, str] = {}
    for entry in entries:
        try:
            registry.resolve(entry.kind, _reference(entry))
        except RlregError as error:
            missing.setdefault(entry.distribution, _how_to_get(entry, error))
    if missing:
        raise CheckpointError("; ".join(missing.values()))


def installed(entries: Iterable[LockEntry]) -> list[LockEntry]:
    """Returns the entries with the versions that are installed; schemas stay as they were."""
    found = []
    for entry in entries:
        record = registry.resolve(entry.kind, _reference(entry))
        found.append(replace(entry, id=record.id, version=record.version))
    return found


def _reference(entry: LockEntry) -> str:
    # What was registered by call may since have moved into a distribution.
    return entry.id.rpartition("/")[2] if entry.is_local else entry.id


def _how_to_get(entry: LockEntry, error: RlregError) -> str:
    what = f"needs the {entry.kind.replace('_', ' ')} {entry.id.rpartition('/')[2]!r}"
    if entry.is_local:
        return f"{what}, which a program registered by call: import that module first"
    known = [p for p in registry.list_plugins() if p.distribution == entry.distribution]
    if known and known[0].status != "ok":
        plugin = known[0]
        return (
            f"{what} of {entry.distribution} {entry.version}, and that plugin is {plugin.status}: "
            f"{plugin.error}; {plugin.remedy}"
        )
    if known or entry.distribution == "rlreg":
        return f"{what} of {entry.distribution} {entry.version}, which this version lacks: {error}"
    return (
        f"{what} of {entry.distribution} {entry.version}, which is not installed: "
        f"pip install '{entry.distribution}=={entry.version}'"
    )


def qualify(config: dict[str, Any], entries: Iterable[LockEntry]) -> dict[str, Any]:
    """Returns a config in which every tag names its distribution.

    A bare tag may mean another distribution's class here than where the file was written.
    """
    result: dict[str, Any] = _copy(config)
    for entry, node in _named(result, entries):
        node["type"] = entry.id
    return result


def settle_tags(data: dict[str, Any], entries: Iterable[LockEntry]) -> None:
    """Lets the bare tags of a record mean what they meant, in place.

    Another distribution may have brought the same tag since. A tag that means the same today stays
    as it is, and so does one that was changed by hand.
    """
    for entry, node in _named(data, entries):
        if node.get("type") != entry.id.rpartition("/")[2]:
            continue
        try:
            means_it = registry.resolve(entry.kind, node["type"]).id == entry.id
        except AmbiguousNameError:
            means_it = False
        except RlregError:
            continue  # it is not there at all, which validation says
        if not means_it:
            node["type"] = entry.id


def _named(
    data: dict[str, Any], entries: Iterable[LockEntry]
) -> Iterator[tuple[LockEntry, dict[str, Any]]]:
    """Yields what a lock says of a distribution's parts, and where it stands in the config."""
    for entry in entries:
        node: Any = data
        for part in entry.path:
            is_item = isinstance(node, list) and isinstance(part, int) and 0 <= part < len(node)
            node = node[part] if is_item else node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict) and not entry.is_local:
            yield entry, node


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def new_settings(data: Mapping[str, Any], config: BaseModel, path: Path = ()) -> list[str]:
    """Says which settings a config has that the mapping it was read from does not know.

    What rlreg writes is complete, so a setting that is not there is younger than the file.
    """
    found = []
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name not in data:
            found.append(f"{format_path((*path, name))} is new and takes its default, {value!r}")
        elif isinstance(value, BaseModel) and isinstance(data[name], Mapping):
            found += new_settings(data[name], value, (*path, name))
    return found


def differences(then: Iterable[LockEntry], now: Iterable[LockEntry]) -> list[str]:
    """Says, one sentence each, what is not as it was."""
    current = {entry.path: entry for entry in now}
    found: dict[str, None] = {}
    for old in then:
        new = current.get(old.path)
        if new is None or (new.id, new.version, new.schema) == (old.id, old.version, old.schema):
            continue
        was = f"{old.distribution} {old.version}".rstrip()
        if (new.distribution, new.version) != (old.distribution, old.version):
            found[f"made with {was}, here is {new.distribution} {new.version}".rstrip()] = None
        if new.schema != old.schema:
            where = format_path(old.path) or old.kind
            found[f"the settings of {new.id} ({where}) have changed since"] = None
    return list(found)


def unlocked(then: Iterable[LockEntry], now: Iterable[LockEntry]) -> list[str]:
    """Says in one sentence what a config uses and its lock does not name, if anything."""
    named = {entry.path for entry in then}
    found = [
        f"{entry.id} ({format_path(entry.path) or entry.kind})"
        for entry in now
        if entry.path not in named
    ]
    return (
        [f"its lock does not name {', '.join(found)}, so what made it is unknown"] if found else []
    )
