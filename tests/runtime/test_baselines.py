"""Cloning baselines, evaluators in a run, and what many seeds say together."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg import TransitionDataset
from rlreg.errors import ConfigError
from rlreg.runtime.baselines import BestEpisodes, clone
from rlreg.runtime.seeds import statistics_of

CPU = torch.device("cpu")


def dataset_of(action_space, act, size=400, length=20):
    """Episodes of 20 steps; a third of them act by ``act(o)``, the others by its opposite."""
    rng = np.random.default_rng(0)
    observations = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    is_good = np.arange(size) // length % 3 == 0
    actions = np.where(
        is_good.reshape(-1, *[1] * (act(observations).ndim - 1)),
        act(observations),
        act(-observations),
    )
    ends = np.arange(size) % length == length - 1
    return TransitionDataset.from_arrays(
        observations,
        actions,
        is_good.astype(np.float32),
        np.zeros(size, bool),
        ends,
        next_observations=np.roll(observations, -1, axis=0),
        observation_space=spaces.Box(-1, 1, (2,), np.float32),
        action_space=action_space,
    )


def test_the_best_episodes_are_those_with_the_highest_returns():
    data = dataset_of(spaces.Box(-1, 1, (1,), np.float32), lambda seen: seen[:, :1])
    best = BestEpisodes(data, 0.1)
    assert best.chosen.tolist() == [0, 3]  # 20 episodes; of the equal ones the first
    assert len(best) == 40
    batch = best.sample(500, torch.Generator().manual_seed(0))
    assert (batch["rewards"] == 1).all()
    assert len(np.unique(batch["observations"][:, 0])) == 40
    assert len(BestEpisodes(data, 1e-9)) == 20


def test_cloning_the_best_tenth_follows_them_and_cloning_all_does_not():
    data = dataset_of(spaces.Box(-2, 2, (1,), np.float32), lambda seen: seen[:, :1])
    observations = np.random.default_rng(1).uniform(-1, 1, (200, 2)).astype(np.float32)

    def slope(name):
        actions = clone(name, data, 300, device=CPU).predict(observations)[:, 0]
        return float(np.polyfit(observations[:, 0], actions, 1)[0])

    assert slope("bc10") > 0.7  # as the good ones: 1
    assert slope("bc") < 0.0  # the mean of all: -1/3


def test_categories_are_cloned_part_by_part_from_where_they_start():
    space = spaces.MultiDiscrete([2, 3], start=[4, 0])

    def act(seen):
        return np.stack([4 + (seen[:, 0] > 0), 1 + np.sign(seen[:, 1])], axis=1).astype(np.int64)

    data = dataset_of(space, act)
    learnable = clone("bc10", data, 300, device=CPU)
    observations = np.random.default_rng(1).uniform(-1, 1, (300, 2)).astype(np.float32)
    chosen = learnable.predict(observations)
    assert chosen.dtype == space.dtype
    assert (chosen == act(observations)).mean() > 0.9


def test_a_run_measures_cloning_beside_its_learnable(tiny, minari_root, tmp_path):
    run = {
        "learnable": {"type": "tiny_bc"},
        "train": {"n_steps": 40, "n_steps_per_epoch": 20},
        "evaluation": {
            "n_episodes": 2,
            "baselines": ["behaviour", "bc", "bc10"],
            "evaluators": ["action_difference"],
            "every": 20,
        },
    }
    result = rlreg.train(run, out=tmp_path / "run", show_progress=False)
    assert list(result.summary["baselines"]) == ["behaviour", "bc", "bc10"]
    for name in ("bc", "bc10"):
        assert result.summary["baselines"][name]["n_episodes"] == 2
        assert result.summary["baselines"][name]["normalized_score"] is not None
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["evaluation/action_difference"] > 0 for row in rows] == [True, True]
    again = rlreg.train(run, out=tmp_path / "again", show_progress=False)
    assert again.summary["baselines"] == result.summary["baselines"]


@pytest.mark.parametrize("point", ["first", "second"])
def test_a_run_interrupted_while_it_clones_ends_like_the_undisturbed_one(
    tiny, minari_root, tmp_path, point
):
    """Cloning begins anew then, from the seed of the run, and gives the same figures."""
    run = {
        "learnable": {"type": "tiny_bc"},
        "train": {"n_steps": 120, "n_steps_per_epoch": 120},
        "evaluation": {"n_episodes": 1, "baselines": ["random", "bc", "bc10"]},
    }
    whole = rlreg.train(run, out=tmp_path / "whole", show_progress=False)
    seen = []

    def stop():
        """Asks to stop in the second chunk of the first or of the second cloning."""
        names = [frame.function for frame in inspect.stack()]
        if "clone" in names:
            seen.append(names)
        return len(seen) == {"first": 2, "second": 5}[point]

    broken = rlreg.train(run, out=tmp_path / "r", show_progress=False, should_stop=stop)
    assert broken.status == "interrupted"
    assert not (tmp_path / "r" / "summary.json").exists()
    resumed = rlreg.resume(tmp_path / "r", show_progress=False)
    assert resumed.status == "finished"
    for key in ("baselines", "evaluations", "best", "final", "steps"):
        assert resumed.summary[key] == whole.summary[key]
    files = [tmp_path / name / "last.rlreg" for name in ("whole", "r")]
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = [
        [
            json.loads(line)["step"]
            for line in (file.parent / "metrics.jsonl").read_text().splitlines()
        ]
        for file in files
    ]
    assert rows[0] == rows[1] == [120]


def test_evaluators_need_no_environment(tiny, minari_root, tmp_path):
    run = {
        "learnable": {"type": "tiny_bc"},
        "train": {"n_steps": 20, "n_steps_per_epoch": 20},
        "evaluation": {"env": None, "evaluators": ["action_difference"]},
    }
    rlreg.train(run, out=tmp_path / "run", show_progress=False)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["evaluation/action_difference"] > 0


def test_an_evaluator_that_the_learnable_cannot_serve_is_said_before_training(
    tiny, minari_root, tmp_path
):
    run = {"learnable": {"type": "tiny_bc"}, "evaluation": {"evaluators": ["td_error"]}}
    with pytest.raises(ConfigError, match="no action values"):
        rlreg.train(run, out=tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()


def test_the_interquartile_mean_leaves_out_the_outer_quarters():
    figures = statistics_of([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0])
    assert figures["interquartile_mean"] == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert figures["mean"] == pytest.approx(71 / 8)
    assert figures["std"] == pytest.approx(
        np.sqrt(np.mean((np.array(figures["values"]) - 71 / 8) ** 2))
    )
    assert statistics_of([1.0, 2.0, 6.0])["interquartile_mean"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        # Two seeds: both resamples the lower one with chance 1/4, the higher one as often.
        ([0.0, 1.0], [0.0, 1.0]),
        # Three: all the same one with chance 1/27, more than the 2.5 % of a tail.
        ([0.0, 3.0, 6.0], [0.0, 6.0]),
        # Four, of which the middle two count: at least three times the 8 with chance 13/256.
        ([0.0, 0.0, 0.0, 8.0], [0.0, 8.0]),
        # Eight, of which the middle four count: three 8s (6.7 %) make one of these four an 8, and
        # four (1.1 %, less than a tail) make it two.
        ([0.0] * 7 + [8.0], [0.0, 2.0]),
        ([3.0, 3.0, 3.0], [3.0, 3.0]),
    ],
)
def test_the_bootstrap_interval_is_that_of_all_resamples(values, interval):
    figures = statistics_of(values)
    assert figures["interval"] == interval
    assert figures["confidence"] == 0.95
    assert figures == statistics_of(values)  # nothing is left to chance


def test_the_success_rate_is_a_column_where_an_environment_reports_one(capsys):
    from rlreg.cli.train import _echo_figures, _row

    figures = {"mean_return": -3.0, "std_return": 1.0, "normalized_score": None}
    _echo_figures([_row("iql", figures, "2 episodes")])
    assert "success" not in capsys.readouterr().out
    reported = _row("iql", {**figures, "success_rate": 0.25}, "2 episodes")
    _echo_figures([reported, _row("behaviour", figures, "data")])
    shown = capsys.readouterr().out
    assert "success %" in shown
    assert "25.0" in shown
