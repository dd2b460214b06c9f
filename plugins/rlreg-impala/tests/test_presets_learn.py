"""Every preset as it is shipped: it learns what it is for, through run files and real actors.

Actors are processes in deterministic mode, so that a seed fixes every bit. Scores are those of
evaluations after training, on seeded episodes, beside random actions on the same starts.
"""

from __future__ import annotations

import json

import pytest

import rlreg

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the environments' packages
]
BREAKOUT = {"id": "MinAtar/Breakout-v1", "register": "minatar.gym:register_envs"}
PONG = {
    "id": "ALE/Pong-v5",
    "kwargs": {"frameskip": 1, "repeat_action_probability": 0.0},
    "wrappers": [
        {"id": "gymnasium.wrappers:AtariPreprocessing", "kwargs": {"screen_size": 84}},
        {"id": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 4}},
    ],
}
TANH_64 = {"type": "vector", "hidden_units": [64, 64], "activation": "tanh"}


def train(preset, env, n_steps, folder, *, seed=0, n_episodes=20, engine=None, **settings):
    """Trains a run; returns its summary and the rows of its log."""
    evaluation = {"env": "auto", "n_episodes": n_episodes} if n_episodes else {"env": None}
    run = {
        "learnable": {"type": "impala", **settings},
        "env": env,
        "device": "cpu",
        "seed": seed,
        "engine": {"type": "process", "deterministic": True, **(engine or {})},
        "train": {"n_steps": n_steps},
        "evaluation": evaluation,
        "checkpoint": {"every_epochs": 1000},
    }
    result = rlreg.train(run, out=folder, preset=f"impala/{preset}", show_progress=False)
    assert result.status == "finished"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return result.summary, [json.loads(line) for line in lines]


def require_balance(row):
    parts = ("trained", "discarded", "masked", "in_flight")
    assert row["rows/sampled"] == sum(row[f"rows/{part}"] for part in parts)


def test_continuous_swings_the_pendulum_up_on_four_of_five_seeds(tmp_path):
    """Random play gets about -1180; -300 is a pendulum that is up for most of the episode."""
    scores = []
    for seed in range(5):
        summary, _ = train("continuous", "Pendulum-v1", 200_000, tmp_path / str(seed), seed=seed)
        assert summary["baselines"]["random"]["mean_return"] < -900
        scores.append(summary["final"]["mean_return"])
    assert sum(score >= -300 for score in scores) >= 4, scores


def test_minatar_plays_breakout_well_above_random(tmp_path):
    pytest.importorskip("minatar")
    summary, rows = train("minatar", BREAKOUT, 500_000, tmp_path / "run", n_episodes=100)
    random = summary["baselines"]["random"]["mean_return"]
    assert 0.2 < random < 0.8
    assert summary["final"]["mean_return"] > 4 * random
    require_balance(rows[-1])


def test_throughput_solves_cartpole(tmp_path):
    summary, _ = train("throughput", "CartPole-v1", 600_000, tmp_path / "run")
    assert summary["final"]["mean_return"] >= 450


def test_long_episodes_lands_on_the_moon(tmp_path):
    """Landing pays 200 and more, hovering till the end of the episode about -100."""
    pytest.importorskip("Box2D")
    summary, _ = train("long_episodes", "LunarLander-v3", 4_000_000, tmp_path / "run")
    assert summary["final"]["mean_return"] >= 200


def test_atari_runs_from_end_to_end_on_pong(tmp_path):
    """What it learns takes millions of frames: benchmarks/evidence/impala_learning.py has it."""
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    _, rows = train("atari", PONG, 1_500, tmp_path / "run", n_episodes=0)
    assert rows[-1]["step"] >= 1_500
    assert rows[-1]["loss/grad_norm"] > 0
    assert rows[-1]["rows/trained"] == rows[-1]["step"]
    require_balance(rows[-1])
    loaded = rlreg.load(tmp_path / "run" / "last.rlreg", device="cpu")
    assert loaded.env_steps == rows[-1]["step"]


def test_maze_improves_on_cartpole(tmp_path):
    """Maze's rate and batches of 800 are slow on a small problem, but they learn it."""
    engine = {"num_actors": 2, "num_envs": 4}  # as many environments as Maze's 8 actors have
    summary, _ = train(
        "maze", "CartPole-v1", 200_000, tmp_path / "run", engine=engine, actors_batch_size=2
    )
    assert summary["final"]["mean_return"] > 4 * summary["baselines"]["random"]["mean_return"]


def test_the_papers_sums_learn_cartpole_with_a_small_network(tmp_path):
    """The preset is for Atari; its rate, clipping and optimizer hold for any sum of 640 rows."""
    summary, _ = train(
        "paper", "CartPole-v1", 300_000, tmp_path / "run",
        engine={"num_actors": 2, "num_envs": 16}, actors_batch_size=2,
        actor_encoder_factory=TANH_64,
    )  # fmt: skip
    assert summary["final"]["mean_return"] > 4 * summary["baselines"]["random"]["mean_return"]
