"""What an update of IQL does and does not touch."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg import TransitionDataset
from rlreg.errors import ConfigError, DatasetError, NonFiniteError
from rlreg.runtime.batch import Batch
from rlreg_iql.learner import RULES
from rlreg_iql.networks import CriticList, StackedCritics, join_critics

RULE_NAMES = sorted(RULES)
BOX = spaces.Box(-1, 1, (2,), np.float32)
ACTION_SPACES = [
    BOX,
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([2, 4, 3]),
    spaces.MultiBinary(3),
]


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
def test_every_trainable_parameter_gets_a_gradient_and_changes(
    rule, action_space, make_iql, make_batch
):
    learnable = make_iql(action_space=action_space, update_rule=rule)
    trained = [learnable.policy, learnable.critics, learnable.value]
    before = copy.deepcopy([module.state_dict() for module in trained])
    learnable.update(make_batch(learnable, 64))
    for module, old in zip(trained, before, strict=True):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
            assert not torch.equal(parameter, old[name]), name


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_target_critics_follow_but_are_never_trained(rule, make_iql, make_batch):
    learnable = make_iql(update_rule=rule, tau=0.25)
    targets = dict(learnable.target_critics.named_parameters())
    before = {name: value.clone() for name, value in targets.items()}
    learnable.update(make_batch(learnable))
    for name, source in learnable.critics.named_parameters():
        assert targets[name].grad is None
        assert not targets[name].requires_grad
        torch.testing.assert_close(targets[name], 0.75 * before[name] + 0.25 * source.detach())
    held = [
        id(p) for o in learnable.optimizers().values() for g in o.param_groups for p in g["params"]
    ]
    assert not set(held) & {id(value) for value in targets.values()}
    assert len(held) == len(set(held))


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_only_the_targets_enter_the_value_loss(rule, make_iql, make_batch):
    first, second = (make_iql(update_rule=rule) for _ in range(2))
    with torch.no_grad():
        for parameter in second.critics.parameters():
            parameter.add_(0.1)
    batch = make_batch(first)
    assert first.update(batch)["v_loss"] == second.update(batch)["v_loss"]


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_the_next_state_of_a_termination_has_no_influence(rule, make_iql, make_batch, snapshot):
    take, assert_same = snapshot
    first, second = (make_iql(update_rule=rule) for _ in range(2))
    batch = make_batch(first)
    changed = {**batch, "next_observations": batch["next_observations"].copy()}
    is_terminal = batch["terminations"] > 0
    assert is_terminal.any()
    changed["next_observations"][is_terminal] = 1e6
    for _ in range(3):
        assert first.update(batch) == second.update(changed)
    assert_same(take(first), take(second))


BATCH_NORM = {"type": "vector", "hidden_units": [8, 8], "use_batch_norm": True}
BATCH_NORM_PIXEL = {
    "type": "pixel",
    "filters": [[4, 4, 2]],
    "feature_size": 8,
    "use_batch_norm": True,
}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("encoder", [BATCH_NORM, BATCH_NORM_PIXEL], ids=["vector", "pixel"])
def test_the_next_state_of_a_termination_has_no_influence_through_batch_normalisation(
    rule, encoder, make_iql, make_batch, snapshot
):
    """Nor on the running statistics, which the snapshots hold too."""
    take, assert_same = snapshot
    space = spaces.Box(0, 255, (3, 12, 12), np.uint8) if encoder["type"] == "pixel" else None
    settings = {f"{name}_encoder_factory": encoder for name in ("actor", "critic", "value")}
    first, second = (make_iql(space, update_rule=rule, **settings) for _ in range(2))
    batch = make_batch(first)
    changed = {**batch, "next_observations": batch["next_observations"].copy()}
    is_terminal = batch["terminations"] > 0
    assert 1 < is_terminal.sum() < 11
    changed["next_observations"][is_terminal] = 255
    for _ in range(3):
        assert first.update(batch) == second.update(changed)
    assert_same(take(first), take(second))
    other = {**batch, "next_observations": batch["next_observations"].copy()}
    other["next_observations"][~is_terminal] = 0
    assert first.update(batch)["q_loss"] != second.update(other)["q_loss"]


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("encoder", [None, BATCH_NORM], ids=["plain", "batch norm"])
def test_nan_after_a_termination_harms_nobody_once_it_was_let_in(
    rule, encoder, make_iql, make_batch, snapshot
):
    """A batch by hand is refused (below); data let in with allow_non_finite come unchecked."""
    take, assert_same = snapshot
    settings = {"value_encoder_factory": encoder} if encoder else {}
    first, second = (make_iql(update_rule=rule, **settings) for _ in range(2))
    raw = make_batch(first)
    is_terminal = torch.from_numpy(raw["terminations"] > 0)
    for _ in range(2):
        batch, poisoned = first.prepare_batch(raw), second.prepare_batch(copy.deepcopy(raw))
        poisoned.next_observations[is_terminal] = math.nan
        for learnable, one in ((first, batch), (second, poisoned)):
            learnable.train_mode(True)
            learnable.update(one)
    assert_same(take(first), take(second))
    raw["next_observations"][is_terminal.numpy()] = np.nan
    with pytest.raises(NonFiniteError, match="next_observations is not finite"):
        first.update(raw)


def test_nan_after_a_termination_is_refused_at_load_and_trains_if_let_in(make_iql):
    rng, size = np.random.default_rng(0), 40
    following = rng.normal(size=(size, 4)).astype(np.float32)
    terminations = np.arange(size) % 10 == 9
    following[terminations] = np.nan
    arrays = (
        rng.normal(size=(size, 4)).astype(np.float32),
        rng.uniform(-1, 1, (size, 2)).astype(np.float32),
        rng.normal(size=size),
        terminations,
        ~terminations,
    )
    with pytest.raises(DatasetError, match="observations in episode 9, index 1, component 0: nan"):
        TransitionDataset.from_arrays(*arrays, next_observations=following)
    data = TransitionDataset.from_arrays(
        *arrays, next_observations=following, allow_non_finite=True
    )
    learnable = make_iql(value_encoder_factory=BATCH_NORM, observation_scaler={"type": "standard"})
    metrics = learnable.fit(data, 10, show_progress=False)[0][1]
    assert all(math.isfinite(value) for value in metrics.values())
    assert np.isfinite(learnable.predict(arrays[0])).all()


def test_a_truncation_keeps_the_bootstrap(make_iql, make_batch):
    first, second = (make_iql() for _ in range(2))
    batch = make_batch(first)
    truncated = {**batch, "truncations": np.ones(12, bool)}
    assert first.update(batch) == second.update(truncated)


def test_dropout_acts_in_training_and_not_in_prediction(make_iql, make_batch):
    encoder = {"type": "vector", "hidden_units": [16, 16], "dropout_rate": 0.5}
    learnable = make_iql(actor_encoder_factory=encoder)
    batch = make_batch(learnable)
    observations = batch["observations"]
    assert np.array_equal(learnable.predict(observations), learnable.predict(observations))
    rows = torch.from_numpy(observations)
    learnable.train_mode(True)
    first, second = learnable.policy(rows)[0], learnable.policy(rows)[0]
    assert not torch.equal(first, second)
    twin = make_iql(actor_encoder_factory={**encoder, "dropout_rate": None})
    assert learnable.update(batch)["actor_loss"] != twin.update(batch)["actor_loss"]


def test_dropout_comes_from_the_seed_and_leaves_the_global_stream_alone(make_iql, make_batch):
    encoder = {"type": "vector", "hidden_units": [16], "dropout_rate": 0.5}
    first, second, third = (make_iql(actor_encoder_factory=encoder, seed=s) for s in (1, 1, 2))
    batch = make_batch(first)
    torch.manual_seed(0)
    one = [first.update(batch) for _ in range(3)]
    torch.manual_seed(123)
    state = torch.get_rng_state()
    two = [second.update(batch) for _ in range(3)]
    assert torch.equal(state, torch.get_rng_state())
    assert one == two
    assert one != [third.update(batch) for _ in range(3)]


# --- ensembles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_critics", [1, 2, 5, 100])
def test_stacked_critics_equal_a_loop(num_critics, make_iql, make_batch):
    encoder = {"type": "vector", "hidden_units": [16, 16], "use_layer_norm": True}
    learnable = make_iql(n_critics=num_critics, critic_encoder_factory=encoder)
    assert isinstance(learnable.critics, StackedCritics)
    members = unstacked(learnable, encoder)
    batch = make_batch(learnable, 32)
    observations = torch.from_numpy(batch["observations"])
    actions = torch.from_numpy(batch["actions"])
    stacked = learnable.critics(observations, actions)
    looped = CriticList(members)(observations, actions)
    assert stacked.shape == (num_critics, 32)
    assert (stacked - looped).abs().max() <= 1e-6


def unstacked(learnable, encoder_settings):
    """Takes the stacked critics apart into members."""
    from rlreg.components import VectorEncoder
    from rlreg_iql.networks import Critic

    factory, members = VectorEncoder(**encoder_settings), []
    state = learnable.critics.state_dict()
    for index in range(learnable.config.n_critics):
        encoder = factory.create_with_action((4,), 2)
        member = Critic(encoder, encoder.output_size)
        own = {
            name.replace("encoder.", "encoder.layers.", 1): value[index]
            for name, value in state.items()
        }
        member.load_state_dict(own)
        members.append(member)
    return members


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_training_stacked_critics_equals_training_a_loop(rule, make_iql, make_batch):
    stacked = make_iql(n_critics=3, update_rule=rule)
    looped = make_iql(n_critics=3, update_rule=rule)
    settings = {"type": "vector", "hidden_units": [16, 16]}
    looped.critics = CriticList(unstacked(stacked, settings))
    looped.target_critics = copy.deepcopy(looped.critics).requires_grad_(False)
    looped._make_optimizers()
    looped._learner = looped._make_learner()
    for step in range(10):
        batch = make_batch(stacked, seed=step)
        one, two = stacked.update(batch), looped.update(batch)
        for name, value in one.items():
            assert value == pytest.approx(two[name], rel=1e-5, abs=1e-6), name
    rejoined = join_critics(list(looped.critics.members))
    for name, value in stacked.critics.state_dict().items():
        assert (value - rejoined.state_dict()[name]).abs().max() <= 1e-6


@pytest.mark.parametrize(
    "encoder",
    [
        {"type": "simba", "feature_size": 8, "hidden_size": 16},
        {"type": "vector", "hidden_units": [8], "use_batch_norm": True},
    ],
    ids=["simba", "batch_norm"],
)
def test_encoders_that_cannot_be_stacked_are_looped(encoder, make_iql, make_batch):
    learnable = make_iql(n_critics=3, critic_encoder_factory=encoder)
    assert isinstance(learnable.critics, CriticList)
    batch = make_batch(learnable)
    learnable.update(batch)
    values = learnable.predict_value(batch["observations"], batch["actions"])
    assert values.shape == (12,)


def test_members_of_an_ensemble_start_apart(make_iql):
    weight = make_iql(n_critics=3).critics.state_dict()["encoder.0.weight"]
    assert not torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[1], weight[2])


# --- learning rates -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_the_value_function_may_have_a_rate_of_its_own(rule, make_iql, make_batch):
    slow = make_iql(update_rule=rule, critic_learning_rate=1e-3)
    fast = make_iql(update_rule=rule, critic_learning_rate=1e-3, value_learning_rate=1e-2)
    old = {name: value.clone() for name, value in slow.value.state_dict().items()}
    batch = make_batch(slow)
    slow.update(batch)
    fast.update(batch)
    for name, start in old.items():
        ratio = (fast.value.state_dict()[name] - start) / (slow.value.state_dict()[name] - start)
        assert float(ratio.nanmedian()) == pytest.approx(10, rel=1e-2)
    if rule == "d3rlpy":
        for name, value in slow.critics.state_dict().items():
            assert torch.equal(value, fast.critics.state_dict()[name])


def test_the_paper_rule_takes_another_optimizer_for_the_value(make_iql):
    learnable = make_iql(update_rule="paper", value_optim_factory={"type": "sgd"})
    assert isinstance(learnable.value_optim, torch.optim.SGD)
    assert isinstance(learnable.critic_optim, torch.optim.Adam)
    assert make_iql(update_rule="d3rlpy").value_optim is None


def test_a_schedule_over_the_run_needs_its_length_and_changes_nothing_without(
    make_iql, make_batch, snapshot
):
    take, assert_same = snapshot
    optimizer = {"type": "adam", "lr_scheduler_factory": {"type": "cosine_annealing"}}
    learnable = make_iql(actor_optim_factory=optimizer)
    before = take(learnable)
    with pytest.raises(ConfigError, match="set_total_steps"):
        learnable.update(make_batch(learnable))
    assert_same(before, take(learnable))
    learnable.set_total_steps(10)
    learnable.update(make_batch(learnable))


# --- non-finite numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("warm", [0, 2], ids=["first update", "later update"])
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations"])
def test_a_bad_batch_is_refused_with_its_rows(rule, warm, name, make_iql, make_batch, snapshot):
    take, assert_same = snapshot
    learnable = make_iql(update_rule=rule)
    batch = make_batch(learnable)
    for _ in range(warm):
        learnable.update(batch)
    before = take(learnable)
    bad = {key: value.copy() for key, value in batch.items()}
    bad[name][3] = np.nan
    with pytest.raises(NonFiniteError, match=f"{name} is not finite in 1 of 12 rows \\(3\\)"):
        learnable.update(bad)
    assert_same(before, take(learnable))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("warm", [0, 2], ids=["first update", "later update"])
@pytest.mark.parametrize(
    ("network", "message", "value"),
    [
        ("critics", "loss", math.nan),
        ("critics", "loss", math.inf),
        ("value", "loss", math.nan),
        ("value", "loss", -math.inf),
        ("policy", "actor_loss", math.nan),  # of an infinite one tanh makes a finite mean
        ("target_critics", "loss", math.nan),
    ],
)
def test_a_bad_loss_undoes_the_whole_update(
    rule, warm, network, message, value, make_iql, make_batch, snapshot
):
    """A poisoned last layer shows up in one loss only, after earlier steps were taken."""
    take, _ = snapshot
    schedule = {"type": "adam", "lr_scheduler_factory": {"type": "warmup", "warmup_steps": 9}}
    learnable = make_iql(
        update_rule=rule, critic_optim_factory=schedule, actor_optim_factory=schedule
    )
    batch = make_batch(learnable)
    for _ in range(warm):
        learnable.update(batch)
    with torch.no_grad():
        list(getattr(learnable, network).parameters())[-1].fill_(value)
    for optimizer in learnable.optimizers().values():
        optimizer.prepare()  # makes the schedules, which changes no number
    before = take(learnable)
    with pytest.raises(NonFiniteError, match=f"update {warm + 1}: .*{message}.*undone"):
        learnable.update(batch)
    assert_same_but_nan(before, take(learnable))
    assert learnable.grad_step == warm


def assert_same_but_nan(before, after):
    """Like assert_same, but NaN equals NaN: the poison itself is still there."""
    if isinstance(before, dict):
        assert before.keys() == after.keys()
        for key, value in before.items():
            assert_same_but_nan(value, after[key])
    elif isinstance(before, list):
        for one, two in zip(before, after, strict=True):
            assert_same_but_nan(one, two)
    elif isinstance(before, torch.Tensor):
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)
    else:
        assert before == after


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("network", ["critics", "value", "policy"])
@pytest.mark.parametrize("value", [math.nan, 1e25], ids=["nan", "overflow"])
def test_a_bad_gradient_undoes_the_whole_update(
    rule, network, value, make_iql, make_batch, snapshot
):
    take, assert_same = snapshot
    learnable = make_iql(update_rule=rule)
    batch = make_batch(learnable)
    learnable.update(batch)
    before = take(learnable)
    parameter = next(getattr(learnable, network).parameters())
    hook = parameter.register_hook(lambda gradient: torch.full_like(gradient, value))
    with pytest.raises(NonFiniteError, match="gradient of shape"):
        learnable.update(batch)
    hook.remove()
    assert_same(before, take(learnable))
    healthy = make_iql(update_rule=rule)
    healthy.update(batch)
    assert learnable.update(batch) == healthy.update(batch)


def test_running_statistics_are_undone_too(make_iql, make_batch, snapshot):
    take, assert_same = snapshot
    encoder = {"type": "vector", "hidden_units": [8], "use_batch_norm": True}
    learnable = make_iql(**{f"{n}_encoder_factory": encoder for n in ("actor", "critic", "value")})
    batch = make_batch(learnable)
    learnable.update(batch)
    before = take(learnable)
    hook = learnable.policy.mean.weight.register_hook(lambda g: g * math.nan)
    with pytest.raises(NonFiniteError):
        learnable.update(batch)
    hook.remove()
    assert_same(before, take(learnable))


def test_data_let_in_unchecked_is_named_by_row(make_iql, make_batch):
    learnable = make_iql()
    raw = make_batch(learnable)
    batch = learnable.prepare_batch(raw)
    batch.rewards[5] = math.nan
    with pytest.raises(NonFiniteError, match=r"rewards are not finite in rows \[5\]"):
        learnable.update(batch)


def test_a_batch_of_one_is_refused_where_batch_norm_would_fail(make_iql, make_batch):
    encoder = {"type": "vector", "hidden_units": [8], "use_batch_norm": True}
    learnable = make_iql(actor_encoder_factory=encoder)
    with pytest.raises(ConfigError, match="at least 2"):
        learnable.update(make_batch(learnable, 1))
    make_iql().update(make_batch(learnable, 1))


# --- metrics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_metrics_have_d3rlpys_names_and_are_tensors_inside_the_loop(rule, make_iql, make_batch):
    learnable = make_iql(update_rule=rule)
    raw = make_batch(learnable)
    metrics = learnable.update(raw)
    assert {"critic_loss", "q_loss", "v_loss", "actor_loss"} <= metrics.keys()
    assert all(type(value) is float for value in metrics.values())
    inside = learnable.update(learnable.prepare_batch(raw))
    assert inside.keys() == metrics.keys()
    assert all(value.ndim == 0 and not value.requires_grad for value in inside.values())


def test_diagnostics_say_what_their_names_say(make_iql, make_batch):
    learnable = make_iql(update_rule="paper", max_weight=1e-9)
    batch = make_batch(learnable)
    assert learnable.update(batch)["diagnostics/weight_at_max"] == 1
    assert learnable.update(batch)["diagnostics/log_std_at_floor"] == 0
    with torch.no_grad():
        learnable.policy.log_std[0, 0] = -9.0
    assert learnable.update(batch)["diagnostics/log_std_at_floor"] == 0.5
    with torch.no_grad():
        q = learnable.critics(*(torch.from_numpy(batch[n]) for n in ("observations", "actions")))
        v = learnable.value(torch.from_numpy(batch["observations"]))
    metrics = learnable.update(batch)
    assert metrics["diagnostics/q_mean"] == pytest.approx(float(q.mean()), rel=1e-4)
    assert metrics["diagnostics/v_mean"] == pytest.approx(float(v.mean()), rel=1e-4)


def test_the_batch_is_not_written_to(make_iql, make_batch):
    learnable = make_iql(update_rule="paper")
    raw = make_batch(learnable)
    raw["actions"][:] = 1.0  # the paper's rule clips these
    copies = {name: value.copy() for name, value in raw.items()}
    batch = learnable.prepare_batch(raw)
    learnable.update(batch)
    assert isinstance(batch, Batch)
    for name, value in copies.items():
        assert np.array_equal(raw[name], value)
        assert np.array_equal(batch[name].numpy().reshape(value.shape), value)
