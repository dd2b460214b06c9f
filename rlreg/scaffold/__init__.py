"""New plugins: complete packages from templates, for ``rlreg new``."""

from __future__ import annotations

from rlreg.scaffold.project import COMPONENT_KINDS, Project, render, write

__all__ = ["COMPONENT_KINDS", "Project", "render", "write"]
