"""The records of a registry, and the rule by which a name means one of them.

The rule does not depend on the order of paths. ``name`` is enough while one distribution claims
it; the distribution ``rlreg-NAME`` owns the bare ``NAME``, and core owns the tags of its
components; any other name claimed twice is ambiguous and must be written ``distribution/name``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlreg.blocking import normalize
from rlreg.entry_points import PluginInfo
from rlreg.errors import (
    AmbiguousNameError,
    DuplicateNameError,
    PluginError,
    UnknownNameError,
    did_you_mean,
)
from rlreg.names import owner_among, summary_of

if TYPE_CHECKING:
    from rlreg.config import Preset
    from rlreg.open_union import OpenUnion


@dataclass(frozen=True, slots=True)
class Record:
    """One registered class and where it comes from."""

    kind: str
    name: str
    cls: type[OpenUnion]
    distribution: str
    version: str

    @property
    def id(self) -> str:
        """The qualified name, unique on this machine."""
        return f"{self.distribution}/{self.name}"

    @property
    def summary(self) -> str:
        """First sentence of the class's docstring."""
        return summary_of(self.cls)


@dataclass(frozen=True, slots=True)
class PresetRecord:
    """A preset and the distribution it comes from."""

    preset: Preset
    distribution: str
    version: str


def where_is(cls: type) -> str:
    """Returns the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


@dataclass(slots=True)
class Registry:
    """The names known in this process. One instance serves the module-level functions."""

    records: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    presets: dict[str, PresetRecord] = field(default_factory=dict)
    plugins: list[PluginInfo] = field(default_factory=list)
    generation: int = 0
    is_complete: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, record: Record) -> None:
        """Adds a record; the same class again is silent.

        Raises:
            DuplicateNameError: If the distribution already has another class under this name.
        """
        with self.lock:
            known = self.records.setdefault((record.kind, record.name), [])
            for other in known:
                if normalize(other.distribution) != normalize(record.distribution):
                    continue
                if other.cls is record.cls:
                    return
                raise DuplicateNameError(
                    f"{record.kind} {record.id!r} is already registered, by {where_is(other.cls)}; "
                    f"{where_is(record.cls)} needs another name"
                )
            known.append(record)
            known.sort(key=lambda item: normalize(item.distribution))
            self.generation += 1

    def remove(self, distribution: str, members: Sequence[type], presets: Sequence[Preset]) -> None:
        """Takes back what a plugin brought."""
        with self.lock:
            for many in self.records.values():
                many[:] = [
                    record
                    for record in many
                    if record.distribution != distribution or record.cls not in members
                ]
            for preset in presets:
                held = self.presets.get(preset.id)
                if held is not None and held.distribution == distribution:
                    del self.presets[preset.id]
            self.generation += 1

    def all(self, kind: str) -> list[Record]:
        """Returns every record of a kind, sorted by name and distribution."""
        with self.lock:
            found = [
                record for (k, _), many in self.records.items() if k == kind for record in many
            ]
        return sorted(found, key=lambda record: (record.name, normalize(record.distribution)))

    def resolve(self, kind: str, reference: Any) -> Record:
        """Finds the record that a bare or qualified name means.

        Raises:
            UnknownNameError: If there is none; the message has the nearest names.
            AmbiguousNameError: If several distributions claim a bare name.
            PluginError: If the name looks like that of a broken or blocked plugin.
        """
        if not isinstance(reference, str):
            given = type(reference).__name__
            raise UnknownNameError(f"expected the name of a {kind} as a string, got {given}")
        qualifier, _, name = reference.rpartition("/")
        with self.lock:
            claims = list(self.records.get((kind, name), ()))
        if qualifier:
            claims = self._of_distribution(claims, normalize(qualifier))
        owner = owner_among(kind, name, claims)
        if owner is not None:
            return owner
        if claims:
            ids = " or ".join(repr(record.id) for record in claims)
            raise AmbiguousNameError(
                f"{kind} {name!r} is claimed by {len(claims)} distributions; write {ids}"
            )
        raise self._unknown(kind, reference)

    def _of_distribution(self, claims: list[Record], qualifier: str) -> list[Record]:
        exact = [record for record in claims if normalize(record.distribution) == qualifier]
        if exact or self._has_distribution(qualifier):
            return exact
        return [
            record for record in claims if normalize(record.distribution) == f"rlreg-{qualifier}"
        ]

    def _has_distribution(self, name: str) -> bool:
        names = {record.distribution for many in self.records.values() for record in many}
        names |= {plugin.distribution for plugin in self.plugins}
        return name in {normalize(known) for known in names}

    def _unknown(self, kind: str, reference: str) -> Exception:
        name = reference.rpartition("/")[2]
        for plugin in self.plugins:
            names = {normalize(plugin.entry_point), normalize(plugin.distribution)}
            if plugin.status != "ok" and {normalize(name), f"rlreg-{normalize(name)}"} & names:
                return PluginError(
                    f"{kind} {reference!r}: the plugin {plugin.distribution} {plugin.version} is "
                    f"{plugin.status}: {plugin.error}; {plugin.remedy}"
                )
        known = self.all(kind)
        names = {record.name for record in known} | {record.id for record in known}
        hint = did_you_mean(reference, names) or _listing(kind, sorted({r.name for r in known}))
        return UnknownNameError(f"unknown {kind.replace('_', ' ')} {reference!r}; {hint}")


def _listing(kind: str, names: list[str]) -> str:
    if not names:
        return f"no {kind.replace('_', ' ')} is installed (pip install rlreg-iql, for example)"
    return f"there is {', '.join(names)}"
