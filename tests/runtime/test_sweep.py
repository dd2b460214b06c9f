"""Sweeps: the same trials from the same seed, also after a kill, and a best run that just runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.cli.main import run as run_command
from rlreg.errors import ConfigError, MissingExtraError, RunError
from rlreg.files import load_run
from rlreg.runtime.runs import RunFolder
from rlreg.runtime.sweep import SweepPlan, open_study, sweep
from rlreg.runtime.sweep_worker import Worker

pytest.importorskip("optuna")

SETTINGS = ["train.n_steps=60", "train.n_steps_per_epoch=20", "evaluation.n_episodes=1"]
LOSS = {"metric": "loss/bc_loss", "minimize": True, "seed": 3}


@pytest.fixture
def plan(tiny_module, minari_root, tmp_path, monkeypatch):
    """A sweep over three settings of the tiny learnable."""
    monkeypatch.chdir(tmp_path)

    class SweptConfig(tiny_module.TinyBCConfig):
        """Tiny, with a search space."""

        learning_rate: Annotated[float, rlreg.Search(1e-4, 1e-1, log=True)] = Field(
            1e-3, gt=0, le=1
        )
        batch_size: Annotated[int, rlreg.Search(choices=(16, 32))] = Field(32, ge=1, le=4096)
        encoder: Annotated[rlreg.EncoderFactory, rlreg.Search(choices=("vector", "default"))] = (
            rlreg.make_encoder_field()
        )

    registry.register_learnable(SweptConfig)
    # Judged by its loss: playing episodes would take most of the time.
    yield SweepPlan(load_run("tiny_bc", overrides=[*SETTINGS, "evaluation.env=null"]), **LOSS)
    registry.forget_local(["tiny_bc"])


def go(plan, out, trials, **options):
    return sweep(plan, out, trials, show_progress=False, **options)


def of(result):
    return [(row["state"], row["value"], row["settings"]) for row in result.trials]


def test_the_best_trial_is_a_run_file_that_validates_and_gives_its_value(plan, tmp_path):
    plan = SweepPlan(load_run(plan.run, overrides=["evaluation.env=auto"]), seed=3)
    result = go(plan, tmp_path / "s", 3)
    assert (result.status, len(result.trials)) == ("finished", 3)
    assert result.best["value"] == max(
        row["value"] for row in result.trials if row["state"] == "complete"
    )
    length = f"as long as a trial, {plan.run.train.n_steps:,} steps"
    assert length in (tmp_path / "s/best.yaml").read_text().splitlines()[1]
    best = load_run(tmp_path / "s/best.yaml")
    for path, value in result.best["settings"].items():
        node = best.model_dump()
        for key in path.split("."):
            node = node[key]
        assert json.loads(json.dumps(node)) == value
    assert best.evaluation == plan.run.evaluation
    assert run_command(["validate", str(tmp_path / "s/best.yaml")]) == 0
    again = rlreg.train(str(tmp_path / "s/best.yaml"), out=tmp_path / "again", show_progress=False)
    assert again.summary["final"]["mean_return"] == pytest.approx(result.best["value"])
    assert RunFolder.open(Path(result.best["folder"])).read_summary() is not None


@pytest.mark.parametrize("name", ["{}", "{0}", "a?b", "a#b", "50%25", "a b"])
def test_a_folder_may_have_any_name(name, plan, tmp_path):
    result = go(plan, tmp_path / name, 1)
    assert (result.status, len(result.trials)) == ("finished", 1)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(go(plan, tmp_path / name, 2).trials) == 2


def test_a_seed_gives_the_same_trials_and_another_seed_others(plan, tmp_path):
    first, second = go(plan, tmp_path / "a", 3), go(plan, tmp_path / "b", 3)
    other = replace(plan, seed=4)
    assert of(first) == of(second)
    assert of(go(other, tmp_path / "c", 3)) != of(first)


def test_a_sweep_goes_on_as_if_it_had_not_been_interrupted(plan, tmp_path):
    whole = go(plan, tmp_path / "whole", 4)
    # Stops in the middle of the third trial: two ended, and it is tried again.
    file = tmp_path / "part/trials/0002/metrics.jsonl"
    stopped = go(plan, tmp_path / "part", 4, should_stop=file.exists)
    assert stopped.status == "interrupted"
    assert len(stopped.trials) == 2
    assert of(stopped) == of(whole)[: len(stopped.trials)]
    resumed = go(plan, tmp_path / "part", 4)
    assert resumed.status == "finished"
    assert of(resumed) == of(whole)
    assert load_run(tmp_path / "part/best.yaml") == load_run(tmp_path / "whole/best.yaml")
    assert go(plan, tmp_path / "part", 4).trials == resumed.trials
    assert len(go(plan, tmp_path / "part", 5).trials) == 5


def test_a_trial_knows_those_before_it_that_have_surely_ended(plan, tmp_path):
    """Of three at once: which of them is the fastest makes no difference to the next."""
    first = go(plan, tmp_path / "a", 13, workers=3)
    assert json.loads((tmp_path / "a/sweep.json").read_text())["num_parallel"] == 3
    # The same trials in another order of ending: 10 and 11 end before 9.
    shuffled = tmp_path / "b"
    go(plan, shuffled, 9, workers=3)
    worker = Worker(shuffled, SweepPlan.read(shuffled), open_study(shuffled, plan), lambda: False)
    for number in (11, 10, 9, 12):
        assert worker.run(number)
    again = go(plan, shuffled, 13)
    assert of(again) == of(first)
    alone = go(plan, tmp_path / "c", 13)
    tried = [[row["settings"] for row in found.trials] for found in (first, alone)]
    assert tried[0][:10] == tried[1][:10]  # drawn at random, by their numbers alone
    assert tried[0][10:] != tried[1][10:]  # one at a time knows more


def test_trials_that_lag_behind_are_ended(plan, tmp_path, monkeypatch):
    from rlreg.runtime import sweep_worker

    monkeypatch.setattr(sweep_worker, "_LOOK_S", 0.0)
    result = go(plan, tmp_path / "s", 12)
    states = {row["state"] for row in result.trials}
    assert states == {"complete", "pruned"}
    pruned = next(row for row in result.trials if row["state"] == "pruned")
    assert len((Path(pruned["folder"]) / "metrics.jsonl").read_text().splitlines()) < 3
    monkeypatch.setattr(sweep_worker, "_LOOK_S", 1e9)  # never before the end
    assert [row[0] for row in of(go(plan, tmp_path / "u", 12))] == [row[0] for row in of(result)]
    kept = go(replace(plan, prunes=False), tmp_path / "t", 6)
    assert {row["state"] for row in kept.trials} == {"complete"}


def test_the_metric_can_be_maximized_or_minimized(plan, tmp_path):
    for minimize, choose in [(True, min), (False, max)]:
        result = go(replace(plan, minimize=minimize), tmp_path / f"s{minimize}", 3)
        values = [row["value"] for row in result.trials if row["state"] == "complete"]
        assert result.best["value"] == choose(values)


def test_what_is_fixed_is_not_searched(plan, tmp_path):
    result = go(replace(plan, fixed=("batch_size", "encoder.type")), tmp_path / "s", 2)
    assert {key for row in result.trials for key in row["settings"]} == {"learnable.learning_rate"}
    fixed = ("batch_size", "encoder", "learning_rate")
    with pytest.raises(ConfigError, match="nothing to search"):
        go(replace(plan, fixed=fixed), tmp_path / "t", 2)


def test_a_metric_that_is_not_there_ends_the_sweep_with_the_reason(plan, tmp_path):
    with pytest.raises(RunError, match=r"first 3 trials failed.*no finite 'loss/nothing'"):
        go(replace(plan, metric="loss/nothing"), tmp_path / "s", 9)


def test_a_folder_with_something_else_is_refused(plan, tmp_path):
    go(plan, tmp_path / "s", 1)
    with pytest.raises(RunError, match="holds another sweep"):
        go(replace(plan, seed=9), tmp_path / "s", 1)
    (tmp_path / "t").mkdir()
    (tmp_path / "t/file").touch()
    with pytest.raises(RunError, match="is not empty"):
        go(plan, tmp_path / "t", 1)


def test_without_optuna_the_extra_is_named(plan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"rlreg\[sweep\]"):
        go(plan, tmp_path / "s", 1)


def test_the_space_is_printed_without_the_heavy_half(run_python):
    code = (
        "import sys\nfrom rlreg.cli.main import run\n"
        "assert run(['sweep', 'iql', '--set', 'gamma=0.9', '--print-space']) == 0\n"
        "assert not {'torch', 'numpy', 'optuna'} & set(sys.modules)"
    )
    space = json.loads(run_python(code, path=[Path(__file__).parents[2]]))
    paths = [row["path"] for row in space["parameters"]]
    assert "learnable.expectile" in paths
    assert "learnable.gamma" not in paths


@pytest.mark.parametrize(
    ("command", "extra"),
    [(["sweep", "iql"], "sweep"), (["report", "."], "train"), (["train", "iql"], "train")],
    ids=["sweep", "report", "train"],
)
def test_without_the_heavy_half_the_extra_is_named(run_python, command, extra):
    code = (
        "import sys\nfor name in ('torch', 'numpy', 'gymnasium'):\n    sys.modules[name] = None\n"
        f"from rlreg.cli.main import run\nprint(run({[*command, '--json']!r}))"
    )
    *document, exit_code = run_python(code, path=[Path(__file__).parents[2]]).splitlines()
    assert exit_code == "2"
    assert f"pip install 'rlreg[{extra}]'" in json.loads("".join(document))["error"]["message"]


# --- real processes -----------------------------------------------------------------------------

SHORT = ["--steps", "20", "--set", "evaluation.n_episodes=1", "--set", "batch_size=16"]


@pytest.mark.slow
def test_workers_share_the_trials(rlreg_cli, tmp_path):
    done = rlreg_cli(
        "sweep", "iql", *SHORT, "--trials", 5, "--workers", 2, "--out", "s", "--json", timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "finished"
    assert [row["number"] for row in found["trials"]] == [0, 1, 2, 3, 4]
    assert rlreg_cli("validate", "s/best.yaml").returncode == 0


@pytest.mark.slow
def test_workers_give_the_same_trials_from_the_same_seed(rlreg_cli, tmp_path):
    found = []
    for name in ("a", "b"):
        rlreg_cli(
            "sweep", "iql", *SHORT, "--trials", 13, "--workers", 3, "--out", name, timeout=600
        )
        rows = json.loads((tmp_path / name / "trials.json").read_text())["trials"]
        found.append([(row["number"], row["state"], row["value"], row["settings"]) for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) == 13


@pytest.mark.slow
def test_a_killed_sweep_goes_on(cli_env, rlreg_cli, tmp_path):
    arguments = ["sweep", "iql", *SHORT, "--trials", "4", "--workers", "2", "--out", "s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlreg", *arguments], env=cli_env, cwd=tmp_path,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("trial "):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode in (130, 0)
    begun = time.monotonic()
    done = rlreg_cli("sweep", "s", "--trials", 4, "--json", timeout=300)
    assert done.returncode == 0, (done.stderr, time.monotonic() - begun)
    rows = json.loads(done.stdout)["trials"]
    assert len(rows) == 4
    assert {row["state"] for row in rows} <= {"complete", "pruned"}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 3.0, 6.0])
def test_ctrl_c_of_a_terminal_ends_a_sweep_quietly_whenever_it_comes(seconds, cli_env, tmp_path):
    """A terminal sends it to the whole group, to workers too that have only just begun."""
    arguments = ["sweep", "iql", *SHORT, "--trials", "40", "--workers", "2", "--out", "s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlreg", *arguments], env=cli_env, cwd=tmp_path,
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in messages
