"""What this distribution provides. Light: the body imports pydantic, never torch."""

from __future__ import annotations

from collections.abc import Iterable

from rlreg import LearnableConfig, hookimpl


@hookimpl
def rlreg_learnables() -> Iterable[type[LearnableConfig]]:
    """Returns PPO and SAC."""
    from .config import PPOConfig, SACConfig

    return [PPOConfig, SACConfig]
