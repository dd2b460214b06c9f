"""What docs/results.md says about locomotion: its data, its list of jobs, its tables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import gymnasium
import numpy as np
import pytest

EVIDENCE = Path(__file__).resolve().parents[2] / "benchmarks" / "evidence"


@pytest.fixture(scope="module", autouse=True)
def evidence():
    sys.path.insert(0, str(EVIDENCE))
    yield
    sys.path.remove(str(EVIDENCE))


class FiveSteps(gymnasium.Env):
    """Ends after five steps; an observation is 100 for every episode and 1 for every step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        self.value = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = (self.value // 100 + 1) * 100
        return np.array([self.value], float), {}

    def step(self, action):
        self.value += 1
        is_end = self.value % 100 == 5
        return np.array([self.value], float), float(action[0]), is_end, False, {}


class Run:
    """Two pieces of 12 steps: episodes of 5, 5 and 2 steps in each."""

    env_id = "FiveSteps-v0"

    def __init__(self, folder):
        from locomotion_sac import EpisodeLog

        self.folder = folder
        for piece in (12, 24):
            env, start = EpisodeLog(FiveSteps()), piece - 12
            env.reset(seed=piece)
            for step in range(start, start + 12):
                if env.step(np.array([step / 100], np.float32))[2]:
                    env.reset()
            np.savez(self.steps_path(piece), **env.columns())

    def curve(self):
        return [{"steps": 12, "mean_return": 1.0}, {"steps": 24, "mean_return": 2.0}]

    def steps_path(self, steps):
        return self.folder / f"steps-{steps}.npz"


def test_a_replay_has_every_step_of_the_training_and_both_ends_of_every_episode(tmp_path):
    from locomotion_data import replayed

    episodes = list(replayed(Run(tmp_path), 24))
    assert [len(e.rewards) for e in episodes] == [5, 5, 2, 5, 5, 2]
    np.testing.assert_allclose(
        np.concatenate([e.rewards for e in episodes]), np.arange(24) / 100, rtol=1e-6
    )
    np.testing.assert_array_equal(
        np.concatenate([e.actions[:, 0] for e in episodes]),
        np.concatenate([e.rewards for e in episodes]).astype(np.float32),
    )
    starts = [100, 200, 300, 100, 200, 300]
    for episode, start in zip(episodes, starts, strict=True):
        steps = len(episode.rewards)
        assert episode.observations[:, 0].tolist() == list(range(start, start + steps + 1))
        # What ended by itself is terminated; what a piece or the data set cut is truncated.
        assert episode.terminations.tolist() == [False] * (steps - 1) + [steps == 5]
        assert episode.truncations.tolist() == [False] * (steps - 1) + [steps < 5]
    assert [e.seed for e in episodes] == [12, None, None, 24, None, None]


@pytest.mark.parametrize(
    ("n_steps", "lengths"), [(3, [3]), (5, [5]), (14, [5, 5, 2, 2]), (17, [5, 5, 2, 5])]
)
def test_a_replay_may_end_anywhere(tmp_path, n_steps, lengths):
    from locomotion_data import replayed

    *_, last = episodes = list(replayed(Run(tmp_path), n_steps))
    assert [len(e.rewards) for e in episodes] == lengths
    assert len(last.observations) == lengths[-1] + 1
    assert (bool(last.terminations[-1]), bool(last.truncations[-1])) == (
        lengths[-1] == 5, lengths[-1] != 5,
    )  # fmt: skip


@pytest.fixture
def five_steps():
    gymnasium.register("FiveSteps-v0", FiveSteps)
    yield "FiveSteps-v0"
    del gymnasium.registry["FiveSteps-v0"]


def test_rollouts_have_as_many_steps_as_asked_and_a_seed_for_each_episode(five_steps):
    from locomotion_data import rollouts

    class Policy:
        def predict(self, observation, deterministic):
            assert not deterministic
            return np.array([observation[0] / 1000], np.float32), None

    episodes = list(rollouts(Policy(), five_steps, 12, 70, "medium"))
    assert [len(e.rewards) for e in episodes] == [5, 5, 2]
    assert [e.seed for e in episodes] == [70, 71, 72]
    assert [bool(e.terminations[-1]) for e in episodes] == [True, True, False]
    assert [bool(e.truncations[-1]) for e in episodes] == [False, False, True]
    np.testing.assert_allclose(
        episodes[1].rewards, episodes[1].observations[:-1, 0] / 1000, rtol=1e-6
    )
    *_, last = rollouts(Policy(), five_steps, 10, 70, "medium")
    # Where both fall together the environment's own end counts.
    assert (bool(last.terminations[-1]), bool(last.truncations[-1])) == (True, False)


def test_what_a_policy_is_called_depends_on_how_far_it_got():
    from locomotion_data import best_name, best_steps, medium_steps

    # D4RL's expert of Hopper has 3234.3: a third is 1078.1, nine tenths 2910.9.
    curve = [{"steps": n, "mean_return": r} for n, r in [(1, 1078.0), (2, 1079.0), (3, 2910.0)]]
    assert medium_steps("hopper", curve) == 2
    assert best_steps([*curve, {"steps": 4, "mean_return": 100.0}]) == 3
    assert best_name("hopper", curve) == "best"
    assert best_name("hopper", [*curve, {"steps": 4, "mean_return": 2911.0}]) == "expert"
    with pytest.raises(
        SystemExit, match="hopper: no policy has a return of 1078, the best has 1078"
    ):
        medium_steps("hopper", curve[:1])


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="stable-baselines3 is not installed: pip install stable-baselines3==2.9.2",
)
def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch):
    import locomotion_sac
    from stable_baselines3 import SAC

    for name, value in {
        "PIECE": 60,
        "LEARNING_STARTS": 60,
        "BUFFER": 500,
        "NUM_EPISODES": 1,
    }.items():
        monkeypatch.setattr(locomotion_sac, name, value)
    monkeypatch.setitem(locomotion_sac.TASKS, "hopper", "Pendulum-v1")

    def run(name):
        return locomotion_sac.SacRun("hopper", tmp_path / name, 3)

    run("whole").train(180)
    for steps in (60, 120, 180):
        run("stopped").train(steps)
    assert run("whole").curve() == run("stopped").curve()
    first, second = (
        SAC.load(run(name).policy_path(180), device="cpu").policy.state_dict()
        for name in ("whole", "stopped")
    )
    assert all(bool((first[name] == second[name]).all()) for name in first)


# --- pybullet's tasks ----------------------------------------------------------------------------


def test_the_bullet_mixture_has_its_shares(five_steps, monkeypatch):
    import bullet_data

    monkeypatch.setitem(bullet_data.TASKS, "bullet-hopper", five_steps)
    monkeypatch.setattr(bullet_data, "ShippedExpert", lambda task: lambda o: np.full(1, 0.5, "f4"))
    episodes = list(bullet_data.BulletRecipe("bullet-hopper").episodes(300, 0))
    actions = {
        kind: np.concatenate([e.actions for e in episodes if e.kind == kind])
        for kind in ("expert", "noisy", "noisier", "random")
    }
    assert {kind: len(own) for kind, own in actions.items()} == {
        "expert": 90, "noisy": 120, "noisier": 60, "random": 30,
    }  # fmt: skip
    assert set(actions["expert"].ravel().tolist()) == {0.5}
    noise = actions["noisy"][np.abs(actions["noisy"]) < 1] - 0.5
    assert 0.15 < noise.std() < 0.35
    assert actions["noisier"].std() > actions["noisy"].std()
    assert actions["random"].min() < -0.5
    assert actions["random"].max() > 0.5
    for own in actions.values():
        assert np.abs(own).max() <= 1
    assert len({e.seed for e in episodes}) == len(episodes)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pybullet") is None,
    reason="pybullet is not installed: pip install --no-deps pybullet==3.2.7",
)
@pytest.mark.parametrize(("task", "least"), [("bullet-hopper", 2400), ("bullet-ant", 1500)])
def test_the_shipped_expert_walks_and_a_seed_says_how(task, least):
    from bullet_task import TASKS, ShippedExpert

    from rlreg.runtime.evaluation import evaluate, evaluate_random

    expert = ShippedExpert(task)
    returns = evaluate(expert, TASKS[task], 5, 10_000).returns
    assert np.mean(returns) > least
    assert evaluate(expert, TASKS[task], 2, 10_001).returns == returns[1:3]
    # D4RL's own random references: 20.1 and 373.7.
    assert evaluate_random(TASKS[task], 5).mean_return < least / 2


# --- the list of jobs ----------------------------------------------------------------------------

PROGRAM = """
import json, pathlib, sys
job, out = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
with open(out.parent / "log", "a") as log: log.write(job["name"] + "\\n")
if job["name"] == "bad": sys.exit(3)
out.write_text("{}")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_a_list_goes_on_where_it_stopped(tmp_path, program, capsys):
    from job_list import run_list

    jobs, work = [{"name": name} for name in ("a", "bad", "b")], tmp_path / "work"
    assert run_list(jobs, program, work, only="a") == 1  # "a" and "bad"
    assert run_list(jobs, program, work) == 1  # the bad one again, and "b"
    assert (work / "log").read_text().split() == ["a", "bad", "bad", "b"]
    assert not list(work.glob("*.claim"))
    capsys.readouterr()
    assert run_list(jobs, program, work, is_list=True) == 0
    assert capsys.readouterr().out == "there a\n      bad\nthere b\n"


def test_a_job_that_another_process_works_on_is_left_to_it(tmp_path, program):
    from job_list import run_list

    work = tmp_path / "work"
    work.mkdir()
    (work / "a.claim").write_text(str(os.getpid()))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (work / "b.claim").write_text(str(gone.pid))
    assert run_list([{"name": "a"}, {"name": "b"}], program, work) == 0
    assert (work / "log").read_text().split() == ["b"]


def test_the_jobs_are_those_of_the_data_that_is_there(tmp_path, monkeypatch):
    import locomotion_jobs

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert list(locomotion_jobs.jobs()) == []
    (tmp_path / "rlreg" / "hopper" / "medium-v0").mkdir(parents=True)
    first, *others = locomotion_jobs.jobs({"iql": 30_000, "bc": 5_000, "bc10": 5_000})
    assert first["kind"] == "data"
    assert [job["name"] for job in others[:4]] == [
        "hopper-medium-iql-30k-0", "hopper-medium-bc-5k-0", "hopper-medium-bc10-5k-0",
        "hopper-medium-iql-30k-1",
    ]  # fmt: skip
    assert {job["dataset"] for job in others} == {"rlreg/hopper/medium-v0"}


def test_the_settings_of_a_run_are_those_of_the_preset():
    from locomotion_jobs import PRESET
    from offline_runs import settings_of_preset

    import rlreg

    settings = settings_of_preset(PRESET)
    assert settings["expectile"] == 0.7
    assert settings["reward_scaler"] == {"type": "return", "multiplier": 1000.0}
    assert rlreg.create("iql", device="cpu", **settings).config.weight_temp == 3.0


# --- the tables ----------------------------------------------------------------------------------


def document():
    def run(program, seed, value):
        curve = [[5_000, value / 2], [10_000, value]]
        return {
            "task": "hopper", "data": "medium", "program": program, "seed": seed,
            "updates": 10_000, "return": value, "curve": curve, "cpu_s": 1.0,
        }  # fmt: skip

    data = {
        "id": "rlreg/hopper/medium-v0", "transitions": 1_000, "episodes": 10, "terminations": 9,
        "mean_return": 210.0, "best_return": 390.0, "random": 20.0, "policy": 400.0,
        "content_hash": "0123456789abcdef0123",
    }  # fmt: skip
    return {
        "settings": {
            "updates": {"iql": 10_000, "bc": 5_000, "bc10": 5_000},
            "long_updates": {"iql": 40_000, "bc": 20_000, "bc10": 20_000},
        },
        "long_runs": [run("iql", 0, 500.0), run("bc10", 0, 90.0)],
        "data": [data],
        "runs": [run("iql", 0, 100.0), run("iql", 1, 300.0), run("bc", 0, 250.0)],
        "sac": [
            {"task": "hopper", "seed": 0, "curve": [[10_000, 20.0], [20_000, 30.0], [30_000, 9.0]]}
        ],
    }


def test_the_tables_say_what_the_results_hold():
    import report_locomotion

    blocks, pictures = report_locomotion.render(document())
    assert set(blocks) == set(report_locomotion.BLOCKS)
    assert blocks["locomotion"].splitlines()[-1] == (
        "| `rlreg/hopper/medium-v0` | 2 / 1 / 0 | 200 (100 to 300) | 250 |  | 210 | 390 | 400 | 20 "
        "| 50 % |"
    )
    assert blocks["locomotion-data"].splitlines()[-1] == (
        "| `rlreg/hopper/medium-v0` | 1,000 | 10 | 9 | 210 | 390 | `0123456789abcdef` |"
    )
    assert blocks["locomotion-sac"].splitlines()[-1] == "| hopper | 0 | 30,000 | 9 | 30 | 20,000 |"
    # Only what has both lengths is compared.
    assert blocks["locomotion-long"].splitlines()[-1] == (
        "| `rlreg/hopper/medium-v0` | IQL, preset iql/locomotion | 1 | 200 (100 to 300) at 10,000 "
        "| 500 at 40,000 | 400 | 390 |"
    )
    assert "cloning" not in blocks["locomotion-long"]
    assert set(pictures) == {"locomotion", "locomotion-long", "locomotion-sac"}
    for text in pictures.values():
        ElementTree.fromstring(text)


def test_without_runs_the_page_says_so():
    import report_locomotion

    blocks, pictures = report_locomotion.render({"settings": {}, "data": [], "runs": [], "sac": []})
    assert set(blocks.values()) == {"Not run yet."}
    assert pictures == {}


def test_runs_on_other_data_than_described_are_refused(tmp_path):
    from locomotion_collect import collect
    from locomotion_jobs import UPDATES

    jobs = tmp_path / "jobs"
    jobs.mkdir()
    job = {"name": "x", "kind": "iql", "task": "hopper", "data": "medium", "seed": 0}
    job |= {"dataset": "rlreg/hopper/medium-v0", "updates": UPDATES["iql"]}
    run = {
        "job": job, "versions": {}, "content_hash": "old", "final": {"mean_return": 1.0},
        "curve": [{"update": 1, "mean_return": 1.0}], "cpu_s": 1.0,
    }  # fmt: skip
    data = {
        "job": {"kind": "data", "dataset": job["dataset"]},
        "versions": {},
        "id": job["dataset"],
    }
    (jobs / "run.json").write_text(json.dumps(run))
    (jobs / "data.json").write_text(json.dumps({**data, "content_hash": "old"}))
    assert [r["return"] for r in collect(tmp_path)["runs"]] == [1.0]
    (jobs / "data.json").write_text(json.dumps({**data, "content_hash": "new"}))
    with pytest.raises(SystemExit, match="x learnt from other data than rlreg/hopper/medium-v0"):
        collect(tmp_path)
