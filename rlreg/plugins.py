"""Plugins: the hooks they implement, and discovery in which each of them fails alone.

pluggy checks and calls hook implementations; it is not used to load them. Its own loader is eager,
one raising plugin loses the results of all, a second distribution with the same entry-point name is
skipped without a word and a misspelt hook passes. So rlreg reads the distributions one by one,
gives every plugin a plugin manager of its own and checks what comes back.
"""

from __future__ import annotations

import importlib
import inspect
import json
import traceback
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlreg.blocking import BlockList, normalize
from rlreg.entry_points import GROUP as GROUP
from rlreg.entry_points import PLUGIN_API as PLUGIN_API
from rlreg.entry_points import PluginInfo as PluginInfo
from rlreg.entry_points import find_entry_points as find_entry_points
from rlreg.entry_points import marked
from rlreg.entry_points import module_file as module_file
from rlreg.errors import RegistrationError, RlregError, did_you_mean
from rlreg.faults import package_of, place_in

if TYPE_CHECKING:
    import pluggy

    from rlreg.config import Preset
    from rlreg.open_union import OpenUnion

HOOK_NAMES = ("rlreg_learnables", "rlreg_components", "rlreg_presets")


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


# --- one plugin ---------------------------------------------------------------------------------


def load_plugin(info: PluginInfo, block_list: BlockList) -> Contribution:
    """Loads one plugin unless it is blocked; whatever it raises becomes its status."""
    info = marked(info, block_list)
    if info.status != "ok":
        return Contribution(info)
    _loading.name = f"{info.distribution}:{info.entry_point}"
    _loading.offences = []
    info = replace(info, file=module_file(info))
    try:
        with warnings.catch_warnings():
            # pydantic's, of a name that the contract refuses with a message of its own.
            warnings.filterwarnings("ignore", r"Field name .* shadows an attribute", UserWarning)
            manager = _manager_of(_load_object(info))
            members, presets = _contributions(manager)
        if _loading.offences:
            raise RegistrationError(_loading.offences[0])
        hooks = tuple(name for name in HOOK_NAMES if getattr(manager.hook, name).get_hookimpls())
        return Contribution(replace(info, hooks=hooks), members, presets)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit included: a plugin fails alone
        return Contribution(as_broken(info, error))
    finally:
        _loading.name = ""


def _load_object(info: PluginInfo) -> Any:
    module, _, attributes = info.value.partition("[")[0].partition(":")
    plugin: Any = importlib.import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        plugin = getattr(plugin, attribute)
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


def _manager_of(plugin: Any) -> pluggy.PluginManager:
    import pluggy

    from rlreg.hooks import Hooks

    manager = pluggy.PluginManager("rlreg")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    _refuse_unknown_hooks(manager)
    _refuse_unmarked_hooks(manager, plugin)
    return manager


def _contributions(
    manager: pluggy.PluginManager,
) -> tuple[tuple[type[OpenUnion], ...], tuple[Preset, ...]]:
    from rlreg.config import ComponentConfig, LearnableConfig, Preset
    from rlreg.contract import check_member

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
            members.append(check_member(cls, is_alone=False))
    presets = []
    for preset in _call(manager, "rlreg_presets"):
        if not isinstance(preset, Preset):
            raise RegistrationError(f"rlreg_presets must give Preset objects, got {preset!r}")
        presets.append(preset)
    return tuple(members), tuple(presets)


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    import pluggy

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


def _refuse_unmarked_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raises for a function with the name of a hook that pluggy would pass over in silence."""
    for name in HOOK_NAMES:
        found = inspect.getattr_static(plugin, name, None)
        if inspect.isroutine(found) and not getattr(manager.hook, name).get_hookimpls():
            raise RegistrationError(f"{name} is not marked @rlreg.hookimpl, so nobody calls it")


def _call(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    items: list[Any] = []
    caller = getattr(manager.hook, hook)
    results = caller()  # pluggy leaves None out
    if not results and caller.get_hookimpls():
        raise RegistrationError(f"{hook} gave None; is `return` missing?")
    for result in results:
        if isinstance(result, str | bytes) or inspect.isclass(result):
            raise RegistrationError(f"{hook} must return a list of classes, got {result!r}")
        try:
            items.extend(result)  # a generator raises here, inside this plugin's own try
        except TypeError as error:
            raise RegistrationError(f"{hook} must return a list, got {result!r}") from error
    return items


def as_broken(info: PluginInfo, error: BaseException) -> PluginInfo:
    """Returns a plugin as broken, with cause, remedy and its own traceback."""
    return replace(
        info,
        status="broken",
        error=_cause(info, error),
        remedy=remedy_of(info, error),
        traceback="".join(traceback.format_exception(error)),
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _cause(info: PluginInfo, error: BaseException) -> str:
    place = place_in(error, package_of(info))
    where = f" ({place})" if place else ""
    kind = "" if isinstance(error, RlregError) else f"{type(error).__name__}: "
    return f"{kind}{_one_line(error)}{where}"


def remedy_of(info: PluginInfo, error: BaseException) -> str:
    """Returns what the user can do about an error of a plugin."""
    block = f"rlreg plugins block {info.distribution}"
    if isinstance(error, IncompatiblePluginError):
        return "pip install --upgrade rlreg"
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        if missing == info.value.partition(":")[0].partition(".")[0]:
            return f"reinstall {info.distribution}: its own module {error.name!r} is not there"
        return f"install what provides the module {missing!r}, or turn the plugin off: {block}"
    if is_editable(info):
        return f"mend it (its traceback: rlreg doctor --json), or turn the plugin off: {block}"
    return f"report it to the authors of {info.distribution}, or turn the plugin off: {block}"


def is_editable(info: PluginInfo) -> bool:
    """Whether a plugin is installed as the sources that somebody works on."""
    path = Path(info.location) / "direct_url.json"
    try:
        document = json.loads(path.read_bytes())
        return bool(document["dir_info"]["editable"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
