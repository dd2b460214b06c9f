"""The entry points of plugins: who is installed, read from metadata and without importing any.

Apart from `rlreg.plugins`, which loads them, so that listing from manifests stays quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlreg.blocking import BlockList, normalize
from rlreg.distributions import Distribution, scan

GROUP = "rlreg"
"""Entry-point group of plugins."""

PLUGIN_API = 1
"""Version of the plugin contract. A plugin that needs a later one says ``RLREG_PLUGIN_API = n``."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One entry point of the group ``rlreg``, and how it fared.

    Attributes:
        distribution: Name of the distribution as its metadata spells it.
        version: Its version, or an empty string if the metadata has none.
        entry_point: Name of the entry point.
        value: What it points to: ``module`` or ``module:object``.
        status: ``ok``, ``broken`` or ``blocked``.
        error: The cause in one line, empty if there is none.
        remedy: What the user can do about it.
        traceback: The plugin's own traceback, for its author.
        location: Folder that holds the distribution's metadata.
        file: The module that the entry point names; empty if it is not found, or not looked for.
        hooks: The hooks it implements; empty while it is not imported.
    """

    distribution: str
    version: str
    entry_point: str
    value: str
    status: str = "ok"
    error: str = ""
    remedy: str = ""
    traceback: str = ""
    location: str = ""
    file: str = ""
    hooks: tuple[str, ...] = ()


def find_entry_points() -> Iterator[PluginInfo]:
    """Yields every ``rlreg`` entry point on this machine without importing any of them.

    A distribution seen twice (an editable install beside its ``egg-info``) counts once: the first
    on the path, where an installed one goes before an ``egg-info``.
    """
    chosen: dict[str, Distribution] = {}
    for distribution in scan(GROUP):
        name = normalize(distribution.name)
        is_source = distribution.location.endswith(".egg-info")
        if name not in chosen or (chosen[name].location.endswith(".egg-info") and not is_source):
            chosen[name] = distribution
    for distribution in chosen.values():
        yield from _infos(distribution)


def _infos(distribution: Distribution) -> Iterator[PluginInfo]:
    owner = PluginInfo(
        distribution.name, distribution.version, "", "", location=distribution.location
    )
    if distribution.fault:
        remedy = f"reinstall {distribution.name}, or mend {distribution.location}"
        yield replace(owner, status="broken", error=distribution.fault, remedy=remedy)
    for name, value in distribution.entry_points:
        yield replace(owner, entry_point=name, value=value)


def marked(info: PluginInfo, block_list: BlockList) -> PluginInfo:
    """Returns a plugin as blocked where the user wants it off; else as it is."""
    reason = block_list.reason(info.distribution, info.entry_point)
    if info.status != "ok" or reason is None:
        return info
    return replace(info, status="blocked", error=reason[0], remedy=reason[1])


def module_file(info: PluginInfo) -> str:
    """Returns the file of the module that an entry point names, importing nothing."""
    import importlib.util
    from pathlib import Path

    top, *rest = info.value.partition("[")[0].partition(":")[0].strip().split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if not rest:
        return spec.origin or ""
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                return str(path)
    return ""
