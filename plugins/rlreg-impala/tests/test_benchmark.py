"""``rlreg bench impala``: it measures the parts, and names the right one."""

from __future__ import annotations

import json
import time

import gymnasium
import pytest

import rlreg
from rlreg.cli.main import run
from rlreg.config import RolloutEngineFactory
from rlreg.errors import ConfigError
from rlreg.open_union import validate
from rlreg.runtime.online import OnlineLearnable
from rlreg_impala.benchmark import diagnose
from rlreg_impala.engines.process import ProcessEngine

RATES = {"env_only": 100_000.0, "inference": 1_000_000.0, "learner": 300_000.0}


@pytest.mark.parametrize(
    ("changes", "bottleneck", "knob"),
    [
        ({}, "the environments", "native vector"),
        ({"cores": 8.0}, "the environments", "engine.num_actors: 7"),
        ({"learner_utilisation": 0.95}, "the learner", "larger batches"),
        ({"inference": 20_000.0}, "the policy in the actors", "engine.num_envs"),
        ({"actors": 0.0}, "one process", "engine.type: process"),
    ],
)
def test_the_bottleneck_and_its_knob_are_named(changes, bottleneck, knob):
    figures = {"actors": 1.0, "cores": 2.0, "learner_utilisation": 0.4}
    rates = RATES | {name: value for name, value in changes.items() if name in RATES}
    figures |= {name: value for name, value in changes.items() if name in figures}
    found = diagnose(rates, figures)
    assert bottleneck in found[0]
    assert knob in found[1]


def test_the_command_measures_every_part_of_both_kinds_of_environment(capfd):
    assert (
        run(["bench", "impala", "--preset", "impala/throughput", "--seconds", "1", "--json"]) == 0
    )
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["gym.make", "native vector"]
    for row in rows:
        assert set(row["rates"]) == {"env_only", "inference", "learner", "end_to_end"}
        assert all(rate > 0 for rate in row["rates"].values())
        assert 0 <= row["figures"]["learner_utilisation"] <= 1
        assert row["bottleneck"]
        assert row["knob"]
    # Far below what any machine does: per-step transport in Python gives a tenth of it.
    assert rows[0]["rates"]["end_to_end"] > 5_000


def test_transport_counts_what_moving_costs_and_not_what_is_waited_for(monkeypatch):
    shares = {}
    for name, lose in (("sleeps", time.sleep), ("computes", compute)):

        def publish(self, *given, lose=lose, plain=ProcessEngine.publish):
            lose(0.02)
            plain(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(ProcessEngine, "publish", publish)
            impala = rlreg.create("impala", device="cpu", n_rollout_steps=4)
            # Many slots: updates that only empty them are not part of what is measured.
            slots = {"num_envs": 2, "queue_out_of_sync_factor": 20}
            engine = validate(RolloutEngineFactory, {"type": "process", **slots})
            [row] = impala.benchmark(cartpole, engine, 0.5)
        assert row.figures["transport_share"] > 0.5
        shares[name] = row.figures["transport_cpu_share"]
    assert shares["computes"] > 0.6
    assert 0 < shares["sleeps"] < shares["computes"] - 0.2


def cartpole():
    return gymnasium.make("CartPole-v1")


def compute(seconds):
    begun = time.thread_time()
    while time.thread_time() < begun + seconds:
        pass


@pytest.mark.slow
def test_throughput_is_most_of_what_the_environments_allow(capfd):
    arguments = ["bench", "impala", "--preset", "impala/throughput", "--env", "CartPole-v1"]
    assert run([*arguments, "--seconds", "20", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)["rows"][0]["figures"]
    # The goal is 60 % or 85 %; a busy machine takes the learner's core away.
    assert figures["share_of_env_only"] > 0.4 or figures["learner_utilisation"] > 0.85


def test_a_learnable_without_parts_of_its_own_measures_the_whole():
    impala = rlreg.create("impala", device="cpu", n_rollout_steps=4)
    engine = validate(RolloutEngineFactory, {"type": "sequential", "num_envs": 2})
    [row] = OnlineLearnable.benchmark(impala, "CartPole-v1", engine, 0.2)
    assert row.rates["end_to_end"] > 0
    with pytest.raises(ConfigError, match="--env ID"):
        OnlineLearnable.benchmark(impala, None, engine, 0.2)
