"""Fragments written by hand, tiny environments, and a model to learn on them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import rlreg
from rlreg_impala.model import TorchActorCritic
from rlreg_impala.rollouts import Fragment

torch.set_num_threads(1)  # the networks are tiny, and the cores have other work
SEQUENTIAL = {"type": "sequential", "num_envs": 4}
SMALL = {"type": "vector", "hidden_units": [16], "activation": "tanh"}


def config(**settings):
    defaults = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    return rlreg.make_config("impala", **{**defaults, **settings})


def model_for(observation_space, action_space, seed=0, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TorchActorCritic.of(config(**settings), observation_space, action_space)


def fragment(model, steps=4, columns=3, seed=0, **changes):
    """A fragment that the model itself might have acted, with random observations."""
    rng = np.random.default_rng(seed)
    shape = model.plan.shape
    acting = model.policy_spec().make()
    observations = rng.normal(size=(steps + 1, columns, *shape)).astype(np.float32)
    state = acting.initial_state(columns)
    actions = np.empty((steps, columns, model.codec.width), dtype=np.float32)
    log_probs = np.empty((steps, columns), dtype=np.float32)
    starts = changes.get("starts", np.zeros((steps + 1, columns), dtype=bool))
    first = state
    for t in range(steps):
        state = state * ~starts[t][:, None]
        actions[t], log_probs[t], state = acting.act(observations[t], state, rng)
    arrays = {
        "observations": observations,
        "actions": actions,
        "log_probs": log_probs,
        "rewards": rng.normal(size=(steps, columns)).astype(np.float32),
        "terminations": np.zeros((steps, columns), dtype=bool),
        "truncations": np.zeros((steps, columns), dtype=bool),
        "resets": np.zeros((steps, columns), dtype=bool),
        "starts": starts,
        "core_state": first,
        "final_rows": np.zeros((0, 2), dtype=np.int64),
        "final_observations": np.zeros((0, *shape), dtype=np.float32),
        "episode_returns": np.zeros(0),
        "episode_lengths": np.zeros(0, dtype=np.int64),
    }
    numbers = {"actor_id": 0, "version": 0, "sequence": 0}
    return Fragment(**{**arrays, **numbers, **changes})


class OneState(gym.Env):
    """One state, reward 1, a time limit of 10 that is no end: with gamma 0.9 its value is 10."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit=10):
        self.limit, self.steps = limit, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, dtype=np.float32), 1.0, False, self.steps >= self.limit, {}


class RewardAtEnd(gym.Env):
    """Terminates after `length` steps with the only reward; the observation is the step."""

    action_space = spaces.Discrete(2)

    def __init__(self, length=4):
        self.length, self.now = length, 0
        self.observation_space = spaces.Box(0, 1, (length,), np.float32)

    def _see(self):
        seen = np.zeros(self.length, dtype=np.float32)
        seen[min(self.now, self.length - 1)] = 1.0
        return seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._see(), {}

    def step(self, action):
        self.now += 1
        is_over = self.now >= self.length
        return self._see(), float(is_over), is_over, False, {}


class Recall(gym.Env):
    """Shows a bit once; two steps later the action has to be that bit."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bit, self.now = int(self.np_random.integers(2)), 0
        return np.array([2 * self.bit - 1, 0], dtype=np.float32), {}

    def step(self, action):
        self.now += 1
        reward = float(action == self.bit) if self.now == 3 else 0.0
        seen = np.array([0, float(self.now == 2)], dtype=np.float32)
        return seen, reward, self.now == 3, False, {}


class Aim(gym.Env):
    """Two actions at once, a category and a number; the best are (the shown bit, 0.5)."""

    observation_space = spaces.Dict({"bit": spaces.Discrete(2), "noise": spaces.Box(-1, 1, (1,))})
    action_space = spaces.Dict(
        {"choice": spaces.Discrete(2, start=1), "aim": spaces.Box(0, 1, (1,), np.float32)}
    )

    def _see(self):
        self.bit = int(self.np_random.integers(2))
        return {"bit": self.bit, "noise": self.np_random.uniform(-1, 1, 1).astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._see(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = 0.5 * (action["choice"] == self.bit + 1) + 0.5 - abs(float(action["aim"][0]) - 0.5)
        self.now += 1
        return self._see(), reward, self.now >= 8, False, {}
