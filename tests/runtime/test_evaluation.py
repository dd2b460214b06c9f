"""Evaluation: exactly the episodes asked for, the same whoever plays them how."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import rlreg
from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.runtime.data.dataset import References
from rlreg.runtime.environments import env_factory, make_env
from rlreg.runtime.evaluation import evaluate, evaluate_behaviour, evaluate_random
from rlreg.runtime.references import find_references
from rlreg.runtime.state import flatten_state, learnable_state


class Counter(gymnasium.Env):
    """Episode length depends on the seed; the reward is 1 a step; tells its success."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, success_from: int = 5) -> None:
        self.success_from = success_from

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_given = seed
        self.left = 1 + seed % 7
        self.closed = False
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        info = {"success": self.seed_given % 7 >= self.success_from}
        return np.ones(1, np.float32), 1.0, self.left == 0, False, info


def still(observations):
    return np.zeros((len(observations), 1), np.float32)


def test_each_episode_counts_once_however_short():
    result = evaluate(still, Counter, n_episodes=37, seed=100)
    assert result.returns == tuple(float(1 + (100 + i) % 7) for i in range(37))
    assert result.lengths == tuple(1 + (100 + i) % 7 for i in range(37))
    assert result.n_episodes == 37
    assert result.mean_return == pytest.approx(np.mean(result.returns))
    assert result.std_return == pytest.approx(np.std(result.returns))


def test_success_is_the_share_of_episodes():
    result = evaluate(still, Counter, n_episodes=7, seed=0)
    assert result.success_rate == pytest.approx(2 / 7)


def test_an_environment_that_reports_no_success_has_no_rate():
    assert evaluate(still, "Pendulum-v1", n_episodes=1).success_rate is None


@pytest.fixture
def wide(tiny, arrays_data):
    """A network wide enough for the matrix library to choose between kernels."""
    encoder = {"type": "vector", "hidden_units": [256, 256]}
    learnable = rlreg.create("tiny_bc", device="cpu", encoder_factory=encoder)
    learnable.build_with_dataset(arrays_data)
    return learnable


@pytest.mark.parametrize("deterministic", [True, False])
def test_results_do_not_depend_on_how_many_copies_play(wide, deterministic):
    results = [
        evaluate(wide, "Pendulum-v1", 18, 5, deterministic=deterministic, num_copies=copies)
        for copies in (1, 3, 16)
    ]
    with gymnasium.make("Pendulum-v1") as env:
        results.append(evaluate(wide, env, 18, 5, deterministic=deterministic))
    assert len({result.returns for result in results}) == 1
    fewer = evaluate(wide, "Pendulum-v1", 4, 5, deterministic=deterministic)
    assert fewer.returns == results[0].returns[:4]


def test_random_play_does_not_depend_on_how_many_copies_play():
    one, many = (evaluate_random("Pendulum-v1", 18, 3, num_copies=n) for n in (1, 16))
    assert one.returns == many.returns
    assert len(set(one.returns)) == 18


def test_sampled_and_best_actions_differ(wide):
    sampled = evaluate(wide, "Pendulum-v1", 2, deterministic=False)
    assert sampled.returns != evaluate(wide, "Pendulum-v1", 2).returns


def test_training_streams_stand_where_they_stood(make_tiny):
    learnable, twin = make_tiny(10), make_tiny(10)
    evaluate(learnable, "Pendulum-v1", 2, deterministic=False)
    learnable.evaluate("Pendulum-v1", n_episodes=1)
    (_, tensors), (_, others) = (flatten_state(learnable_state(x)) for x in (learnable, twin))
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_an_environment_that_was_given_stays_open_and_made_ones_are_closed():
    closed = []

    class Closing(Counter):
        def close(self):
            closed.append(self)

    env = Closing()
    evaluate(still, env, 3)
    assert not closed
    evaluate(still, Closing, 3)
    assert len(closed) == 3


def test_structured_observations_are_stacked_by_part():
    space = gymnasium.spaces.Dict(
        {
            "a": gymnasium.spaces.Box(0, 1, (2,)),
            "b": gymnasium.spaces.Tuple([Counter.observation_space]),
        }
    )

    class Structured(Counter):
        observation_space = space

        def reset(self, **kwargs):
            super().reset(**kwargs)
            return {"a": np.zeros(2), "b": (np.zeros(1),)}, {}

        def step(self, action):
            _, *rest = super().step(action)
            return {"a": np.zeros(2), "b": (np.zeros(1),)}, *rest

    shapes = []

    def policy(observations):
        shapes.append((observations["a"].shape, observations["b"][0].shape))
        return still(observations["a"])

    evaluate(policy, Structured, 2)
    assert set(shapes) == {((16, 2), (16, 1))}


def test_another_observation_space_is_refused(make_tiny):
    with pytest.raises(EnvironmentSpecError, match="built for other spaces"):
        evaluate(make_tiny(0), "CartPole-v1", 1)


def test_numbers_of_episodes_below_one_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(still, Counter, 0)


def test_rewards_that_are_not_finite_are_refused():
    class Bad(Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float("nan"), *rest

    with pytest.raises(EnvironmentSpecError, match=r"episode 0, step 1: .* reward = nan"):
        evaluate(still, Bad, 1)


# --- baselines and scores -----------------------------------------------------------------------


def test_behaviour_is_the_mean_return_of_the_episodes(arrays_data):
    result = evaluate_behaviour(arrays_data)
    assert result.mean_return == pytest.approx(arrays_data.rewards.sum() / 6, abs=1e-4)
    assert result.n_episodes == 6


def test_scores_are_percent_and_never_made_up():
    references = References(ref_min=1.0, ref_max=5.0)
    scored = evaluate(still, Counter, 7, 0, references=references)
    assert scored.normalized_score == pytest.approx(100 * (4 - 1) / (5 - 1))
    assert evaluate(still, Counter, 7, 0).normalized_score is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hopper-medium-v2", (-20.272305, 3234.3)),
        ("hopper_medium-v2", (-20.272305, 3234.3)),
        ("walker2d-medium-expert-v0", (1.629008, 4592.3)),
        ("antmaze-large-diverse-v2", (0.0, 1.0)),
        ("maze2d-umaze-v1", (23.85, 161.86)),
        ("maze2d-large-dense-v1", (30.569, 303.486)),
        ("pen-human-v1", (96.262799, 3076.8331)),
        ("kitchen-mixed-v0", (0.0, 4.0)),
    ],
)
def test_d4rl_tasks_have_references(name, expected):
    references = find_references(name)
    assert (references.ref_min, references.ref_max) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name",
    ["Hopper-v5", "HalfCheetah-v4", "mujoco/hopper/medium-v0", "D4RL/pen/human-v2", "ant-v2", ""],
)
def test_other_tasks_have_none(name):
    assert find_references(name) is None


# --- environments -------------------------------------------------------------------------------


def test_environment_settings_make_arguments_wrappers_and_registration():
    env = make_env(
        {
            "id": "Pendulum-v1",
            "kwargs": {"g": 3.0},
            "wrappers": [
                {"id": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 3}}
            ],
        }
    )
    assert env.unwrapped.g == 3.0
    result = evaluate(
        still,
        {
            "id": "Pendulum-v1",
            "wrappers": [
                {"id": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 3}}
            ],
        },
        2,
    )
    assert result.lengths == (3, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("Pendulm-v1", "did you mean 'Pendulum-v1'"),
        ("Nowhere/Thing-v0", "unknown environment"),
        ("Pendulum-v99", "Pendulum"),
        ("no_such_module:Thing-v0", "cannot be made"),
        ({"id": "Pendulum-v1", "kwargs": {"nonsense": 1}}, "nonsense"),
        (
            {"id": "Pendulum-v1", "wrappers": [{"id": "gymnasium.wrappers:None_"}]},
            "cannot be imported",
        ),
        ({"id": "Pendulum-v1", "wrappers": [{"id": "gymnasium.wrappers"}]}, "module:name"),
        ({"id": "Pendulum-v1", "wrappers": [{"id": "gymnasium.wrappers:TimeLimit"}]}, "TimeLimit"),
        ({"id": "Nowhere-v0", "register": "nowhere:register"}, "cannot be imported"),
        (3, "expected an id, settings or a factory"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_environments_that_cannot_be_made_say_why(settings, message):
    with pytest.raises(EnvironmentSpecError, match=message):
        make_env(settings)


def test_copies_of_an_environment_cannot_be_made_from_itself():
    with pytest.raises(EnvironmentSpecError, match="cannot make copies"):
        env_factory(Counter())


def test_an_environment_of_a_package_that_is_missing_says_what_to_install(monkeypatch):
    from rlreg.runtime import environments

    monkeypatch.setattr(environments, "_imported", lambda _: None)
    with pytest.raises(EnvironmentSpecError, match=r"comes with shimmy.*pip install 'shimmy"):
        make_env("dm_control/cheetah-run-v0")


def test_an_environment_that_a_package_registers_on_import_is_found(monkeypatch):
    from rlreg.runtime import environments

    module = type(
        "Module", (), {"register": staticmethod(lambda: gymnasium.register("Far/One-v0", Counter))}
    )
    monkeypatch.setattr(environments, "_PACKAGES", (("Far/", "far:register", "far"),))
    monkeypatch.setattr(environments, "_imported", lambda _: module)
    with make_env("Far/One-v0") as env:
        assert isinstance(env.unwrapped, Counter)
    del gymnasium.registry["Far/One-v0"]
