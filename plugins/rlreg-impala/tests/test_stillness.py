"""When an actor counts as hung: it should move, does not, and nobody else is to blame."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from rlreg_impala.engines.stillness import CoreTimes, Stillness


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def watched():
    clock = Clock()
    stillness = Stillness(clock)

    def look(after, mark=0, *, is_due=True, limit=2.0):
        clock.now += after
        return stillness.exceeds(limit, mark, is_due=is_due)

    look.begin = stillness.begin
    return look


def test_an_actor_that_does_not_move_exceeds_its_limit(watched):
    assert [watched(0.5) for _ in range(7)] == [False] * 5 + [True] * 2


def test_a_move_starts_the_time_anew(watched):
    assert not any(watched(0.9, mark) for mark in (0, 0, 0, 1, 1, 1, 2, 2, 2))


def test_an_actor_without_work_may_rest(watched):
    assert not any(watched(0.9, is_due=False) for _ in range(10))
    assert not any(watched(0.9) for _ in range(2))


def test_time_in_which_nobody_looked_does_not_count(watched):
    """Ctrl-Z, or a long update: learner and actors may have stood still together."""
    watched(0.0)
    assert not watched(3600.0)
    assert not watched(0.9)
    assert watched(0.2)


def test_another_life_starts_the_time_anew(watched):
    watched(0.0)
    watched(1.0)
    watched.begin()
    assert not any(watched(0.9) for _ in range(3))


def test_linux_says_how_long_a_process_waited_for_a_core():
    if CoreTimes.of(os.getpid()) is None:
        pytest.skip("only Linux says it")
    burn = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while min(CoreTimes.of(process.pid).waited_s for process in both) < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert all(CoreTimes.of(process.pid).wants_core for process in both)
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_time_in_which_others_had_the_cores_does_not_count():
    before = CoreTimes(5.0, 2.0, wants_core=True)
    # It ran for 0.1 s of the last second and waited for 0.4 s; it slept for the rest.
    assert CoreTimes(5.1, 2.4, wants_core=False).waited_since(before, 1.0) == pytest.approx(0.4)
    # It got no core at all, and waits still.
    assert CoreTimes(5.0, 2.0, wants_core=True).waited_since(before, 1.0) == 1.0
    # It is asleep, or stopped.
    assert CoreTimes(5.0, 2.0, wants_core=False).waited_since(before, 1.0) == 0.0


def test_what_nobody_knows_is_no_excuse():
    assert CoreTimes.of(None) is None
    assert CoreTimes.of(2**22 + 1) is None
