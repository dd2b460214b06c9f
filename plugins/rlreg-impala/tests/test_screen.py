"""What a run shows while it trains: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from processes import LONG_S

FIGURES = (
    "transitions", "transitions/s", "episode return", "policy lag", "fragments waiting",
    "actors replaced", "policy loss", "value loss", "entropy",
)  # fmt: skip


def train(folder, stderr):
    return subprocess.Popen(
        [
            sys.executable, "-m", "rlreg", "train", "impala", "--env", "CartPole-v1",
            "--steps", "3000", "--set", "evaluation.env=null", "--set", "train.epoch_length=5",
            "--set", "engine={type: sequential}", "--out", str(folder),
        ],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def read_all(descriptor):
    """What a terminal was sent until the other end was closed."""
    parts = []
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how Linux tells the end of a terminal
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def test_a_terminal_shows_a_live_table(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with train(tmp_path / "run", theirs) as process:
        os.close(theirs)
        shown = read_all(ours)
        process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown
    assert [caption for caption in FIGURES if caption not in shown] == []
    assert "\x1b[" in shown  # drawn over and over in one place
    assert "epoch 1" not in shown


def test_a_pipe_gets_plain_lines(tmp_path):
    with train(tmp_path / "run", subprocess.PIPE) as process:
        _, error = process.communicate(timeout=LONG_S)
    lines = [line for line in error.decode().splitlines() if line.startswith("epoch ")]
    assert process.returncode == 0
    assert len(lines) > 3
    assert "transitions/s" in lines[-1]
    assert "return_mean" in lines[-1]
    assert b"\x1b" not in error
