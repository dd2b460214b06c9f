"""Each example is built, installed and tested as its users would, against the real library."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LIBRARIES = {
    "rlreg-bc": "torch",
    "rlreg-mlflow": "mlflow",
    "rlreg-wandb": "wandb",
    "rlreg-sb3": "stable_baselines3",
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {*LIBRARIES}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_an_example_installs_and_passes_its_own_tests(name, tmp_path):
    library = LIBRARIES[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install {library.replace('_', '-')}")
    project, site = tmp_path / name, tmp_path / "site"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    shutil.copytree(EXAMPLES / name, project, ignore=ignored)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    install += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*install, str(project)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
