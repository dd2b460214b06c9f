"""What ``rlreg train impala`` does with bad input and signals: one message, one code, no litter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest

from rlreg.cli.main import run

TESTS = Path(__file__).parent
ENGINES = ["sequential", "process"]


@pytest.fixture
def rlreg(tmp_path, capfd):
    """Runs a command in this process; returns its exit code and what it wrote to stderr."""
    folder = tmp_path / "run"
    before = processes.shared_files()

    def call(*arguments):
        code = run([*arguments])
        # Other tests may run at the same time: theirs go away, ours would stay.
        assert processes.wait_until(lambda: processes.shared_files() <= before)
        assert processes.actors_of(os.getpid()) == []
        return code, capfd.readouterr().err

    call.folder = folder
    return call


def train(rlreg, *arguments):
    return rlreg("train", "impala", "--out", str(rlreg.folder), *arguments)


def no_half_written_file(folder):
    return not list(folder.rglob("*.tmp")) if folder.exists() else True


# ----------------------------------------------------------------------------------- environments


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([], ["'impala' needs an environment", "--env CartPole-v1"]),
        (["--env", "CartPol-v1"], ["unknown environment 'CartPol-v1'", "'CartPole-v1'"]),
        (["--env", "dm_control/x-v0"], ["dm_control/x-v0", "pip install 'shimmy[dm-control]'"]),
        (["--env", "bad_envs:Text-v0"], ["observation.note", "Text"]),
        (["--env", "bad_envs:Ints-v0"], ["action.far", "Box(0, 5"]),
    ],
    ids=["none", "typo", "package", "observations", "actions"],
)
def test_an_environment_that_cannot_be_used_is_told_before_anything_starts(
    rlreg, arguments, messages
):
    code, error = train(rlreg, "--steps", "100", *arguments)
    assert code == 2
    assert all(message in error for message in messages), error
    assert "Traceback" not in error
    assert not rlreg.folder.exists()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Nan", "actor 0, environment 0, step 7, acting: the observation is not finite"),
        ("Reward", "actor 0, environment 0, step 7, acting: the reward nan is not finite"),
        ("Shape", "actor 0, environment 0, step 7, acting: observation of shape (4,), expected"),
        ("Raise", "actor 0, environment 0, step 7, acting: ValueError: the floor is gone"),
    ],
)
def test_an_environment_that_goes_wrong_names_actor_environment_and_step(
    rlreg, env, message, engine
):
    code, error = train(
        rlreg, "--steps", "1000", "--env", f"bad_envs:{env}-v0", "--set", "evaluation.env=null",
        "--set", f"engine={{type: {engine}, num_envs: 2}}",
        *(["--set", "engine.max_restarts=0"] if engine == "process" else []),
    )  # fmt: skip
    assert code == 2
    assert message in error, error
    assert no_half_written_file(rlreg.folder)


# -------------------------------------------------------------------------- sizes and checkpoints


def test_fragments_that_cannot_fit_are_refused(rlreg):
    code, error = train(
        rlreg, "--env", "CartPole-v1", "--set", "evaluation.env=null",
        "--set", "n_rollout_steps=100000", "--set", "actors_batch_size=4096",
        "--set", "engine={type: process, num_envs: 4096}",
    )  # fmt: skip
    assert code == 2
    assert "GiB" in error
    assert "lower n_rollout_steps, actors_batch_size, engine.num_envs" in error


def test_a_size_out_of_range_names_the_field(rlreg):
    code, error = train(rlreg, "--env", "CartPole-v1", "--set", "n_rollout_steps=0")
    assert code == 2
    assert "n_rollout_steps" in error


def test_layers_that_act_differently_in_training_are_refused_before_anything_starts(rlreg):
    rate = "actor_encoder_factory.dropout_rate=0.1"
    code, error = train(rlreg, "--env", "CartPole-v1", "--set", rate)
    assert code == 2
    assert "actor_encoder_factory.dropout_rate = 0.1: IMPALA takes no dropout" in error
    assert not rlreg.folder.exists()


def test_a_checkpoint_of_another_environment_is_refused(rlreg):
    quick = ["--set", "evaluation.env=null", "--set", "engine={type: sequential}"]
    assert train(rlreg, "--env", "bad_envs:Good-v0", "--steps", "100", *quick)[0] == 0
    code, error = rlreg("evaluate", str(rlreg.folder), "--env", "bad_envs:Wide-v0")
    assert code == 2
    assert "observation" in error
    assert "Traceback" not in error


# ------------------------------------------------------------------------------------------- ray


def test_without_ray_the_command_to_install_it_is_given(rlreg, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, error = train(
        rlreg, "--env", "CartPole-v1", "--set", "evaluation.env=null", "--set", "engine.type=ray"
    )
    assert code == 2
    assert "pip install 'rlreg-impala[ray]'" in error


def test_an_unreachable_cluster_is_told(rlreg):
    pytest.importorskip("ray")
    code, error = train(
        rlreg, "--env", "CartPole-v1", "--set", "evaluation.env=null",
        "--set", "engine={type: ray, address: '127.0.0.1:1'}",
    )  # fmt: skip
    assert code == 2
    assert "127.0.0.1:1 cannot be reached" in error


# --------------------------------------------------------------------------------------- signals


@contextlib.contextmanager
def started(*arguments):
    """Runs the command in a process and a session of its own."""
    outer = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    process = subprocess.Popen(
        [sys.executable, "-m", "rlreg", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *outer])},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stderr.close()


def rows(folder):
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return []


def end(process, number, send, folder, num_rows):
    """Waits for a number of rows, sends a signal; returns the seconds until the end."""
    deadline = time.monotonic() + 90
    while len(rows(folder)) < num_rows:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    began = time.monotonic()
    send(process.pid, number)
    process.wait(30)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("number", "send", "code"),
    [(signal.SIGINT, os.killpg, 130), (signal.SIGTERM, os.kill, 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_saves_a_checkpoint_from_which_the_run_goes_on(tmp_path, number, send, code):
    folder, before = tmp_path / "run", processes.shared_files()
    arguments = ("--set", "evaluation.env=null", "--set", "engine={type: process, num_actors: 2}")
    long = ("--env", "CartPole-v1", "--steps", "100000000", "--out", str(folder))
    with started("train", "impala", *long, *arguments) as process:
        took = end(process, number, send, folder, 3)
        assert process.returncode == code
        assert took < 10
        assert processes.wait_until(lambda: processes.of_session(process.pid) == [])
    assert (folder / "last.rlreg").exists()
    assert no_half_written_file(folder)
    assert not (folder / "running.json").exists()
    done = rows(folder)
    with started("resume", str(folder)) as process:
        end(process, number, send, folder, len(done) + 2)
        assert process.returncode == code
    assert [row["step"] for row in rows(folder)][: len(done)] == [row["step"] for row in done]
    steps = [row["step"] for row in rows(folder)]
    assert steps == sorted(set(steps))
    assert processes.wait_until(lambda: processes.shared_files() <= before)


def test_a_signal_is_heard_in_the_middle_of_a_slow_update(tmp_path):
    folder = tmp_path / "run"
    # An update takes 16 times half a second, an epoch minutes.
    arguments = ["--env", "bad_envs:Slow-v0", "--steps", "100000", "--out", str(folder)]
    arguments += ["--set", "evaluation.env=null"]
    arguments += ["--set", "engine={type: process, num_envs: 1}"]
    with started("train", "impala", *arguments) as process:
        assert processes.wait_until((folder / "rlreg.lock").exists, 60)
        time.sleep(8)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        process.wait(30)
        assert time.monotonic() - began < 10
        assert process.returncode == 143
    assert (folder / "last.rlreg").exists()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Shape", "observation: expected shape [B, 3], got"),
        ("Raise", "step 7: the environment raised ValueError: the floor is gone"),
        ("Nan", "observations: NaN or inf in"),
    ],
)
def test_an_environment_that_goes_wrong_in_an_evaluation_is_bad_input(rlreg, env, message):
    code, error = train(rlreg, "--steps", "100", "--env", f"bad_envs:{env}Late-v0")
    assert code == 2
    assert message in error, error
