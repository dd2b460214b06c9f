"""What this distribution provides. Light: the bodies import pydantic, never torch."""

from __future__ import annotations

from collections.abc import Iterable

from rlreg import LearnableConfig, Preset, hookimpl


@hookimpl
def rlreg_learnables() -> Iterable[type[LearnableConfig]]:
    """Returns behaviour cloning."""
    from .config import BCConfig

    return [BCConfig]


@hookimpl
def rlreg_presets() -> Iterable[Preset]:
    """Returns settings that belong together."""
    return [
        Preset(
            "bc/small",
            "A network that trains in seconds on a CPU.",
            "ours",
            {
                "learnable.encoder_factory": {"type": "vector", "hidden_units": [64, 64]},
                "learnable.batch_size": 64,
            },
        )
    ]
