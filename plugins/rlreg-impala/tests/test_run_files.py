"""The run files of the README, as far as the command line takes them."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from rlreg.cli.main import run

README = Path(__file__).parents[1] / "README.md"


def run_file(name, tmp_path):
    """Writes the block of the README that begins with the file's name."""
    found = re.search(rf"```yaml\n(# {name}\n.*?)```", README.read_text(), re.DOTALL)
    assert found, f"the README has no {name}"
    path = tmp_path / name
    path.write_text(found[1])
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "packages", "shape"),
    [
        ("pong.yaml", "impala/atari", ("ale_py", "cv2"), "[4,84,84]"),
        ("breakout.yaml", "impala/minatar", ("minatar",), "[10,10,4]"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the environments' packages
def test_a_few_updates_from_end_to_end(name, preset, packages, shape, tmp_path, capfd):
    for package in packages:
        pytest.importorskip(package)
    folder = tmp_path / "run"
    quick = ("--steps", "480", "--set", "engine.num_envs=4", "--set", "evaluation.env=null")
    file = run_file(name, tmp_path)
    code = run(["train", file, "--preset", preset, "--out", str(folder), *quick])
    assert code == 0, capfd.readouterr().err
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] >= 480
    assert rows[-1]["rows/trained"] + rows[-1]["rows/masked"] <= rows[-1]["rows/sampled"]
    assert rows[-1]["loss/grad_norm"] > 0
    assert "Overriding environment" not in capfd.readouterr().err
    assert shape in header(folder / "last.rlreg")


def header(path):
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".json")]
        return "".join(archive.read(name).decode() for name in names)
