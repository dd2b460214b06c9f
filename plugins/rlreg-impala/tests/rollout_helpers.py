"""Environments whose truth is known row by row, a policy of a few lines, and how to compare."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlreg_impala.rollouts import EngineSpec

# So that the processes of the tests need not find the test modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEED = np.random.SeedSequence(7)
LENGTHS = (3, 1, 1, 5, 2, 4)
ENDINGS = ("terminated", "truncated", "truncated", "both", "terminated", "truncated")


# ------------------------------------------------------------------------------------- policies


@dataclass(frozen=True)
class Codec:
    space: spaces.Space
    width: int = 1

    @property
    def dtype(self):
        return np.dtype(np.int64 if isinstance(self.space, spaces.Discrete) else np.float32)

    def to_env(self, actions):
        if isinstance(self.space, spaces.Discrete):
            return actions[:, 0]
        return actions.reshape(len(actions), *self.space.shape)


@dataclass
class TinyPolicy:
    """Logits are linear in the observation; the state counts the steps of the episode."""

    num_inputs: int
    num_actions: int
    weights: np.ndarray = field(init=False)

    def __post_init__(self):
        self.weights = np.zeros(self.num_weights, dtype=np.float32)

    @property
    def num_weights(self):
        return self.num_inputs * self.num_actions

    def load_flat(self, weights):
        self.weights[...] = weights

    def initial_state(self, n):
        return np.zeros((n, 2), dtype=np.float32)

    def act(self, observations, state, rng):
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        logits = flat @ self.weights.reshape(self.num_inputs, self.num_actions)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        actions = np.argmax(log_probs + rng.gumbel(size=log_probs.shape), axis=1)
        chosen = log_probs[np.arange(len(actions)), actions].astype(np.float32)
        return actions[:, None], chosen, state + np.array([1, 0], dtype=np.float32)


@dataclass(frozen=True)
class TinySpec:
    observation_space: spaces.Space
    action_space: spaces.Space
    num_inputs: int

    @property
    def codec(self):
        return Codec(self.action_space)

    def make(self):
        return TinyPolicy(self.num_inputs, int(getattr(self.action_space, "n", 2)))


def tiny_spec(env):
    space = getattr(env, "single_observation_space", env.observation_space)
    actions = getattr(env, "single_action_space", env.action_space)
    return TinySpec(space, actions, int(np.prod(space.shape)))


def zero_weights(spec):
    return np.zeros(spec.make().num_weights, dtype=np.float32)


def weights_of(spec, version):
    """Weights that tell one version from another."""
    rows = np.random.default_rng(version).normal(0, 0.3, (spec.num_inputs, 2))
    rows[2:] = 0  # the third input of a counting environment is a large number
    return rows.astype(np.float32).ravel()[: spec.make().num_weights]


# --------------------------------------------------------------------------------- environments

COUNTING_SPACE = spaces.Box(0, 1e6, (3,), np.float32)
"""Episode, step within it, and a number of the environment's own from its first seed."""


class CountingEnv(gym.Env):
    """Episodes of known lengths and endings; the reward tells the row it belongs to."""

    observation_space = COUNTING_SPACE
    action_space = spaces.Discrete(2)

    def __init__(self, lengths=LENGTHS, endings=ENDINGS):
        self.lengths, self.endings = lengths, endings
        self.episode, self.now, self.own = -1, 0, 0.0

    def _observation(self):
        return np.array([self.episode, self.now, self.own], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.episode < 0:
            self.own = float(self.np_random.integers(1, 1_000_000))
        self.episode, self.now = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        self.now += 1
        reward = 100.0 * self.episode + self.now
        at_end = self.now == self.lengths[self.episode % len(self.lengths)]
        ending = self.endings[self.episode % len(self.endings)] if at_end else ""
        info = {"done": True} if ending == "neither" else {}
        return (
            self._observation(),
            reward,
            ending in ("terminated", "both"),
            ending in ("truncated", "both"),
            info,
        )


class BufferEnv(CountingEnv):
    """Gives out one buffer again and again, as many emulators do."""

    def _observation(self):
        self._buffer = getattr(self, "_buffer", np.zeros(3, dtype=np.float32))
        self._buffer[...] = (self.episode, self.now, self.own)
        return self._buffer


def truth(count, lengths=LENGTHS, endings=ENDINGS):
    """The first `count` transitions: (episode, step, reward, terminated, truncated, next step)."""
    rows, episode, now = [], 0, 0
    while len(rows) < count:
        length, ending = lengths[episode % len(lengths)], endings[episode % len(endings)]
        at_end = now + 1 == length
        terminated = at_end and ending in ("terminated", "both")
        truncated = at_end and ending in ("truncated", "neither")
        rows.append((episode, now, 100.0 * episode + now + 1, terminated, truncated, now + 1))
        episode, now = (episode + 1, 0) if at_end else (episode, now + 1)
    return rows


class NativeCounting(VectorEnv):
    """A vector environment without sub-environments, NEXT_STEP, one number as seed."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = CountingEnv.observation_space
        self.single_action_space = CountingEnv.action_space
        self.observation_space = gym.vector.utils.batch_space(COUNTING_SPACE, num_envs)
        self.action_space = gym.vector.utils.batch_space(CountingEnv.action_space, num_envs)
        self._envs = [CountingEnv() for _ in range(num_envs)]
        self._done = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._done[...] = False
        seeds = [int(self.np_random.integers(2**31)) for _ in self._envs]
        return np.stack(
            [env.reset(seed=s)[0] for env, s in zip(self._envs, seeds, strict=True)]
        ), {}

    def step(self, actions):
        results = [
            (env.reset()[0], -5.0, False, False, {}) if done else env.step(action)
            for env, action, done in zip(self._envs, actions, self._done, strict=True)
        ]
        rewards, terminated, truncated = (np.array([r[k] for r in results]) for k in (1, 2, 3))
        self._done = terminated | truncated
        return np.stack([r[0] for r in results]), rewards, terminated, truncated, {}


def sync(mode, num_envs, env=CountingEnv, copy=True):
    def make():
        return SyncVectorEnv([env] * num_envs, autoreset_mode=mode, copy=copy)

    return make


FACTORIES = {
    "separate": lambda n: CountingEnv,
    "separate_one_buffer": lambda n: BufferEnv,
    "next_step": lambda n: sync(AutoresetMode.NEXT_STEP, n),
    "same_step": lambda n: sync(AutoresetMode.SAME_STEP, n),
    "disabled": lambda n: sync(AutoresetMode.DISABLED, n),
    "next_step_no_copy": lambda n: sync(AutoresetMode.NEXT_STEP, n, BufferEnv, copy=False),
    "disabled_no_copy": lambda n: sync(AutoresetMode.DISABLED, n, BufferEnv, copy=False),
    "native": lambda n: lambda: NativeCounting(n),
}


class TroubleEnv(CountingEnv):
    """Does something bad at one step, once if `flag` is a path (it is made then)."""

    def __init__(self, trouble, at=37, flag=None):
        super().__init__(lengths=(10,), endings=("truncated",))
        self.trouble, self.at, self.flag, self.steps = trouble, at, flag, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and not (self.flag and Path(self.flag).exists()):
            if self.flag:
                Path(self.flag).touch()
            result = self.trouble()
            if result is not None:
                return result
        return super().step(action)


def raise_value_error():
    raise ValueError("the floor is lava")


def raise_memory_error():
    raise MemoryError


def exit_at_once():
    os._exit(3)


def sleep_for_ever():
    time.sleep(3600)


# ------------------------------------------------------------------------------------- fragments

ARRAYS = (
    "observations",
    "actions",
    "log_probs",
    "rewards",
    "terminations",
    "truncations",
    "resets",
    "starts",
    "core_state",
    "final_rows",
    "final_observations",
    "episode_returns",
    "episode_lengths",
)


def copied(fragment):
    """What a fragment says, in memory of its own."""
    result = {name: getattr(fragment, name).copy() for name in ARRAYS}
    return result | {n: getattr(fragment, n) for n in ("actor_id", "version", "sequence")}


def assert_same(left, right):
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def finals_of(fragment):
    return zip(fragment["final_rows"], fragment["final_observations"], strict=True)


def transitions(fragments, env):
    """The real transitions of one environment, with their true next observations."""
    rows = []
    for fragment in fragments:
        finals = {
            (int(t), int(n)): observation
            for (t, n), observation in zip(
                fragment["final_rows"], fragment["final_observations"], strict=True
            )
        }
        for t in range(len(fragment["rewards"])):
            if fragment["resets"][t, env]:
                continue
            now = fragment["observations"][t, env]
            after = finals.get((t, env), fragment["observations"][t + 1, env])
            flags = fragment["terminations"][t, env], fragment["truncations"][t, env]
            # After a termination nobody looks at the next observation.
            next_step = now[1] + 1 if flags[0] else after[1]
            same_episode = flags[0] or after[0] == now[0]
            assert same_episode, f"row {t} leads into another episode"
            rows.append((now[0], now[1], float(fragment["rewards"][t, env]), *flags, next_step))
    return rows


def collect_all(engine, spec, count, *, n=1, weights=None, first_version=0):
    """Runs an engine as a learner does and returns copies of the fragments."""
    if first_version == 0:
        engine.publish(0, weights_of(spec, 0) if weights is None else weights)
    result, version = [], first_version
    while len(result) < count:
        fragments = engine.collect(n, timeout=120)
        assert len(fragments) == n
        result.extend(copied(fragment) for fragment in fragments)
        version += 1
        engine.publish(version, weights_of(spec, version) if weights is None else weights)
        engine.release(fragments)
    return result


def small_spec(**changes):
    return EngineSpec(**{"num_envs": 3, "unroll_length": 5, "num_slots": 2} | changes)
