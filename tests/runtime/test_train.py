"""Runs: complete, and the same bits whether they were interrupted or not."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
import torch

import rlreg
from rlreg.cli.train import checkpoint_of
from rlreg.errors import (
    ConfigError,
    DatasetError,
    DeviceUnavailableError,
    EnvironmentSpecError,
    MissingDatasetError,
    RunError,
)
from rlreg.runtime import loop as loop_module
from rlreg.runtime.logging import read_metrics
from rlreg.runtime.seeds import split_cores, statistics_of
from rlreg.runtime.state import flatten_state, learnable_state


@pytest.fixture
def run(tiny, minari_root):
    """A run of 300 updates in epochs of 100, evaluated twice."""
    return {
        "learnable": {"type": "tiny_bc"},
        "device": "cpu",
        "train": {"n_steps": 300, "n_steps_per_epoch": 100},
        "evaluation": {"n_episodes": 2, "every": 200},
    }


def train(run, out, **options):
    return rlreg.train(run, out=out, show_progress=False, **options)


def resume(out, **options):
    return rlreg.resume(out, show_progress=False, **options)


def stop_after(count):
    """Asks to stop when it has been asked that often."""
    asked = iter(range(10**9))
    return lambda: next(asked) >= count


def rows_of(folder):
    """Metrics without the clock."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("wall_s", "time/"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def members_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def assert_same_run(one, other):
    assert rows_of(one) == rows_of(other)
    for name in ("last.rlreg", "best.rlreg"):
        assert members_of(one / name) == members_of(other / name), name
    first, second = (json.loads((f / "summary.json").read_text()) for f in (one, other))
    for key in ("learnable", "seed", "steps", "evaluations", "best", "final", "baselines"):
        assert first[key] == second[key], key


# --- what a run writes --------------------------------------------------------------------------


def test_a_run_folder_is_complete(run, tmp_path):
    result = train(run, tmp_path / "r")
    folder = tmp_path / "r"
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.rlreg",
        "checkpoints",
        "last.rlreg",
        "metrics.jsonl",
        "rlreg.lock",
        "run.yaml",
        "summary.json",
    ]
    assert [path.name for path in (folder / "checkpoints").iterdir()] != []
    assert result.status == "finished"
    assert result.folder == folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == json.loads(json.dumps(result.summary))
    assert summary["references"]["min"] < summary["references"]["max"]
    assert set(summary) == {
        "learnable",
        "seed",
        "steps",
        "wall_s",
        "updates_per_s",
        "evaluations",
        "references",
        "best",
        "final",
        "baselines",
        "restarts",
    }
    assert [item["step"] for item in summary["evaluations"]] == [200, 300]
    assert summary["final"] == summary["evaluations"][-1]
    best = max(summary["evaluations"], key=lambda item: item["mean_return"])
    assert summary["best"]["mean_return"] == best["mean_return"]
    assert set(summary["baselines"]) == {"random", "behaviour"}
    assert summary["baselines"]["behaviour"]["normalized_score"] is not None


def test_rows_of_metrics_are_flat_and_grouped(run, tmp_path):
    train(run, tmp_path / "r")
    rows = read_metrics(tmp_path / "r" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [100, 200, 300]
    assert list(rows[0]) == ["step", "wall_s", "loss/bc_loss", "time/updates_per_s"]
    assert "evaluation/mean_return" in rows[1]
    assert all(isinstance(value, int | float) for row in rows for value in row.values())


def test_run_yaml_gives_the_same_run_again(run, tmp_path):
    train(run, tmp_path / "a")
    train(tmp_path / "a" / "run.yaml", tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_the_last_checkpoint_holds_the_learnable_of_the_end(run, tmp_path):
    result = train(run, tmp_path / "r")
    loaded = rlreg.load(tmp_path / "r" / "last.rlreg", device="cpu")
    (_, tensors), (_, others) = (
        flatten_state(learnable_state(item)) for item in (result.learnable, loaded)
    )
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert loaded.grad_step == 300


def test_best_is_by_evaluation_and_later_wins_ties(run, tmp_path, monkeypatch):
    returns = iter([5.0, 7.0, 7.0, 6.0])

    def judged(*_args):
        value = next(returns)
        return loop_module.Evaluation(value, 0.0, (value,), 1)

    monkeypatch.setattr(loop_module.Judge, "evaluate", judged)
    run["train"] = {"n_steps": 200, "n_steps_per_epoch": 50}
    run["evaluation"] = {"every": 50, "baselines": []}
    summary = train(run, tmp_path / "r").summary
    assert summary["best"]["step"] == 150
    assert rlreg.load(tmp_path / "r" / "best.rlreg", device="cpu").grad_step == 150
    assert summary["final"]["mean_return"] == 6.0


def test_patience_ends_a_run_early(run, tmp_path, monkeypatch):
    returns = iter([5.0, 4.0, 3.0, 2.0])
    monkeypatch.setattr(
        loop_module.Judge,
        "evaluate",
        lambda *_: loop_module.Evaluation(next(returns), 0.0, (0.0,), 1),
    )
    run["train"] = {"n_steps": 500, "n_steps_per_epoch": 50, "patience": 2}
    run["evaluation"] = {"every": 50, "baselines": []}
    assert train(run, tmp_path / "r").summary["steps"] == 150
    assert resume(tmp_path / "r").status == "already finished"


def test_checkpoints_are_kept_as_asked(run, tmp_path):
    run["train"] = {"n_steps": 500, "n_steps_per_epoch": 50}
    run["evaluation"] = {"env": None}
    run["checkpoint"] = {"every_epochs": 2, "keep": 3}
    train(run, tmp_path / "r")
    kept = sorted(int(p.stem.removeprefix("step-")) for p in (tmp_path / "r/checkpoints").iterdir())
    assert kept == [300, 400, 500]


def test_evaluation_at_start_is_a_row_of_its_own(run, tmp_path):
    run["evaluation"] = {"at_start": True, "n_episodes": 1}
    summary = train(run, tmp_path / "r").summary
    assert [item["step"] for item in summary["evaluations"]] == [0, 300]
    assert rows_of(tmp_path / "r")[0]["step"] == 0


def test_without_evaluation_nothing_is_judged(run, tmp_path):
    run["evaluation"] = {"env": None}
    summary = train(run, tmp_path / "r").summary
    assert summary["evaluations"] == []
    assert summary["final"] is None
    assert set(summary["baselines"]) == {"behaviour"}
    assert not (tmp_path / "r" / "best.rlreg").exists()


def test_evaluating_changes_nothing_in_training(run, tmp_path):
    train(run, tmp_path / "often")
    run["evaluation"] = {"env": None}
    train(run, tmp_path / "never")
    states = [
        flatten_state(learnable_state(rlreg.load(tmp_path / name / "last.rlreg", device="cpu")))
        for name in ("often", "never")
    ]
    assert states[0][0] == states[1][0]
    assert all(torch.equal(states[0][1][name], states[1][1][name]) for name in states[0][1])


def test_schedules_run_over_the_whole_run(run, tmp_path):
    result = train(run, tmp_path / "r")
    assert result.learnable.total_steps == 300
    assert result.learnable.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_the_seed_decides(run, tmp_path):
    train(run, tmp_path / "a")
    train(run, tmp_path / "b", overrides=["seed=1"])
    assert rows_of(tmp_path / "a") != rows_of(tmp_path / "b")


# --- interruption -------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [0, 1, 3, 4, 60, 300, 450, 600])
def test_an_interrupted_run_ends_like_the_undisturbed_one(run, tmp_path, asked):
    """Stops in an epoch, at its end, in an evaluation and in the baselines."""
    train(run, tmp_path / "whole")
    result = train(run, tmp_path / "r", should_stop=stop_after(asked))
    assert result.status == "interrupted"
    assert not (tmp_path / "r" / "summary.json").exists()
    assert (tmp_path / "r" / "last.rlreg").exists()
    assert resume(tmp_path / "r").status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_a_run_that_is_interrupted_again_and_again_ends_the_same(run, tmp_path):
    train(run, tmp_path / "whole")
    result = train(run, tmp_path / "r", should_stop=stop_after(0))
    rounds = 0
    while result.status == "interrupted":
        result, rounds = resume(tmp_path / "r", should_stop=stop_after(230)), rounds + 1
        assert rounds < 20
    assert rounds > 1
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_an_exception_anywhere_leaves_a_run_that_goes_on(run, tmp_path, monkeypatch):
    """What a kill does, at the moments that matter most: around writing rows and checkpoints."""
    train(run, tmp_path / "whole")

    class Killed(BaseException):
        pass

    points = [("_write", 1), ("_name_last", 0), ("_name_last", 1), ("end_epoch", 2)]
    for name, calls in points:
        folder = tmp_path / f"{name}-{calls}"
        original, seen = getattr(loop_module.RunLoop, name), iter(range(100))

        def dies(self, *args, original=original, seen=seen, calls=calls, **kwargs):
            if next(seen) == calls:
                raise Killed
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(loop_module.RunLoop, name, dies)
            with pytest.raises(Killed):
                train(run, folder)
        resume(folder)
        assert_same_run(tmp_path / "whole", folder)


def test_resuming_a_finished_run_says_so_and_changes_nothing(run, tmp_path):
    train(run, tmp_path / "r")
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    result = resume(tmp_path / "r")
    assert result.status == "already finished"
    assert result.summary["steps"] == 300
    assert before == {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}


def test_a_run_without_a_checkpoint_starts_from_the_beginning(run, tmp_path):
    train(run, tmp_path / "whole")
    train(run, tmp_path / "r", should_stop=stop_after(0))
    (tmp_path / "r" / "last.rlreg").unlink()
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 100}\n{"step"')
    resume(tmp_path / "r")
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_wall_time_goes_on_where_it_stood(run, tmp_path):
    train(run, tmp_path / "r", should_stop=stop_after(3))
    path = tmp_path / "r" / "metrics.jsonl"
    rows = read_metrics(path)
    path.write_text("".join(json.dumps({**row, "wall_s": 1000.0}) + "\n" for row in rows))
    assert resume(tmp_path / "r").summary["wall_s"] > 1000


def test_a_changed_learnable_does_not_go_on(run, tmp_path):
    train(run, tmp_path / "r", should_stop=stop_after(0))
    text = (tmp_path / "r" / "run.yaml").read_text()
    (tmp_path / "r" / "run.yaml").write_text(
        text.replace("learning_rate: 0.001", "learning_rate: 0.1")
    )
    with pytest.raises(RunError, match="not the one in"):
        resume(tmp_path / "r")


# --- bad input ----------------------------------------------------------------------------------


def refused(error, match, run, out, **options):
    with pytest.raises(error, match=match):
        train(run, out, **options)
    assert not out.exists(), sorted(out.rglob("*"))


def test_a_missing_data_set_is_refused_before_anything_is_written(run, tmp_path):
    out = tmp_path / "r"
    refused(MissingDatasetError, "looked in", {**run, "dataset": "D4RL/none-v0"}, out)
    refused(MissingDatasetError, "no such file", {**run, "dataset": "/none/x.hdf5"}, out)


def test_data_with_nan_names_episode_and_index_and_leaves_nothing(run, tmp_path):
    import h5py

    path = tmp_path / "bad.hdf5"
    rewards = np.zeros(40, np.float32)
    rewards[23] = np.nan
    ends = np.zeros(40, bool)
    ends[19::20] = True
    with h5py.File(path, "w") as file:
        file["observations"] = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        file["actions"] = np.zeros((40, 1), np.float32)
        file["rewards"], file["timeouts"] = rewards, ends
        file["terminals"] = np.zeros(40, bool)
    refused(DatasetError, "(?s)episode 1.*3", {**run, "dataset": str(path)}, tmp_path / "r")


def test_an_unknown_environment_is_refused_before_training(run, tmp_path):
    run["evaluation"] = {"env": "Pendulm-v1"}
    refused(EnvironmentSpecError, "did you mean 'Pendulum-v1'", run, tmp_path / "r")


def test_an_environment_with_other_spaces_is_refused_before_training(run, tmp_path):
    run["evaluation"] = {"env": "CartPole-v1"}
    refused(
        EnvironmentSpecError, "'CartPole-v1': the learnable is built for other", run, tmp_path / "r"
    )


def test_a_device_that_is_not_there_is_refused(run, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    refused(
        DeviceUnavailableError, "this machine has cpu", {**run, "device": "cuda:0"}, tmp_path / "r"
    )


def test_settings_of_the_other_regime_are_refused_all_at_once(run, tmp_path):
    run["train"] = {"n_epochs": 3, "epoch_length": 5}
    run["env"] = "Pendulum-v1"
    with pytest.raises(ConfigError) as caught:
        train(run, tmp_path / "r")
    assert [problem.path for problem in caught.value.problems] == [
        ("env",),
        ("train", "n_epochs"),
        ("train", "epoch_length"),
    ]
    assert not (tmp_path / "r").exists()


def test_a_folder_that_is_not_empty_is_refused(run, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine").write_text("keep")
    with pytest.raises(RunError, match="is not empty"):
        train(run, tmp_path / "r")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["mine"]


def test_the_default_folder_is_named_after_the_learnable(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run["evaluation"] = {"env": None}
    folder = train(run, None).folder
    assert folder.parts[:2] == ("runs", "tiny_bc")
    assert folder.name.endswith("-s0")


# --- several seeds ------------------------------------------------------------------------------


def test_seeds_of_a_local_learnable_are_trained_here_and_summarized(run, tmp_path):
    run["evaluation"]["every"] = None
    result = train(run, tmp_path / "r", seeds=3)
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        "run.yaml",
        "seed-0",
        "seed-1",
        "seed-2",
        "seeds.json",
        "summary.json",
    ]
    train(run, tmp_path / "solo", overrides=["seed=1"])
    assert_same_run(tmp_path / "solo", tmp_path / "r" / "seed-1")
    final = result.summary["final"]["mean_return"]
    assert final["values"] == [item["final"]["mean_return"] for item in result.summary["runs"]]
    assert final["interval"][0] <= final["interquartile_mean"] <= final["interval"][1]


def test_seeds_beyond_the_largest_are_refused_before_one_is_trained(run, tmp_path):
    run["seed"] = 2**32 - 1
    with pytest.raises(RunError, match="seeds 4294967295 to 4294967296: the largest is 4294967295"):
        train(run, tmp_path / "r", seeds=2)
    assert not (tmp_path / "r").exists()


def test_a_folder_of_several_runs_names_them(run, tmp_path):
    run["evaluation"]["every"] = None
    train(run, tmp_path / "r", seeds=2)
    for path in (tmp_path / "r", tmp_path):
        with pytest.raises(RunError, match=r"r/seed-0|/r"):
            checkpoint_of(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"so it is no run folder$"):
        checkpoint_of(tmp_path / "empty")


def test_interrupted_seeds_go_on(run, tmp_path):
    run["evaluation"]["every"] = None
    first = train(run, tmp_path / "r", seeds=2, should_stop=stop_after(4))
    assert first.status == "interrupted"
    assert not (tmp_path / "r" / "summary.json").exists()
    assert resume(tmp_path / "r").summary["num_finished"] == 2
    assert resume(tmp_path / "r").status == "already finished"


def test_interquartile_mean_leaves_out_the_outer_quarters():
    found = statistics_of([0.0, 1.0, 2.0, 100.0])
    assert found["interquartile_mean"] == 1.5
    assert statistics_of([3.0])["interval"] == [3.0, 3.0]
    assert statistics_of([1.0, 2.0]) == statistics_of([1.0, 2.0])


@pytest.mark.parametrize(
    ("seeds", "cores", "expected"), [(8, 2, (2, 1)), (1, 8, (1, 8)), (3, 8, (3, 2)), (4, 1, (1, 1))]
)
def test_cores_are_shared_out(seeds, cores, expected):
    assert split_cores(seeds, cores) == expected
