"""What ``rlreg train`` starts before torch is imported: the server of the actors' processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import of_session, wait_until

# Prints how many processes this one has at the moment when something first imports torch.
WATCHED = """
import sys
from pathlib import Path

class Watch:
    def find_spec(self, name, *given):
        if name == "torch":
            sys.meta_path.remove(self)
            children = Path("/proc/self/task", str(__import__("os").getpid()), "children")
            commands = [Path("/proc", pid, "cmdline").read_text()
                        for pid in children.read_text().split()]
            print("servers", sum("forkserver" in command for command in commands), file=sys.stderr)

sys.meta_path.insert(0, Watch())
from rlreg.cli.main import main
main()
"""


def servers_before_torch(folder, *words):
    return servers_of_command(
        "train", *words, "--device", "cpu", "--steps", "2000", "--out", str(folder / "run"),
        "--set", "evaluation.n_episodes=1", "--json",
    )  # fmt: skip


def servers_of_command(*words):
    command = [sys.executable, "-c", WATCHED, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] in ("finished", "already finished")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("servers ")]
    return int(line.split()[1])


IMPALA = ("impala", "--env", "CartPole-v1")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core the engine is sequential")
def test_the_default_engine_has_its_server_before_torch_is_imported(tmp_path):
    assert servers_before_torch(tmp_path, *IMPALA) == 1


@pytest.mark.parametrize("engine", [["type=sequential"], ["type=process", "start_method=spawn"]])
def test_engines_without_a_server_start_none(engine, tmp_path):
    settings = [word for line in engine for word in ("--set", f"engine.{line}")]
    assert servers_before_torch(tmp_path, *IMPALA, *settings) == 0


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core the engine is sequential")
def test_a_run_that_is_resumed_has_its_server_early_and_a_finished_one_has_none(tmp_path):
    folder = tmp_path / "run"
    assert servers_before_torch(tmp_path, *IMPALA) == 1
    assert servers_of_command("resume", str(folder), "--json") == 0
    (folder / "summary.json").unlink()  # as if it had been killed before its end
    assert servers_of_command("resume", str(folder), "--json") == 1


def run_python(code, **env):
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_starting_twice_is_starting_once():
    assert run_python(
        "import sys\n"
        "from multiprocessing.forkserver import _forkserver\n"
        "from rlreg_impala.fork_server import start_early\n"
        "start_early('forkserver')\n"
        "first = _forkserver._forkserver_pid\n"
        "start_early('forkserver')\n"
        "assert first == _forkserver._forkserver_pid is not None\n"
        "print('torch' in sys.modules)\n"
    ).split() == ["False"]


def test_actors_of_a_server_that_started_early_have_one_thread():
    """torch reads the number when it is imported, which now happens in the server."""
    assert run_python(
        "import multiprocessing\n"
        "from rlreg_impala.fork_server import start_early\n"
        "start_early('forkserver')\n"
        "import torch\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "with context.Pool(1) as pool:\n"
        "    print(pool.apply(torch.get_num_threads))\n",
        OMP_NUM_THREADS="2",
    ).split() == ["1"]


# --- signals --------------------------------------------------------------------------------------


def begin(command):
    """Starts a process with a session of its own."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **streams, text=True, start_new_session=True)


def interrupted(folder, seconds):
    """Sends Ctrl-C to the group of a training, as a terminal does; returns code and stderr."""
    command = [
        sys.executable, "-m", "rlreg", "train", *IMPALA, "--device", "cpu", "--steps", "2000000",
        "--out", str(folder / "run"),
    ]  # fmt: skip
    training = begin(command)
    time.sleep(seconds)
    os.killpg(training.pid, signal.SIGINT)
    _, messages = training.communicate(timeout=120)
    return training.pid, training.returncode, messages


@pytest.mark.parametrize("seconds", [0.4, 0.8, 1.2, 2.0, 3.5])
def test_ctrl_c_while_it_starts_is_quiet_and_leaves_nothing(seconds, tmp_path):
    group, code, messages = interrupted(tmp_path, seconds)
    assert code in (130, -signal.SIGINT), messages  # the latter before Python itself has started
    if code == 130:
        assert "Traceback" not in messages
    assert wait_until(lambda: not of_session(group), 30)


def test_the_server_does_not_hear_ctrl_c_and_its_children_can():
    assert run_python(
        "import multiprocessing, os, signal\n"
        "from rlreg_impala.fork_server import start_server\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "start_server(context)\n"
        "from multiprocessing.forkserver import _forkserver\n"
        "os.kill(_forkserver._forkserver_pid, signal.SIGINT)\n"  # while it imports torch
        "assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "with context.Pool(1) as pool:\n"
        "    print(pool.apply(os.getppid) == _forkserver._forkserver_pid)\n"
    ).split() == ["True"]


def test_a_server_that_cannot_be_started_is_no_matter_before_it_is_needed(tmp_path):
    long = tmp_path / ("x" * 100)  # a socket's path has fewer characters
    long.mkdir()
    assert run_python(
        "from rlreg_impala.fork_server import start_early\n"
        "start_early('forkserver')\n"
        "print('went on')\n",
        TMPDIR=str(long),
    ).split() == ["went", "on"]


def test_a_server_that_dies_is_replaced_or_named(tmp_path):
    command = [
        sys.executable, "-m", "rlreg", "train", *IMPALA, "--device", "cpu", "--steps", "2000",
        "--out", str(tmp_path / "run"), "--set", "evaluation.n_episodes=1",
    ]  # fmt: skip
    training = begin(command)
    assert wait_until(lambda: servers_of(training.pid))
    time.sleep(0.3)
    os.kill(servers_of(training.pid)[0], signal.SIGKILL)
    _, messages = training.communicate(timeout=120)
    assert "interrupted" not in messages
    assert training.returncode == 0 or "cannot be started: the server" in messages


def servers_of(session):
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in of_session(session)}
    return [
        pid for pid, path in commands.items() if path.exists() and "forkserver" in path.read_text()
    ]


FORKED = """
import gc
import multiprocessing
import sys

from rlreg_impala.fork_server import start_server

def look(pipe):
    known = {"torch", "rlreg_impala.engines.worker"} <= sys.modules.keys()
    gc.collect()  # looking at an object writes to it
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    pipe.send([known, gc.isenabled(), gc.get_freeze_count(), sizes["Private_Dirty"], sizes["Rss"]])

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    start_server(context)
    here, there = context.Pipe()
    context.Process(target=look, args=(there,)).start()
    print(here.recv())
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux says whose memory")
def test_actors_share_the_memory_of_what_they_import_even_after_a_collection(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    known, collects, frozen, private, resident = json.loads(done.stdout.lower())
    assert known
    assert collects
    assert frozen > 100_000
    assert private < resident / 10  # a third of it without the freezing
