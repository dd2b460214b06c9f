"""Manifests: what a plugin provides, written down at build time so that listing imports nothing.

A manifest is package data beside the plugin's modules. It counts only while the version of the
distribution and the hash of every source file it was made from are still the same; a stale one is
passed over (the plugin is loaded instead) and is an error of the conformance kit.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlreg.errors import PluginError
from rlreg.plugins import PLUGIN_API, Contribution, PluginInfo, find_entry_points

MANIFEST_NAME = "rlreg-manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one entry point provides, as its distribution wrote it down.

    Attributes:
        learnables: ``name, summary, regime, schema_version, own_schema, search_space`` of each.
        components: ``kind, name, summary, own_schema`` of each.
        presets: ``id, summary, source, settings`` of each.
    """

    learnables: tuple[Mapping[str, Any], ...]
    components: tuple[Mapping[str, Any], ...]
    presets: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class PathListing:
    """What lies in the folders of ``sys.path``, each read once.

    ``find_spec`` looks at every folder for every package; with hundreds of plugins that is most of
    the time a listing takes.
    """

    names: dict[str, frozenset[str]] = field(default_factory=dict)

    def find(self, top: str) -> Path | None:
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
                return Path(found) if os.path.isfile(f"{found}{os.sep}__init__.py") else None
            if f"{top}.py" in self.names[folder] or os.path.isfile(folder):
                return None
        return None


def package_folder(info: PluginInfo, listing: PathListing | None = None) -> Path | None:
    """Returns the folder of the plugin's top-level package, importing nothing."""
    top = info.value.partition(":")[0].partition(".")[0]
    found = listing.find(top) if listing is not None else None
    if found is not None:
        return found
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


def read_manifest(info: PluginInfo, listing: PathListing | None = None) -> Manifest | None:
    """Returns the manifest of a plugin, or ``None`` if it has none that is fresh."""
    folder = package_folder(info, listing)
    if folder is None:
        return None
    try:
        data = json.loads(_read(os.path.join(folder, MANIFEST_NAME)))
        if staleness(data, info, folder):
            return None
        part = data["entry_points"][info.entry_point]
        return Manifest(
            tuple(part["learnables"]), tuple(part["components"]), tuple(part["presets"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def staleness(data: Mapping[str, Any], info: PluginInfo, folder: Path) -> str:
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


def _hash(path: str | Path) -> str:
    try:
        return hashlib.sha256(_read(path)).hexdigest()
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
    content = {
        "format": FORMAT,
        "distribution": plugins[0].distribution,
        "version": plugins[0].version,
        "made_with": __version__,
        "plugin_api": PLUGIN_API,
        "sources": _sources(folder),
        "entry_points": {info.entry_point: _provided(info) for info in plugins},
    }
    return folder / MANIFEST_NAME, content


def _sources(folder: Path) -> dict[str, str]:
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).suffix == ".py" and Path(file).is_relative_to(folder):
            found[Path(file).relative_to(folder).as_posix()] = _hash(Path(file))
    return dict(sorted(found.items()))


def _provided(info: PluginInfo) -> dict[str, Any]:
    from rlreg import registry
    from rlreg.blocking import BlockList
    from rlreg.plugins import load_plugin
    from rlreg.schema import json_schema
    from rlreg.search_space import search_space

    contribution: Contribution = load_plugin(info, BlockList.read())
    learnables, components = [], []
    for cls in contribution.members:
        record = registry.provenance(cls)
        if record.kind == "learnable":
            version = cls.model_fields["schema_version"].default
            learnables.append(
                {
                    "name": record.name,
                    "summary": record.summary,
                    "regime": str(getattr(cls, "regime", "")),
                    "schema_version": version,
                    "own_schema": json_schema(record.id, scope="own"),
                    "search_space": search_space(cls).as_json()["parameters"],
                }
            )
        else:
            components.append(
                {
                    "kind": record.kind,
                    "name": record.name,
                    "summary": record.summary,
                    "own_schema": json_schema(cls, scope="own"),
                }
            )
    presets = [
        {"id": p.id, "summary": p.summary, "source": p.source, "settings": dict(p.settings)}
        for p in contribution.presets
    ]
    return {
        "value": info.value,
        "learnables": learnables,
        "components": components,
        "presets": presets,
    }


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a manifest by rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(dump_manifest(content), encoding="utf-8")
    temporary.replace(path)


def dump_manifest(content: Mapping[str, Any]) -> str:
    """Returns the text of a manifest file."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
