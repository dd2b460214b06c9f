"""Fixtures shared by all tests of core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlreg import registry

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def local_names():
    """Forgets what a test registers by call."""
    registry.forget_local()
    yield
    registry.forget_local()


@pytest.fixture
def run_python(tmp_path):
    """Runs code in a fresh interpreter and returns its standard output."""

    def run(code: str, *, path: list[Path] = (), env: dict[str, str] | None = None) -> str:
        settings = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), **(env or {})}
        settings["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in path)
        done = subprocess.run(
            [sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def make_plugin(tmp_path):
    """Writes a plugin with a dist-info, as a wheel would leave it, and returns its folder."""

    def make(
        distribution: str,
        source: str,
        *,
        entry_point: str = "plug",
        value: str | None = None,
        version: str = "1.0",
        folder: str | None = None,
        entry_points: str | None = None,
    ) -> Path:
        site = tmp_path / (folder or f"site-{distribution}")
        module = distribution.replace("-", "_").lower()
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        text = entry_points or f"[rlreg]\n{entry_point} = {value or module + '_plugin'}\n"
        (info / "entry_points.txt").write_text(text)
        (site / f"{module}_plugin.py").write_text(source)
        return site

    return make
