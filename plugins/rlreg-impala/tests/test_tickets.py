"""The ledger of slots: who gets the next ticket, and that what it counts along stays true."""

import collections

import numpy as np
import pytest

from rlreg.errors import RolloutError
from rlreg_impala.engines.tickets import Ledger


def recount(ledger, actors):
    counts = collections.Counter(ticket.actor for ticket in ledger.working)
    return [counts[actor] for actor in range(actors)]


@pytest.mark.parametrize("seed", range(5))
def test_counted_loads_are_those_of_the_tickets_whatever_happens(seed):
    rng = np.random.default_rng(seed)
    actors, slots = 5, 11
    ledger = Ledger(actors, slots, deterministic=False)
    held = []
    for _ in range(400):
        before = recount(ledger, actors)
        match rng.integers(5):
            case 0:
                able = [actor for actor in range(actors) if rng.random() < 0.8]
                for ticket in ledger.assign(0, able):
                    # Each went to one that had the fewest at its turn.
                    assert before[ticket.actor] == min(before[actor] for actor in able)
                    before[ticket.actor] += 1
            case 1 | 2 if ledger.working:
                ledger.arrive(rng.choice([ticket.slot for ticket in ledger.working]))
            case 3:
                held += ledger.take(1) or []
                ledger.release(held)
                held = []
            case 4 if rng.random() < 0.3:
                actor = int(rng.integers(actors))
                lost = ledger.reclaim(actor)
                assert [ticket.actor for ticket in lost] == [actor] * before[actor]
        loads = [ledger.load(actor) for actor in range(actors)]
        assert loads == recount(ledger, actors)
        assert len(ledger.working) + ledger.num_ready + ledger.num_held <= slots


def test_the_next_ticket_goes_to_whoever_has_had_none_for_longest():
    ledger = Ledger(3, 6, deterministic=False)
    assert [ticket.actor for ticket in ledger.assign(0, range(3))] == [0, 1, 2, 0, 1, 2]
    for slot in (1, 4):  # both of actor 1
        ledger.arrive(slot)
    ledger.release(ledger.take(2))
    assert [ticket.actor for ticket in ledger.assign(1, range(3))] == [1, 1]


def test_a_slot_that_nobody_works_on_changes_nothing():
    ledger = Ledger(2, 2, deterministic=False)
    assert ledger.arrive(0) is None
    ledger.assign(0, range(2))
    ledger.arrive(0)
    assert ledger.arrive(0) is None
    assert [ledger.load(actor) for actor in range(2)] == [0, 1]
    taken = ledger.take(1)
    ledger.release(taken)
    with pytest.raises(RolloutError, match="released before"):
        ledger.release(taken)
