"""Who provides which name: registration, look-up, suggestions and provenance.

Names follow one rule that does not depend on the order of paths. ``name`` is enough while one
distribution claims it; the distribution ``rlreg-NAME`` owns the bare ``NAME``, and core owns the
tags of its components; any other name claimed twice is ambiguous and must be written
``distribution/name``. What is registered by call has the id ``local/NAME``.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rlreg.blocking import normalize
from rlreg.errors import (
    AmbiguousNameError,
    DuplicateNameError,
    PluginError,
    RegistrationError,
    UnknownNameError,
    did_you_mean,
)
from rlreg.plugins import PluginInfo, refuse_while_loading

if TYPE_CHECKING:
    from rlreg.config import ComponentConfig, LearnableConfig, Preset
    from rlreg.open_union import OpenUnion

LOCAL = "local"
"""Distribution name of what is registered by call."""


class _Distributed(Protocol):
    @property
    def distribution(self) -> str: ...


Claim = TypeVar("Claim", bound=_Distributed)
L = TypeVar("L", bound="type[LearnableConfig]")
C = TypeVar("C", bound="type[ComponentConfig]")


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


def summary_of(cls: type) -> str:
    """Returns the first paragraph of a class's docstring on one line."""
    paragraph = (cls.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split())


@dataclass(frozen=True, slots=True)
class LearnableInfo:
    """What a listing says of a learnable."""

    name: str
    id: str
    summary: str
    regime: str
    distribution: str
    version: str
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class ComponentInfo:
    """What a listing says of a component."""

    kind: str
    name: str
    id: str
    summary: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class PresetRecord:
    """A preset and the distribution it comes from."""

    preset: Preset
    distribution: str
    version: str


def owner_among(kind: str, name: str, claims: Sequence[Claim]) -> Claim | None:
    """Returns whom a bare name belongs to, or ``None`` if it is ambiguous or nobody's."""
    if len(claims) == 1:
        return claims[0]
    named_after = f"rlreg-{normalize(name)}"
    owners = [named_after] if kind == "learnable" else ["rlreg", named_after]
    for owner in owners:
        for claim in claims:
            if normalize(claim.distribution) == owner:
                return claim
    return None


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

    def resolve(self, kind: str, reference: str) -> Record:
        """Finds the record that a bare or qualified name means.

        Raises:
            UnknownNameError: If there is none; the message has the nearest names.
            AmbiguousNameError: If several distributions claim a bare name.
            PluginError: If the name looks like that of a broken or blocked plugin.
        """
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


def where_is(cls: type) -> str:
    """Returns the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


_registry = Registry()


_is_listing: contextvars.ContextVar[bool] = contextvars.ContextVar("rlreg_listing", default=False)


@contextlib.contextmanager
def without_discovery() -> Iterator[None]:
    """Look-ups inside the block know core, and what is known already; they import no plugin."""
    from rlreg.discovery import add_core

    if not _registry.is_complete:
        add_core(_registry)
    token = _is_listing.set(True)
    try:
        yield
    finally:
        _is_listing.reset(token)


def _ready() -> Registry:
    """Returns the registry after discovery, which runs once and whole."""
    from rlreg.discovery import discover

    registry = _registry
    if registry.is_complete or _is_listing.get():
        return registry
    with registry.lock:
        if not registry.is_complete:
            registry.is_complete = True  # set first: what discovery imports may look names up
            try:
                discover(registry)
            except BaseException:
                registry.is_complete = False
                raise
    return registry


def rediscover() -> list[PluginInfo]:
    """Looks for plugins again, e.g. after ``pip install`` in a notebook; keeps local names.

    A module that failed to import is tried again; one that imported is not reloaded.
    """
    importlib.invalidate_caches()  # finders remember what was not there
    with _registry.lock:
        for key in list(_registry.records):
            kept = [record for record in _registry.records[key] if record.distribution == LOCAL]
            _registry.records[key] = kept
        _registry.presets.clear()
        _registry.is_complete = False
        _registry.generation += 1
        return list(_ready().plugins)


# --- registration -------------------------------------------------------------------------------


def register_learnable(cls: L) -> L:
    """Registers a learnable under ``local/NAME``; usable as a decorator.

    Raises:
        RegistrationError: If the class breaks the contract; the message names the field.
        DuplicateNameError: If another class has the name.
    """
    _register(cls, "learnable")
    return cls


def register_component(cls: C) -> C:
    """Registers a component of any kind under ``local/NAME``; usable as a decorator.

    Raises:
        RegistrationError: If the class breaks the contract; the message names the field.
        DuplicateNameError: If another class has the name.
    """
    _register(cls, "component")
    return cls


def _register(cls: Any, what: str) -> None:
    from rlreg.config import ComponentConfig, LearnableConfig
    from rlreg.contract import check_member

    refuse_while_loading(f"register_{what}")
    wanted = LearnableConfig if what == "learnable" else ComponentConfig
    if not (isinstance(cls, type) and issubclass(cls, wanted)):
        raise RegistrationError(
            f"register_{what}: expected a subclass of {wanted.__name__}, got {cls!r}"
        )
    member = check_member(cls)
    record = Record(member.kind, member.get_type(), member, LOCAL, "")
    with _registry.lock:
        for other in _registry.records.get((record.kind, record.name), ()):
            if other.cls is cls:
                return
            raise DuplicateNameError(
                f"{record.kind} {record.name!r} is already registered by {other.distribution} "
                f"({where_is(other.cls)}); choose another tag for {where_is(cls)}"
            )
        _registry.add(record)


# --- look-up ------------------------------------------------------------------------------------


def resolve(kind: str, reference: str) -> Record:
    """Finds the record a name means; see :meth:`Registry.resolve`."""
    return _ready().resolve(kind, reference)


def records(kind: str) -> list[Record]:
    """Returns every record of a kind."""
    return _ready().all(kind)


def generation() -> int:
    """Returns a number that grows whenever a name is added, for caches of what is registered."""
    return _ready().generation


def member(union: type[OpenUnion], reference: Any) -> type[OpenUnion]:
    """Finds the member of a union that a tag means.

    Raises:
        UnknownNameError: If there is none.
        AmbiguousNameError: If the tag needs a distribution in front.
    """
    if not isinstance(reference, str):
        raise UnknownNameError(f"expected a string, one of {', '.join(component_names(union))}")
    record = resolve(union.kind, reference)
    if not issubclass(record.cls, union):
        names = ", ".join(component_names(union)) or "nothing"
        raise UnknownNameError(f"{reference!r} is no {union.__name__}; there is {names}")
    return record.cls


def find_member(union: type[OpenUnion], reference: Any) -> type[OpenUnion] | None:
    """Like :func:`member`, but returns ``None`` where that raises."""
    try:
        return member(union, reference)
    except (LookupError, PluginError):
        return None


def component_names(union: type[OpenUnion]) -> list[str]:
    """Returns the tags that a union takes, qualified where the bare tag is ambiguous."""
    return [reference(r.cls) for r in records(union.kind) if issubclass(r.cls, union)]


def reference(cls: type[OpenUnion]) -> str:
    """Returns the shortest name that means this class: its tag, or ``distribution/tag``."""
    registry, tag = _ready(), cls.get_type()
    claims = registry.records.get((cls.kind, tag), ())
    own = next((record for record in claims if record.cls is cls), None)
    if own is None or owner_among(cls.kind, tag, list(claims)) is own:
        return tag
    return own.id


def require_registered(cls: type[OpenUnion]) -> None:
    """Raises unless ``cls`` itself is registered: only then can a dump of it be read back.

    Raises:
        RegistrationError: If the class, or the class its tag means, is another one.
    """
    claims = _ready().records.get((cls.kind, cls.get_type()), ())
    if not any(record.cls is cls for record in claims):
        raise RegistrationError(
            f"{where_is(cls)} is not registered; decorate it with @rlreg.register_"
            f"{'learnable' if cls.kind == 'learnable' else 'component'}"
        )


def provenance(cls: type[OpenUnion]) -> Record:
    """Returns the record of a registered class.

    Raises:
        RegistrationError: If the class is not registered.
    """
    require_registered(cls)
    claims = _ready().records[cls.kind, cls.get_type()]
    return next(record for record in claims if record.cls is cls)


def classes_with_field(owner: type, key: str) -> list[str]:
    """Returns the names of the classes of the same kind that have a field ``key``."""
    return [
        reference(record.cls)
        for record in records(getattr(owner, "kind", ""))
        if key in record.cls.model_fields and record.cls is not owner
    ]


def list_learnables() -> list[LearnableInfo]:
    """Lists the learnables that can be created."""
    return [
        LearnableInfo(
            name=record.name,
            id=record.id,
            summary=record.summary,
            regime=str(getattr(record.cls, "regime", "")),
            distribution=record.distribution,
            version=record.version,
        )
        for record in records("learnable")
    ]


def list_components(kind: str | None = None) -> list[ComponentInfo]:
    """Lists the components of one kind (``encoder``, ``optimizer``, ...) or of all.

    Raises:
        UnknownNameError: If there is no such kind.
    """
    from rlreg.config import KINDS

    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"there is {', '.join(sorted(KINDS))}"
        raise UnknownNameError(f"unknown component kind {kind!r}; {hint}")
    return [
        ComponentInfo(r.kind, r.name, r.id, r.summary, r.distribution, r.version)
        for each in ([kind] if kind else sorted(KINDS))
        for r in records(each)
    ]


def list_plugins() -> list[PluginInfo]:
    """Lists every plugin with its status: ok, broken or blocked."""
    return list(_ready().plugins)


def list_presets(learnable: str | None = None) -> list[PresetRecord]:
    """Lists presets, of one learnable or of all, sorted by id."""
    held = sorted(_ready().presets.items())
    return [item for _, item in held if learnable in (None, item.preset.learnable)]


def get_preset(preset_id: str) -> PresetRecord:
    """Returns a preset.

    Raises:
        UnknownNameError: If there is none; the message has the nearest ids.
    """
    presets = _ready().presets
    if preset_id not in presets:
        hint = (
            did_you_mean(preset_id, presets) or f"there is {', '.join(sorted(presets)) or 'none'}"
        )
        raise UnknownNameError(f"unknown preset {preset_id!r}; {hint}")
    return presets[preset_id]


def forget_local(names: Iterable[str] | None = None) -> None:
    """Removes names that were registered by call: for tests and notebooks."""
    with _registry.lock:
        for (_, name), many in _registry.records.items():
            if names is None or name in names:
                many[:] = [record for record in many if record.distribution != LOCAL]
        _registry.generation += 1
