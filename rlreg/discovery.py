"""Discovery: every plugin is loaded by itself, then all are admitted, then defaults are checked.

A default may name a component of any distribution, so it can be judged only when all of them are
there. A plugin whose defaults do not hold is withdrawn, which may take the ground from under
another one: that is repeated until nothing changes, so the outcome depends on no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlreg.config import LearnableConfig, Preset
from rlreg.contract import check_default, takes_components
from rlreg.errors import RegistrationError
from rlreg.open_union import OpenUnion
from rlreg.plugins import Contribution, PluginInfo, as_broken, load_plugins
from rlreg.registry import PresetRecord, Record, Registry, where_is


def add_core(registry: Registry) -> None:
    """Adds the components of core itself."""
    from rlreg import __version__
    from rlreg.components import CORE_COMPONENTS

    for cls in CORE_COMPONENTS:
        registry.add(Record(cls.kind, cls.get_type(), cls, "rlreg", __version__))


def discover(registry: Registry) -> None:
    """Fills a registry with core and with all of every plugin that is in order."""
    add_core(registry)
    registry.plugins = []
    contributions = load_plugins()
    own_presets = _own_presets(contributions)
    for contribution in contributions:
        registry.plugins.append(_admit(registry, contribution, own_presets))
    while _withdraw_invalid(registry, contributions):
        pass


def _own_presets(contributions: Sequence[Contribution]) -> dict[str, tuple[str, Preset]]:
    """Returns the presets that come with the learnable they are for, and from where.

    Nobody else may take such an id, whoever is loaded first.
    """
    found: dict[str, tuple[str, Preset]] = {}
    for contribution in contributions:
        learnables = {
            cls.get_type() for cls in contribution.members if issubclass(cls, LearnableConfig)
        }
        for preset in contribution.presets:
            if preset.learnable in learnables:
                found.setdefault(preset.id, (contribution.info.distribution, preset))
    return found


def _admit(
    registry: Registry, contribution: Contribution, own_presets: Mapping[str, tuple[str, Preset]]
) -> PluginInfo:
    """Takes in all of a plugin, or nothing."""
    info = contribution.info
    records = [
        Record(cls.kind, cls.get_type(), cls, info.distribution, info.version)
        for cls in contribution.members
    ]
    fault = _taken(contribution, own_presets) or _conflict(registry, records, contribution)
    if fault:
        return replace(info, status="broken", error=fault, remedy="rename one of the two")
    for record in records:
        registry.add(record)
    for preset in contribution.presets:
        registry.presets.setdefault(
            preset.id, PresetRecord(preset, info.distribution, info.version)
        )
    return info


def _taken(contribution: Contribution, own_presets: Mapping[str, tuple[str, Preset]]) -> str:
    """Returns which preset has the id of one that comes with its learnable, or an empty string."""
    for preset in contribution.presets:
        owner, own = own_presets.get(preset.id, ("", preset))
        if own != preset and owner != contribution.info.distribution:
            return f"preset {preset.id!r} is one of {owner}, whose learnable it is for"
    return ""


def _conflict(registry: Registry, records: Sequence[Record], contribution: Contribution) -> str:
    """Returns which name would stand for two things in one distribution, or an empty string."""
    claims: dict[tuple[str, str], list[type[OpenUnion]]] = {}
    for record in records:
        held = registry.records.get((record.kind, record.name), ())
        classes = claims.setdefault(
            (record.kind, record.name),
            [other.cls for other in held if other.distribution == record.distribution],
        )
        for cls in classes:
            if cls is not record.cls:
                return (
                    f"{record.kind} {record.name!r} is claimed twice in {record.distribution}: "
                    f"by {where_is(cls)} and {where_is(record.cls)}"
                )
        classes.append(record.cls)
    presets: dict[str, Preset] = {}
    for preset in contribution.presets:
        known = registry.presets.get(preset.id)
        if known is not None and known.preset != preset:
            return f"preset {preset.id!r} is also in {known.distribution}"
        if presets.setdefault(preset.id, preset) != preset:
            return f"preset {preset.id!r} is given twice"
    return ""


def _withdraw_invalid(registry: Registry, contributions: Sequence[Contribution]) -> bool:
    """Withdraws the plugins whose defaults do not hold, and returns whether there were any."""
    faults: dict[int, RegistrationError] = {}
    for index, contribution in enumerate(contributions):
        if registry.plugins[index].status != "ok":
            continue
        try:
            for cls in contribution.members:
                if takes_components(cls):  # the other defaults were checked when it was loaded
                    check_default(cls)
        except RegistrationError as error:
            faults[index] = error
    for index, fault in faults.items():
        contribution = contributions[index]
        info = contribution.info
        registry.remove(info.distribution, contribution.members, contribution.presets)
        registry.plugins[index] = as_broken(info, fault)
    return bool(faults)
