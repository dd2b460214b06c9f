"""What the system refuses (a path, a full disk, a reader that left) is one message, no bug."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlreg.cli.main import run

pytestmark = pytest.mark.light

LONG = "x" * 300
ENTER_NOTHING = "-dac_override,-dac_read_search"
# Root may enter every folder, unless it gives that up.
AS_A_USER = (
    ["setpriv", f"--bounding-set={ENTER_NOTHING}", f"--inh-caps={ENTER_NOTHING}"]
    if os.geteuid() == 0 else []
)  # fmt: skip
needs_setpriv = pytest.mark.skipif(
    bool(AS_A_USER) and shutil.which("setpriv") is None, reason="root without setpriv enters all"
)


def rlreg(*arguments, before=(), **settings):
    command = [*before, sys.executable, "-m", "rlreg", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **settings)


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", LONG], ["validate", f"{LONG}.yaml"], ["hash", LONG], ["diff", LONG, LONG],
        ["docs", "build", LONG], ["schema", "export", LONG],
    ],
)  # fmt: skip
def test_a_name_that_is_too_long(arguments, capsys):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert "File name too long" in error
    assert "xxx" in error
    assert "Traceback" not in error
    assert len(error) < 600


@needs_setpriv
@pytest.mark.parametrize("arguments", [["validate"], ["hash"], ["migrate"], ["explain"]])
def test_a_folder_that_may_not_be_entered(arguments, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "run.yaml").write_text("learnable: {type: iql}\n")
    folder.chmod(0)
    try:
        done = rlreg(*arguments, str(folder / "run.yaml"), before=AS_A_USER)
    finally:
        folder.chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr
    assert str(folder / "run.yaml") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_output_that_cannot_be_written(arguments):
    with Path("/dev/full").open("w") as full:
        done = rlreg(*arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["list", "--json"]])
def test_a_reader_that_left_is_told_by_the_exit_code_alone(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = rlreg(*arguments, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_message_does_not_steer_the_terminal(tmp_path):
    done = rlreg("validate", f"{tmp_path}/a\x1b[31mb\rc.yaml")
    assert done.returncode == 2
    assert "a\\x1b[31mb\\rc.yaml" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", "iql", "-o", ""], ["docs", "build", ""], ["schema", "export", ""],
        ["new", "x", "-o", ""],
    ],
)  # fmt: skip
def test_an_empty_text_is_no_path(arguments, capsys):
    assert run(arguments) == 2
    assert "expected a path, got an empty text" in capsys.readouterr().err
