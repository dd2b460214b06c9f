"""What happens when actors raise, vanish, hang or never start, and when the learner does."""

from __future__ import annotations

import functools
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import processes
import pytest
import rollout_helpers as helpers
from processes import LONG_S, wait_until

from rlreg.errors import ConfigError, EnvironmentSpecError, RolloutError
from rlreg_impala.engines.members import Member
from rlreg_impala.engines.process import ProcessEngine
from rlreg_impala.progress import new_progress

pytestmark = pytest.mark.alone

SPEC = helpers.tiny_spec(helpers.CountingEnv())
TESTS = Path(__file__).parent


@contextmanager
def running(factory, **changes):
    engine = ProcessEngine(helpers.small_spec(**{"num_actors": 2, "num_slots": 4} | changes))
    try:
        engine.start(SPEC, factory, helpers.SEED)
        engine.publish(0, helpers.zero_weights(SPEC))
        yield engine
    finally:
        engine.stop()


def turn(engine, count=1):
    """Collects and releases fragments, as a learner does; returns them."""
    result = []
    for _ in range(count):
        fragments = engine.collect(1, timeout=LONG_S)
        assert fragments
        result += [helpers.copied(fragment) for fragment in fragments]
        engine.release(fragments)
    return result


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def seconds_to_stop(engine):
    """Seconds that `stop` takes."""
    started = time.monotonic()
    engine.stop()
    return time.monotonic() - started


# ------------------------------------------------------------------------------ for good, at once

TROUBLES = [
    (helpers.raise_value_error, "environment 0, step 7, acting: ValueError: the floor is lava"),
    (helpers.raise_memory_error, "environment 0, step 7, acting: MemoryError"),
    (helpers.exit_at_once, r"died \(exit code 3\): environment 0, step 7"),
    (functools.partial(sys.exit, 4), "SystemExit"),
]


@pytest.mark.parametrize(("trouble", "message"), TROUBLES)
def test_a_trouble_without_restarts_ends_the_run_and_names_the_actor(trouble, message):
    def make():
        return helpers.TroubleEnv(trouble, at=7)

    with running(make, num_actors=1, max_restarts=0) as engine:
        with pytest.raises(RolloutError, match=message) as error:
            turn(engine, 10)
        assert "actor 0" in str(error.value)
        assert "max_restarts = 0" in str(error.value)
        assert engine.health()[0].state == "failed"
        with pytest.raises(RolloutError, match=message):
            engine.collect(1)


def test_the_traceback_of_the_actor_is_part_of_the_error():
    def make():
        return helpers.TroubleEnv(helpers.raise_value_error, at=7)

    with running(make, max_restarts=0) as engine, pytest.raises(RolloutError) as error:
        turn(engine, 10)
    assert "in raise_value_error" in str(error.value)
    assert "Traceback of the actor" in str(error.value)


# -------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize(("trouble", "message"), TROUBLES)
def test_an_actor_that_fails_once_is_replaced_and_nothing_is_lost(trouble, message, tmp_path):
    flag = str(tmp_path / "failed")

    def make():
        return helpers.TroubleEnv(trouble, at=7, flag=flag)

    with running(make, num_slots=5) as engine:
        fragments = until_new_life(engine)
        fragments += turn(engine, 20)
        statuses = engine.health()
    assert sum(status.restarts for status in statuses) == 1
    assert re.search(message, max(status.error for status in statuses))
    for fragment in fragments:
        assert fragment["rewards"].min() > 0
    for actor in range(2):
        own = [f["sequence"] for f in fragments if f["actor_id"] == actor]
        assert own == list(range(len(own)))


def until_new_life(engine):
    """Goes on until an actor that was replaced hands over its first fragment."""
    fragments, deadline = [], time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        fragments += turn(engine)
        first = fragments[-1]["observations"][0]
        # Its environments count episodes from 0 again.
        if fragments[-1]["sequence"] > 0 and not first[:, :2].any():
            return fragments
    raise AssertionError("nobody came back")


def test_a_new_life_sees_new_episodes(tmp_path):
    flag = str(tmp_path / "failed")

    def make():
        return helpers.TroubleEnv(helpers.exit_at_once, at=7, flag=flag)

    with running(make, num_actors=1) as engine:
        fragments = turn(engine, 6)
    assert len({fragment["observations"][0, 0, 2] for fragment in fragments}) == 2
    again = next(i for i, f in enumerate(fragments) if f["observations"][0, 0, 2] !=
                 fragments[0]["observations"][0, 0, 2])  # fmt: skip
    assert fragments[again]["starts"][0].all()


def test_an_actor_that_always_fails_stops_the_run_soon():
    def make():
        return helpers.TroubleEnv(helpers.exit_at_once, at=2)

    with running(make, num_actors=1, max_restarts=3) as engine:
        with pytest.raises(RolloutError, match=r"restarted 3 times, max_restarts = 3"):
            turn(engine, 10)
        assert engine.health()[0].restarts == 3


def test_the_delays_between_two_lives_grow_and_stay_short():
    member, delays = Member(0, new_progress()), []
    for _ in range(10):
        before = time.monotonic()
        member.schedule_restart()
        delays.append(member.restart_at - before)
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.05)
    assert max(delays) < 6


def test_bad_input_is_not_tried_again():
    bad = (np.zeros(2, np.float32), 0.0, False, False, {})
    with running(lambda: helpers.TroubleEnv(lambda: bad, at=7)) as engine:
        with pytest.raises(RolloutError, match=r"step 7, .*\(2,\)"):
            turn(engine, 10)
        assert sum(status.restarts for status in engine.health()) == 0


def test_an_environment_that_cannot_be_made_is_not_tried_again():
    def make():
        raise ValueError("no licence")

    with running(make) as engine, pytest.raises(EnvironmentSpecError, match="no licence"):
        turn(engine)


def test_deterministic_mode_replaces_nobody(tmp_path):
    def make():
        return helpers.TroubleEnv(helpers.exit_at_once, at=7, flag=str(tmp_path / "failed"))

    with (
        running(make, deterministic=True) as engine,
        pytest.raises(RolloutError, match="in deterministic mode"),
    ):
        turn(engine, 20)


# --------------------------------------------------------------------------------- signals, hangs


def test_a_killed_actor_is_replaced_and_its_slots_come_back():
    with running(helpers.CountingEnv) as engine:
        turn(engine, 6)
        for _ in range(3):
            pid = engine.health()[0].pid
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: not is_running(pid))
            until_new_life(engine)
        statuses = engine.health()
        assert [status.restarts for status in statuses] == [3, 0]
        assert "SIGKILL" in statuses[0].error
        # Every slot is in circulation again.
        assert len(engine.collect(4, timeout=LONG_S)) == 4


def test_what_a_dead_actor_had_finished_is_not_lost():
    with running(helpers.CountingEnv, num_actors=1, max_restarts=0) as engine:
        assert wait_until(lambda: engine.health()[0].state == "idle" and
                          engine.health()[0].step == 20)  # fmt: skip
        os.kill(engine.health()[0].pid, signal.SIGKILL)
        fragments = engine.collect(4, timeout=LONG_S)
        assert [fragment.sequence for fragment in fragments] == [0, 1, 2, 3]
        engine.release(fragments)
        with pytest.raises(RolloutError, match="SIGKILL"):
            engine.collect(1)


def test_ctrl_c_and_sigterm_of_the_whole_group_leave_actors_to_the_learner():
    with running(helpers.CountingEnv) as engine:
        while not all(status.fragments for status in engine.health()):
            turn(engine)  # until each actor works: one that starts up has not turned them off yet
        for status in engine.health():
            os.kill(status.pid, signal.SIGINT)
            os.kill(status.pid, signal.SIGTERM)
        turn(engine, 20)
        assert [status.restarts for status in engine.health()] == [0, 0]


def test_a_stopped_actor_counts_as_hung_and_is_replaced():
    with running(helpers.CountingEnv, actor_timeout=2.0) as engine:
        turn(engine, 6)
        pid = engine.health()[0].pid
        os.kill(pid, signal.SIGSTOP)
        assert wait_until(lambda: turn(engine) and engine.health()[0].restarts == 1)
        assert not is_running(pid)
        assert re.search(
            r"actor 0 made no step for 2 s: environment \d, step \d+", engine.health()[0].error
        )
        turn(engine, 10)


def test_a_step_that_never_returns_names_environment_and_step():
    def make():
        return helpers.TroubleEnv(helpers.sleep_for_ever, at=7)

    with (
        running(make, actor_timeout=0.6, max_restarts=0, num_actors=1) as engine,
        pytest.raises(RolloutError, match=r"no step for 0.6 s: environment 0, step 7"),
    ):
        turn(engine, 10)


def test_slow_environments_and_slow_learners_are_not_hung():
    class Slow(helpers.CountingEnv):
        def step(self, action):
            time.sleep(0.2)
            return super().step(action)

    # A fragment takes 3 s in steps of 0.2 s; the timeout is for steps.
    with running(Slow, actor_timeout=1.5, max_restarts=0, num_slots=2) as engine:
        held = engine.collect(2, timeout=LONG_S)
        time.sleep(2.0)  # all slots full: the actors wait for the learner
        engine.release(held)
        turn(engine, 2)
        assert [status.restarts for status in engine.health()] == [0, 0]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the scheduler of Linux is needed")
def test_an_actor_that_gets_no_core_is_not_hung():
    """A machine with too much to do: the actor wants to go on and others have the cores."""

    def starve():
        pin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        busy = pin + "print(flush=True)\nwhile True: pass"
        hog = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
        hog.stdout.readline()  # it has the core from here on
        exec(pin)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        until = time.process_time() + 0.02
        while time.process_time() < until:  # with a 300th of a core
            pass
        hog.kill()
        hog.communicate()

    def make():
        return helpers.TroubleEnv(starve, at=7)

    with running(make, num_actors=1, num_envs=1, actor_timeout=1.0, max_restarts=0) as engine:
        began = time.monotonic()
        turn(engine, 4)
        assert time.monotonic() - began > 1.5  # else it got its core after all


def test_a_pause_of_the_whole_program_is_no_hang():
    """Ctrl-Z stops learner and actors; after `fg` nobody has moved, and nobody hangs."""
    with running(helpers.CountingEnv, actor_timeout=4.0, max_restarts=0, num_slots=2) as engine:
        held = engine.collect(2, timeout=LONG_S)
        pids = [status.pid for status in engine.health()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        engine.release(held)
        assert engine.collect(2, timeout=0.2) == []
        time.sleep(5.0)  # the learner is stopped as well
        assert engine.collect(2, timeout=0.01) == []
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        turn(engine, 10)


# ------------------------------------------------------------------------------ the learner's end


@contextmanager
def script(tmp_path, body, *, guard=True):
    """Runs a learner of its own that prints the pids of its actors."""
    indent = "    " if guard else ""
    text = f"""
import os, signal, sys, time
sys.path.insert(0, {str(TESTS)!r})
import rollout_helpers as helpers
from rlreg_impala.engines.process import ProcessEngine

# A shell that starts the tests in the background turns Ctrl-C off for all of them.
signal.signal(signal.SIGINT, signal.default_int_handler)
SPEC = helpers.tiny_spec(helpers.CountingEnv())

def run():
    engine = ProcessEngine(helpers.small_spec(num_actors=2, num_slots=4))
    engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
    engine.publish(0, helpers.zero_weights(SPEC))
    engine.release(engine.collect(2, timeout=60))
    print(*[status.pid for status in engine.health()], flush=True)
    return engine

{"if __name__ == '__main__':" if guard else ""}
{textwrap.indent(textwrap.dedent(body), indent)}
"""
    path = tmp_path / "learner.py"
    path.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as learner:
        try:
            yield learner
        finally:
            with suppress(ProcessLookupError):
                os.killpg(learner.pid, signal.SIGKILL)


def all_have_ended(learner):
    """Whether learner and actors end, without anybody's help."""
    return wait_until(lambda: processes.of_session(learner.pid) == [])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_learner_leaves_no_process_and_no_memory(tmp_path, how):
    before = processes.shared_files()
    with script(tmp_path, "engine = run()\ntime.sleep(600)") as learner:
        pids = [int(word) for word in learner.stdout.readline().split()]
        assert all(is_running(pid) for pid in pids)
        learner.send_signal(how)
        assert all_have_ended(learner)
    assert processes.shared_files() <= before


def test_a_killed_learner_takes_an_actor_that_never_returns_with_it(tmp_path):
    body = """
    engine = ProcessEngine(helpers.small_spec(num_actors=1))
    engine.start(SPEC, lambda: helpers.TroubleEnv(helpers.sleep_for_ever, at=2), helpers.SEED)
    engine.publish(0, helpers.zero_weights(SPEC))
    while engine.health()[0].step < 1:
        time.sleep(0.05)
    print("ready", flush=True)
    time.sleep(600)
    """
    with script(tmp_path, body) as learner:
        assert learner.stdout.readline() == "ready\n"
        learner.kill()
        assert all_have_ended(learner)


def test_an_exception_in_the_learner_ends_everything(tmp_path):
    with script(tmp_path, "engine = run()\nraise ValueError('oops')") as learner:
        _, stderr = learner.communicate(timeout=LONG_S)
        assert all_have_ended(learner)
    assert learner.returncode == 1
    assert "oops" in stderr
    assert "leaked" not in stderr


@pytest.mark.parametrize("sends_to", ["learner", "group"])
def test_ctrl_c_ends_everything_quietly(tmp_path, sends_to):
    body = """
    engine = run()
    try:
        print("inside", flush=True)
        while True:
            engine.release(engine.collect(1))
    except KeyboardInterrupt:
        pass
    finally:
        engine.stop()
    """
    with script(tmp_path, body) as learner:
        assert learner.stdout.readline()
        assert learner.stdout.readline() == "inside\n"
        (os.killpg if sends_to == "group" else os.kill)(learner.pid, signal.SIGINT)
        _, stderr = learner.communicate(timeout=LONG_S)
        assert all_have_ended(learner)
    assert learner.returncode == 0
    assert stderr == ""


def test_a_script_needs_no_main_guard(tmp_path):
    with script(tmp_path, "run().stop()", guard=False) as learner:
        _, stderr = learner.communicate(timeout=LONG_S)
        assert all_have_ended(learner)
    assert learner.returncode == 0
    assert stderr == ""


def test_stop_with_a_full_queue_takes_no_time():
    took = []
    for _ in range(20):
        with running(helpers.CountingEnv) as engine:
            assert wait_until(lambda e=engine: all(s.step == 10 for s in e.health()))
            took.append(seconds_to_stop(engine))
    # Whoever has the cores may delay one or two of them; a join that hangs delays each.
    assert statistics.median(took) < 2
    assert max(took) < 20


@pytest.mark.parametrize("trouble", ["stopped", "hung", "starting"])
def test_stop_does_not_wait_for_an_actor_that_cannot_hear(trouble):
    def make():
        if trouble == "starting":
            time.sleep(600)
        return helpers.TroubleEnv(helpers.sleep_for_ever, at=2 if trouble == "hung" else 10**6)

    with running(make) as engine:
        pids = [status.pid for status in engine.health()]
        if trouble != "starting":
            assert wait_until(lambda: all(status.step >= 1 for status in engine.health()))
        if trouble == "stopped":
            os.kill(pids[0], signal.SIGSTOP)
        assert seconds_to_stop(engine) < 20  # the actors would sleep for ten minutes and more
        assert not any(is_running(pid) for pid in pids)


# ------------------------------------------------------------------------------------- the rest


def test_actors_use_one_thread(tmp_path):
    def make():
        import torch

        (tmp_path / "threads").write_text(
            f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']}"
        )
        return helpers.CountingEnv()

    before = os.environ.get("OMP_NUM_THREADS")
    with running(make, num_actors=1) as engine:
        turn(engine)
    assert (tmp_path / "threads").read_text() == "1 1"
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_spawn_works_as_well():
    with running(lambda: helpers.CountingEnv(), start_method="spawn", num_actors=1) as engine:
        rows = helpers.transitions(turn(engine, 4), 0)
    assert rows == helpers.truth(len(rows))


def test_environments_with_processes_of_their_own_work():
    from gymnasium.vector import AsyncVectorEnv

    def make():
        return AsyncVectorEnv([helpers.CountingEnv] * 3)

    with running(make, num_actors=1) as engine:
        rows = helpers.transitions(turn(engine, 4), 2)
    assert rows == helpers.truth(len(rows))


def test_fork_is_refused():
    with pytest.raises(ConfigError, match="expected one of forkserver, spawn"):
        ProcessEngine(helpers.small_spec(start_method="fork"))


def test_a_factory_that_cannot_be_sent_is_refused():
    import threading

    lock = threading.Lock()
    with pytest.raises(EnvironmentSpecError, match="cannot be sent to another process"):
        running(lambda: lock and helpers.CountingEnv()).__enter__()


def test_an_idle_learner_uses_no_cpu():
    with running(functools.partial(helpers.TroubleEnv, helpers.sleep_for_ever, 2)) as engine:
        assert wait_until(lambda: all(status.step >= 1 for status in engine.health()))
        before = time.process_time()
        assert engine.collect(1, timeout=2.0) == []
        assert time.process_time() - before < 0.1
