"""The two chains of the compiled update: the same bits on any number of threads, and clean ends.

The steps are those handed to the compiler, not compiled (see test_compiled.py).
"""

import threading

import pytest
import torch
from fast_paths import WARMUP, make, make_data, numbers

from rlreg_iql import chains, compiled
from rlreg_iql.chains import CRITICS_CHAIN, VALUE_CHAINS, Chains
from rlreg_iql.compiled import WholeSteps
from rlreg_iql.learner import RULES

JOINED = {"critic_optim_factory": {"type": "adam", "clip_grad_norm": 0.5}}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Calls the steps themselves where compiled ones would be called."""
    monkeypatch.setattr(compiled, "_compile", lambda step, threads: step)


@pytest.fixture(autouse=True)
def threads():
    """Sets torch's number of threads; puts it back, and looks whether any thread was left."""
    before, running = torch.get_num_threads(), threading.active_count()
    yield torch.set_num_threads
    torch.set_num_threads(before)
    assert threading.active_count() == running


def trained(data, count, threads, **settings):
    threads(count)
    learnable = make(data, "on", **settings)
    learnable.train_epoch(data, 20)
    assert torch.get_num_threads() == count
    return learnable


def test_one_two_and_three_threads_give_the_same_bits(threads):
    data = make_data()
    alone, *others = (trained(data, n, threads) for n in (1, 2, 3))
    expected = numbers(alone.state_dict())
    for other in others:
        found = numbers(other.state_dict())
        assert all(torch.equal(value, found[path]) for path, value in expected.items())


def test_the_chains_meet_in_two_threads(threads, monkeypatch):
    seen = set()
    original = chains.LinkStep.__call__

    def watching(self, *arguments):
        seen.add((threading.current_thread().name, self.link.gives, torch.get_num_threads()))
        assert not torch.is_grad_enabled()
        return original(self, *arguments)

    data = make_data()
    threads(4)
    learnable = make(data, "on")
    monkeypatch.setattr(chains.LinkStep, "__call__", watching)
    learnable.train_epoch(data, 5)
    here, there = threading.current_thread().name, "rlreg-iql-value-chain"
    assert seen == {
        (here, "target_values", 2), (here, None, 2), (there, "td_targets", 2), (there, None, 2),
    }  # fmt: skip


def test_the_chains_of_a_rule_take_all_its_steps():
    for name, chain in VALUE_CHAINS.items():
        rule = RULES[name]
        taken = [step for link in (*CRITICS_CHAIN, *chain) for step in link.steps]
        wanted = [
            part
            for step in rule.steps
            for part in (("critics", "value") if step == "critics_and_value" else (step,))
        ]
        assert sorted(taken) == sorted(wanted)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, Chains),
        (JOINED, WholeSteps),
        ({"update_rule": "paper"}, WholeSteps),
        ({"actor_optim_factory": {"type": "adam", "clip_grad_norm": 0.5}}, Chains),
    ],
)
def test_a_norm_over_both_halves_keeps_them_together(settings, kind):
    learnable = make(make_data(), "on", **settings)
    assert type(learnable._compiled._steps) is kind


@pytest.mark.parametrize("gives", ["target_values", "td_targets", None])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_one_chain_ends_both_and_changes_nothing(
    gives, error, threads, monkeypatch, snapshot
):
    take, assert_same = snapshot
    data = make_data()
    threads(2)
    learnable = make(data, "on", critic_optim_factory={
        "type": "adam", "lr_scheduler_factory": WARMUP,
    })  # fmt: skip
    learnable.train_epoch(data, 3)
    before, stream = take(learnable), learnable.generator.get_state()
    calls = iter(range(100))
    original = chains.LinkStep.__call__

    def failing(self, *arguments):
        if self.link.gives == gives and next(calls) == 3:
            raise error("stop here")
        return original(self, *arguments)

    monkeypatch.setattr(chains.LinkStep, "__call__", failing)
    with pytest.raises(error, match="stop here"):
        learnable.train_epoch(data, 10)
    assert torch.get_num_threads() == 2
    assert_same(before, take(learnable))
    assert torch.equal(stream, learnable.generator.get_state())


def test_another_number_of_threads_compiles_anew(threads, monkeypatch):
    made = []
    monkeypatch.setattr(compiled, "_compile", lambda step, threads: made.append(threads) or step)
    data = make_data()
    threads(1)
    learnable = make(data, "on")
    for count, expected in ((2, [1] * 4), (3, [1] * 4), (4, [1] * 4 + [2] * 4)):
        threads(count)
        learnable.train_epoch(data, 2)
        assert made == expected
