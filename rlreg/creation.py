"""From a name to a config, and from a config to a learnable."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rlreg.config import LearnableConfig
from rlreg.device import DeviceSpec
from rlreg.errors import ConfigError, LearnerError, explain_missing
from rlreg.open_union import validate
from rlreg.problems import order_problems
from rlreg.registry import require_registered, resolve

if TYPE_CHECKING:
    from rlreg.config import DeviceLike


def get_config_class(name: str) -> type[LearnableConfig]:
    """Returns the config class of a learnable.

    Raises:
        UnknownNameError: If there is none; the message has the nearest names.
        AmbiguousNameError: If several distributions claim the name.
        PluginError: If its plugin is broken or blocked.
    """
    cls = resolve("learnable", name).cls
    assert issubclass(cls, LearnableConfig)
    return cls


def make_config(name: str, **overrides: Any) -> LearnableConfig:
    """Returns a config of a learnable, with some fields set.

    Raises:
        ConfigError: With everything that is wrong in ``overrides``.
    """
    cls = get_config_class(name)
    config: LearnableConfig = validate(cls, {"type": cls.get_type(), **overrides})
    return config


_UNSET: Any = object()


def create(
    config: str | LearnableConfig | Mapping[str, Any],
    *,
    device: DeviceLike = "auto",
    seed: int = _UNSET,
    compile: str = _UNSET,
    **overrides: Any,
) -> Any:
    """Creates a learnable that trains, predicts, saves and loads.

    Args:
        config: Id (``"iql"``, ``"rlreg-iql/iql"``), config or mapping with a ``type``.
        device: ``"auto"``, ``"cpu"``, ``"cuda:1"``, an int, ... (see :class:`rlreg.DeviceSpec`).
        seed: Seed of everything random in it, >= 0; 0 unless given.
        compile: ``"auto"`` (where the run is long enough to pay), ``"on"`` or ``"off"``.
        overrides: Fields of the config.

    Raises:
        ConfigError: If the config or an override is wrong.
        DeviceUnavailableError: If this machine has no such device.
        MissingExtraError: If the half of rlreg that computes is not installed.
    """
    settled = settle(config, overrides)
    misordered = order_problems(settled)
    if misordered:
        raise ConfigError(misordered)
    DeviceSpec.parse(device)
    try:
        learnable = settled.create(device)
    except ModuleNotFoundError as error:
        raise explain_missing(error, f"creating {settled.get_type()!r}") from error
    if learnable is None:
        raise LearnerError(f"{type(settled).__name__}.create gave None; is `return` missing?")
    runtime = sys.modules.get("rlreg.runtime.learnable")
    if runtime is not None and isinstance(learnable, runtime.Learnable):
        learnable.prepare(
            seed=0 if seed is _UNSET else seed, compile="auto" if compile is _UNSET else compile
        )
    elif seed is not _UNSET or compile is not _UNSET:
        raise ConfigError(
            f"{settled.get_type()!r} creates a {type(learnable).__name__}, which is no "
            "rlreg.Learnable and takes neither seed nor compile"
        )
    return learnable


def settle(
    config: str | LearnableConfig | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> LearnableConfig:
    """Returns a validated config from an id, a config or a mapping, with overrides applied.

    Raises:
        ConfigError: With everything that is wrong.
    """
    overrides = overrides or {}
    if isinstance(config, str):
        return make_config(config, **overrides)
    if isinstance(config, LearnableConfig):
        require_registered(type(config))
        data: Mapping[str, Any] = {**config.__dict__, **overrides}
        settled: LearnableConfig = validate(type(config), data)
        return settled
    if isinstance(config, Mapping):
        return cast("LearnableConfig", validate(LearnableConfig, {**config, **overrides}))
    raise ConfigError(f"expected an id, a config or a mapping, got {type(config).__name__}")
