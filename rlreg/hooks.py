"""The hooks a plugin may implement, and the marker for them.

Apart from discovery, so that a look-up that needs no plugin loaded does not import pluggy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

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
