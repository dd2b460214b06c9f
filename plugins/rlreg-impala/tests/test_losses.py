import math

import pytest
import torch

from rlreg.errors import ShapeError
from rlreg_impala.losses import (
    clip_rewards,
    effective_sample_size,
    impala_losses,
    kl_divergence,
)

COEFFICIENTS = {"policy_loss_coef": 2.0, "value_loss_coef": 0.5, "entropy_coef": 0.1}


def rows(*values):
    return torch.tensor([values], dtype=torch.float64).T  # [T, 1]


def losses(reduction="mean", mask=(True, True, False), **changes):
    inputs = {
        "log_probs": rows(-1.0, -2.0, -50.0),
        "values": rows(1.0, 3.0, 70.0),
        "entropies": rows(0.5, 0.7, 90.0),
        "vs": rows(2.0, 1.0, 0.0),
        "pg_advantages": rows(0.5, -1.5, 30.0),
        "is_transition": torch.tensor([mask]).T,
    }
    return impala_losses(**{**inputs, **changes}, reduction=reduction, **COEFFICIENTS)


def test_hand_values_of_sums():
    found = losses("sum")
    policy = -(-1.0 * 0.5 + -2.0 * -1.5)  # -2.5
    value = 0.5 * (1.0**2 + 2.0**2)  # 2.5
    entropy = 1.2
    assert found.policy.item() == pytest.approx(policy)
    assert found.value.item() == pytest.approx(value)
    assert found.entropy.item() == pytest.approx(entropy)
    assert found.total.item() == pytest.approx(2 * policy + 0.5 * value - 0.1 * entropy)


def test_means_are_sums_over_the_number_of_transitions():
    summed, mean = losses("sum"), losses("mean")
    for name in ("total", "policy", "value", "entropy"):
        assert getattr(mean, name).item() == pytest.approx(getattr(summed, name).item() / 2)


def test_rows_that_are_no_transition_count_nowhere():
    loud = losses("mean")
    quiet = losses("mean", log_probs=rows(-1.0, -2.0, 0.0), values=rows(1.0, 3.0, 0.0))
    assert loud.total.item() == pytest.approx(quiet.total.item())


def test_a_batch_without_transitions_has_no_loss():
    assert losses("mean", mask=(False, False, False)).total.item() == 0.0


def test_no_gradient_flows_into_advantages_and_targets():
    vs = rows(2.0, 1.0, 0.0).requires_grad_()
    advantages = rows(0.5, -1.5, 30.0).requires_grad_()
    values = rows(1.0, 3.0, 70.0).requires_grad_()
    log_probs = rows(-1.0, -2.0, -50.0).requires_grad_()
    total = losses("sum", vs=vs, pg_advantages=advantages, values=values, log_probs=log_probs).total
    total.backward()
    assert vs.grad is None
    assert advantages.grad is None
    torch.testing.assert_close(values.grad, 0.5 * rows(-1.0, 2.0, 0.0))
    torch.testing.assert_close(log_probs.grad, -2.0 * rows(0.5, -1.5, 0.0))


def test_a_good_action_becomes_likelier_and_entropy_is_a_bonus():
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    log_probs = logits.log_softmax(-1)
    impala_losses(
        log_probs[..., 0],
        torch.zeros(1, 1),
        torch.zeros(1, 1),
        torch.zeros(1, 1),
        torch.ones(1, 1),
        torch.ones(1, 1, dtype=torch.bool),
        reduction="mean",
        **COEFFICIENTS,
    ).total.backward()
    assert logits.grad[0, 0, 0] < 0 < logits.grad[0, 0, 1]
    assert losses("mean", entropies=rows(2.0, 2.0, 0.0)).total < losses("mean").total


def test_shapes_that_would_broadcast_are_refused():
    for name in ("values", "entropies", "vs", "pg_advantages"):
        with pytest.raises(ShapeError, match=name):
            losses(**{name: torch.zeros(3)})


def test_reward_clipping_hand_values():
    rewards = torch.tensor([-10.0, -0.5, 0.0, 0.5, 10.0], dtype=torch.float64)
    assert clip_rewards(rewards, "none") is rewards
    assert clip_rewards(rewards, "abs_one").tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    soft = clip_rewards(rewards, "soft_asymmetric").tolist()
    expected = [
        -1.5 * math.tanh(2),
        -1.5 * math.tanh(0.1),
        0,
        5 * math.tanh(0.1),
        5 * math.tanh(2),
    ]
    assert soft == pytest.approx(expected)


def test_effective_sample_size():
    everything = torch.ones(4, 1, dtype=torch.bool)
    assert effective_sample_size(torch.zeros(4, 1), everything).item() == pytest.approx(1.0)
    one_counts = torch.tensor([[1000.0], [0.0], [0.0], [0.0]])
    assert effective_sample_size(one_counts, everything).item() == pytest.approx(0.25)
    rhos = torch.tensor([1.0, 2.0, 3.0])
    expected = rhos.sum() ** 2 / (3 * (rhos**2).sum())
    mask = torch.tensor([[True], [True], [True], [False]])
    found = effective_sample_size(torch.cat([rhos.log(), torch.ones(1)])[:, None], mask)
    assert found.item() == pytest.approx(expected.item())
    assert effective_sample_size(torch.zeros(4, 1), ~everything).item() == 0.0


def test_kl_divergence_is_that_of_the_two_policies():
    behaviour = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    target = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    exact = (behaviour * (behaviour / target).log()).sum()
    # Each action as often as the behaviour policy draws it.
    actions = torch.repeat_interleave(torch.arange(3), torch.tensor([50, 30, 20]))[:, None]
    log_rhos = (target / behaviour).log()[actions]
    everything = torch.ones(100, 1, dtype=torch.bool)
    assert kl_divergence(log_rhos, everything).item() == pytest.approx(exact.item())
    assert kl_divergence(torch.zeros(4, 1), torch.ones(4, 1, dtype=torch.bool)).item() == 0.0


def test_kl_divergence_leaves_out_rows_that_are_no_transition():
    log_rhos = torch.tensor([[0.5], [-math.inf], [math.inf]])
    mask = torch.tensor([[True], [False], [False]])
    assert kl_divergence(log_rhos, mask).item() == pytest.approx(math.exp(0.5) - 1.5)
    assert kl_divergence(log_rhos, torch.zeros_like(mask)).item() == 0.0
