"""``rlreg train``, ``resume`` and ``evaluate`` as real processes, killed for real."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest
import torch

from rlreg.cli.main import run
from rlreg.runtime.logging import read_metrics

ARGUMENTS = (
    "train", "tiny_bc", "--steps", "300", "--device", "cpu",
    "--set", "train.n_steps_per_epoch=50", "--set", "evaluation.n_episodes=1",
    "--set", "evaluation.every=150",
)  # fmt: skip
SLOWLY = {"TINY_BC_SLEEP": "0.004"}


def rows_of(folder):
    return [
        {key: value for key, value in row.items() if not key.startswith(("wall_s", "time/"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def outcome_of(folder):
    """Everything a run ends with, without the clock."""
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("wall_s", "updates_per_s"):
        del summary[key]
    files = {}
    for name in ("last.rlreg", "best.rlreg"):
        with zipfile.ZipFile(folder / name) as file:
            files[name] = {member: file.read(member) for member in file.namelist()}
    return rows_of(folder), summary, files


@pytest.fixture
def start(cli_env, tmp_path):
    """Starts the command line in a process of its own; what is left running is ended."""
    processes = []

    def start(*arguments, env=None):
        process = subprocess.Popen(
            [sys.executable, "-m", "rlreg", *map(str, arguments)],
            env={**cli_env, **(env or {})},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def whole(tmp_path_factory, minari_root, site):
    """The outcome of the run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlreg", *ARGUMENTS, "--out", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return outcome_of(folder)


def wait_for(path, process, timeout=60):
    end = time.monotonic() + timeout
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


# --- a run from the command line ----------------------------------------------------------------


def test_train_ends_with_a_table_and_the_folder(rlreg_cli, tmp_path, whole):
    done = rlreg_cli(*ARGUMENTS, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    for word in ("random", "behaviour", "controller", "tiny_bc", f"run folder: {tmp_path / 'r'}"):
        assert word in done.stdout
    assert len([line for line in done.stderr.splitlines() if line.startswith("epoch ")]) == 6
    assert outcome_of(tmp_path / "r") == whole
    again = rlreg_cli("resume", tmp_path / "r")
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_json_is_one_document_on_stdout(rlreg_cli, tmp_path):
    done = rlreg_cli("train", "tiny_bc", "--steps", "20", "--set", "evaluation.env=null",
                     "--out", tmp_path / "r", "--json")  # fmt: skip
    document = json.loads(done.stdout)
    assert document["status"] == "finished"
    assert document["summary"]["steps"] == 20
    again = rlreg_cli("resume", tmp_path / "r", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["status"] == "already finished"
    assert "finished already" in again.stderr


def test_flags_come_after_the_file(rlreg_cli, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "learnable: {type: tiny_bc, learning_rate: 0.01}\n"
        "train: {n_steps: 9999}\nevaluation: {env: null}\n"
    )
    done = rlreg_cli("train", "run.yaml", "--steps", "10", "--seed", "7", "--out", "r",
                     "--set", "batch_size=4")  # fmt: skip
    assert done.returncode == 0, done.stderr
    from rlreg.runtime.runs import read_json

    assert read_json(tmp_path / "r" / "summary.json")["seed"] == 7
    text = (tmp_path / "r" / "run.yaml").read_text()
    assert "learning_rate: 0.01" in text
    assert "batch_size: 4" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "tiny_bx"], "did you mean 'tiny_bc'"),
        (["train", "tiny_bc", "--dataset", "D4RL/none-v0"], "minari download D4RL/none-v0"),
        (["train", "tiny_bc", "--dataset", "rlreg/pendulum/mixd-v0"], "did you mean"),
        (["train", "tiny_bc", "--set", "learning_rate=-1"], "learning_rate = -1: must be > 0"),
        (["train", "tiny_bc", "--set", "learning_rte=1"], "did you mean 'learning_rate'"),
        (["train", "tiny_bc", "--env", "Pendulm-v1"], "did you mean 'Pendulum-v1'"),
        (["train", "tiny_bc", "--env", "CartPole-v1"], "built for other spaces"),
        (["train", "none.yaml"], "no such file"),
        (["train", "tiny_bc", "--device", "cpuu"], "expected"),
        (["train", "tiny_bc", "--preset", "nothing"], "unknown preset"),
        (["resume", "nowhere"], "no such run folder"),
        (["evaluate", "none.rlreg"], "no such file"),
    ],
)
def test_bad_input_is_one_message_and_code_2(
    tiny, minari_root, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, *(["--out", "r"] if arguments[0] == "train" else [])]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("error: ") == 1
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_is_code_2(rlreg_cli, tmp_path):
    done = rlreg_cli("train", "tiny_bc", "--device", "cuda:0", "--out", "r")
    assert done.returncode == 2
    assert "this machine has cpu" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_folder_that_is_not_empty_is_code_2(tiny, minari_root, tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert run(["train", "tiny_bc", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(start, rlreg_cli, tmp_path, whole, number, code):
    folder = tmp_path / "r"
    process = start(*ARGUMENTS, "--out", folder, env=SLOWLY)
    wait_for(folder / "last.rlreg", process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert f"rlreg resume {folder}" in stderr
    assert stdout == ""
    assert not (folder / "running.json").exists()
    assert rlreg_cli("resume", folder).returncode == 0
    assert outcome_of(folder) == whole


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_second_interrupt_says_what_is_left(start, tmp_path, is_saved):
    folder = tmp_path / "r"
    length = "10" if is_saved else "300"
    process = start(*ARGUMENTS, "--set", f"train.n_steps_per_epoch={length}", "--out", folder,
                    env={"TINY_BC_SLEEP": "0.1"})  # fmt: skip
    wait_for(folder / ("last.rlreg" if is_saved else "running.json"), process)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, stderr = process.communicate(timeout=60)
    # The second one may find the interpreter on its way out; a shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT), stderr
    # A quick machine saves between the two signals, and then says so instead.
    assert f"rlreg resume {folder}" in stderr


def test_a_running_folder_is_not_resumed(start, rlreg_cli, tmp_path):
    folder = tmp_path / "r"
    process = start(*ARGUMENTS, "--out", folder, env={"TINY_BC_SLEEP": "0.05"})
    wait_for(folder / "running.json", process)
    done = rlreg_cli("resume", folder)
    assert done.returncode == 2
    assert f"is running, as process {process.pid}" in done.stderr


# --- kills --------------------------------------------------------------------------------------


def assert_kill_is_harmless(start, rlreg_cli, folder, whole, kill):
    """Starts a run, kills it, goes on until it is finished, and compares."""
    process = start(*ARGUMENTS, "--out", folder, env=SLOWLY)
    wait_for(folder / "running.json", process)
    kill(process, folder)
    process.communicate()
    done = rlreg_cli("resume", folder)
    assert done.returncode == 0, done.stderr
    assert outcome_of(folder) == whole
    assert not list(folder.rglob(".*.tmp"))


def kill_after(seconds):
    def kill(process, _folder):
        time.sleep(seconds)
        process.kill()

    return kill


def kill_while_saving(chance):
    """Kills at the first sight of a file that is being written, after some that were let pass."""

    def kill(process, folder):
        passed = chance.randrange(12)
        while process.poll() is None:
            names = os.listdir(folder)
            if any(name.endswith(".tmp") for name in names):
                if not passed:
                    break
                passed -= 1
        process.kill()

    return kill


MOMENTS = [random.Random(17).uniform(0.0, 5.0) for _ in range(20)]


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_killed_run_ends_like_the_undisturbed_one(start, rlreg_cli, tmp_path, whole, seconds):
    kill = kill_after(seconds)
    assert_kill_is_harmless(start, rlreg_cli, tmp_path / "r", whole, kill)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", MOMENTS)
def test_a_run_killed_at_any_moment_ends_the_same(start, rlreg_cli, tmp_path, whole, seconds):
    kill = kill_after(seconds)
    assert_kill_is_harmless(start, rlreg_cli, tmp_path / "r", whole, kill)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_while_it_saves_ends_the_same(start, rlreg_cli, tmp_path, whole, seed):
    kill = kill_while_saving(random.Random(seed))
    assert_kill_is_harmless(start, rlreg_cli, tmp_path / "r", whole, kill)


FSYNCS = [5, 6, 7, 8, 9, 10, 11, 13, 17, 23]


def die_at_fsync(rlreg_cli, folder, count, whole):
    done = rlreg_cli(*ARGUMENTS, "--out", folder, env={"TINY_BC_DIE_AT_FSYNC": str(count)})
    assert done.returncode == -signal.SIGKILL
    done = rlreg_cli("resume", folder)
    assert done.returncode == 0, done.stderr
    assert outcome_of(folder) == whole


@pytest.mark.parametrize("count", [5, 9])
def test_dying_in_the_middle_of_a_checkpoint_is_harmless(rlreg_cli, tmp_path, whole, count):
    die_at_fsync(rlreg_cli, tmp_path / "r", count, whole)


@pytest.mark.slow
@pytest.mark.parametrize("count", FSYNCS)
def test_dying_at_any_write_is_harmless(rlreg_cli, tmp_path, whole, count):
    die_at_fsync(rlreg_cli, tmp_path / "r", count, whole)


def test_no_space_for_a_checkpoint_is_one_message_and_keeps_the_last_one(
    rlreg_cli, tmp_path, whole, cli_env
):
    """The limit on the size of files lets run.yaml and metrics through, but no checkpoint."""
    folder = tmp_path / "r"
    first = rlreg_cli(*ARGUMENTS, "--out", folder, env={"TINY_BC_DIE_AT_FSYNC": "12"})
    assert first.returncode == -signal.SIGKILL
    before = (folder / "last.rlreg").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "rlreg", "resume", str(folder)],
        env=cli_env,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),
    )
    assert done.returncode == 2, done.stderr
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "last.rlreg").read_bytes() == before
    assert rlreg_cli("resume", folder).returncode == 0
    assert outcome_of(folder) == whole


# --- seeds and evaluate -------------------------------------------------------------------------


def test_seeds_are_processes_that_equal_their_solo_runs(rlreg_cli, tmp_path, whole):
    done = rlreg_cli(*ARGUMENTS, "--seeds", "2", "--out", "many")
    assert done.returncode == 0, done.stderr
    assert outcome_of(tmp_path / "many" / "seed-0") == whole
    summary = json.loads((tmp_path / "many" / "summary.json").read_text())
    assert summary["num_finished"] == 2
    assert "interquartile mean" in done.stdout


def test_what_is_wrong_with_all_seeds_is_said_once_and_before(tiny, minari_root, tmp_path, capsys):
    out = tmp_path / "many"
    assert run(["train", "tiny_bc", "--seeds", "2", "--env", "Pendulm-v1", "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("did you mean 'Pendulum-v1'") == 1
    assert not out.exists()


def test_training_collects_garbage_though_its_start_does_not(
    tiny, tiny_module, minari_root, tmp_path, monkeypatch
):
    seen = {"created": [], "evaluated": [], "trained": []}
    learnable = tiny_module._learnable_class()
    for name, event in [("build_networks", "created"), ("act", "evaluated"), ("update", "trained")]:
        plain = getattr(learnable, name)

        def noted(self, *given, _plain=plain, _seen=seen[event], **named):
            _seen.append(gc.isenabled())
            return _plain(self, *given, **named)

        monkeypatch.setattr(learnable, name, noted)
    monkeypatch.setattr(tiny_module, "_learnable_class", lambda: learnable)
    try:
        assert run([*ARGUMENTS, "--out", str(tmp_path / "r")]) == 0
        assert gc.isenabled()
        (tmp_path / "r" / "summary.json").unlink()  # as if it had been killed before its end
        assert run(["resume", str(tmp_path / "r")]) == 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
    assert seen["created"] == [False, False]
    assert all(seen["evaluated"])
    assert all(seen["trained"])
    assert len(seen["trained"]) == 300


def test_warnings_of_a_plugin_are_heard_when_a_run_is_resumed(rlreg_cli, tmp_path, site, cli_env):
    folder = tmp_path / "site"
    shutil.copytree(site, folder)
    plugin = folder / "rlreg_tiny_bc.py"
    plugin.write_text(f"{plugin.read_text()}\nimport warnings\nwarnings.warn('be careful')\n")
    env = {"PYTHONPATH": str(folder)}
    assert rlreg_cli(*ARGUMENTS, "--out", "r", env=env).returncode == 0
    (tmp_path / "r" / "summary.json").unlink()
    done = rlreg_cli("resume", "r", env=env)
    assert done.returncode == 0
    assert done.stderr.count("be careful") >= 1


def test_evaluate_takes_a_run_and_a_checkpoint(tiny, minari_root, tmp_path, capsys):
    out = tmp_path / "r"
    assert run([*ARGUMENTS, "--out", str(out)]) == 0
    capsys.readouterr()

    def evaluate(*arguments):
        code = run(["evaluate", *map(str, arguments), "--episodes", "2", "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, by_run = evaluate(out)
    assert (code, by_run["env"], by_run["n_episodes"]) == (0, "Pendulum-v1", 2)
    assert by_run["normalized_score"] is not None
    assert evaluate(out / "best.rlreg")[1]["returns"] == by_run["returns"]
    copy = tmp_path / "copy.rlreg"
    copy.write_bytes((out / "best.rlreg").read_bytes())
    assert evaluate(copy, "--env", "Pendulum-v1")[1]["returns"] == by_run["returns"]
    for arguments, message in (
        ((copy,), "give --env"),
        ((copy, "--env", "CartPole-v1"), "built for other spaces"),
    ):
        code, document = evaluate(*arguments)
        assert code == 2
        assert message in document["error"]["message"]
