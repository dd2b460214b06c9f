"""The Ray engine where it is for: several machines, one of which goes away."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rollout_helpers as helpers

from rlreg.errors import MissingExtraError, RolloutError

SPEC = helpers.tiny_spec(helpers.CountingEnv())


@pytest.fixture
def engine_class():
    pytest.importorskip("ray")
    from rlreg_impala.engines.ray import RayEngine

    return RayEngine


@pytest.fixture
def two_nodes():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    size = {"object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **size})
    other = cluster.add_node(num_cpus=2, **size)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster, other
    ray.shutdown()
    cluster.shutdown()


def turn_until(engine, condition, version, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        fragments = engine.collect(1, timeout=60)
        assert fragments
        version += 1
        engine.publish(version, helpers.zero_weights(SPEC))
        engine.release(fragments)
        if condition(fragments[0], engine):
            return version
    raise AssertionError("it never happened")


@pytest.mark.ray
def test_a_node_that_dies_costs_restarts_and_nothing_else(two_nodes, engine_class):
    cluster, other = two_nodes
    # The four are spread over both nodes, and fit on the one that is left.
    spec = helpers.small_spec(num_actors=4, num_slots=6, num_cpus_per_actor=0.5)
    engine = engine_class(spec)
    try:
        engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
        engine.publish(0, helpers.zero_weights(SPEC))
        seen = set()

        def all_work(fragment, _):
            seen.add(fragment.actor_id)
            return len(seen) == 4

        version = turn_until(engine, all_work, 0)
        cluster.remove_node(other, allow_graceful=False)
        again = set()

        def replaced_and_working(fragment, engine):
            lost = {status.index for status in engine.health() if status.restarts}
            again.update({fragment.actor_id} & lost)
            return bool(lost) and again == lost

        turn_until(engine, replaced_and_working, version)
        statuses = engine.health()
        assert all(status.restarts <= 3 for status in statuses)
        assert any("died" in status.error for status in statuses)
    finally:
        engine.stop()


@pytest.mark.ray
def test_a_stopped_worker_counts_as_hung(two_nodes, engine_class, tmp_path):
    def make():
        (tmp_path / "pid").write_text(str(os.getpid()))
        return helpers.CountingEnv()

    engine = engine_class(helpers.small_spec(actor_timeout=3.0, max_restarts=1))
    try:
        engine.start(SPEC, make, helpers.SEED)
        engine.publish(0, helpers.zero_weights(SPEC))
        version = turn_until(engine, lambda *_: True, 0)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)
        turn_until(engine, lambda _, e: e.health()[0].restarts == 1, version)
        assert "made no step for 3 s: environment" in engine.health()[0].error
    finally:
        engine.stop()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (helpers.raise_value_error, "environment 0, step 7, acting: ValueError: the floor"),
        (helpers.exit_at_once, "actor 0 died"),
    ],
)
def test_an_actor_that_always_fails_stops_the_run(two_nodes, engine_class, trouble, message):
    engine = engine_class(helpers.small_spec(max_restarts=1))
    try:
        engine.start(SPEC, functools.partial(helpers.TroubleEnv, trouble, 7), helpers.SEED)
        with pytest.raises(RolloutError, match=message) as error:
            helpers.collect_all(engine, SPEC, 10)
        assert "restarted 1 times" in str(error.value)
    finally:
        engine.stop()


@pytest.mark.ray
def test_deterministic_mode_replaces_nobody(two_nodes, engine_class):
    engine = engine_class(helpers.small_spec(deterministic=True))
    try:
        make = functools.partial(helpers.TroubleEnv, helpers.exit_at_once, 7)
        engine.start(SPEC, make, helpers.SEED)
        with pytest.raises(RolloutError, match="in deterministic mode an actor cannot be replaced"):
            helpers.collect_all(engine, SPEC, 10)
        assert engine.health()[0].restarts == 0
    finally:
        engine.stop()


@pytest.mark.ray
def test_the_object_store_does_not_fill(two_nodes, engine_class):
    import ray

    # 60 fragments of 3 MB go through a store of 100 MB.
    spec = helpers.small_spec(unroll_length=2000, num_envs=32, num_slots=3)
    engine = engine_class(spec)
    try:
        engine.start(SPEC, lambda: helpers.NativeCounting(32), helpers.SEED)
        helpers.collect_all(engine, SPEC, 3)
        before = ray.available_resources()["object_store_memory"]
        version = 3
        for _ in range(60):
            fragments = engine.collect(1, timeout=60)
            version += 1
            engine.publish(version, np.zeros(6, np.float32))
            engine.release(fragments)
        del fragments
        time.sleep(1)
        assert before - ray.available_resources()["object_store_memory"] < 30e6
    finally:
        engine.stop()


def test_an_unreachable_cluster_is_told(engine_class):
    started = time.monotonic()
    engine = engine_class(helpers.small_spec(address="127.0.0.1:1"))
    with pytest.raises(RolloutError, match=r"127\.0\.0\.1:1 cannot be reached"):
        engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
    engine.stop()
    assert time.monotonic() - started < 15


def test_without_ray_the_message_gives_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    from rlreg_impala.engines.ray import RayEngine

    with pytest.raises(MissingExtraError, match=r"pip install 'rlreg-impala\[ray\]'"):
        RayEngine(helpers.small_spec())


def test_nobody_else_imports_ray():
    code = (
        "import sys, rlreg_impala.engines.process, rlreg_impala.engines.sequential; "
        "import rlreg_impala.engines, rlreg_impala.rollouts; "
        "assert 'ray' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
