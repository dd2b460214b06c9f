"""What this distribution provides. Light: the body imports pydantic, never wandb."""

from __future__ import annotations

from collections.abc import Iterable

from rlreg import ComponentConfig, hookimpl


@hookimpl
def rlreg_components() -> Iterable[type[ComponentConfig]]:
    """Returns the logger."""
    from .config import WandbLogger

    return [WandbLogger]
