"""What a shell can complete: names, presets, data sets, and the keys and values of ``--set``.

An answer has to be there before a user notices, so that this reads manifests and one document of
core (``core.json``, written by ``make manifests``), and imports neither plugins nor pydantic. A
plugin without a fresh manifest is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlreg.blocking import BlockList
from rlreg.entry_points import PluginInfo, find_entry_points
from rlreg.errors import RlregError
from rlreg.manifest import Manifest, read_manifest

CORE_FILE = Path(__file__).with_name("core.json")
_TAG_IN_FILE = re.compile(
    r"""(?:^|\n)\s*["']?learnable["']?\s*[:=][^}\]]*?["']?\btype["']?\s*[:=]\s*["']?([\w./-]+)"""
    r"""|^["']?type["']?\s*[:=]\s*["']?([\w./-]+)""",
    re.MULTILINE,
)

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One completion and what is said beside it."""

    value: str
    help: str = ""


@cache
def core() -> Node:
    """Reads what core provides."""
    document: Node = json.loads(CORE_FILE.read_bytes())
    return document


@cache
def manifests() -> tuple[tuple[PluginInfo, Manifest], ...]:
    """Reads the fresh manifests of the plugins that are not blocked."""
    try:
        block_list = BlockList.read()
    except RlregError:
        return ()
    found = []
    for info in find_entry_points():
        if info.status == "ok" and not block_list.reason(info.distribution, info.entry_point):
            manifest = read_manifest(info)
            if manifest is not None:
                found.append((info, manifest))
    return tuple(found)


# --- names --------------------------------------------------------------------------------------


def learnables() -> Iterator[Candidate]:
    """Yields the ids of the learnables, in their shortest unambiguous form."""
    items = [(info, item) for info, manifest in manifests() for item in manifest.learnables]
    names = [item["name"] for _, item in items]
    for info, item in items:
        is_owner = info.distribution == f"rlreg-{item['name']}"
        is_bare = names.count(item["name"]) == 1 or is_owner
        name = item["name"] if is_bare else f"{info.distribution}/{item['name']}"
        yield Candidate(name, item["summary"])


def components() -> Iterator[Candidate]:
    """Yields every component as ``rlreg show`` takes it: ``encoder.vector``."""
    for item in _components():
        yield Candidate(f"{item['kind']}.{item['name']}", item["summary"])


def _components() -> Iterator[Node]:
    yield from core()["components"]
    for _, manifest in manifests():
        yield from manifest.components


def presets(learnable: str) -> Iterator[Candidate]:
    """Yields the presets of a learnable; without one all of them, in full."""
    tag = learnable.rpartition("/")[2]
    for _, manifest in manifests():
        for item in manifest.presets:
            owner, _, name = item["id"].partition("/")
            if not tag or tag == owner:
                yield Candidate(name if tag else item["id"], item["summary"])


def plugins() -> Iterator[Candidate]:
    """Yields the distributions with plugins, fresh manifest or not."""
    for info in find_entry_points():
        yield Candidate(info.distribution, info.version)


def datasets() -> Iterator[Candidate]:
    """Yields the ids of the data sets on this machine, and of those that rlreg can make."""
    generators = {item["id"]: item["summary"] for item in core()["datasets"]}
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    local = sorted(_local_datasets(root, 4)) if root.is_dir() else []
    for name in dict.fromkeys([*generators, *local]):
        yield Candidate(name, generators.get(name, ""))


def _local_datasets(root: Path, depth: int, prefix: str = "") -> Iterator[str]:
    for entry in os.scandir(root / prefix):
        name = f"{prefix}{entry.name}"
        if depth and entry.is_dir() and not entry.name.startswith("."):
            if os.path.isfile(f"{entry.path}/data/metadata.json"):
                yield name
            else:
                yield from _local_datasets(root, depth - 1, f"{name}/")


def learnable_in(source: str) -> str:
    """Returns the learnable that a command's ID or FILE means, from a look at the text."""
    path = Path(source)
    path = path / "run.yaml" if path.is_dir() else path
    try:
        match = _TAG_IN_FILE.search(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return source
    return (match[1] or match[2]) if match else ""


# --- the keys and values of --set ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a schema, and the document that its references are in."""

    document: Node
    node: Node


@dataclass(slots=True)
class Settings:
    """The keys of a run of one learnable.

    Attributes:
        learnable: Its id; empty if nobody knows it yet.
        chosen: Tags that the command line sets, by the path of their component.
    """

    learnable: str
    chosen: Mapping[str, str] = field(default_factory=dict)

    def complete(self, text: str) -> Iterator[Candidate]:
        """Yields what ``key.path=value`` can go on with."""
        path, equals, _ = text.partition("=")
        if equals:
            for item in self._values(path):
                yield Candidate(f"{path}={item.value}", item.help)
            return
        parent = path.rpartition(".")[0]
        prefix = f"{parent}." if parent else ""
        for name, place in self._keys(parent).items():
            is_inner = bool(_fields(self._inside(place, f"{prefix}{name}")))
            yield Candidate(f"{prefix}{name}{'.' if is_inner else '='}", _summary(place.node))

    def _root(self) -> dict[str, Place]:
        run = Place(core()["run"], core()["run"])
        return _fields(run)

    def _own(self) -> dict[str, Place]:
        for info, manifest in manifests():
            for item in manifest.learnables:
                if self.learnable in (item["name"], f"{info.distribution}/{item['name']}"):
                    schema = item["own_schema"]
                    return _fields(Place(schema, schema))
        return {}

    def _keys(self, path: str) -> dict[str, Place]:
        """Returns the keys below a path; ``learnable.`` may be left out."""
        own = self._own()
        if not path:
            keys = {**own, **self._root()}
            keys.pop("type", None)
            return keys
        first, _, rest = path.partition(".")
        if first == "learnable":
            keys, at, names = own, "learnable", rest
        else:
            keys, at, names = {**own, **self._root()}, "", path
        for name in filter(None, names.split(".")):
            if name not in keys:
                return {}
            at = f"{at}.{name}" if at else name
            keys = _fields(self._inside(keys[name], at))
        return keys

    def _inside(self, place: Place, path: str) -> Place:
        """Follows references; of a component to the schema of the tag that is chosen."""
        node = _without_null(place.node)
        name = str(node.get("$ref", "")).rpartition("/")[2]
        kind = core()["kinds"].get(name)
        if kind == "learnable":
            schema = next(iter(self._own().values()), Place({}, {})).document
            return Place(schema, schema)
        if kind is not None:
            default = place.node.get("default") or {}
            tag = self.chosen.get(path.removeprefix("learnable."), default.get("type", ""))
            return _member(kind, tag) if tag else Place({}, {"properties": {"type": {}}})
        if name:
            return Place(place.document, place.document["$defs"][name])
        return Place(place.document, node)

    def _values(self, path: str) -> Iterator[Candidate]:
        parent, _, name = path.rpartition(".")
        place = self._keys(parent).get(name)
        if name == "type" and parent:
            kind = self._kind(parent)
            yield from (
                Candidate(item["name"], item["summary"])
                for item in _components()
                if item["kind"] == kind
            )
        elif place is not None:
            yield from _literals(place.node)

    def _kind(self, path: str) -> str:
        parent, _, name = path.rpartition(".")
        place = self._keys(parent).get(name)
        node = _without_null(place.node) if place is not None else {}
        return str(core()["kinds"].get(str(node.get("$ref", "")).rpartition("/")[2], ""))


def _fields(place: Place) -> dict[str, Place]:
    properties = place.node.get("properties", {})
    return {
        name: Place(place.document, node)
        for name, node in properties.items()
        if name != "schema_version"
    }


def _without_null(node: Node) -> Node:
    """Takes the one alternative to null, which keeps the reference."""
    options = [item for item in node.get("anyOf", ()) if item.get("type") != "null"]
    return options[0] if len(options) == 1 else node


def _member(kind: str, tag: str) -> Place:
    name = f"{kind}.{tag}"
    for item in _components():
        if (item["kind"], item["name"]) == (kind, tag) and "own_schema" in item:
            return Place(item["own_schema"], item["own_schema"])
    for _, manifest in manifests():
        for item in manifest.learnables:
            known = item["own_schema"].get("$defs", {})
            if name in known:
                return Place(item["own_schema"], known[name])
    return Place({}, {})


def _literals(node: Node) -> Iterator[Candidate]:
    options = [node, *node.get("anyOf", ())]
    found: list[Any] = [node["default"]] if "default" in node else []
    for item in options:
        found += item.get("enum", ())
        found += [True, False] if item.get("type") == "boolean" else []
        found += [None] if item.get("type") == "null" else []
    for value in found:
        text = value if isinstance(value, str) else json.dumps(value)
        if not re.search(r"[\s{}\[\]]", text):  # a shell would want quotes
            is_default = "default" in node and value == node["default"]
            yield Candidate(text, "default" if is_default else "")


def _summary(node: Node) -> str:
    return str(node.get("description", "")).partition(". ")[0].partition("\n")[0]


# --- the document of core -----------------------------------------------------------------------


def make_core() -> dict[str, Any]:
    """Builds the content of ``core.json`` from the code."""
    from rlreg.components import CORE_COMPONENTS
    from rlreg.config import KINDS
    from rlreg.registry import summary_of
    from rlreg.runtime.data.generate import list_generators
    from rlreg.schema import json_schema

    return {
        "run": json_schema("run", scope="own"),
        "kinds": {"LearnableConfig": "learnable"}
        | {cls.__name__: kind for kind, cls in KINDS.items()},
        "components": [
            {
                "kind": cls.kind,
                "name": cls.get_type(),
                "summary": summary_of(cls),
                "own_schema": json_schema(cls, scope="own"),
            }
            for cls in CORE_COMPONENTS
        ],
        "datasets": [
            {"id": item.dataset_id, "summary": item.summary} for item in list_generators()
        ],
    }


def write_core() -> None:
    """Writes ``core.json``, by rename."""
    from rlreg.atomic_file import write_text

    write_text(CORE_FILE, json.dumps(make_core(), indent=1, ensure_ascii=False) + "\n")
