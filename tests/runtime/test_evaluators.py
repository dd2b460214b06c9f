"""Evaluators: every figure against hand-computed values on five transitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg import OfflineLearnable, TransitionDataset
from rlreg.errors import ConfigError, UnknownNameError
from rlreg.runtime import evaluators
from rlreg.runtime.evaluators import EVALUATORS, make_evaluators

GAMMA = 0.5


@pytest.fixture
def judge_class(tiny):
    class Judge(OfflineLearnable):
        """Acts ``0.5 * o`` and values ``o + 2 a``, whatever it is trained on."""

        def build_networks(self, spaces):
            self.policy = torch.nn.Linear(1, 1)
            self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)

        def act(self, observations, deterministic):
            return 0.5 * observations

        def action_value(self, observations, actions):
            return (observations + 2 * actions)[:, 0]

        def update(self, batch):
            return {"loss": torch.zeros(())}

    return Judge


@pytest.fixture
def judge(judge_class, tiny, data):
    learnable = judge_class(tiny(), "cpu")
    learnable.build_with_dataset(data)
    return learnable


@pytest.fixture
def data():
    """Two episodes, of 3 steps (truncated) and of 2 (terminated, its end unknown: 77)."""
    return TransitionDataset.from_arrays(
        np.array([[0.0], [0.2], [0.4], [0.8], [-0.4]], np.float32),
        np.array([[0.5], [0.0], [-0.5], [1.0], [0.0]], np.float32),
        np.array([1, 2, 3, 4, 6], np.float32),
        np.array([0, 0, 0, 0, 1], bool),
        np.array([0, 0, 1, 0, 0], bool),
        next_observations=np.array([[0.2], [0.4], [0.6], [-0.4], [77.0]], np.float32),
        observation_space=spaces.Box(-100, 100, (1,), np.float32),
        action_space=spaces.Box(-1, 1, (1,), np.float32),
    )


# Q(s, a) = s + 2a; Q(s, pi(s)) = 2s.
VALUES = np.array([1.0, 0.2, -0.6, 2.8, -0.4])
BEST = np.array([0.0, 0.4, 0.8, 1.6, -0.8])
ADVANTAGES = VALUES - BEST


def figure(name, judge, data, **settings):
    return EVALUATORS[name](**settings)(judge, data)


def test_td_error_is_the_mean_square_and_terminations_stop_the_bootstrap(judge, data):
    following = np.array([0.4, 0.8, 1.2, -0.8, 0.0])
    errors = np.array([1, 2, 3, 4, 6]) + GAMMA * following - VALUES
    assert figure("td_error", judge, data, gamma=GAMMA) == pytest.approx((errors**2).mean())


@pytest.mark.parametrize("gamma", [GAMMA, 0.99, 1.0, 0.0])
def test_advantage_sum_equals_the_backward_sums_of_each_episode(judge, data, gamma):
    sums = []
    for episode in (ADVANTAGES[:3], ADVANTAGES[3:]):
        total = 0.0
        for advantage in reversed(episode):
            total = advantage + gamma * total
            sums.append(total)
    assert figure("advantage_sum", judge, data, gamma=gamma) == pytest.approx(
        np.mean(sums), abs=1e-6
    )


def test_average_and_initial_value(judge, data):
    assert figure("average_value", judge, data) == pytest.approx(BEST.mean())
    assert figure("initial_value", judge, data) == pytest.approx((0.0 + 1.6) / 2)


def test_soft_opc_compares_good_episodes_with_all(judge, data):
    expected = VALUES[3:].mean() - VALUES.mean()
    assert figure("soft_opc", judge, data, return_threshold=10) == pytest.approx(expected)
    assert figure("soft_opc", judge, data) == pytest.approx(expected)  # the best tenth: returns 10
    assert figure("soft_opc", judge, data, return_threshold=6) == pytest.approx(0.0)
    with pytest.raises(ConfigError, match="no episode returns 11"):
        figure("soft_opc", judge, data, return_threshold=11)


def test_action_difference_is_in_the_units_of_the_space(judge_class, tiny, data):
    wide = TransitionDataset.from_arrays(
        data.observations,
        data.actions * 4,
        data.rewards,
        data.terminations,
        data.truncations,
        next_observations=data.next_observations,
        observation_space=data.observation_space,
        action_space=spaces.Box(-4, 4, (1,), np.float32),
    )
    judge = judge_class(tiny(), "cpu")
    judge.build_with_dataset(wide)
    own = 4 * 0.5 * data.observations[:, 0]
    expected = ((own - wide.actions[:, 0]) ** 2).mean()
    assert figure("action_difference", judge, wide) == pytest.approx(expected, rel=1e-5)


def test_action_difference_of_categories_is_the_share_of_others(judge_class, tiny):
    class Chooser(judge_class):
        def act(self, observations, deterministic):
            return torch.ones(len(observations), dtype=torch.int64)

    data = TransitionDataset.from_arrays(
        np.zeros((4, 1), np.float32),
        np.array([1, 0, 1, 1]),
        np.zeros(4),
        np.ones(4, bool),
        action_space=spaces.Discrete(2),
    )
    chooser = Chooser(tiny(), "cpu")
    chooser.build_with_dataset(data)
    assert figure("action_difference", chooser, data) == pytest.approx(0.25)
    assert evaluators.DiscreteActionMatchEvaluator()(chooser, data) == pytest.approx(0.75)


def test_environment_is_the_mean_return_of_seeded_episodes(make_tiny):
    learnable = make_tiny(0)
    own = evaluators.EnvironmentEvaluator("Pendulum-v1", 2, 5)(learnable, None)
    assert own == learnable.evaluate("Pendulum-v1", 2, 5).mean_return


def test_figures_do_not_depend_on_the_size_of_a_chunk(judge, data, monkeypatch):
    settings = {"td_error": {"gamma": GAMMA}, "advantage_sum": {"gamma": GAMMA}}
    before = {name: figure(name, judge, data, **settings.get(name, {})) for name in EVALUATORS}
    monkeypatch.setattr(evaluators, "CHUNK", 2)
    for name, value in before.items():
        assert figure(name, judge, data, **settings.get(name, {})) == pytest.approx(value)


def test_the_device_is_read_once(judge, data, monkeypatch):
    monkeypatch.setattr(evaluators, "CHUNK", 1)
    reads = []
    monkeypatch.setattr(torch.Tensor, "item", lambda self: reads.append("item"))
    original = torch.Tensor.__float__
    monkeypatch.setattr(
        torch.Tensor, "__float__", lambda self: reads.append("float") or original(self)
    )
    figure("td_error", judge, data, gamma=GAMMA)
    assert reads == ["float"]


def test_evaluators_leave_training_bit_for_bit_as_it_was(make_tiny, arrays_data):
    def train(**settings):
        learnable = make_tiny(0)
        learnable.fit(arrays_data, 20, 5, show_progress=False, **settings)
        return learnable

    names = ("action_difference",)
    plain = train()
    judged = train(evaluators=make_evaluators(names, plain))
    for one, other in zip(plain.policy.parameters(), judged.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_fit_reports_the_figures_by_the_names_given(make_tiny, arrays_data):
    learnable = make_tiny(0)
    chosen = {"distance": evaluators.ContinuousActionDiffEvaluator()}
    history = learnable.fit(arrays_data, 4, 2, evaluators=chosen, show_progress=False)
    assert all(metrics["distance"] > 0 for _, metrics in history)


def test_a_learnable_without_values_is_refused_by_name(make_tiny):
    with pytest.raises(ConfigError, match=r"tiny_bc.*no action values"):
        make_evaluators(["average_value"], make_tiny(0))


def test_a_learnable_without_discount_is_refused(judge):
    with pytest.raises(ConfigError, match="no gamma"):
        make_evaluators(["td_error"], judge)


def test_an_unknown_evaluator_names_the_nearest(judge):
    with pytest.raises(UnknownNameError, match="td_error"):
        make_evaluators(["td_eror"], judge)
