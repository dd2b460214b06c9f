"""A command's start leaves the garbage collector as it was, whatever happens in it."""

from __future__ import annotations

import gc

import pytest

from rlreg.starting import end_start, starting

pytestmark = pytest.mark.light


@pytest.fixture(autouse=True)
def collector():
    assert gc.isenabled()
    yield
    gc.enable()
    gc.unfreeze()


def test_collector_is_off_until_the_start_ends():
    with starting():
        assert not gc.isenabled()
        end_start()
        assert gc.isenabled()
    assert gc.isenabled()


def test_what_a_start_made_is_not_looked_through_again():
    with starting():
        made = [[] for _ in range(1000)]
        end_start()
    assert gc.get_freeze_count() > len(made)


def test_start_that_fails_or_never_ends_turns_the_collector_on_again_and_keeps_no_garbage():
    before = gc.get_freeze_count()
    with starting():
        pass
    assert gc.isenabled()
    assert gc.get_freeze_count() == before
    with pytest.raises(ValueError, match="broken"), starting():
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_start_inside_a_start_does_not_end_it():
    with starting():
        with starting():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collector_that_is_off_stays_off():
    gc.disable()
    with starting():
        end_start()
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_end_without_a_start_does_nothing():
    before = gc.get_freeze_count()
    end_start()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before
