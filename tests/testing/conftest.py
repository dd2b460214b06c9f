"""Plugins that are written by a test, and are installed while it runs."""

from __future__ import annotations

import sys

import pytest

from rlreg import registry
from rlreg.scaffold import Project, render

METADATA = """\
Metadata-Version: 2.1
Name: rlreg-faulty
Version: 0.1.0
Summary: Faulty for rlreg
Requires-Dist: rlreg[torch]<0.2,>=0.1

# rlreg-faulty
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a plugin on the path as an installed wheel would be, and takes it away again."""
    packages: list[str] = []

    def install(
        files: dict[str, str], package: str = "rlreg_faulty", metadata: str = METADATA
    ) -> None:
        entry = f"[rlreg]\nfaulty = {package}.plugin\n"
        info = f"{package}-0.1.0.dist-info"
        for name, text in {
            **files, f"{info}/METADATA": metadata, f"{info}/entry_points.txt": entry
        }.items():  # fmt: skip
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        packages.append(package)
        monkeypatch.syspath_prepend(tmp_path / "site")
        registry.rediscover()

    yield install
    monkeypatch.undo()
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            del sys.modules[name]
    registry.rediscover()


@pytest.fixture
def edited(install):
    """Installs an untouched scaffold called `faulty` after edits of its modules."""

    def edited(*edits: tuple[str, str, str]) -> None:
        files = {
            name.removeprefix("src/rlreg_faulty/"): text
            for name, text in render(Project("faulty")).items()
            if name.startswith("src/rlreg_faulty/")
        }
        for name, old, new in edits:
            assert old in files[name], f"{old!r} is not in {name}"
            files[name] = files[name].replace(old, new)
        install({f"rlreg_faulty/{name}": text for name, text in files.items()})

    return edited
