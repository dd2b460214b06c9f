"""Environments from what a run file can say: an id, or also arguments, wrappers, registration."""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rlreg.errors import EnvironmentSpecError, did_you_mean
from rlreg.open_union import validate
from rlreg.run_config import EnvironmentSettings, WrapperSettings

Env: TypeAlias = "gymnasium.Env[Any, Any]"
Factory: TypeAlias = Callable[[], Env]
EnvLike: TypeAlias = "str | EnvironmentSettings | Mapping[str, Any] | EnvSpec | Factory | Env"

# Ids that a package registers: prefix, module to import (`:function` to call), what to install.
_PACKAGES: tuple[tuple[str, str, str], ...] = (
    ("PointMaze_", "gymnasium_robotics", "'rlreg[pointmaze]'"),
    ("AntMaze_", "gymnasium_robotics", "gymnasium-robotics"),
    ("Adroit", "gymnasium_robotics", "gymnasium-robotics"),
    ("FrankaKitchen", "gymnasium_robotics", "gymnasium-robotics"),
    ("Fetch", "gymnasium_robotics", "gymnasium-robotics"),
    ("HandManipulate", "gymnasium_robotics", "gymnasium-robotics"),
    ("HandReach", "gymnasium_robotics", "gymnasium-robotics"),
    ("ALE/", "ale_py", "ale-py"),
    ("MinAtar/", "minatar.gym:register_envs", "minatar"),
    ("MiniGrid-", "minigrid", "minigrid"),
    ("BabyAI-", "minigrid", "minigrid"),
    ("dm_control/", "shimmy", "'shimmy[dm-control]'"),
)


def make_env(settings: EnvLike) -> Env:
    """Makes one environment.

    Args:
        settings: Id (``Pendulum-v1``, ``module:Id``), settings or their mapping, spec, or factory;
            an environment is returned as it is.

    Raises:
        EnvironmentSpecError: If it cannot be made; with the nearest ids, or what to install.
    """
    if isinstance(settings, gymnasium.Env):
        return settings
    env = env_factory(settings)()
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            close_env(env)
            raise EnvironmentSpecError(
                f"environment {env_name(settings)!r}: its {name} is {space!r}, expected a space"
            )
    return env


@contextlib.contextmanager
def looked_at(settings: EnvLike) -> Iterator[Env]:
    """Makes an environment for a look at it and closes it again."""
    env = make_env(settings)
    try:
        yield env
    finally:
        close_env(env)


def close_env(env: Any) -> None:
    """Closes an environment that was made for a look; what it raises then loses nobody a thing."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def env_factory(settings: EnvLike) -> Factory:
    """Returns what makes any number of copies of an environment.

    Raises:
        EnvironmentSpecError: If ``settings`` is an environment, or nothing that can be made.
    """
    if isinstance(settings, str):
        settings = validate(EnvironmentSettings, {"id": settings})
    if isinstance(settings, Mapping):
        settings = validate(EnvironmentSettings, settings)
    if isinstance(settings, EnvironmentSettings):
        chosen, known = settings, _portable(gymnasium.registry.get(settings.id))
        return lambda: _make(chosen, known)
    if isinstance(settings, EnvSpec):
        spec = _portable(settings)
        assert spec is not None
        return lambda: _make_from_spec(spec)
    if isinstance(settings, gymnasium.Env) or not callable(settings):
        raise EnvironmentSpecError(
            f"cannot make copies of {settings!r}; expected an id, settings or a factory"
        )
    return settings


def env_name(settings: EnvLike | None) -> str:
    """Names an environment for messages."""
    if isinstance(settings, gymnasium.Env):
        settings = settings.spec
    if isinstance(settings, EnvironmentSettings | EnvSpec):
        return str(settings.id)
    if isinstance(settings, Mapping):
        return str(settings.get("id"))
    return settings if isinstance(settings, str) else getattr(settings, "__name__", "environment")


def _portable(spec: EnvSpec | None) -> EnvSpec | None:
    """Returns a registration with which a process that has not run this program can make copies."""
    entry = None if spec is None else spec.entry_point
    if not isinstance(entry, str) or not entry.startswith("__main__:"):
        return spec
    found: Any = sys.modules["__main__"]
    for part in entry.partition(":")[2].split("."):
        found = getattr(found, part, None)
    own = copy.copy(spec)
    assert own is not None
    own.entry_point = entry if found is None else found
    return own


def _make(settings: EnvironmentSettings, known: EnvSpec | None = None) -> Env:
    if settings.register_with is not None:
        _register_with(settings.register_with, settings.id)
    _register_known(settings.id)
    if known is not None and settings.id not in gymnasium.registry:
        gymnasium.registry[settings.id] = known  # the program that did it is not run here
    env = _gymnasium_make(settings.id, settings.kwargs)
    for wrapper in settings.wrappers:
        env = _wrap(env, wrapper)
    return env


def _register_with(path: str, env_id: str) -> None:
    """Makes a registration call; one that cannot be made is a fault even where none is needed."""
    function = _import_object(path, "register")
    if env_id in gymnasium.registry:
        return
    try:
        function()
    except Exception as error:
        raise EnvironmentSpecError(f"register {path!r}: {type(error).__name__}: {error}") from error


def _make_from_spec(spec: EnvSpec) -> Env:
    _register_known(spec.id)
    return _gymnasium_make(spec, {})


def _gymnasium_make(env_id: str | EnvSpec, kwargs: Mapping[str, Any]) -> Env:
    name = env_name(env_id)
    try:
        with no_exit():
            return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.NamespaceNotFound) as error:
        raise _unknown(name, error) from error
    except (gymnasium.error.Error, ImportError) as error:
        hint = _not_on_path(error.__cause__ or error)  # gymnasium tells of what it imported
        reason = f"{str(error).rstrip('.')}{hint}" if hint else error
        raise EnvironmentSpecError(f"environment {name!r} cannot be made: {reason}") from error
    except Exception as error:
        given = f" with {dict(kwargs)}" if kwargs else ""
        raise EnvironmentSpecError(
            f"environment {name!r} cannot be made{given}: {type(error).__name__}: {error}"
        ) from error


class EnvironmentExit(Exception):  # noqa: N818 - named after what it stands for
    """Stands for a SystemExit, GeneratorExit or the like that an environment raised."""


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """Turns what would end the process in silence into an error that can be reported.

    Raises:
        EnvironmentExit: In place of a SystemExit or a GeneratorExit.
    """
    try:
        yield
    except (SystemExit, GeneratorExit) as error:
        raise EnvironmentExit(f"{type(error).__name__}({error})") from error


def _unknown(name: str, error: Exception) -> EnvironmentSpecError:
    for prefix, module, package in _PACKAGES:
        if name.startswith(prefix) and _imported(module) is None:
            package_name = module.partition(":")[0].partition(".")[0]
            return EnvironmentSpecError(
                f"environment {name!r} comes with {package_name}, which is not installed: "
                f"pip install {package}"
            )
    hint = did_you_mean(name, gymnasium.registry)
    return EnvironmentSpecError(f"unknown environment {name!r}; {hint or error}")


def _register_known(env_id: str) -> None:
    if env_id in gymnasium.registry or ":" in env_id:
        return
    for prefix, module, _ in _PACKAGES:
        found = _imported(module) if env_id.startswith(prefix) else None
        function = module.partition(":")[2]
        if found is not None and function:
            getattr(found, function)()
        elif found is not None:
            gymnasium.register_envs(found)


def _imported(path: str) -> ModuleType | None:
    """Imports a module of the table, or returns ``None`` if it is not installed."""
    try:
        return importlib.import_module(path.partition(":")[0])
    except ImportError:
        return None


def _wrap(env: Env, settings: WrapperSettings) -> Env:
    wrapper = _import_object(settings.id, "wrapper")
    try:
        wrapped: Env = wrapper(env, **settings.kwargs)
    except Exception as error:
        raise EnvironmentSpecError(
            f"wrapper {settings.id!r} with {settings.kwargs}: {type(error).__name__}: {error}"
        ) from error
    return wrapped


def _not_on_path(error: BaseException) -> str:
    """Says so where a module lies in the working folder, from which a command imports nothing."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = (name or "").split(".")[0]
    if not top or not any(Path(place).exists() for place in (f"{top}.py", top)):
        return ""
    return f"; {top} in the working folder is not on Python's path: install it or set PYTHONPATH=."


def _import_object(path: str, what: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    if not module or not name:
        raise EnvironmentSpecError(f"{what} {path!r}: expected `module:name`")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = _not_on_path(error)
        raise EnvironmentSpecError(f"{what} {path!r} cannot be imported: {error}{hint}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvironmentSpecError(f"{what} {path!r} cannot be imported: {reason}") from error
    if not callable(found):
        raise EnvironmentSpecError(f"{what} {path!r} is not callable")
    return found
