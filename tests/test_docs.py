"""The documentation does what it says: every code block is run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlreg.testing import list_checks

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = DOCS / "writing-a-plugin.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (?P<excerpt>excerpt of )?(?P<path>[\w./-]+\.(py|toml|yaml))\n")

# As `pip install -e`, without an index: metadata by pip, the package as a link to its sources.
PIP = """\
#!{python}
import pathlib, subprocess, sys
project = pathlib.Path(sys.argv[-1].partition("[")[0]).resolve()
site = pathlib.Path({site!r})
subprocess.run([{python!r}, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
                "--no-index", "--disable-pip-version-check", "--target", str(site), str(project)],
               check=True)
for package in (project / "src").glob("*/__init__.py"):
    target = site / package.parent.name
    subprocess.run(["rm", "-r", str(target)], check=True)
    target.symlink_to(package.parent)
"""


class Reader:
    """Someone who follows a page to the letter."""

    def __init__(self, folder: Path) -> None:
        self.work, site, tools = (folder / name for name in ("work", "site", "bin"))
        for each in (self.work, site, tools):
            each.mkdir()
        (tools / "pip").write_text(PIP.format(python=sys.executable, site=str(site)))
        (tools / "pip").chmod(0o755)
        path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.env = {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(site),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def follow(self, language: str, text: str) -> None:
        file = FILE.match(text)
        if file and file["excerpt"]:
            for line in filter(None, text.splitlines()[1:]):
                assert line in (self.work / file["path"]).read_text(), line
        elif file:
            target = self.work / file["path"]
            assert target.parent.is_dir(), f"the page writes {target} before its folder exists"
            target.write_text(text[file.end() :])
        elif language == "python":
            self.run([sys.executable, "-c", text])
        elif language == "console":
            for line in text.splitlines():
                assert line.startswith("$ "), f"neither a command nor a comment: {line!r}"
                # The build's own environment would come from an index.
                command = line[2:].replace("-m build", "-m build --no-isolation")
                self.run(["bash", "-ec", command])
        else:
            raise AssertionError(f"a block of {language} cannot be run")

    def run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_the_guide_to_plugins_works_as_written(tmp_path):
    reader = Reader(tmp_path)
    for language, text in BLOCK.findall(GUIDE.read_text()):
        reader.follow(language, text)
    assert list((reader.work / "rlreg-my-algo" / "dist").glob("*.whl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "left"),
    [("tutorial-practitioner.md", "runs/best/best.rlreg"), ("tutorial-platform.md", "report.html")],
)
def test_a_tutorial_works_from_its_first_line_to_its_last(tmp_path, page, left):
    pytest.importorskip("optuna")
    reader = Reader(tmp_path)
    reader.env |= {"MINARI_DATASETS_PATH": str(tmp_path / "datasets"), "OMP_NUM_THREADS": "1"}
    # Everything the tutorial installs is here already, which pip can tell without an index.
    pip = f'#!/bin/sh\nexec {sys.executable} -m pip --no-input "$@" --no-index -q\n'
    (tmp_path / "bin/pip").write_text(pip)
    for language, text in BLOCK.findall((DOCS / page).read_text()):
        reader.follow(language, text)
    assert (reader.work / left).stat().st_size > 1000


@pytest.mark.slow
def test_what_the_readme_shows_works_as_written(tmp_path):
    reader = Reader(tmp_path)
    reader.env |= {"MINARI_DATASETS_PATH": str(tmp_path / "datasets"), "OMP_NUM_THREADS": "1"}
    text = (DOCS.parent / "README.md").read_text()
    blocks = [block for block in BLOCK.findall(text) if "$ make" not in block[1]]
    installing, *rest = blocks
    assert "pip install -c constraints.txt" in installing[1]  # needs an index
    assert [language for language, _ in rest] == ["python", "console"]
    for language, block in rest:
        reader.follow(language, block)
    assert "data:image/gif" in (reader.work / "report.html").read_text()


@pytest.mark.light
def test_the_guide_names_every_check():
    text = GUIDE.read_text()
    table = text.partition("| about | checks |")[2].partition("\n\n")[0]
    named = re.findall(r"[a-z]+(?:-[a-z]+)+", table)
    assert sorted(named) == sorted(check.name for check in list_checks())


@pytest.mark.light
@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
