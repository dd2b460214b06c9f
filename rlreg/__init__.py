"""The registry of reinforcement-learning algorithms in which a config is a contract.

The names below are bound when they are first used, so that ``import rlreg`` costs little and never
imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "PLUGIN_API",
    "ActionScaler",
    "ActionSpace",
    "ComponentConfig",
    "ConfigError",
    "DeviceSpec",
    "EncoderFactory",
    "LRSchedulerFactory",
    "Learnable",
    "LearnableConfig",
    "LoggerFactory",
    "ObservationScaler",
    "OfflineLearnable",
    "OnlineLearnable",
    "OptimizerFactory",
    "Preset",
    "RewardScaler",
    "RlregError",
    "RolloutEngineFactory",
    "RunConfig",
    "Search",
    "TransitionDataset",
    "__version__",
    "config_hash",
    "create",
    "get_config_class",
    "hookimpl",
    "json_schema",
    "list_components",
    "list_learnables",
    "list_plugins",
    "list_presets",
    "load",
    "load_config",
    "load_dataset",
    "make_action_scaler_field",
    "make_config",
    "make_encoder_field",
    "make_lr_scheduler_field",
    "make_observation_scaler_field",
    "make_optimizer_field",
    "make_reward_scaler_field",
    "rediscover",
    "register_component",
    "register_learnable",
    "resume",
    "train",
]

_HOMES = {
    "rlreg.config": (
        "ActionScaler ActionSpace ComponentConfig EncoderFactory LRSchedulerFactory "
        "LearnableConfig LoggerFactory ObservationScaler OptimizerFactory Preset RewardScaler "
        "RolloutEngineFactory make_action_scaler_field make_encoder_field "
        "make_lr_scheduler_field make_observation_scaler_field make_optimizer_field "
        "make_reward_scaler_field"
    ),
    "rlreg.creation": "create get_config_class make_config",
    "rlreg.device": "DeviceSpec",
    "rlreg.errors": "ConfigError RlregError",
    "rlreg.files": "load_config",
    "rlreg.hooks": "hookimpl",
    "rlreg.identity": "config_hash",
    "rlreg.plugins": "PLUGIN_API",
    "rlreg.registry": (
        "list_components list_learnables list_plugins list_presets rediscover register_component "
        "register_learnable"
    ),
    "rlreg.run_config": "RunConfig",
    "rlreg.schema": "json_schema",
    "rlreg.search": "Search",
    "rlreg.runtime.checkpoint": "load",
    "rlreg.runtime.data": "TransitionDataset load_dataset",
    "rlreg.runtime.learnable": "Learnable",
    "rlreg.runtime.offline": "OfflineLearnable",
    "rlreg.runtime.online": "OnlineLearnable",
    "rlreg.runtime.train": "resume train",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from rlreg.config import ActionScaler as ActionScaler
    from rlreg.config import ActionSpace as ActionSpace
    from rlreg.config import ComponentConfig as ComponentConfig
    from rlreg.config import EncoderFactory as EncoderFactory
    from rlreg.config import LearnableConfig as LearnableConfig
    from rlreg.config import LoggerFactory as LoggerFactory
    from rlreg.config import LRSchedulerFactory as LRSchedulerFactory
    from rlreg.config import ObservationScaler as ObservationScaler
    from rlreg.config import OptimizerFactory as OptimizerFactory
    from rlreg.config import Preset as Preset
    from rlreg.config import RewardScaler as RewardScaler
    from rlreg.config import RolloutEngineFactory as RolloutEngineFactory
    from rlreg.config import make_action_scaler_field as make_action_scaler_field
    from rlreg.config import make_encoder_field as make_encoder_field
    from rlreg.config import make_lr_scheduler_field as make_lr_scheduler_field
    from rlreg.config import make_observation_scaler_field as make_observation_scaler_field
    from rlreg.config import make_optimizer_field as make_optimizer_field
    from rlreg.config import make_reward_scaler_field as make_reward_scaler_field
    from rlreg.creation import create as create
    from rlreg.creation import get_config_class as get_config_class
    from rlreg.creation import make_config as make_config
    from rlreg.device import DeviceSpec as DeviceSpec
    from rlreg.errors import ConfigError as ConfigError
    from rlreg.errors import RlregError as RlregError
    from rlreg.files import load_config as load_config
    from rlreg.hooks import hookimpl as hookimpl
    from rlreg.identity import config_hash as config_hash
    from rlreg.plugins import PLUGIN_API as PLUGIN_API
    from rlreg.registry import list_components as list_components
    from rlreg.registry import list_learnables as list_learnables
    from rlreg.registry import list_plugins as list_plugins
    from rlreg.registry import list_presets as list_presets
    from rlreg.registry import rediscover as rediscover
    from rlreg.registry import register_component as register_component
    from rlreg.registry import register_learnable as register_learnable
    from rlreg.run_config import RunConfig as RunConfig
    from rlreg.runtime.checkpoint import load as load
    from rlreg.runtime.data import TransitionDataset as TransitionDataset
    from rlreg.runtime.data import load_dataset as load_dataset
    from rlreg.runtime.learnable import Learnable as Learnable
    from rlreg.runtime.offline import OfflineLearnable as OfflineLearnable
    from rlreg.runtime.online import OnlineLearnable as OnlineLearnable
    from rlreg.runtime.train import resume as resume
    from rlreg.runtime.train import train as train
    from rlreg.schema import json_schema as json_schema
    from rlreg.search import Search as Search


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        from rlreg.errors import did_you_mean

        hint = did_you_mean(name, __all__)
        raise AttributeError(
            f"module 'rlreg' has no attribute {name!r}{'; ' + hint if hint else ''}"
        )
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from rlreg.errors import explain_missing

        raise explain_missing(error, f"rlreg.{name}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
