"""Environments made one by one, which an own loop steps.

It costs less than gymnasium's SyncVectorEnv, and never wastes a row on a reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlreg.errors import RlregError

from .env_group import BadEnvironmentError, EnvGroup, Row, collate, split
from .progress import ENV, Progress
from .streams import Streams


class SeparateEnvs(EnvGroup):
    """Environments made one by one; a finished one is reset in the same step.

    In replayable mode every episode has a seed of its own, so that an environment can be brought
    back by its last seed and its actions since.
    """

    def __init__(
        self, envs: Sequence[gym.Env[Any, Any]], space: Any, streams: Streams, progress: Progress,
        *, can_replay: bool,
    ) -> None:  # fmt: skip
        super().__init__(space, len(envs), streams)
        self.can_replay = can_replay
        self.episodes = [0] * len(envs)
        self._envs = list(envs)
        self._progress = progress
        self._latest: list[Any] = [None] * len(envs)

    def reset(self, out: NDArray[Any], border: int) -> None:
        """Begins a new episode everywhere; each environment is seeded here."""
        for i, env in enumerate(self._envs):
            self._progress[ENV] = i
            self._latest[i], _ = env.reset(seed=self.streams.env_seed(i, self.episodes[i]))
            self.episodes[i] += 1
            self._write(i, out)
        self._write_structured(out)

    def step(self, actions: Any, row: Row) -> bool:
        """Steps one environment after the other; this loop is the hot one of the whole package."""
        progress, latest, shape = self._progress, self._latest, self._shape
        observations, is_plain, dtype = row.observations, self._is_plain, row.observations.dtype
        if is_plain and observations.shape[1:] != shape:
            observations = observations.reshape(self.num_envs, *shape)
        rewards, any_done = [], False
        for i, (env, action) in enumerate(zip(self._envs, split(actions), strict=True)):
            progress[ENV] = i
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            if terminated or truncated or (info and info.get("done")):
                any_done = True
                observation = self._end(i, observation, terminated, truncated, row)
            latest[i] = observation
            if is_plain:
                try:
                    fits = observation.shape == shape and observation.dtype is dtype
                except AttributeError:
                    fits = False
                if fits:
                    observations[i] = observation
                else:
                    self._write_plain(observation, row.observations[i], shape)
        self._write_structured(row.observations)
        self._write_rewards(rewards, row.rewards)
        return any_done

    def _end(self, i: int, observation: Any, terminated: Any, truncated: Any, row: Row) -> Any:
        """Books the end of an episode and begins the next; returns its first observation."""
        if terminated:
            row.terminations[i] = True
        else:
            if not truncated:
                self.warn_inconsistent(i)
            row.truncations[i] = True
            # Before the reset: many environments give out one buffer again and again.
            row.finals.append((i, self._flat_one(observation)))
        seed = self.streams.env_seed(i, self.episodes[i]) if self.can_replay else None
        self.episodes[i] += 1
        first, _ = self._envs[i].reset(seed=seed)
        return first

    def replay(self, episodes: Sequence[int], actions: Sequence[Sequence[Any]]) -> NDArray[Any]:
        """Brings every environment back into the episode it was in.

        Args:
            episodes: For each environment, how many episodes it has begun.
            actions: For each environment, its actions since the last reset.

        Returns:
            The observations there, ``[N, *O]``.
        """
        out = self.empty_observations()
        for i, env in enumerate(self._envs):
            self.episodes[i] = int(episodes[i])
            self._latest[i], _ = env.reset(seed=self.streams.env_seed(i, self.episodes[i] - 1))
            for action in actions[i]:
                self._latest[i] = env.step(action)[0]
            out[i] = self._flat_one(self._latest[i])
        return out

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()

    def _write(self, i: int, out: NDArray[Any]) -> None:
        if self._is_plain:
            self._write_plain(self._latest[i], out[i], self._shape)

    def _write_structured(self, out: NDArray[Any]) -> None:
        if self._is_plain:
            return
        try:
            out[...] = self._plan.flatten(collate(self._space, self._latest))
        except (RlregError, ValueError, TypeError, KeyError, IndexError):
            for i, observation in enumerate(self._latest):
                self._progress[ENV] = i
                self._flat_one(observation)  # raises for the environment at fault
            raise

    def _write_rewards(self, rewards: list[Any], out: NDArray[np.float32]) -> None:
        try:
            out[...] = rewards
        except (ValueError, TypeError):
            for i, reward in enumerate(rewards):
                self._progress[ENV] = i
                if np.ndim(reward) == 0 and np.asarray(reward).dtype.kind in "fiub":
                    out[i] = reward
                elif np.size(reward) == 1 and np.asarray(reward).dtype.kind in "fiub":
                    out[i] = np.asarray(reward).item()  # a reward of shape [1] is common
                else:
                    raise BadEnvironmentError(f"reward {reward!r}, expected one number") from None
