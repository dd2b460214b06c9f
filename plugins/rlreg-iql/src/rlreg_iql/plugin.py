"""The hooks of the iql plugin. Bodies import, so that looking up a name costs little."""

from __future__ import annotations

from collections.abc import Iterable

from rlreg import hookimpl
from rlreg.config import ComponentConfig, LearnableConfig, Preset


@hookimpl
def rlreg_learnables() -> Iterable[type[LearnableConfig]]:
    """Returns the config of IQL."""
    from rlreg_iql.config import IQLConfig

    return [IQLConfig]


@hookimpl
def rlreg_components() -> Iterable[type[ComponentConfig]]:
    """Returns the SimBa encoder and the scaler of rewards by the range of returns."""
    from rlreg_iql.components import ReturnRewardScaler, SimBaEncoder

    return [SimBaEncoder, ReturnRewardScaler]


@hookimpl
def rlreg_presets() -> Iterable[Preset]:
    """Returns the settings that belong together for one family of tasks."""
    from rlreg_iql.presets import PRESETS

    return PRESETS
