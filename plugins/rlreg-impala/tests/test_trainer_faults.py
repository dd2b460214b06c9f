"""Faults as the trainer meets them: training goes on, or ends with a message; nothing is lost."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time

import processes
import pytest
import rollout_helpers as helpers
from learner_helpers import config, model_for

from rlreg.config import RolloutEngineFactory
from rlreg.errors import RolloutError
from rlreg.open_union import validate
from rlreg_impala.trainer import MultiStepIMPALA

pytestmark = pytest.mark.alone

SETTINGS = {"n_rollout_steps": 5, "actors_batch_size": 2}


def trainer_for(make, **engine):
    settings = {"type": "process", "num_actors": 2, "num_envs": 2, **engine}
    env = make()
    model = model_for(env.observation_space, env.action_space, **SETTINGS)
    actors = validate(RolloutEngineFactory, settings)
    trainer = MultiStepIMPALA(model, actors, None, config(**SETTINGS), env_factory=make)
    trainer.learner.progress.plan("updates", 10_000)
    return trainer


def updates(trainer, count):
    for _ in range(count):
        trainer.update()
    return trainer.epoch_metrics()


def assert_balanced(metrics):
    used = metrics["rows/trained"] + metrics["rows/masked"] + metrics["rows/discarded"]
    assert metrics["rows/sampled"] == used + metrics["rows/in_flight"]


def once(trouble, tmp_path):
    """An environment that fails the first time it comes to step 37, and never again."""
    return functools.partial(helpers.TroubleEnv, trouble, 37, str(tmp_path / "flag"))


@pytest.mark.parametrize(
    "trouble", [helpers.raise_value_error, helpers.raise_memory_error, helpers.exit_at_once]
)
def test_training_goes_on_without_an_actor_that_fails_once(trouble, tmp_path):
    trainer = trainer_for(once(trouble, tmp_path))
    trainer.start()
    try:
        metrics = updates(trainer, 40)
        assert processes.wait_until(lambda: updates(trainer, 5)["actors/restarts"] >= 1)
        metrics = updates(trainer, 10)
    finally:
        trainer.stop()
    # Two, where both actors come to the step before one has left its mark.
    assert 1 <= metrics["actors/restarts"] <= trainer.num_restarts <= 2
    assert_balanced(metrics)


def test_training_goes_on_after_an_actor_is_killed():
    trainer = trainer_for(helpers.CountingEnv)
    trainer.start()
    try:
        updates(trainer, 5)
        os.kill(trainer.engine.health()[0].pid, signal.SIGKILL)
        assert processes.wait_until(lambda: updates(trainer, 5)["actors/restarts"] == 1)
        # The new actor works: its fragments are among those that arrive.
        before = trainer.engine.health()[0].fragments
        assert processes.wait_until(
            lambda: updates(trainer, 5) and trainer.engine.health()[0].fragments > before
        )
        assert_balanced(updates(trainer, 5))
    finally:
        trainer.stop()


def test_an_actor_that_always_fails_ends_training_with_its_traceback():
    make = functools.partial(helpers.TroubleEnv, helpers.raise_value_error, 7)
    trainer = trainer_for(make, max_restarts=1)
    trainer.start()
    try:
        with pytest.raises(RolloutError, match=r"actor \d, environment 0, step 7") as error:
            updates(trainer, 1000)
    finally:
        trainer.stop()
    assert "Traceback of the actor" in str(error.value)
    assert "restarted 1 times" in str(error.value)
    assert processes.actors_of(os.getpid()) == []


def test_a_hung_actor_is_replaced_and_training_goes_on():
    trainer = trainer_for(helpers.CountingEnv, actor_timeout=2.0)
    trainer.start()
    try:
        updates(trainer, 5)
        os.kill(trainer.engine.health()[1].pid, signal.SIGSTOP)
        assert processes.wait_until(lambda: updates(trainer, 5)["actors/restarts"] == 1)
        assert "made no step for 2 s" in trainer.engine.health()[1].error
    finally:
        trainer.stop()


def test_in_deterministic_mode_a_dead_actor_ends_training_and_says_why():
    trainer = trainer_for(helpers.CountingEnv, deterministic=True)
    trainer.start()
    try:
        updates(trainer, 5)
        os.kill(trainer.engine.health()[0].pid, signal.SIGKILL)
        with pytest.raises(RolloutError, match=r"actor 0 died .*SIGKILL") as error:
            updates(trainer, 1000)
        assert "in deterministic mode an actor cannot be replaced" in str(error.value)
        assert [status.restarts for status in trainer.engine.health()] == [0, 0]
    finally:
        trainer.stop()
    assert processes.actors_of(os.getpid()) == []


def test_what_is_raised_while_waiting_ends_training_with_its_state_kept():
    class Slow(helpers.CountingEnv):
        def step(self, action):
            time.sleep(0.6)
            return super().step(action)

    def stop():
        raise KeyboardInterrupt

    trainer = trainer_for(Slow, num_actors=1)
    trainer.on_wait = stop
    trainer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            updates(trainer, 1)
    finally:
        trainer.stop()
    assert trainer.counters()["engine"]


def test_memory_of_the_learner_does_not_creep():
    """What an update allocates is freed by the next: TorchBeast's learner grew to gigabytes."""
    trainer = trainer_for(helpers.CountingEnv, type="sequential")
    trainer.start()
    try:
        for _ in range(4):
            updates(trainer, 100)
        before = resident_kib()
        for _ in range(5):
            updates(trainer, 100)
        assert resident_kib() - before < 2000
    finally:
        trainer.stop()


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_recorded_versions_stay_within_max_lag_with_a_slow_actor():
    """Every actor gets new weights, however slow it is; what is too old is not trained on."""

    class Uneven(helpers.CountingEnv):
        def step(self, action):
            time.sleep(0.002 * (os.getpid() % 3))
            return super().step(action)

    trainer = trainer_for(Uneven, num_actors=4, max_lag=2)
    trainer.start()
    try:
        lags = [trainer.update()["queue/policy_lag/max"] for _ in range(200)]
        # How far a slow actor gets meanwhile depends on the machine; that it goes on does not.
        for _ in range(5000):
            versions = [status.version for status in trainer.engine.health()]
            if min(versions) > 20:
                break
            trainer.update()
    finally:
        trainer.stop()
    assert max(lags) <= 2
    assert min(versions) > 20


@pytest.mark.slow
def test_an_exception_after_the_start_ends_the_process(tmp_path):
    path = tmp_path / "script.py"
    body = f"""
    import sys
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    from test_trainer_faults import helpers, trainer_for

    if __name__ == "__main__":
        trainer = trainer_for(helpers.CountingEnv)
        trainer.start()
        trainer.update()
        raise SystemError("the user's own")
    """
    path.write_text(textwrap.dedent(body))
    done = subprocess.Popen(
        [sys.executable, str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _, error = done.communicate(timeout=processes.LONG_S)
    assert done.returncode == 1
    assert "the user's own" in error
    assert "leaked" not in error
    assert processes.wait_until(lambda: processes.of_session(done.pid) == [])


# ------------------------------------------------------------------------------------------- ray


def test_the_trainer_never_imports_ray():
    code = (
        "import sys, rlreg_impala.trainer, rlreg_impala.learnable, rlreg_impala.benchmark; "
        "from rlreg_impala.components import RayEngineConfig; RayEngineConfig(); "
        "assert 'ray' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.ray
def test_training_goes_on_after_a_node_has_died():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    size = {"object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **size})
    other = cluster.add_node(num_cpus=2, **size)
    ray.init(address=cluster.address, log_to_driver=False)
    trainer = trainer_for(helpers.CountingEnv, type="ray", num_actors=4, num_cpus_per_actor=0.5)
    try:
        trainer.start()
        assert processes.wait_until(
            lambda: (
                updates(trainer, 5) and all(status.fragments for status in trainer.engine.health())
            ),
            90,
        )
        cluster.remove_node(other, allow_graceful=False)
        assert processes.wait_until(lambda: updates(trainer, 5)["actors/restarts"] >= 1)
        assert_balanced(updates(trainer, 20))
    finally:
        trainer.stop()
        ray.shutdown()
        cluster.shutdown()
