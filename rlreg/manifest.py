"""Manifests: what a plugin provides, written down at build time so that listing imports nothing.

A manifest is package data beside the plugin's modules. It counts only while the version of the
distribution and the hash of every source file it was made from are still the same; a stale one is
passed over (the plugin is loaded instead) and is an error of the conformance kit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlreg.entry_points import PLUGIN_API, PluginInfo, find_entry_points
from rlreg.errors import PluginError
from rlreg.json_text import from_json

if TYPE_CHECKING:
    from pathlib import Path

    from rlreg.open_union import OpenUnion
    from rlreg.plugins import Contribution

MANIFEST_NAME = "rlreg-manifest.json"
FORMAT = 2
BRIEF = ("kind", "name", "summary", "regime", "schema_version")
"""What a listing needs of a class; the rest stands at the end of the file, under ``details``."""

_DETAILS = b'\n "details": '


class Manifest(NamedTuple):
    """What one entry point provides, as its distribution wrote it down.

    Attributes:
        learnables: What `describe_member` says of each, and its ``search_space``.
        components: The same.
        presets: ``id, summary, source, settings`` of each.
    """

    learnables: tuple[Mapping[str, Any], ...]
    components: tuple[Mapping[str, Any], ...]
    presets: tuple[Mapping[str, Any], ...]


class PathListing:
    """What lies in the folders of ``sys.path``, each read once.

    ``find_spec`` looks at every folder for every package; with hundreds of plugins that is most of
    the time a listing takes.
    """

    def __init__(self) -> None:
        self.names: dict[str, frozenset[str]] = {}

    def find(self, top: str) -> str | None:
        """Returns the folder of a regular package, or ``None`` where only Python can tell."""
        for entry in sys.path:
            folder = entry or os.getcwd()
            if folder not in self.names:
                try:
                    self.names[folder] = frozenset(os.listdir(folder))
                except OSError:
                    self.names[folder] = frozenset()
            if top in self.names[folder]:
                # A namespace package, or a folder that is none, is left to find_spec.
                found = f"{folder}{os.sep}{top}"
                return found if os.path.isfile(f"{found}{os.sep}__init__.py") else None
            if f"{top}.py" in self.names[folder] or os.path.isfile(folder):
                return None
        return None


def package_folder(info: PluginInfo) -> Path | None:
    """Returns the folder of the plugin's top-level package, importing nothing."""
    from pathlib import Path

    folder = _folder(info)
    return None if folder is None else Path(folder)


def _folder(info: PluginInfo, listing: PathListing | None = None) -> str | None:
    top = info.value.partition(":")[0].partition(".")[0]
    found = listing.find(top) if listing is not None else None
    if found is not None:
        return found
    import importlib.util

    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    return next(iter(locations)) if locations else None


def read_manifest(
    info: PluginInfo, listing: PathListing | None = None, *, is_brief: bool = False
) -> Manifest | None:
    """Returns the manifest of a plugin, or ``None`` if it has none that is fresh.

    Args:
        info: The plugin.
        listing: What lies in the folders of ``sys.path``, if several plugins are read.
        is_brief: Whether to read what a listing needs alone, and not the schemas.
    """
    folder = _folder(info, listing)
    if folder is None:
        return None
    try:
        content = _read(os.path.join(folder, MANIFEST_NAME))
        if is_brief:
            content = _without_details(content)
        data = from_json(content)
        if staleness(data, info, folder):
            return None
        part = data["entry_points"][info.entry_point]
        members = {kind: part[kind] for kind in ("learnables", "components")}
        if not is_brief:
            details = data["details"][info.entry_point]
            members = {
                kind: [{**a, **b} for a, b in zip(items, details[kind], strict=True)]
                for kind, items in members.items()
            }
        return Manifest(
            tuple(members["learnables"]), tuple(members["components"]), tuple(part["presets"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _without_details(content: bytes) -> bytes:
    """Cuts the end off, which is most of the file and takes most of the time to parse."""
    head, mark, _ = content.partition(_DETAILS)  # one space: it can only be the key of the root
    return head.rstrip(b",") + b"\n}" if mark else content


def staleness(data: Mapping[str, Any], info: PluginInfo, folder: str | Path) -> str:
    """Returns why a manifest no longer counts, or an empty string if it does."""
    if data["format"] != FORMAT:
        return f"its format is {data['format']}, this rlreg reads {FORMAT}"
    if data["plugin_api"] > PLUGIN_API:
        return f"it was made for plugin API {data['plugin_api']}"
    if data["version"] != info.version:
        return f"it was made for version {data['version']}, {info.version} is installed"
    if data["entry_points"].get(info.entry_point, {}).get("value") != info.value:
        return f"it does not know the entry point {info.entry_point} = {info.value}"
    for name, known in data["sources"].items():
        if _hash(os.path.join(folder, name)) != known:
            return f"{name} has changed since it was made"
    return ""


def _read(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@functools.cache
def _sha256() -> Callable[[bytes], Any]:
    """Returns the interpreter's own SHA-256: hashlib opens OpenSSL first, which takes longer."""
    for name in ("_sha2", "_sha256"):  # since Python 3.12; before
        with contextlib.suppress(ImportError, AttributeError):
            own: Callable[[bytes], Any] = importlib.import_module(name).sha256
            return own
    return importlib.import_module("hashlib").sha256  # type: ignore[no-any-return]


def _hash(path: str | Path) -> str:
    try:
        return str(_sha256()(_read(path)).hexdigest())
    except OSError:
        return ""


# --- writing ------------------------------------------------------------------------------------


def make_manifest(distribution: str) -> tuple[Path, dict[str, Any]]:
    """Builds the manifest of an installed distribution.

    Run it in a fresh process: the source files it lists are the modules of the plugin's package
    that are loaded by then, and the heavy half must not be among them.

    Returns:
        Where it belongs, and its content.

    Raises:
        PluginError: If the distribution has no plugin, or one that is not ok.
    """
    from rlreg import __version__, registry
    from rlreg.blocking import normalize

    wanted = normalize(distribution)
    plugins = [p for p in registry.list_plugins() if normalize(p.distribution) == wanted]
    if not plugins:
        known = ", ".join(sorted({info.distribution for info in find_entry_points()})) or "none"
        raise PluginError(f"no plugin is installed from {distribution!r}; installed: {known}")
    for info in plugins:
        if info.status != "ok":
            raise PluginError(f"{info.distribution} is {info.status}: {info.error}")
    folder = package_folder(plugins[0])
    if folder is None:
        raise PluginError(f"{plugins[0].value} is not in a package, so it cannot carry a manifest")
    content: dict[str, Any] = {
        "format": FORMAT,
        "distribution": plugins[0].distribution,
        "version": plugins[0].version,
        "made_with": __version__,
        "plugin_api": PLUGIN_API,
        "sources": _sources(folder),
    }
    parts = {info.entry_point: _provided(info) for info in plugins}
    content["entry_points"] = {name: _chosen(part, brief=True) for name, part in parts.items()}
    content["details"] = {name: _chosen(part, brief=False) for name, part in parts.items()}
    return folder / MANIFEST_NAME, content


def _chosen(part: Mapping[str, Any], *, brief: bool) -> dict[str, Any]:
    """Returns the half of an entry point's part that a listing needs, or the other one."""
    found: dict[str, Any] = {
        kind: [
            {key: value for key, value in item.items() if (key in BRIEF) == brief}
            for item in part[kind]
        ]
        for kind in ("learnables", "components")
    }
    return {"value": part["value"], **found, "presets": part["presets"]} if brief else found


def _sources(folder: Path) -> dict[str, str]:
    from pathlib import Path

    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).suffix == ".py" and Path(file).is_relative_to(folder):
            found[Path(file).relative_to(folder).as_posix()] = _hash(Path(file))
    return dict(sorted(found.items()))


def _provided(info: PluginInfo) -> dict[str, Any]:
    from rlreg.blocking import BlockList
    from rlreg.plugins import load_plugin
    from rlreg.search_space import search_space

    contribution: Contribution = load_plugin(info, BlockList.read())
    members = [describe_member(cls) for cls in contribution.members]
    for cls, item in zip(contribution.members, members, strict=True):
        if item["kind"] == "learnable":
            item["search_space"] = search_space(cls).as_json()["parameters"]
    presets = [
        {"id": p.id, "summary": p.summary, "source": p.source, "settings": dict(p.settings)}
        for p in contribution.presets
    ]
    return {
        "value": info.value,
        "learnables": [item for item in members if item["kind"] == "learnable"],
        "components": [item for item in members if item["kind"] != "learnable"],
        "presets": presets,
    }


def describe_member(cls: type[OpenUnion]) -> dict[str, Any]:
    """Returns as plain data what listing, ``show``, schemas and the reference need of a class.

    Learnables and components have ``kind, name, summary, class, defaults, own_schema``; learnables
    ``regime, schema_version, field_groups, history`` too.
    """
    from rlreg import registry
    from rlreg.overrides import plain
    from rlreg.reference.history import history_of
    from rlreg.schema import json_schema

    record = registry.provenance(cls)
    described: dict[str, Any] = {
        "kind": record.kind,
        "name": record.name,
        "summary": record.summary,
        "class": [cls.__module__, cls.__qualname__],
        "defaults": plain(cls()),
        "own_schema": json_schema(cls if record.kind != "learnable" else record.id, scope="own"),
    }
    if record.kind == "learnable":
        groups: Mapping[str, Sequence[str]] = getattr(cls, "field_groups", {})
        described |= {
            "regime": str(getattr(cls, "regime", "")),
            "schema_version": cls.model_fields["schema_version"].default,
            "field_groups": {title: list(names) for title, names in groups.items()},
            "history": [
                {"version": change.version, "steps": list(change.steps)}
                for change in history_of(getattr(cls, "migrations", ()))
            ],
        }
    return described


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a manifest by rename."""
    from rlreg.atomic_file import write_text

    write_text(path, dump_manifest(content))


def dump_manifest(content: Mapping[str, Any]) -> str:
    """Returns the text of a manifest file."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
