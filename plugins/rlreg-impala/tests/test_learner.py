"""One update: V-trace on fragments, gradients, schedules."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_helpers import config, fragment, model_for

from rlreg.errors import ConfigError, NonFiniteError, RolloutError
from rlreg_impala.batches import FragmentBatch
from rlreg_impala.learner import Learner, Progress, make_learner

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
CPU = torch.device("cpu")


def learner_for(model, total=100, **settings):
    learner = make_learner(model, config(**settings))
    learner.progress.plan("updates", total)
    learner.start_schedules(12)
    return learner


def batch_of(*fragments):
    return FragmentBatch.of(fragments, CPU)


def flags(steps, columns, *rows):
    found = np.zeros((steps, columns), dtype=bool)
    for row in rows:
        found[row] = True
    return found


def with_rate_zero(model, **settings):
    learner = learner_for(model, lr_scheduler_factory=None, **settings)
    learner.optimizer.param_groups[0]["lr"] = 0.0
    return learner


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_two_updates_that_change_nothing_leave_equal_gradients():
    model = model_for(VECTOR, spaces.Discrete(3))
    learner, batch = with_rate_zero(model, max_grad_norm=0.0), batch_of(fragment(model))
    learner.update(batch)
    first = gradients(model)
    learner.update(batch)
    assert first
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, first[name]), name


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_two_fragments_are_the_sum_of_both(reduction, core):
    settings = {"core": core, "core_size": 4, "max_grad_norm": 0.0}
    model = model_for(VECTOR, spaces.Discrete(3), **settings)
    parts = [fragment(model, seed=1), fragment(model, seed=2)]
    found = []
    for batch in (batch_of(*parts), batch_of(parts[0]), batch_of(parts[1])):
        learner = with_rate_zero(model, reduction=reduction, **settings)
        learner.update(batch)
        found.append(gradients(model))
    share = 1.0 if reduction == "sum" else 0.5
    for name, both in found[0].items():
        torch.testing.assert_close(both, share * (found[1][name] + found[2][name]), msg=name)


def targets(model, made, **settings):
    learner = learner_for(model, **settings)
    batch = batch_of(made)
    seen = model.unroll(
        batch.observations,
        batch.starts,
        batch.state,
        batch.final_observations,
        batch.final_rows,
    )
    from rlreg_impala.heads import log_prob_and_entropy

    log_probs, _ = log_prob_and_entropy(model.codec, seen.params, batch.actions)
    return seen, learner._targets(batch, seen, log_probs.detach() - batch.log_probs)


def test_on_policy_targets_are_discounted_returns_with_bootstrap():
    model = model_for(VECTOR, spaces.Discrete(3))
    made = fragment(model, steps=3, columns=1)
    seen, found = targets(model, made, gamma=0.9)
    r, v = made.rewards[:, 0], seen.values[:, 0].detach().numpy()
    expected = r[0] + 0.9 * r[1] + 0.81 * r[2] + 0.729 * v[3]
    assert found.vs[0, 0].item() == pytest.approx(expected, rel=1e-4)
    assert found.pg_advantages[2, 0].item() == pytest.approx(r[2] + 0.9 * v[3] - v[2], rel=1e-4)


def test_a_termination_stops_the_bootstrap_and_a_reset_row_gives_it():
    model = model_for(VECTOR, spaces.Discrete(3))
    ends = {"terminations": flags(4, 2, (1, 0)), "truncations": flags(4, 2, (1, 1))}
    # Column 1 was truncated at row 1, so row 2 holds its last observation and an ignored action.
    made = fragment(model, columns=2, resets=flags(4, 2, (2, 0), (2, 1)), **ends)
    seen, found = targets(model, made, gamma=0.9)
    r, v = made.rewards, seen.values.detach().numpy()
    assert found.vs[1, 0].item() == pytest.approx(r[1, 0], rel=1e-4)
    assert found.vs[1, 1].item() == pytest.approx(r[1, 1] + 0.9 * v[2, 1], rel=1e-4)
    assert found.pg_advantages[2].tolist() == [0.0, 0.0]
    assert found.vs[3, 1].item() == pytest.approx(r[3, 1] + 0.9 * v[4, 1], rel=1e-4)


def test_a_truncation_without_a_row_bootstraps_from_its_final_observation():
    model = model_for(VECTOR, spaces.Discrete(3))
    final = np.full((1, 3), 0.3, dtype=np.float32)
    made = fragment(
        model,
        columns=2,
        truncations=flags(4, 2, (1, 1)),
        starts=flags(5, 2, (2, 1)),
        final_rows=np.array([[1, 1]]),
        final_observations=final,
    )
    seen, found = targets(model, made, gamma=0.9)
    with torch.no_grad():
        value = model.step(torch.from_numpy(final), torch.zeros(1, 0))[1].item()
    expected = made.rewards[1, 1] + 0.9 * value
    assert found.vs[1, 1].item() == pytest.approx(expected, rel=1e-4)
    following = made.rewards[0, 1] + 0.9 * expected
    assert found.vs[0, 1].item() == pytest.approx(following, rel=1e-4)
    assert seen.final_values.shape == (1,)


def test_final_rows_follow_their_fragment_into_the_batch():
    model = model_for(VECTOR, spaces.Discrete(3))
    plain = fragment(model, columns=3)
    final = np.full((1, 3), 0.3, dtype=np.float32)
    ended = fragment(
        model, columns=2, seed=1, final_rows=np.array([[1, 1]]), final_observations=final
    )
    assert batch_of(plain, ended).final_rows.tolist() == [[1, 4]]
    assert batch_of(plain, ended).rewards.shape == (4, 5)


def test_masked_rows_change_no_gradient():
    model = model_for(VECTOR, spaces.Discrete(3))
    made = fragment(model, resets=flags(4, 3, (1, 2)))
    rewards, actions = made.rewards.copy(), made.actions.copy()
    rewards[1, 2], actions[1, 2] = 1e6, (actions[1, 2] + 1) % 3
    other = fragment(model, resets=flags(4, 3, (1, 2)), rewards=rewards, actions=actions)
    found = []
    for part in (made, other):
        learner = with_rate_zero(model)
        metrics = learner.update(batch_of(part))
        assert metrics["update/transitions"] == 11
        found.append(gradients(model))
    for name in found[0]:
        assert torch.equal(found[0][name], found[1][name]), name


def test_gradients_are_clipped_together():
    model = model_for(VECTOR, spaces.Discrete(3))
    learner = with_rate_zero(model, max_grad_norm=1e-3, lr=1e-4)
    metrics = learner.update(batch_of(fragment(model)))
    clipped = math.sqrt(sum(float((g**2).sum()) for g in gradients(model).values()))
    assert metrics["loss/grad_norm"] > 1e-2
    assert clipped == pytest.approx(1e-3, rel=1e-2)
    learner = with_rate_zero(model, max_grad_norm=0.0)
    norm = learner.update(batch_of(fragment(model)))["loss/grad_norm"]
    whole = math.sqrt(sum(float((g**2).sum()) for g in gradients(model).values()))
    assert whole == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_in_burn_in_the_policy_stands_still_and_the_critic_learns(shared):
    settings = {"critic_burn_in_epochs": 1} | ({"critic_encoder_factory": None} if shared else {})
    model = model_for(VECTOR, spaces.Discrete(3), **settings)
    learner, batch = learner_for(model, **settings), batch_of(fragment(model))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learner.update(batch)
    for name, tensor in model.state_dict().items():
        is_same = torch.equal(tensor, before[name])
        assert is_same == name.startswith("policy."), name
    learner.progress.epochs = 1
    learner.update(batch)
    assert not torch.equal(model.policy.head.linear.weight, before["policy.head.linear.weight"])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_changes_nothing(bad):
    settings = {"observation_normalization": "running"}
    model = model_for(VECTOR, spaces.Discrete(3), **settings)
    learner = learner_for(model, **settings)
    learner.update(batch_of(fragment(model)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rewards = np.zeros((4, 3), dtype=np.float32)
    rewards[2, 1] = bad
    with pytest.raises(NonFiniteError, match="loss"):
        learner.update(batch_of(fragment(model, rewards=rewards)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert learner.progress.updates == 1
    observations = np.full((5, 3, 3), bad, dtype=np.float32)
    with pytest.raises(NonFiniteError):
        learner.update(batch_of(fragment(model, observations=observations)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_ratio_is_of_the_learner_over_the_actor():
    model = model_for(VECTOR, spaces.Discrete(3))
    made = fragment(model)
    unlikely = fragment(model, log_probs=made.log_probs - math.log(2), resets=flags(4, 3, (0, 0)))
    metrics = with_rate_zero(model).update(batch_of(unlikely))
    assert metrics["rho/mean"] == pytest.approx(2, rel=1e-4)
    assert metrics["rho/max"] == pytest.approx(2, rel=1e-4)
    assert metrics["rho/effective_sample_size"] == pytest.approx(1, rel=1e-4)


def test_huge_importance_weights_stay_finite():
    model = model_for(VECTOR, spaces.Discrete(3))
    made = fragment(model)
    unlikely = fragment(model, log_probs=made.log_probs - 100)
    assert math.isfinite(learner_for(model).update(batch_of(unlikely))["loss/total"])


def test_the_rate_falls_linearly_over_the_whole_run():
    model = model_for(VECTOR, spaces.Discrete(3))
    learner, batch = learner_for(model, total=4, lr=0.1), batch_of(fragment(model))
    rates = [learner.update(batch)["schedule/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert learner.learning_rate == 0


def test_rewards_are_scaled_before_they_are_clipped():
    model = model_for(VECTOR, spaces.Discrete(3))
    rewards = np.full((4, 3), 30.0, dtype=np.float32)
    settings = {"gamma": 0.0, "reward_scale": 0.1, "reward_clipping": "none"}
    _, found = targets(model, fragment(model, rewards=rewards), **settings)
    np.testing.assert_allclose(found.vs.numpy(), 3.0, rtol=1e-5)
    settings["reward_clipping"] = "abs_one"
    _, found = targets(model, fragment(model, rewards=rewards), **settings)
    np.testing.assert_allclose(found.vs.numpy(), 1.0, rtol=1e-5)


def test_a_run_counted_in_transitions_ends_at_rate_zero_in_spite_of_masked_rows():
    model = model_for(VECTOR, spaces.Discrete(3))
    learner = make_learner(model, config(lr=0.1))
    learner.progress.plan("transitions", 60)
    learner.start_schedules(12)
    batch = batch_of(fragment(model, resets=flags(4, 3, (0, 0), (0, 1))))  # 10 of 12 rows
    rates = [learner.update(batch)["schedule/learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.1, 0.08, 0.06, 0.04, 0.02])
    assert learner.learning_rate == 0


def test_the_entropy_weight_moves_to_its_end():
    model = model_for(VECTOR, spaces.Discrete(3))
    settings = {"entropy_coef": 0.02, "entropy_coef_final": 0.0, "entropy_decay_fraction": 0.5}
    learner, batch = learner_for(model, total=8, **settings), batch_of(fragment(model))
    weights = [learner.update(batch)["schedule/entropy_coef"] for _ in range(6)]
    assert weights == pytest.approx([0.02, 0.015, 0.01, 0.005, 0.0, 0.0])


def test_a_schedule_without_a_length_is_refused():
    learner = make_learner(model_for(VECTOR, spaces.Discrete(3)), config())
    with pytest.raises(ConfigError, match="length"):
        learner.start_schedules(12)


def test_a_plan_that_is_not_over_stays():
    progress = Progress()
    progress.plan("updates", 20)
    progress.updates = 10
    progress.plan("updates", 10)
    assert (progress.total, progress.fraction) == (20, 0.5)
    progress.updates = 20
    progress.plan("updates", 10)
    assert progress.total == 30


def test_fragments_of_unequal_length_are_refused():
    model = model_for(VECTOR, spaces.Discrete(3))
    with pytest.raises(RolloutError, match="one length"):
        batch_of(fragment(model, steps=3), fragment(model, steps=4))


def test_dropout_draws_from_a_stream_of_its_own():
    settings = {"critic_encoder_factory": {"type": "vector", "dropout_rate": 0.5}}
    found = []
    for outer in (1, 2):
        torch.manual_seed(outer)
        model = model_for(VECTOR, spaces.Discrete(3), **settings)
        state = torch.get_rng_state()
        from rlreg_impala.learner import noise_stream

        states = [torch.Generator().manual_seed(0).get_state()]
        learner = make_learner(model, config(**settings), lambda held=states: noise_stream(held))
        learner.progress.plan("updates", 10)
        learner.start_schedules(12)
        for _ in range(3):
            learner.update(batch_of(fragment(model)))
        assert torch.equal(torch.get_rng_state(), state)
        found.append(model.critic.linear.weight.detach().clone())
    assert torch.equal(*found)


def test_a_learner_takes_any_optimizer_of_the_registry():
    for chosen in ({"type": "rmsprop_tf"}, {"type": "sgd", "momentum": 0.9}, {"type": "adam_w"}):
        model = model_for(VECTOR, spaces.Discrete(3))
        learner = learner_for(model, optim_factory=chosen)
        before = model.policy.head.linear.weight.clone()
        learner.update(batch_of(fragment(model)))
        assert not torch.equal(before, model.policy.head.linear.weight)
        assert isinstance(learner, Learner)
