"""Descriptors, memory and processes stay as they are, however long a run is."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import rollout_helpers as helpers
from processes import LONG_S

from rlreg_impala.engines.process import ProcessEngine

pytestmark = pytest.mark.alone

SPEC = helpers.tiny_spec(helpers.CountingEnv())
TESTS = Path(__file__).parent


@contextmanager
def running(**changes):
    engine = ProcessEngine(helpers.small_spec(**{"num_actors": 2, "num_slots": 4} | changes))
    try:
        engine.start(SPEC, helpers.CountingEnv, helpers.SEED)
        engine.publish(0, helpers.zero_weights(SPEC))
        yield engine
    finally:
        engine.stop()


def descriptors(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kib(pid="self"):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError


def turns(engine, count, version):
    weights = helpers.zero_weights(SPEC)
    for _ in range(count):
        fragments = engine.collect(1, timeout=LONG_S)
        version += 1
        engine.publish(version, weights)
        engine.release(fragments)
    return version


def measure(engine, count, warm_up):
    """Growth of descriptors and KiB of the learner and of every actor."""
    version = turns(engine, warm_up, 0)
    everyone = ["self", *(status.pid for status in engine.health())]
    before = [(descriptors(pid), resident_kib(pid)) for pid in everyone]
    turns(engine, count, version)
    gc.collect()
    after = [(descriptors(pid), resident_kib(pid)) for pid in everyone]
    return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_short_run_grows_nothing(deterministic):
    with running(deterministic=deterministic) as engine:
        growth = measure(engine, 500, 500)
    # Fewer is no leak: what an earlier test left open may be closed meanwhile.
    assert all(fds <= 0 and kib < 1024 for fds, kib in growth), growth


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_ten_thousand_fragments_grow_nothing(deterministic):
    with running(deterministic=deterministic) as engine:
        growth = measure(engine, 10_000, 1_000)
    assert all(fds <= 0 and kib < 2048 for fds, kib in growth), growth


def test_the_number_of_descriptors_does_not_depend_on_the_slots():
    counts = []
    for slots in (4, 4, 400):  # the first one starts the fork server, which stays
        gc.collect()
        with running(num_slots=slots) as engine:
            turns(engine, 4, 0)
            counts.append([descriptors(), *(descriptors(s.pid) for s in engine.health())])
        del engine
    few, many = counts[1:]
    assert all(m <= f for f, m in zip(few, many, strict=True)), counts


def test_engines_one_after_the_other_leave_nothing():
    # The first one starts the fork server, which stays.
    with running() as engine:
        turns(engine, 4, 0)
    del engine
    gc.collect()
    before, files = descriptors(), set(os.listdir("/dev/shm"))
    for _ in range(5):
        with running() as engine:
            turns(engine, 4, 0)
            assert set(os.listdir("/dev/shm")) <= files
        del engine
    gc.collect()
    assert descriptors() == before


def test_restarts_leave_no_descriptors(tmp_path):
    with running(max_restarts=10) as engine:
        turns(engine, 10, 0)
        before = descriptors()
        version = 10
        for _ in range(3):
            os.kill(engine.health()[0].pid, 9)
            restarts = engine.health()[0].restarts
            deadline = time.monotonic() + LONG_S
            while time.monotonic() < deadline:
                version = turns(engine, 1, version)
                status = engine.health()[0]
                if status.restarts > restarts and status.state in ("idle", "acting"):
                    break
        assert engine.health()[0].restarts == 3
        assert descriptors() == before


def test_memory_that_is_not_used_is_not_taken():
    before = resident_kib()
    # 600 slots of 1 MiB each, of which four are ever touched at a time.
    with running(num_slots=4, unroll_length=2_000, num_envs=3) as engine:
        turns(engine, 2, 0)
        assert resident_kib() - before < 20_000


def test_few_descriptors_are_enough(tmp_path):
    """64 slots under `ulimit -n 256`."""
    path = tmp_path / "learner.py"
    path.write_text(
        f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import rollout_helpers as helpers
from rlreg_impala.engines.process import ProcessEngine

if __name__ == "__main__":
    spec = helpers.tiny_spec(helpers.CountingEnv())
    engine = ProcessEngine(helpers.small_spec(num_actors=4, num_slots=64))
    engine.start(spec, helpers.CountingEnv, helpers.SEED)
    helpers.collect_all(engine, spec, 64, n=32)
    engine.stop()
"""
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=LONG_S, preexec_fn=limit
    )
    assert (done.returncode, done.stderr) == (0, "")
