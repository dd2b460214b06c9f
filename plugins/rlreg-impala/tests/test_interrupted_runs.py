"""Run folders: whenever a run is interrupted, it ends with the rows of the undisturbed one."""

import json

import pytest

import rlreg

RUN = {
    "learnable": {"type": "impala", "n_rollout_steps": 4},
    "env": "CartPole-v1",
    "device": "cpu",
    "engine": {"type": "sequential", "num_envs": 2},
    "train": {"n_steps": 56, "epoch_length": 3},  # seven updates: two epochs and a short one
    "evaluation": {"n_episodes": 1, "every": 24, "baselines": [], "at_start": False},
}


def stop_after(asked):
    calls = iter(range(10**6))
    return lambda: next(calls) >= asked


# Clocks, and how much was waiting for the learner when it asked.
READINGS = ("time/", "wall_s", "maze/time_", "queue/waiting", "maze/estimated_queue")


def rows_of(folder):
    """Rows without what depends on the moment."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if not name.startswith(READINGS)}
        for row in rows
    ]


def results_of(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return {name: summary[name] for name in ("steps", "evaluations", "best", "final")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    asked = iter(range(10**6))
    result = rlreg.train(
        RUN, out=folder, show_progress=False, should_stop=lambda: next(asked) and False
    )
    assert result.status == "finished"
    return folder, next(asked)


def test_the_undisturbed_run_has_three_epochs(whole):
    assert [row["step"] for row in rows_of(whole[0])] == [24, 48, 56]


@pytest.mark.parametrize("share", [i / 10 for i in range(10)])
def test_an_interrupted_run_has_the_rows_and_evaluations_of_the_undisturbed_one(
    share, whole, tmp_path
):
    undisturbed, num_asked = whole
    stop = stop_after(int(share * num_asked))
    result = rlreg.train(RUN, out=tmp_path / "r", show_progress=False, should_stop=stop)
    assert result.status == "interrupted"
    assert rlreg.resume(tmp_path / "r", show_progress=False).status == "finished"
    assert rows_of(tmp_path / "r") == rows_of(undisturbed)
    assert results_of(tmp_path / "r") == results_of(undisturbed)


def test_a_run_may_be_interrupted_again_and_again(whole, tmp_path):
    undisturbed, num_asked = whole
    folder = tmp_path / "r"
    result = rlreg.train(RUN, out=folder, show_progress=False, should_stop=stop_after(0))
    rounds = 1
    while result.status == "interrupted":
        # Every other time after the next update; an evaluation that is cut short begins anew.
        asked = num_asked // 2 if rounds % 2 else 0
        result = rlreg.resume(folder, show_progress=False, should_stop=stop_after(asked))
        rounds += 1
        assert rounds < 20
    assert rounds > 3
    assert rows_of(folder) == rows_of(undisturbed)
    assert results_of(folder) == results_of(undisturbed)


BY_STEPS = ["24/56 transitions", "48/56 transitions", "56/56 transitions"]
BY_EPOCHS = ["3/9 updates", "6/9 updates", "9/9 updates"]
THREE_EPOCHS = {"n_epochs": 3, "epoch_length": 3}


@pytest.mark.parametrize(("train", "shown"), [({}, BY_STEPS), (THREE_EPOCHS, BY_EPOCHS)])
def test_progress_counts_what_the_run_is_measured_in_and_goes_on_from_where_it_was(
    train, shown, tmp_path, capsys
):
    run = {**RUN, "train": train or RUN["train"]}
    asked = iter(range(10**6))
    rlreg.train(run, out=tmp_path / "whole", should_stop=lambda: next(asked) and False)
    assert progress_of(capsys.readouterr().err) == shown
    for share in (0.2, 0.5, 0.8):
        folder = tmp_path / f"{share}"
        stop = stop_after(int(share * next(asked)))
        result = rlreg.train(run, out=folder, should_stop=stop)
        assert result.status == "interrupted"
        rlreg.resume(folder)
        text = capsys.readouterr().err
        assert progress_of(text) == shown, share
        unit = shown[0].split(" ")[1]
        done = {"transitions": result.learnable.env_steps, "updates": result.learnable.grad_step}
        assert f"goes on from {done[unit]:,} {unit} of {folder}\n" in text


def progress_of(text):
    """Steps and their unit, line by line."""
    lines = [line.split("  ") for line in text.splitlines() if line.startswith("epoch ")]
    return [parts[1] for parts in lines]
