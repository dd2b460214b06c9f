"""What every engine owes, the same suite for all of them."""

from __future__ import annotations

import functools
import sys
import time
from contextlib import contextmanager

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import rollout_helpers as helpers
from gymnasium.vector import AutoresetMode
from processes import LONG_S, wait_until

from rlreg.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentSpecError,
    RolloutError,
)
from rlreg_impala import components
from rlreg_impala.engines import make_engine
from rlreg_impala.rollouts import EngineSpec

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ENGINES = ["sequential", "process", pytest.param("ray", marks=pytest.mark.ray)]
SPEC = helpers.tiny_spec(helpers.CountingEnv())


def build(name, **changes):
    spec = helpers.small_spec(**changes)
    if name == "sequential":
        from rlreg_impala.engines.sequential import SequentialEngine

        return SequentialEngine(spec)
    if name == "process":
        from rlreg_impala.engines.process import ProcessEngine

        return ProcessEngine(spec)
    from rlreg_impala.engines.ray import RayEngine

    return RayEngine(spec)


@contextmanager
def running(name, factory=helpers.CountingEnv, policy_spec=SPEC, **changes):
    engine = build(name, **changes)
    try:
        engine.start(policy_spec, factory, helpers.SEED)
        yield engine
    finally:
        engine.stop()


@pytest.fixture(params=ENGINES)
def name(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000
    )
    yield
    ray.shutdown()


@pytest.mark.parametrize("mode", ["separate", "next_step", "same_step", "disabled", "native"])
def test_every_row_of_every_actor_is_true(name, mode):
    factory = helpers.FACTORIES[mode](2)
    with running(name, factory, num_actors=2, num_envs=2, num_slots=4) as engine:
        fragments = helpers.collect_all(engine, SPEC, 12, n=2)
    for actor in range(2):
        own = [f for f in fragments if f["actor_id"] == actor]
        assert [f["sequence"] for f in own] == list(range(len(own)))
        for env in range(2):
            rows = helpers.transitions(own, env)
            assert rows == helpers.truth(len(rows))


def test_a_fragment_has_the_documented_shapes_and_types(name):
    with running(name) as engine:
        engine.publish(0, helpers.zero_weights(SPEC))
        fragment = engine.collect(1, timeout=60)[0]
        shapes = {name: getattr(fragment, name).shape for name in helpers.ARRAYS[:9]}
        assert shapes == {
            "observations": (6, 3, 3),
            "actions": (5, 3, 1),
            "log_probs": (5, 3),
            "rewards": (5, 3),
            "terminations": (5, 3),
            "truncations": (5, 3),
            "resets": (5, 3),
            "starts": (6, 3),
            "core_state": (3, 2),
        }
        assert fragment.observations.dtype == fragment.rewards.dtype == np.float32
        assert fragment.actions.dtype == np.int64
        assert fragment.num_rows == fragment.num_transitions + fragment.num_masked == 15
        assert fragment.seconds > 0


def test_log_probs_are_those_of_the_recorded_version(name):
    rng = np.random.default_rng(0)
    sets = rng.normal(0, 0.3, (8, 6)).astype(np.float32)
    sets[:, 4:] = 0  # the third input is a large number
    with running(name, num_actors=2, num_slots=3) as engine:
        engine.publish(0, sets[0])
        for version in range(1, 8):
            [fragment] = engine.collect(1, timeout=60)
            policy = SPEC.make()
            policy.load_flat(sets[fragment.version])
            logits = fragment.observations[:-1] @ policy.weights.reshape(3, 2)
            log_probs = logits - np.logaddexp(logits[..., :1], logits[..., 1:])
            expected = np.take_along_axis(log_probs, fragment.actions, axis=-1)[..., 0]
            np.testing.assert_allclose(fragment.log_probs, expected, atol=1e-5)
            engine.publish(version, sets[version])
            engine.release([fragment])


@pytest.mark.parametrize(("slots", "batch"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_slots_bound_the_lag(name, slots, batch):
    with running(name, num_slots=slots) as engine:
        fragments = helpers.collect_all(engine, SPEC, 12 * batch, n=batch)
    lags = [i // batch - fragment["version"] for i, fragment in enumerate(fragments)]
    assert max(lags) <= -(-slots // batch) - 1
    assert min(lags) >= 0


def test_every_actor_gets_new_weights(name):
    with running(name, num_actors=3, num_slots=6) as engine:
        while any(status.state == "starting" for status in engine.health()):
            time.sleep(0.05)
        fragments = helpers.collect_all(engine, SPEC, 60)
    for actor in range(3):
        versions = [f["version"] for f in fragments if f["actor_id"] == actor]
        assert versions == sorted(versions)
        assert versions[-1] > 30


def test_fragments_that_wait_are_counted(name):
    with running(name, num_actors=2, num_slots=4) as engine:
        engine.publish(0, helpers.zero_weights(SPEC))
        if name != "sequential":  # which makes them when they are asked for
            assert wait_until(lambda: engine.health() and engine.num_waiting() == 4)
        engine.release(engine.collect(1, timeout=LONG_S))
        held = engine.collect(4, timeout=LONG_S)
        assert engine.num_waiting() == 0
        engine.release(held)


def test_nothing_is_made_beyond_the_free_slots(name):
    with running(name, num_actors=2, num_slots=3) as engine:
        engine.publish(0, helpers.zero_weights(SPEC))
        held = engine.collect(3, timeout=60)
        kept = [helpers.copied(fragment) for fragment in held]
        time.sleep(0.3)
        assert sum(status.fragments for status in engine.health()) == 3
        for fragment, copy in zip(held, kept, strict=True):
            helpers.assert_same(copy, helpers.copied(fragment))
        with pytest.raises(ConfigError, match="3 slots and 3 of them are not released"):
            engine.collect(1)
        engine.release(held)
        assert len(engine.collect(3, timeout=60)) == 3


def test_a_timeout_returns_nothing_and_loses_nothing(name):
    with running(name, functools.partial(SlowEnv, 0.02), num_slots=4) as engine:
        engine.publish(0, helpers.zero_weights(SPEC))
        started = time.monotonic()
        assert engine.collect(4, timeout=0.05) == []
        assert time.monotonic() - started < 5
        fragments = engine.collect(4, timeout=60)
        assert [fragment.sequence for fragment in fragments] == [0, 1, 2, 3]


class SlowEnv(helpers.CountingEnv):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


def test_lambdas_and_closures_make_environments(name):
    lengths = (4,)
    with running(name, lambda: helpers.CountingEnv(lengths, ("terminated",))) as engine:
        fragments = helpers.collect_all(engine, SPEC, 3)
    assert all(length == 4 for fragment in fragments for length in fragment["episode_lengths"])


@pytest.mark.parametrize("mode", ["separate", "native"])
def test_a_seed_fixes_every_bit(name, mode):
    def run():
        changes = {"num_actors": 2, "num_envs": 2, "num_slots": 4, "deterministic": True}
        with running(name, helpers.FACTORIES[mode](2), **changes) as engine:
            return helpers.collect_all(engine, SPEC, 20, n=2)

    first, second = run(), run()
    for one, other in zip(first, second, strict=True):
        helpers.assert_same(one, other)


def test_other_seeds_give_other_fragments(name):
    def run(seed):
        with running("sequential") as engine:
            engine.stop()
        engine = build(name, deterministic=True)
        try:
            engine.start(SPEC, helpers.CountingEnv, np.random.SeedSequence(seed))
            return helpers.collect_all(engine, SPEC, 1)[0]
        finally:
            engine.stop()

    assert not np.array_equal(run(0)["actions"], run(1)["actions"])


def test_deterministic_fragments_do_not_depend_on_the_engine(name):
    changes = {"num_actors": 3, "num_envs": 2, "num_slots": 5, "deterministic": True}
    runs = []
    for engine_name in ("sequential", name):
        with running(engine_name, **changes) as engine:
            runs.append(helpers.collect_all(engine, SPEC, 20, n=2))
    for one, other in zip(*runs, strict=True):
        helpers.assert_same(one, other)


def test_weights_wait_for_their_ticket(name):
    """Five tickets of five versions wait for one slow actor; each gets its own weights."""
    changes = {"num_envs": 1, "num_slots": 5, "deterministic": True}
    runs = []
    for engine_name in ("sequential", name):
        with running(engine_name, functools.partial(SlowEnv, 0.004), **changes) as engine:
            runs.append(helpers.collect_all(engine, SPEC, 20))
    for one, other in zip(*runs, strict=True):
        helpers.assert_same(one, other)


CARTPOLE = helpers.tiny_spec(gym.make("CartPole-v1"))
CARTPOLES = {
    "separate": "CartPole-v1",
    "sync": functools.partial(gym.make_vec, "CartPole-v1", 2, vectorization_mode="sync"),
    "native": functools.partial(
        gym.make_vec, "CartPole-v1", 2, vectorization_mode="vector_entry_point"
    ),
}


@pytest.mark.parametrize("mode", CARTPOLES)
@pytest.mark.parametrize("before", [4, 6])
def test_ten_and_ten_is_twenty(name, mode, before):
    changes = {"num_actors": 2, "num_envs": 2, "num_slots": 3, "deterministic": True}
    zero = helpers.zero_weights(CARTPOLE)
    weights = zero + np.linspace(-1, 1, len(zero), dtype=np.float32)

    def go_on(engine, count, first_version):
        return helpers.collect_all(
            engine, CARTPOLE, count, weights=weights, first_version=first_version
        )

    with running(name, CARTPOLES[mode], CARTPOLE, **changes) as engine:
        go_on(engine, before, 0)
        state = engine.state()
        expected = go_on(engine, 20, before)
    assert all(isinstance(value, np.ndarray) for value in state.values())
    assert all(value.dtype != object for value in state.values())
    assert sum(len(fragment["episode_lengths"]) for fragment in expected) > 1

    with running(name, CARTPOLES[mode], CARTPOLE, **changes) as engine:
        engine.load_state(state)
        engine.publish(before, weights)
        resumed = go_on(engine, 20, before)
        again = engine.state()
    for one, other in zip(expected, resumed, strict=True):
        helpers.assert_same(one, other)
    assert int(again["next_number"]) > int(state["next_number"])


@pytest.mark.parametrize("factory", ["CartPole-v1", "Pendulum-v1"])
def test_a_state_does_not_disturb_a_run_of_separate_environments(name, factory):
    env = gym.make(factory)
    policy_spec = helpers.tiny_spec(env)
    changes = {"num_slots": 2, "unroll_length": 30, "deterministic": True}
    runs = []
    for asks in (False, True):
        with running(name, factory, policy_spec, **changes) as engine:
            fragments = helpers.collect_all(engine, policy_spec, 4)
            if asks:
                engine.state()
            fragments += helpers.collect_all(engine, policy_spec, 4, first_version=4)
            runs.append(fragments)
    for one, other in zip(*runs, strict=True):
        helpers.assert_same(one, other)


def test_a_resumed_run_uses_no_stream_twice(name):
    with running(name, num_slots=2) as engine:
        first = helpers.collect_all(engine, SPEC, 4)
        state = engine.state()
    if name == "sequential":
        return  # is deterministic always
    with running(name, num_slots=2) as engine:
        engine.load_state(state)
        engine.publish(4, helpers.zero_weights(SPEC))
        second = helpers.collect_all(engine, SPEC, 4, first_version=4)
    assert second[0]["sequence"] >= 4
    own = {fragment["observations"][0, 0, 2] for fragment in (first[0], second[0])}
    assert len(own) == 2


class UnrepeatableEnv(helpers.CountingEnv):
    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed, options=options)
        self.own = float(np.frombuffer(np.random.bytes(2), np.uint16)[0])  # noqa: NPY002
        return np.array([self.episode, self.now, self.own], dtype=np.float32), info


def test_an_environment_that_does_not_repeat_is_named(name):
    changes = {"num_slots": 1, "deterministic": True}
    with running(name, UnrepeatableEnv, **changes) as engine:
        helpers.collect_all(engine, SPEC, 2)
        state = engine.state()
    with (
        running(name, UnrepeatableEnv, **changes) as engine,
        pytest.raises(RolloutError, match=r"actor 0, environment \d: the same seed"),
    ):
        engine.load_state(state)


def test_a_state_of_other_sizes_is_refused(name):
    with running(name, deterministic=True) as engine:
        state = helpers.collect_all(engine, SPEC, 2) and engine.state()
    for changes in ({"num_actors": 2}, {"unroll_length": 6}, {"num_envs": 4}):
        with (
            running(name, deterministic=True, **changes) as engine,
            pytest.raises(CheckpointError),
        ):
            engine.load_state(state)


# ------------------------------------------------------------------------------------ wrong use


def test_wrong_use_is_told(name):
    with running(name) as engine:
        with pytest.raises(RolloutError, match="no weights"):
            engine.collect(1)
        with pytest.raises(RolloutError, match="expected"):
            engine.publish(0, np.zeros(5, dtype=np.float32))
        engine.publish(0, helpers.zero_weights(SPEC))
        with pytest.raises(RolloutError, match="after 0"):
            engine.publish(0, helpers.zero_weights(SPEC))
        with pytest.raises(ConfigError, match="expected 1 to 2"):
            engine.collect(3)
        fragments = engine.collect(1, timeout=60)
        engine.release(fragments)
        with pytest.raises(RolloutError, match="released before"):
            engine.release(fragments)
        with pytest.raises(RolloutError, match="started before"):
            engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
    with pytest.raises(RolloutError, match="stopped"):
        engine.collect(1)


def test_stop_works_at_any_time(name):
    build(name).stop()
    engine = build(name)
    engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
    engine.stop()
    engine.stop()
    assert all(status.state == "stopped" for status in engine.health())


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("NoSuchEnv-v0", "NoSuchEnv"),
        (helpers.sync(AutoresetMode.NEXT_STEP, 2), "engine.num_envs to 2"),
        (lambda: 3, "gave int"),
    ],
)
def test_an_environment_that_cannot_be_used_ends_the_run_at_once(name, factory, message):
    with pytest.raises(EnvironmentSpecError, match=message), running(name, factory) as engine:
        helpers.collect_all(engine, SPEC, 1)


def test_nan_names_actor_environment_and_step(name):
    bad = (np.zeros(3, np.float32), float("nan"), False, False, {})
    with (
        running(name, lambda: helpers.TroubleEnv(lambda: bad, at=7)) as engine,
        pytest.raises(RolloutError, match=r"actor 0, environment 0, step 7, .*nan") as error,
    ):
        helpers.collect_all(engine, SPEC, 3)
    assert "Traceback" not in str(error.value)


def test_health_tells_what_is_going_on(name):
    with running(name, num_actors=2) as engine:
        helpers.collect_all(engine, SPEC, 4)
        statuses = engine.health()
    assert [status.index for status in statuses] == [0, 1]
    assert sum(status.fragments for status in statuses) >= 4
    assert all(status.restarts == 0 and not status.error for status in statuses)
    assert max(status.step for status in statuses) >= 10


# ------------------------------------------------------------------------------------ choosing one


@pytest.mark.parametrize(
    ("config", "batch", "slots"),
    [
        (components.SequentialEngineConfig(), 4, 4),
        (components.ProcessEngineConfig(), 1, 2),
        (components.ProcessEngineConfig(num_actors=4), 1, 5),
        (components.ProcessEngineConfig(queue_out_of_sync_factor=0.01), 8, 9),
        (components.ProcessEngineConfig(num_actors=8), 8, 16),
    ],
)
def test_the_queue_factor_gives_a_bounded_number_of_slots(config, batch, slots):
    engine = make_engine(config, unroll_length=16, batch_size=batch)
    assert engine.spec.num_slots == slots
    assert type(engine).__name__.lower() == f"{config.type}engine"


@pytest.mark.parametrize("name", ["num_actors", "num_envs", "unroll_length", "num_slots"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ConfigError, match=name):
        EngineSpec(**{name: 0})
