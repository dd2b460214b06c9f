"""The catalogue: what is installed, read from manifests and without importing plugins.

Listing and completion need names and summaries only. A plugin with a fresh manifest is not
imported; one without is loaded by itself, as discovery would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlreg import registry
from rlreg.blocking import BlockList, normalize
from rlreg.errors import RegistrationError
from rlreg.manifest import Manifest, PathListing, read_manifest
from rlreg.plugins import Contribution, PluginInfo, find_entry_points, load_plugin
from rlreg.registry import ComponentInfo, LearnableInfo, summary_of

if TYPE_CHECKING:
    from rlreg.open_union import OpenUnion


@dataclass(slots=True)
class Catalog:
    """What is installed, sorted by name."""

    plugins: list[PluginInfo] = field(default_factory=list)
    learnables: list[LearnableInfo] = field(default_factory=list)
    components: list[ComponentInfo] = field(default_factory=list)
    presets: list[str] = field(default_factory=list)


def read_catalog() -> Catalog:
    """Reads what every plugin on this machine provides."""
    catalog = Catalog()
    block_list, listing = BlockList.read(), PathListing()
    for info in find_entry_points():
        is_off = info.status != "ok" or block_list.reason(info.distribution, info.entry_point)
        manifest = None if is_off else read_manifest(info, listing)
        if manifest is not None:
            _add_manifest(catalog, info, manifest)
        else:
            _add_contribution(catalog, _load_alone(info, block_list))
    catalog.plugins.sort(key=lambda info: (normalize(info.distribution), info.entry_point))
    catalog.learnables.sort(key=lambda info: (info.name, normalize(info.distribution)))
    catalog.components.sort(key=lambda info: (info.kind, info.name, info.distribution))
    catalog.presets.sort()
    return catalog


def _load_alone(info: PluginInfo, block_list: BlockList) -> Contribution:
    """Loads a plugin, and the others only if its defaults need one of them."""
    with registry.without_discovery():
        contribution = load_plugin(info, block_list)
        if not any(_leans_on_others(cls) for cls in contribution.members):
            return contribution
    settled = next(
        plugin
        for plugin in registry.list_plugins()
        if (plugin.distribution, plugin.entry_point) == (info.distribution, info.entry_point)
    )
    return contribution if settled.status == "ok" else Contribution(settled)


def _leans_on_others(cls: type[OpenUnion]) -> bool:
    from rlreg.contract import check_default  # brings in pydantic, which manifests do without

    try:
        check_default(cls)
    except RegistrationError:
        return True
    return False


def _add_manifest(catalog: Catalog, info: PluginInfo, manifest: Manifest) -> None:
    owner = (info.distribution, info.version)
    catalog.plugins.append(info)
    catalog.learnables += [
        LearnableInfo(
            name=item["name"],
            id=f"{info.distribution}/{item['name']}",
            summary=item["summary"],
            regime=item["regime"],
            distribution=info.distribution,
            version=info.version,
        )
        for item in manifest.learnables
    ]
    catalog.components += [
        ComponentInfo(
            item["kind"],
            item["name"],
            f"{info.distribution}/{item['name']}",
            item["summary"],
            *owner,
        )
        for item in manifest.components
    ]
    catalog.presets += [item["id"] for item in manifest.presets]


def _add_contribution(catalog: Catalog, contribution: Contribution) -> None:
    info = contribution.info
    catalog.plugins.append(info)
    for cls in contribution.members:
        name, summary = cls.get_type(), summary_of(cls)
        record_id = f"{info.distribution}/{name}"
        owner = (info.distribution, info.version)
        if cls.kind == "learnable":
            regime = str(getattr(cls, "regime", ""))
            catalog.learnables.append(LearnableInfo(name, record_id, summary, regime, *owner))
        else:
            catalog.components.append(ComponentInfo(cls.kind, name, record_id, summary, *owner))
    catalog.presets += [preset.id for preset in contribution.presets]


def core_components() -> list[ComponentInfo]:
    """Lists the components of core itself."""
    from rlreg import __version__
    from rlreg.components import CORE_COMPONENTS

    return [
        ComponentInfo(
            cls.kind,
            cls.get_type(),
            f"rlreg/{cls.get_type()}",
            summary_of(cls),
            "rlreg",
            __version__,
        )
        for cls in CORE_COMPONENTS
    ]
