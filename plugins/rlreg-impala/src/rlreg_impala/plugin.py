"""What this distribution registers. Light: reading it imports pydantic, never torch."""

from __future__ import annotations

from collections.abc import Iterable

from rlreg import ComponentConfig, LearnableConfig, Preset, hookimpl


@hookimpl
def rlreg_learnables() -> Iterable[type[LearnableConfig]]:
    """Returns IMPALA."""
    from .config import IMPALAConfig

    return [IMPALAConfig]


@hookimpl
def rlreg_components() -> Iterable[type[ComponentConfig]]:
    """Returns the encoders, the optimizer and the rollout engines."""
    from .components import COMPONENTS

    return COMPONENTS


@hookimpl
def rlreg_presets() -> Iterable[Preset]:
    """Returns the sets of settings that move together."""
    from .presets import PRESETS

    return PRESETS
