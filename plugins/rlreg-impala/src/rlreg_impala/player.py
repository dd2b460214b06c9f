"""A model that plays whole episodes: evaluation and predictions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.runtime.evaluation import Evaluation

from .actions import Floats, mode, sample
from .model import TorchActorCritic


class Player:
    """The policy of a model as a function of observations, with its memory.

    The model is used where it is and switched to evaluation mode for each call only.

    Args:
        model: Whose policy acts.
        deterministic: Whether it acts by its mode instead of a sample.
        seed: Seed of the samples until ``seed_noise`` is called.
    """

    def __init__(self, model: TorchActorCritic, *, deterministic: bool, seed: int = 0) -> None:
        self.model = model
        self.deterministic = deterministic
        self._rng = np.random.default_rng(seed)
        self._state: torch.Tensor | None = None

    def begin_episodes(self, n: int) -> None:
        """Forgets everything: the next observations are the first of ``n`` episodes."""
        device = next(self.model.parameters()).device
        self._state = torch.zeros(n, self.model.state_size, device=device)

    def seed_noise(self, seed: int) -> None:
        """Starts a new stream of random numbers."""
        self._rng = np.random.default_rng(seed)

    def stored_actions(self, observations: NDArray[Any]) -> Floats:
        """Acts on flat observations ``[N, *O]``; gives stored actions ``[N, W]``."""
        if self._state is None or len(self._state) != len(observations):
            self.begin_episodes(len(observations))
        assert self._state is not None
        policy, was_training = self.model.policy, self.model.policy.training
        policy.eval()
        try:
            with torch.no_grad():
                flat = torch.from_numpy(observations).to(self._state.device)
                params, self._state = policy.step(flat, self._state)
        finally:
            policy.train(was_training)
        rows: Floats = params.cpu().numpy()
        if self.deterministic:
            return mode(self.model.codec, rows)
        return sample(self.model.codec, rows, self._rng)[0]

    def batched(self, observations: Any) -> Any:
        """Acts on a batch of observations; gives what a vector environment takes."""
        flat = self.model.plan.flatten(observations)
        return self.model.codec.to_env(self.stored_actions(flat))

    def __call__(self, observations: Any) -> list[Any]:
        """Acts on a batch of observations; gives one action for each."""
        stored = self.stored_actions(self.model.plan.flatten(observations))
        return [self.model.codec.to_single_env(row) for row in stored]


def evaluate_vector(player: Player, env: VectorEnv[Any, Any, Any], n: int, seed: int) -> Evaluation:
    """Plays exactly ``n`` episodes in a vector environment.

    Each sub-environment plays one episode of a round and what it begins afterwards is ignored: to
    take the first ``n`` episodes that end would favour short ones.

    Args:
        player: Who plays.
        env: Of any autoreset mode; it is left open.
        n: How many episodes, >= 1.
        seed: Seed of the first; episode ``i`` starts from ``seed + i``.
    """
    if n < 1:
        raise ConfigError("repeats must be at least 1")
    totals: list[float] = []
    lengths: list[int] = []
    for first in range(0, n, env.num_envs):
        count = min(env.num_envs, n - first)
        rewards, steps = _round(player, env, seed + first, count)
        totals += rewards[:count].tolist()
        lengths += steps[:count].tolist()
    if not np.all(np.isfinite(totals)):
        raise EnvironmentSpecError("the environment gave rewards that are NaN or infinite")
    mean, std = float(np.mean(totals)), float(np.std(totals))
    return Evaluation(mean, std, tuple(totals), n, lengths=tuple(lengths))


def _round(
    player: Player, env: VectorEnv[Any, Any, Any], seed: int, count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    must_reset = env.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
    # A whole number seeds sub-environment i with seed + i.
    observations, _ = env.reset(seed=seed)
    player.begin_episodes(env.num_envs)
    player.seed_noise(seed)
    is_over = np.zeros(env.num_envs, dtype=bool)
    totals = np.zeros(env.num_envs)
    steps = np.zeros(env.num_envs, dtype=np.int64)
    while not is_over[:count].all():
        actions = player.batched(observations)
        observations, rewards, terminations, truncations, _ = env.step(actions)
        totals += np.where(is_over, 0.0, rewards)
        steps += ~is_over
        ended = terminations | truncations
        is_over |= ended
        if must_reset and ended.any():
            observations, _ = env.reset(options={"reset_mask": ended})
    return totals, steps


def is_vector(env: object) -> bool:
    """Tells whether something is a vector environment."""
    return isinstance(env, VectorEnv | gymnasium.vector.VectorWrapper)
