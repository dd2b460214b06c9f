"""Plugins: the hooks they implement, and discovery in which each of them fails alone.

pluggy checks and calls hook implementations; it is not used to load them. Its own loader is eager,
one raising plugin loses the results of all, a second distribution with the same entry-point name is
skipped without a word and a misspelt hook passes. So rlreg reads the distributions one by one,
gives every plugin a plugin manager of its own and checks what comes back.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pluggy

from rlreg.blocking import BlockList, normalize
from rlreg.errors import RegistrationError, RlregError, did_you_mean

if TYPE_CHECKING:
    from rlreg.config import Preset
    from rlreg.open_union import OpenUnion

GROUP = "rlreg"
"""Entry-point group of plugins."""

PLUGIN_API = 1
"""Version of the plugin contract. A plugin that needs a later one says ``RLREG_PLUGIN_API = n``."""

hookspec = pluggy.HookspecMarker("rlreg")
hookimpl = pluggy.HookimplMarker("rlreg")


class Hooks:
    """The three hooks a plugin may implement, with plain functions marked ``@rlreg.hookimpl``."""

    @hookspec
    def rlreg_learnables(self) -> Iterable[Any]:
        """Returns the ``LearnableConfig`` classes of the plugin."""
        raise NotImplementedError

    @hookspec
    def rlreg_components(self) -> Iterable[Any]:
        """Returns the ``ComponentConfig`` classes of the plugin, of any kind."""
        raise NotImplementedError

    @hookspec
    def rlreg_presets(self) -> Iterable[Any]:
        """Returns the ``Preset`` objects of the plugin."""
        raise NotImplementedError


HOOK_NAMES = ("rlreg_learnables", "rlreg_components", "rlreg_presets")


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


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one plugin brings: all of it, or nothing if the plugin is not ok."""

    info: PluginInfo
    members: tuple[type[OpenUnion], ...] = ()
    presets: tuple[Preset, ...] = ()


class IncompatiblePluginError(RlregError):
    """The plugin needs a later plugin API than this core has."""


@dataclass(slots=True)
class _Loading:
    """The plugin being imported now; what it tries to register by call is held against it."""

    name: str = ""
    offences: list[str] = field(default_factory=list)


_loading = _Loading()


def refuse_while_loading(what: str) -> None:
    """Raises if a plugin is being imported: it must return classes from its hooks instead."""
    if _loading.name:
        message = (
            f"plugin {_loading.name!r} called {what} while it was imported; "
            "return the class from its rlreg_learnables or rlreg_components hook instead"
        )
        _loading.offences.append(message)
        raise RegistrationError(message)


def load_plugins() -> list[Contribution]:
    """Loads every plugin that is not blocked, each by itself.

    Returns:
        One contribution for each entry point, sorted by distribution and entry point.
    """
    block_list = BlockList.read()
    found = [load_plugin(info, block_list) for info in find_entry_points()]
    return sorted(
        found, key=lambda item: (normalize(item.info.distribution), item.info.entry_point)
    )


# --- distributions ------------------------------------------------------------------------------


def find_entry_points() -> Iterator[PluginInfo]:
    """Yields every ``rlreg`` entry point on this machine without importing any of them.

    ``importlib.metadata.entry_points()`` is not used: one malformed file of an unrelated package
    makes it raise. A distribution seen twice (an editable install beside its ``egg-info``) counts
    once: the first on the path, where an installed one goes before an ``egg-info``.
    """
    chosen: dict[str, tuple[bool, list[PluginInfo]]] = {}
    for distribution in importlib.metadata.distributions():
        infos = _entry_points_of(distribution)
        if not infos:
            continue
        name = normalize(infos[0].distribution)
        is_source = infos[0].location.endswith(".egg-info")
        if name not in chosen or (chosen[name][0] and not is_source):
            chosen[name] = (is_source, infos)
    for _, infos in chosen.values():
        yield from infos


def _entry_points_of(distribution: importlib.metadata.Distribution) -> list[PluginInfo]:
    location = str(getattr(distribution, "_path", ""))
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return []  # not readable, so nobody can tell that it is a plugin of ours
    if f"[{GROUP}]" not in text:
        return []
    try:
        metadata = distribution.metadata
        name, version = metadata["Name"], metadata["Version"] or ""
    except Exception:  # noqa: BLE001 - metadata of strangers fails in many ways
        name, version = None, ""
    owner = PluginInfo(name or _name_from(location), version, "", "", location=location)
    try:
        points = [point for point in distribution.entry_points if point.group == GROUP]
    except Exception as error:  # noqa: BLE001 - a malformed line raises whatever the parser hits
        return [
            replace(
                owner,
                status="broken",
                error=f"entry_points.txt cannot be parsed: {_one_line(error)}",
                remedy=f"reinstall {owner.distribution}, or mend {location}",
            )
        ]
    return [replace(owner, entry_point=point.name, value=point.value) for point in points]


def _name_from(location: str) -> str:
    folder = location.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return (
        folder.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0] or "unknown"
    )


# --- one plugin ---------------------------------------------------------------------------------


def load_plugin(info: PluginInfo, block_list: BlockList) -> Contribution:
    """Loads one plugin unless it is blocked; whatever it raises becomes its status."""
    if info.status != "ok":
        return Contribution(info)
    blocked = block_list.reason(info.distribution, info.entry_point)
    if blocked:
        reason, remedy = blocked
        return Contribution(replace(info, status="blocked", error=reason, remedy=remedy))
    _loading.name = f"{info.distribution}:{info.entry_point}"
    _loading.offences = []
    try:
        members, presets = _contributions(_load_object(info))
        if _loading.offences:
            raise RegistrationError(_loading.offences[0])
        return Contribution(info, members, presets)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit included: a plugin fails alone
        return Contribution(_broken(info, error))
    finally:
        _loading.name = ""


def _load_object(info: PluginInfo) -> Any:
    point = importlib.metadata.EntryPoint(info.entry_point, info.value, GROUP)
    plugin = point.load()
    if inspect.isclass(plugin):
        plugin = plugin()
    if inspect.isroutine(plugin):
        raise RegistrationError(
            f"entry point {info.entry_point!r} = {info.value!r} is a function; point it at the "
            "module (or object) that holds the functions marked @hookimpl"
        )
    needed = getattr(plugin, "RLREG_PLUGIN_API", PLUGIN_API)
    if not isinstance(needed, int) or isinstance(needed, bool) or needed < 1:
        raise RegistrationError(f"RLREG_PLUGIN_API must be a whole number >= 1, got {needed!r}")
    if needed > PLUGIN_API:
        raise IncompatiblePluginError(
            f"incompatible: it needs plugin API {needed}, this rlreg has {PLUGIN_API}"
        )
    return plugin


def _contributions(plugin: Any) -> tuple[tuple[type[OpenUnion], ...], tuple[Preset, ...]]:
    from rlreg.config import ComponentConfig, LearnableConfig, Preset
    from rlreg.contract import check_member

    manager = pluggy.PluginManager("rlreg")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    _refuse_unknown_hooks(manager)
    members: list[type[OpenUnion]] = []
    for hook, wanted in (
        ("rlreg_learnables", LearnableConfig),
        ("rlreg_components", ComponentConfig),
    ):
        for cls in _call(manager, hook):
            if not (inspect.isclass(cls) and issubclass(cls, wanted)):
                raise RegistrationError(
                    f"{hook} must give subclasses of {wanted.__name__}, got {cls!r}"
                )
            members.append(check_member(cls))
    presets = []
    for preset in _call(manager, "rlreg_presets"):
        if not isinstance(preset, Preset):
            raise RegistrationError(f"rlreg_presets must give Preset objects, got {preset!r}")
        presets.append(preset)
    return tuple(members), tuple(presets)


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    implemented = 0
    for name, caller in vars(manager.hook).items():
        if not isinstance(caller, pluggy.HookCaller):
            continue
        implemented += bool(caller.get_hookimpls())
        if caller.spec is None and not all(impl.optionalhook for impl in caller.get_hookimpls()):
            hint = did_you_mean(name, HOOK_NAMES)
            raise RegistrationError(f"rlreg has no hook {name!r}; {hint or list(HOOK_NAMES)}")
    if not implemented:
        raise RegistrationError(
            f"it implements no hook of rlreg ({', '.join(HOOK_NAMES)}); mark them @rlreg.hookimpl"
        )


def _call(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    items: list[Any] = []
    for result in getattr(manager.hook, hook)():
        if isinstance(result, str | bytes) or inspect.isclass(result):
            raise RegistrationError(f"{hook} must return a list of classes, got {result!r}")
        try:
            items.extend(result)  # a generator raises here, inside this plugin's own try
        except TypeError as error:
            raise RegistrationError(f"{hook} must return a list, got {result!r}") from error
    return items


def _broken(info: PluginInfo, error: BaseException) -> PluginInfo:
    return replace(
        info,
        status="broken",
        error=_cause(error),
        remedy=_remedy(info, error),
        traceback="".join(traceback.format_exception(error)),
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _cause(error: BaseException) -> str:
    if isinstance(error, RlregError):
        return _one_line(error)
    return f"{type(error).__name__}: {_one_line(error)}"


def _remedy(info: PluginInfo, error: BaseException) -> str:
    block = f"rlreg plugins block {info.distribution}"
    if isinstance(error, IncompatiblePluginError):
        return "pip install --upgrade rlreg"
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        if missing == info.value.partition(":")[0].partition(".")[0]:
            return f"reinstall {info.distribution}: its own module {error.name!r} is not there"
        return f"install what provides the module {missing!r}, or turn the plugin off: {block}"
    return f"report it to the authors of {info.distribution}, or turn the plugin off: {block}"
