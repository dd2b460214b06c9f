"""Who provides which name: registration, look-up, suggestions and provenance.

What is known in this process is one `Registry` (`rlreg.records` has the rule of names), filled by
discovery at the first look-up. What is registered by call has the id ``local/NAME``.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from rlreg.entry_points import PluginInfo
from rlreg.errors import (
    DuplicateNameError,
    PluginError,
    RegistrationError,
    UnknownNameError,
    did_you_mean,
)
from rlreg.names import ComponentInfo as ComponentInfo
from rlreg.names import LearnableInfo as LearnableInfo
from rlreg.names import owner_among
from rlreg.names import summary_of as summary_of
from rlreg.plugins import refuse_while_loading
from rlreg.records import PresetRecord as PresetRecord
from rlreg.records import Record as Record
from rlreg.records import Registry as Registry
from rlreg.records import where_is as where_is

if TYPE_CHECKING:
    from rlreg.config import ComponentConfig, LearnableConfig
    from rlreg.open_union import OpenUnion
    from rlreg.plugins import Contribution

LOCAL = "local"
"""Distribution name of what is registered by call."""


L = TypeVar("L", bound="type[LearnableConfig]")
C = TypeVar("C", bound="type[ComponentConfig]")


_registry = Registry()


_missing: contextvars.ContextVar[set[tuple[str, str]] | None] = contextvars.ContextVar(
    "rlreg_missing", default=None
)
"""Set while look-ups must not discover: takes the names that were not known."""


@contextlib.contextmanager
def without_discovery(missing: set[tuple[str, str]] | None = None) -> Iterator[None]:
    """Look-ups inside the block know core, and what is known already; they import no plugin.

    Args:
        missing: Takes kind and bare name of what was looked up and is not known.
    """
    from rlreg.discovery import add_core

    if not _registry.is_complete:
        add_core(_registry)
    token = _missing.set(set() if missing is None else missing)
    try:
        yield
    finally:
        _missing.reset(token)


@contextlib.contextmanager
def lent(contributions: Iterable[Contribution]) -> Iterator[None]:
    """Look-ups inside the block know what these plugins bring, too."""
    added: list[Record] = []
    try:
        for item in contributions:
            for cls in item.members:
                record = Record(
                    cls.kind, cls.get_type(), cls, item.info.distribution, item.info.version
                )
                if record not in _registry.records.get((record.kind, record.name), ()):
                    _registry.add(record)
                    added.append(record)
        yield
    finally:
        for record in added:
            _registry.remove(record.distribution, [record.cls], ())


def is_untouched() -> bool:
    """Returns whether this process has neither looked for plugins nor registered by call."""
    return not _registry.is_complete and not any(
        record.distribution == LOCAL for many in _registry.records.values() for record in many
    )


def _ready() -> Registry:
    """Returns the registry after discovery, which runs once and whole."""
    from rlreg.discovery import discover

    registry = _registry
    if registry.is_complete or _missing.get() is not None:
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


def _is_written_anew(old: type, new: type) -> bool:
    """Whether a cell of a notebook, or a line of a prompt, was run again."""
    return new.__module__ == "__main__" and where_is(old) == where_is(new)


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
            if other.distribution == LOCAL and _is_written_anew(other.cls, cls):
                _registry.remove(LOCAL, [other.cls], [])
                break
            raise DuplicateNameError(
                f"{record.kind} {record.name!r} is already registered by {other.distribution} "
                f"({where_is(other.cls)}); choose another tag for {where_is(cls)}"
            )
        _registry.add(record)


# --- look-up ------------------------------------------------------------------------------------


def resolve(kind: str, reference: str) -> Record:
    """Finds the record a name means; see :meth:`Registry.resolve`."""
    try:
        return _ready().resolve(kind, reference)
    except UnknownNameError:
        missing = _missing.get()
        if missing is not None:
            missing.add((kind, reference.rpartition("/")[2]))
        raise


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
