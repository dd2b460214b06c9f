"""IMPALA as users meet it: create, train, predict, save, go on."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_helpers import SEQUENTIAL, SMALL, Aim, OneState, Recall

import rlreg
from rlreg.errors import CheckpointError, ConfigError, EnvironmentSpecError, NonFiniteError

CARTPOLE = "CartPole-v1"


def create(seed=0, **settings):
    small = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    return rlreg.create("impala", device="cpu", seed=seed, **{**small, **settings})


def trained(env=CARTPOLE, seed=0, n_epochs=2, **settings):
    made = create(seed, **settings)
    made.train(env, n_epochs=n_epochs, epoch_length=3, engine=SEQUENTIAL)
    return made


def test_training_counts_transitions_or_updates():
    made = create()
    rows = made.train(CARTPOLE, n_steps=200, engine=SEQUENTIAL)
    assert made.env_steps == 256  # four batches of 64, the last one passes 200
    assert rows[-1][0] == 1
    assert made.grad_step == 4
    made.train(CARTPOLE, n_epochs=2, epoch_length=3, engine=SEQUENTIAL)
    assert (made.grad_step, made.epoch) == (10, 3)
    assert made.learner.learning_rate == 0
    rates = [
        row["schedule/learning_rate"]
        for _, row in made.train(CARTPOLE, n_steps=64, engine=SEQUENTIAL)
    ]
    assert rates[0] > 0  # a new run has schedules of its own
    for name in ("loss/policy", "rows/sampled", "time/backprop_s", "maze/policy_loss"):
        assert name in rows[0][1]


@pytest.mark.parametrize(
    "lengths",
    [{}, {"n_steps": 10, "n_epochs": 1}, {"n_steps": 0}, {"n_epochs": 1, "epoch_length": 0}],
)
def test_lengths_that_contradict_each_other_are_refused(lengths):
    with pytest.raises(ConfigError, match=r"n_steps|epoch_length"):
        create().train(CARTPOLE, engine=SEQUENTIAL, **lengths)


def test_an_iterator_that_is_closed_ends_the_actors():
    made = create()
    epochs = made.trainer(CARTPOLE, n_epochs=100, epoch_length=2, engine=SEQUENTIAL)
    next(epochs)
    assert made.session.is_started
    epochs.close()
    assert not made.session.is_started


@pytest.mark.parametrize("kind", ["id", "settings", "env", "factory", "vector", "lambda"])
def test_an_environment_may_be_given_in_any_form(kind):
    env = {
        "id": CARTPOLE,
        "settings": {"id": CARTPOLE, "kwargs": {"sutton_barto_reward": True}},
        "env": gym.make(CARTPOLE),
        "factory": OneState,
        "vector": lambda: gym.make_vec(CARTPOLE, num_envs=4, vectorization_mode="sync"),
        "lambda": lambda: gym.make(CARTPOLE),
    }[kind]
    made = create()
    made.train(env, n_epochs=1, epoch_length=2, engine=SEQUENTIAL)
    assert made.grad_step == 2


def test_an_unknown_environment_has_near_names():
    with pytest.raises(EnvironmentSpecError, match="CartPole-v1"):
        create().train("CartPoel-v1", n_steps=10, engine=SEQUENTIAL)


def test_another_environment_is_refused_by_what_differs():
    made = trained()
    with pytest.raises(EnvironmentSpecError, match="other spaces: observation"):
        made.train("Acrobot-v1", n_steps=10, engine=SEQUENTIAL)


@pytest.mark.parametrize(
    ("env", "single"), [(CARTPOLE, spaces.Discrete(2)), ("Pendulum-v1", None), (Aim, None)]
)
def test_predictions_have_the_form_of_the_action_space(env, single):
    made = trained(env, n_epochs=1)
    space = made.spaces.action_space
    observations = [made.spaces.observation_space.sample() for _ in range(3)]
    assert space.contains(made.predict(observations[0]))
    assert space.contains(made.sample_action(observations[0]))
    if isinstance(observations[0], dict):
        batch = {key: np.stack([o[key] for o in observations]) for key in observations[0]}
    else:
        batch = np.stack(observations)
    actions = made.predict(batch)
    assert len(actions) == 3
    assert all(space.contains(action) for action in actions)
    assert made.predict_value(batch).shape == (3,)
    assert np.ndim(made.predict_value(observations[0])) == 0


def test_observations_that_are_not_finite_are_refused_with_their_rows():
    made = create()
    made.build(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    observations = np.zeros((4, 2), dtype=np.float32)
    observations[3, 0] = np.nan
    for method in (made.predict, made.sample_action, made.predict_value):
        with pytest.raises(NonFiniteError, match=r"1 of 4 rows \(3\)"):
            method(observations)


def test_predicting_leaves_streams_and_training_alone():
    made = trained()
    before = made.state_dict()["networks"]["model"]["policy.head.linear.weight"].clone()
    state = torch.get_rng_state()
    observations = np.zeros((64, 4), dtype=np.float32)
    drawn = made.sample_action(observations)
    assert 0 < drawn.sum() < 64
    assert (made.sample_action(observations) != drawn).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(before, made.model.policy.head.linear.weight)


def test_evaluation_remembers_within_an_episode_and_not_beyond():
    made = trained(Recall, core="lstm", core_size=8)
    seen = []
    step = made.model.policy.step

    def spy(observations, state):
        seen.append(float(state.abs().sum()))
        return step(observations, state)

    made.model.policy.step = spy
    made.evaluate(Recall, 20)
    # Two rounds of three steps: the memory is empty at the first and full at the others.
    assert [value > 0 for value in seen] == [False, True, True] * 2
    made.predict(np.zeros(2, dtype=np.float32))
    assert seen[-1] == 0


def same_state(ours, theirs):
    from test_trainer import assert_same

    assert_same(ours, theirs)


def test_a_saved_and_loaded_run_goes_on_bit_for_bit(tmp_path):
    def run(learnable, n_epochs):
        return learnable.trainer(CARTPOLE, n_epochs=n_epochs, epoch_length=3, engine=SEQUENTIAL)

    whole = create(seed=5)
    list(run(whole, 6))
    half = create(seed=5)
    epochs = run(half, 6)
    for _ in range(3):
        next(epochs)
    half.save(tmp_path / "half.rlreg")
    epochs.close()
    other = rlreg.load(tmp_path / "half.rlreg", device="cpu")
    assert (other.epoch, other.env_steps) == (half.epoch, half.env_steps)
    list(run(other, 3))
    same_state(whole.model.state_dict(), other.model.state_dict())
    assert other.learner.learning_rate == 0
    assert other.session.ledger.trained == whole.session.ledger.trained == whole.env_steps
    after = create(seed=5)
    list(run(after, 6))
    after.save(tmp_path / "a.rlreg")
    whole.save(tmp_path / "b.rlreg")
    assert (tmp_path / "a.rlreg").read_bytes() == (tmp_path / "b.rlreg").read_bytes()


def test_a_trainer_takes_the_file_of_a_learnable(tmp_path):
    from rlreg_impala.trainer import MultiStepIMPALA

    made = trained()
    made.save(tmp_path / "a.rlreg")
    made.save_model(tmp_path / "b.safetensors")
    for name in ("a.rlreg", "b.safetensors"):
        other = trained(seed=1)
        engine = other.engine
        trainer = MultiStepIMPALA(other.model, engine, None, other.config, env_factory=CARTPOLE)
        trainer.load_state(str(tmp_path / name))
        same_state(made.model.state_dict(), other.model.state_dict())


def test_a_checkpoint_of_another_environment_is_refused(tmp_path):
    made = trained()
    made.save(tmp_path / "a.rlreg")
    other = trained("Acrobot-v1")
    with pytest.raises(CheckpointError, match="spaces"):
        other.load_model(tmp_path / "a.rlreg")


class Far(gym.Env):
    """A number without bounds and one with a lower bound alone; the best are 3 and -2."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(np.float32([-np.inf, -5]), np.float32([np.inf, np.inf]))
    best = np.float32([3, -2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = -float(np.abs(action - self.best).sum())
        return np.zeros(1, np.float32), reward, True, False, {}


def test_actions_without_bounds_are_trained_in_their_own_units(tmp_path):
    made = create(gamma=0.0, entropy_coef=0.0, n_rollout_steps=8, lr=3e-3)
    made.build_with_env(Far())
    assert made.action_scaler is None
    before = made.predict(np.zeros(1, np.float32))
    made.train(Far, n_steps=20_000, engine={**SEQUENTIAL, "num_envs": 16})
    after = made.predict(np.zeros(1, np.float32))
    assert (np.abs(after - Far.best) < 0.5 * np.abs(before - Far.best)).all()
    assert after[0] > 1  # no tanh keeps it in
    made.save(tmp_path / "a.rlreg")
    loaded = rlreg.load(tmp_path / "a.rlreg", device="cpu")
    np.testing.assert_array_equal(loaded.predict(np.zeros(1, np.float32)), after)


def test_an_older_state_with_an_action_scaler_that_nothing_used_is_loaded():
    made = create()
    made.build_with_env(gym.make("Pendulum-v1"))
    state = made.state_dict()
    assert "action_scaler" not in state["scalers"]
    unused = {"minimum": torch.tensor([-2.0]), "maximum": torch.tensor([2.0])}
    made.load_state_dict({**state, "scalers": {"action_scaler": unused}})
    with pytest.raises(CheckpointError, match="unknown scaler 'reward_scaler'"):
        made.load_state_dict({**state, "scalers": {"reward_scaler": unused}})


def test_a_run_by_the_run_loop(tmp_path):
    run = {
        "learnable": {"type": "impala", "actor_encoder_factory": SMALL},
        "env": CARTPOLE,
        "device": "cpu",
        "engine": SEQUENTIAL,
        "train": {"n_steps": 2000},
        "evaluation": {"n_episodes": 4},
    }
    result = rlreg.train(run, out=tmp_path / "run", show_progress=False)
    assert result.status == "finished"
    assert result.summary["steps"] >= 2000
    assert len(result.summary["evaluations"]) == 2
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[-1]["rows/sampled"] == rows[-1]["rows/trained"]
    assert rows[-1]["step"] == result.summary["steps"]
    loaded = rlreg.load(tmp_path / "run" / "last.rlreg", device="cpu")
    assert loaded.env_steps == result.summary["steps"]


@pytest.mark.slow
def test_cartpole_is_learned_on_four_of_five_seeds():
    reached = 0
    for seed in range(5):
        made = rlreg.create("impala", device="cpu", seed=seed)
        epochs = made.trainer(CARTPOLE, n_steps=150_000, engine={"type": "sequential"})
        reached += any(row.get("episode/return_mean", 0) >= 450 for _, row in epochs)
    assert reached >= 4
