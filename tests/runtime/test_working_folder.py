"""Nothing that lies beside the data is run: not by the command, not by the processes it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "rlreg"
EVIL = "open({marker!r}, 'w').close()\nraise SystemExit(3)\n"
SHORT = ["--set", "evaluation.env=null", "--set", "evaluation.baselines=[]"]


@pytest.fixture
def folder(tmp_path):
    """A working folder with files that shadow modules, and what marks that one was run."""
    place, marker = tmp_path / "data", tmp_path / "was-run"
    place.mkdir()
    for name in ("torch", "random", "socket", "types", "copy", "numpy", "rlreg_iql"):
        (place / f"{name}.py").write_text(EVIL.format(marker=str(marker)))
    (place / "rlreg").mkdir()  # as where the checkout lies
    return place, marker


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not installed beside Python")
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "iql", "--steps", "2", "--seeds", "2", "--out", "r", *SHORT],
        ["doctor", "--deep"],
        ["train", "impala", "--env", "CartPole-v1", "--preset", "small", "--steps", "400",
         "--out", "r", "--set", "engine.type=process", "--set", "evaluation.n_episodes=1"],
        ["sweep", "iql", "--steps", "2", "--trials", "2", "--workers", "2", "--out", "r",
         "--set", "evaluation.n_episodes=1", "--set", "train.n_steps_per_epoch=1"],
    ],
    ids=["seeds", "doctor", "actors", "sweep"],
)  # fmt: skip
def test_files_of_the_working_folder_are_not_run(arguments, folder, cli_env, minari_root):
    place, marker = folder
    done = subprocess.run(
        [COMMAND, *arguments], cwd=place, env=cli_env, capture_output=True, text=True, check=False
    )
    assert not marker.exists()
    assert done.returncode == 0, done.stderr
