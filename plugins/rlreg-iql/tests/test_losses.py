"""The formulas on five numbers each, worked out by hand."""

import math

import pytest
import torch
from torch import tensor

from rlreg.errors import ShapeError
from rlreg_iql import losses


def test_expectile_loss_weighs_undershoot_and_overshoot():
    differences = tensor([2.0, -2.0, 0.0, 1.0, -1.0])
    expected = tensor([0.7 * 4, 0.3 * 4, 0.0, 0.7, 0.3])
    torch.testing.assert_close(losses.expectile_loss(differences, 0.7), expected)


def test_expectile_loss_keeps_float64():
    loss = losses.expectile_loss(tensor([-1.0, 2, 3, 4, 5], dtype=torch.float64), 0.7)
    assert loss.dtype == torch.float64
    assert float(loss[0]) == pytest.approx(0.3, abs=1e-15)


def test_expectile_gradient_pulls_the_estimate_up():
    values = torch.zeros(5, requires_grad=True)
    targets = tensor([1.0, 1, 1, -1, -1])
    losses.expectile_loss(targets - values, 0.9).sum().backward()
    torch.testing.assert_close(values.grad, tensor([-1.8, -1.8, -1.8, 0.2, 0.2]))


def test_td_targets_discount_by_interval_and_stop_at_terminations():
    targets = losses.td_targets(
        tensor([1.0, 1, 1, 1, 0]),
        tensor([0.0, 1, 0, 0, 0]),
        tensor([1.0, 1, 2, 3, 1]),
        tensor([10.0, 10, 10, 10, -4]),
        0.5,
    )
    torch.testing.assert_close(targets, tensor([6.0, 1, 3.5, 2.25, -2]))


def test_td_targets_never_read_the_value_after_a_termination():
    targets = losses.td_targets(
        torch.ones(5),
        torch.ones(5),
        torch.ones(5),
        tensor([math.inf, -math.inf, math.nan, 1e38, 0]),
        0.99,
    )
    assert torch.equal(targets, torch.ones(5))


def test_critic_loss_is_the_squared_distance_of_each_critic():
    values = tensor([[1.0, 2, 3, 4, 5], [0.0, 0, 0, 0, 0]])
    loss = losses.critic_loss(values, tensor([1.0, 1, 1, 1, 1]))
    torch.testing.assert_close(loss, tensor([[0.0, 1, 4, 9, 16], [1.0, 1, 1, 1, 1]]))


def test_advantage_weights_are_capped_exponentials():
    weights = losses.advantage_weights(tensor([0.0, 1.0, -1.0, 5.0, 1e30]), 2.0, 100.0)
    expected = tensor([1.0, math.e**2, math.e**-2, 100.0, 100.0])
    torch.testing.assert_close(weights, expected)


def test_zero_inverse_temperature_clones():
    weights = losses.advantage_weights(tensor([-9.0, -1, 0, 1, 9]), 0.0, 100.0)
    assert torch.equal(weights, torch.ones(5))


def test_nan_advantages_stay_visible():
    assert losses.advantage_weights(tensor([math.nan]), 3.0, 100.0).isnan().all()


def test_normal_log_prob_sums_over_action_dimensions():
    actions, means = torch.zeros(5, 2), torch.zeros(5, 2)
    actions[1:, 0] = tensor([1.0, 2, 3, 5])
    log_stds = tensor([[0.0, math.log(2.0)]])
    constant = -math.log(2 * math.pi) - math.log(2.0)
    expected = constant - tensor([0.0, 0.5, 2.0, 4.5, 12.5])
    torch.testing.assert_close(losses.normal_log_prob(actions, means, log_stds), expected)


def test_normal_log_prob_of_far_actions_is_large_but_finite():
    log_prob = losses.normal_log_prob(
        torch.full((5, 1), 5.0), torch.zeros(5, 1), torch.full((1, 1), -5.0)
    )
    assert torch.isfinite(log_prob).all()


def test_categorical_log_prob_sums_over_parts():
    logits = torch.zeros(5, 5)
    logits[:, 0] = math.log(3.0)  # first part: 3/4 and 1/4; second part: thirds
    categories = tensor([[0, 0], [1, 0], [0, 2], [1, 1], [0, 1]])
    third = math.log(1 / 3)
    expected = third + tensor([0.75, 0.25, 0.75, 0.25, 0.75]).log()
    given = losses.categorical_log_prob(logits, categories, [2, 3])
    torch.testing.assert_close(given, expected)


def test_negative_squared_distance_sums_over_dimensions():
    actions = tensor([[1.0, 0], [0, 2], [1, 1], [0, 0], [-3, 4]])
    expected = tensor([-1.0, -4, -2, 0, -25])
    given = losses.negative_squared_distance(actions, torch.zeros(5, 2))
    torch.testing.assert_close(given, expected)


def test_policy_loss_rewards_likely_good_actions():
    loss = losses.policy_loss(tensor([-1.0, -2, 0, 1, 3]), tensor([1.0, 2, 3, 4, 0]))
    torch.testing.assert_close(loss, tensor([1.0, 4, 0, -4, 0]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: losses.expectile_loss(torch.zeros(5, 1), 0.5),
        lambda: losses.advantage_weights(torch.zeros(5, 1), 1.0, 1.0),
        lambda: losses.td_targets(
            torch.zeros(5), torch.zeros(5), torch.zeros(5), torch.zeros(5, 1), 0.9
        ),
        lambda: losses.td_targets(
            torch.zeros(5), torch.zeros(5), torch.zeros(5), torch.zeros(1), 0.9
        ),
        lambda: losses.critic_loss(torch.zeros(2, 5), torch.zeros(5, 1)),
        lambda: losses.critic_loss(torch.zeros(5), torch.zeros(5)),
        lambda: losses.policy_loss(torch.zeros(5), torch.zeros(5, 1)),
        lambda: losses.normal_log_prob(torch.zeros(5, 2), torch.zeros(5, 1), torch.zeros(1, 1)),
        lambda: losses.normal_log_prob(torch.zeros(5, 2), torch.zeros(5, 2), torch.zeros(1, 1)),
        lambda: losses.categorical_log_prob(torch.zeros(5, 4), torch.zeros(5, 2).long(), [2, 3]),
        lambda: losses.negative_squared_distance(torch.zeros(5, 2), torch.zeros(5, 1)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call):
    with pytest.raises(ShapeError):
        call()
