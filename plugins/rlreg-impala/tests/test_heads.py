import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal

from rlreg.errors import EnvironmentSpecError, ShapeError
from rlreg_impala import actions as acting
from rlreg_impala import heads
from rlreg_impala.actions import ActionCodec

SPACES = {
    "discrete": spaces.Discrete(3, start=5),
    "multi": spaces.MultiDiscrete([2, 4, 3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], "f"), np.array([2, 1], "f"), dtype=np.float32),
    "dict": spaces.Dict(
        {"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Discrete(4), "c": spaces.Discrete(2)}
    ),
    "tuple": spaces.Tuple(
        (spaces.Discrete(2), spaces.Tuple((spaces.Box(0, 9, (1, 2)), spaces.MultiDiscrete([3]))))
    ),
}


def params_for(codec, rows, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    return (scale * rng.normal(size=(rows, codec.num_params))).astype(np.float32)


def oracle(codec, params, actions):
    """Sums of torch's own distributions, part by part."""
    log_prob, entropy = 0.0, 0.0
    for part in codec.parts:
        own, chosen = params[..., part.params], actions[..., part.columns]
        if part.is_categorical:
            dist = Categorical(logits=own)
            log_prob = log_prob + dist.log_prob(chosen.squeeze(-1))
            entropy = entropy + dist.entropy()
        else:
            mean, log_std = own.chunk(2, dim=-1)
            dist = Normal(mean, log_std.clamp(*acting.LOG_STD_RANGE).exp())
            log_prob = log_prob + dist.log_prob(chosen).sum(-1)
            entropy = entropy + dist.entropy().sum(-1)
    return log_prob, entropy


@pytest.mark.parametrize("name", SPACES)
def test_log_prob_and_entropy_equal_torch_distributions(name):
    codec = ActionCodec.of(SPACES[name])
    params = torch.from_numpy(params_for(codec, 20)).double()
    actions = heads.sample(codec, params, torch.Generator().manual_seed(1))
    found = heads.log_prob_and_entropy(codec, params, actions)
    for ours, theirs in zip(found, oracle(codec, params, actions), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", SPACES)
def test_actor_and_learner_agree_on_log_probs(name):
    codec = ActionCodec.of(SPACES[name])
    params = params_for(codec, 500)
    actions, log_probs = acting.sample(codec, params, np.random.default_rng(0))
    learned, _ = heads.log_prob_and_entropy(
        codec, torch.from_numpy(params), torch.from_numpy(actions)
    )
    np.testing.assert_allclose(log_probs, learned.numpy(), atol=2e-4, rtol=1e-4)
    np.testing.assert_array_equal(
        acting.mode(codec, params), heads.mode(codec, torch.from_numpy(params)).numpy()
    )


@pytest.mark.parametrize("name", SPACES)
def test_actions_reach_the_environment_in_its_own_form(name):
    space = SPACES[name]
    codec = ActionCodec.of(space)
    drawn, _ = acting.sample(codec, params_for(codec, 64, scale=3.0), np.random.default_rng(0))
    batched = codec.to_env(drawn)
    for row in range(64):
        single = codec.to_single_env(drawn[row])
        assert space.contains(single), single
    if isinstance(space, spaces.Dict):
        assert list(batched) == list(space.spaces)
        assert all(len(part) == 64 for part in batched.values())


def test_bounded_dimensions_reach_from_minus_one_to_one():
    codec = ActionCodec.of(SPACES["box"])
    stored = np.array([[-1, -1], [0, 0], [1, 1], [5, -7]], dtype=np.float32)
    expected = np.array([[-2, 0], [0, 0.5], [2, 1], [2, 0]])
    np.testing.assert_allclose(codec.to_env(stored), expected)


def test_unbounded_dimensions_stay_as_they_are():
    space = spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]), dtype=np.float64)
    stored = np.array([[-3.5, -1.0], [2.0, 7.0]], dtype=np.float32)
    np.testing.assert_allclose(ActionCodec.of(space).to_env(stored), [[-3.5, 0.0], [2.0, 7.0]])


@pytest.mark.parametrize("draw", ["numpy", "torch"])
def test_categories_come_as_often_as_their_probability(draw):
    codec = ActionCodec.of(spaces.Discrete(3))
    logits = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32)).repeat(40_000, axis=0)
    if draw == "numpy":
        chosen, _ = acting.sample(codec, logits, np.random.default_rng(3))
    else:
        generator = torch.Generator().manual_seed(3)
        chosen = heads.sample(codec, torch.from_numpy(logits), generator).numpy()
    shares = np.bincount(chosen[:, 0].astype(int), minlength=3) / 40_000
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.01)


@pytest.mark.parametrize("draw", ["numpy", "torch"])
def test_gaussians_have_their_mean_and_deviation(draw):
    codec = ActionCodec.of(spaces.Box(-1, 1, (1,), np.float32))
    params = np.array([[0.7, math.log(0.3)]], dtype=np.float32).repeat(40_000, axis=0)
    if draw == "numpy":
        drawn, _ = acting.sample(codec, params, np.random.default_rng(3))
    else:
        generator = torch.Generator().manual_seed(3)
        drawn = heads.sample(codec, torch.from_numpy(params), generator).numpy()
    assert abs(drawn.mean() - 0.7) < 0.01
    assert abs(drawn.std() - 0.3) < 0.01


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_a_draw_is_a_category_with_a_finite_log_prob(logits, seed):
    codec = ActionCodec.of(spaces.Discrete(len(logits)))
    params = np.array([logits] * 5, dtype=np.float32)
    actions, log_probs = acting.sample(codec, params, np.random.default_rng(seed))
    assert ((actions >= 0) & (actions < len(logits))).all()
    assert np.isfinite(log_probs).all()
    assert (log_probs <= 1e-6).all()


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Text(5), "action"),
        (spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Text(3)}), r"action\.y"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 255, (2,), np.uint8))), r"action\[1\]"),
        (spaces.Discrete(2**25), "categories"),
    ],
)
def test_spaces_that_cannot_be_acted_in_name_the_leaf(space, named):
    with pytest.raises(EnvironmentSpecError, match=named):
        ActionCodec.of(space)


def test_shapes_that_would_broadcast_are_refused():
    codec = ActionCodec.of(SPACES["multi"])
    params = torch.zeros(5, 4, codec.num_params)
    with pytest.raises(ShapeError, match="actions"):
        heads.log_prob_and_entropy(codec, params, torch.zeros(5, 1, codec.width))
    with pytest.raises(ShapeError, match="params"):
        heads.log_prob_and_entropy(codec, params[..., :-1], torch.zeros(5, 4, codec.width))
    with pytest.raises(ShapeError, match="actions"):
        codec.to_env(np.zeros((3, codec.width + 1), dtype=np.float32))


def test_joint_log_probs_are_sums_and_the_gradient_reaches_every_part():
    codec = ActionCodec.of(SPACES["dict"])
    params = torch.from_numpy(params_for(codec, 3)).requires_grad_()
    actions = heads.sample(codec, params.detach(), torch.Generator().manual_seed(0))
    log_probs, _ = heads.log_prob_and_entropy(codec, params, actions)
    (gradient,) = torch.autograd.grad(log_probs.sum(), params)
    assert (gradient.abs().sum(0) > 0).all()
