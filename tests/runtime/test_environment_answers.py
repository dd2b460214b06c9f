"""What a step gives is read by one rule, and what is none is said with its place."""

import math

import gymnasium as gym
import numpy as np
import pytest

import rlreg
from rlreg.errors import EnvironmentSpecError
from rlreg.runtime.env_answers import flag_of, reward_of


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.array(2.0), np.array([2.0]), [2]])
def test_one_number_is_a_reward(value):
    assert reward_of(value, "here") == 2.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "reward = None; expected one number"),
        ("2", "reward = '2'; expected one number"),
        ([1, 2], r"reward = \[1, 2\]; expected one number"),
        ([[1.0]], "expected one number"),
        (1j, "expected one number"),
        (math.nan, "reward = nan"),
        (-math.inf, "reward = -inf"),
    ],
)
def test_anything_else_is_refused_with_its_place(value, said):
    with pytest.raises(EnvironmentSpecError, match=f"^here: the environment gave .*{said}"):
        reward_of(value, "here")


def test_flags_are_no_truth_values():
    assert flag_of("terminated", np.array([True]), "here") is True
    with pytest.raises(EnvironmentSpecError, match=r"here: .* truncated = 'no'"):
        flag_of("truncated", "no", "here")


class Odd(gym.Wrapper):
    """Replaces what the third step gives."""

    def __init__(self, env, answer):
        super().__init__(env)
        self.answer, self.num_steps = answer, 0

    def step(self, action):
        observation, *rest = self.env.step(action)
        self.num_steps += 1
        return self.answer(observation, *rest) if self.num_steps == 3 else (observation, *rest)


def reward(value):
    return lambda observation, _, *rest: (observation, value, *rest)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reward(math.nan), "evaluation, episode 0, step 3: the environment gave reward = nan"),
        (reward([1, 2]), "evaluation, episode 0, step 3: the environment gave reward"),
        (lambda *parts: parts[:4], "step 3: the environment gave tuple; expected observation, rew"),
        (lambda *_: None, "step 3: the environment gave NoneType; expected observation, reward"),
    ],
)
def test_an_evaluation_says_what_was_given_where(answer, said):
    learnable = rlreg.create("impala", device="cpu", seed=0)
    learnable.build_with_env(gym.make("CartPole-v1"))
    with pytest.raises(EnvironmentSpecError, match=said):
        learnable.evaluate(lambda: Odd(gym.make("CartPole-v1"), answer), n_episodes=1)


def test_an_evaluation_takes_rewards_of_shape_1():
    learnable = rlreg.create("impala", device="cpu", seed=0)
    learnable.build_with_env(gym.make("CartPole-v1"))
    make = lambda: Odd(gym.make("CartPole-v1"), reward(np.array([1.0])))  # noqa: E731 - a factory
    expected = learnable.evaluate("CartPole-v1", n_episodes=1).mean_return
    assert learnable.evaluate(make, n_episodes=1).mean_return == expected
