"""The catalogue: what is installed, read from manifests and without importing plugins.

Listing and completion need names and summaries only. A plugin with a fresh manifest is not
imported; one without is loaded by itself, as discovery would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlreg.blocking import BlockList, normalize
from rlreg.entry_points import PluginInfo, find_entry_points, marked
from rlreg.errors import DuplicateNameError, RegistrationError
from rlreg.manifest import Manifest, PathListing, read_manifest
from rlreg.names import ComponentInfo, LearnableInfo, summary_of

if TYPE_CHECKING:
    from rlreg.plugins import Contribution


class Catalog:
    """What is installed, sorted by name."""

    def __init__(self) -> None:
        self.plugins: list[PluginInfo] = []
        self.learnables: list[LearnableInfo] = []
        self.components: list[ComponentInfo] = []
        self.presets: list[str] = []


def read_catalog() -> Catalog:
    """Reads what every plugin on this machine provides."""
    catalog = Catalog()
    block_list, listing = BlockList.read(), PathListing()
    providers: dict[tuple[str, str], list[PluginInfo]] = {}
    unread: list[PluginInfo] = []
    for found in find_entry_points():
        info = marked(found, block_list)
        if info.status != "ok":
            catalog.plugins.append(info)
            continue
        manifest = read_manifest(info, listing, is_brief=True)
        if manifest is None:
            unread.append(info)
            continue
        _add_manifest(catalog, info, manifest)
        for item in manifest.components:
            providers.setdefault((item["kind"], item["name"]), []).append(info)
    for info in unread:
        _add_contribution(catalog, _load_alone(info, block_list, providers))
    catalog.plugins.sort(key=lambda info: (normalize(info.distribution), info.entry_point))
    catalog.learnables.sort(key=lambda info: (info.name, normalize(info.distribution)))
    catalog.components.sort(key=lambda info: (info.kind, info.name, info.distribution))
    catalog.presets.sort()
    return catalog


def _load_alone(
    info: PluginInfo,
    block_list: BlockList,
    providers: Mapping[tuple[str, str], Sequence[PluginInfo]],
) -> Contribution:
    """Loads a plugin, and of the others only those that its defaults name.

    Where manifests do not say whose a name is, all of them are loaded.
    """
    from rlreg import registry  # with it comes what manifests do without
    from rlreg.plugins import Contribution, load_plugin

    missing: set[tuple[str, str]] = set()
    with registry.without_discovery(missing):
        contribution = load_plugin(info, block_list)
        present = [contribution]
        while not _are_valid(contribution, present, missing):
            known = [item.info.distribution for item in present]
            more = [
                other
                for name in sorted(missing)
                for other in providers.get(name, ())
                if other.distribution not in known
            ]
            if not more:
                break
            present += [load_plugin(other, block_list) for other in more]
        else:
            return contribution
    settled = next(
        plugin
        for plugin in registry.list_plugins()
        if (plugin.distribution, plugin.entry_point) == (info.distribution, info.entry_point)
    )
    return contribution if settled.status == "ok" else Contribution(settled)


def _are_valid(
    contribution: Contribution, present: Sequence[Contribution], missing: set[tuple[str, str]]
) -> bool:
    """Returns whether the defaults hold among what is present; collects the names they miss."""
    if not contribution.members:
        return True
    from rlreg import registry
    from rlreg.contract import check_default

    missing.clear()
    are_valid = True
    try:
        with registry.lent(present):
            for cls in contribution.members:
                try:
                    check_default(cls)
                except RegistrationError:
                    are_valid = False
    except DuplicateNameError:
        return False
    return are_valid


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
