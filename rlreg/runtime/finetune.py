"""Offline to online: what was learnt from data goes on learning in an environment.

Actions are sampled from the policy by the very path that evaluation takes, and every batch, of old
and of new transitions, goes through the same scalers.

Each episode begins with a seed of its own, made of the learnable's seed and of the number of
transitions collected before it. So a run that was saved between two episodes goes on as if nothing
had happened, in any environment whose randomness comes from `reset(seed=...)`, and no state of the
environment has to be saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlreg.errors import ConfigError
from rlreg.runtime.arguments import whole_number
from rlreg.runtime.data.replay import ReplayBuffer
from rlreg.runtime.env_answers import flag_of, reward_of
from rlreg.runtime.environments import Env, EnvLike, make_env
from rlreg.runtime.update_results import require_finite

if TYPE_CHECKING:
    from rlreg.runtime.offline import Metrics, OfflineLearnable

_NUM_EPISODES = 50


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """How often what happens; see :meth:`OfflineLearnable.fit_online`."""

    n_steps: int
    n_steps_per_epoch: int
    update_interval: int
    n_updates: int
    update_start_step: int
    random_steps: int
    steps_done: int = 0

    def __post_init__(self) -> None:
        for name in ("n_steps", "n_steps_per_epoch", "update_interval", "n_updates"):
            whole_number(name, getattr(self, name))
        for name in ("update_start_step", "random_steps", "steps_done"):
            whole_number(name, getattr(self, name), 0)
        if not 0 <= self.steps_done < self.n_steps:
            raise ConfigError(f"steps_done must be from 0 to {self.n_steps - 1}, below n_steps")

    @property
    def updates_left(self) -> int:
        """Updates in the steps that are not done yet."""
        steps = range(self.steps_done + 1, self.n_steps + 1)
        return sum(self.updates_at(step) for step in steps)

    def updates_at(self, step: int) -> int:
        """Updates after a step, counted from 1."""
        is_due = step > self.update_start_step and step % self.update_interval == 0
        return self.n_updates if is_due else 0


@dataclass(slots=True)
class _Epoch:
    totals: dict[str, Any] = field(default_factory=dict)
    num_updates: int = 0

    def add(self, totals: dict[str, Any], count: int) -> None:
        for name, total in totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + total
        self.num_updates += count

    def metrics(self) -> Metrics:
        return {name: float(total) / self.num_updates for name, total in self.totals.items()}


class OnlineFitter:
    """Steps an environment and updates a learnable on what the buffer holds.

    Args:
        learnable: Built and fitted here if that is not done yet.
        env: One gymnasium environment, or what makes one.
        buffer: Where transitions go and batches come from.
        settings: How often what happens.
        update: Does a number of plain updates on the buffer and returns sums of metrics.
    """

    def __init__(
        self,
        learnable: OfflineLearnable,
        env: EnvLike,
        buffer: ReplayBuffer | None,
        settings: OnlineSettings,
        update: Callable[[Any, int], dict[str, Any]],
    ) -> None:
        self.learnable, self.settings, self._update = learnable, settings, update
        if hasattr(env, "num_envs"):
            raise ConfigError("fit_online steps one environment, not a vector of them")
        self._is_own = not hasattr(env, "step")
        self.env: Env = make_env(env)
        try:
            self.buffer = self._prepare(buffer)
        except BaseException:
            self.close()
            raise
        self._returns: deque[float] = deque(maxlen=_NUM_EPISODES)
        self._return = 0.0
        self._is_compile_settled = False

    def _prepare(self, buffer: ReplayBuffer | None) -> ReplayBuffer:
        learnable, env = self.learnable, self.env
        if buffer is not None and not isinstance(buffer, ReplayBuffer):
            raise ConfigError(f"buffer: expected a ReplayBuffer or None, got {buffer!r}")
        if buffer is not None and buffer.dataset is not None:
            learnable.build_with_dataset(buffer.dataset)
        else:
            learnable.build_with_env(env)
        learnable.check_spaces(env.observation_space, env.action_space)
        for scaler in learnable.scalers().values():
            scaler.require_fitted()
        if buffer is None:
            buffer = ReplayBuffer(
                observation_space=env.observation_space, action_space=env.action_space
            )
        learnable.check_spaces(buffer.observation_space, buffer.action_space)
        buffer.device = learnable.device
        # A schedule over the run stretches: its end is the end of what is added here.
        learnable.set_total_steps(learnable.grad_step + self.settings.updates_left)
        return buffer

    def epochs(self) -> Iterator[Metrics]:
        """Collects and trains; gives the metrics of each epoch at its end."""
        settings, epoch = self.settings, _Epoch()
        observation = self._reset()
        for step in range(settings.steps_done + 1, settings.n_steps + 1):
            observation = self._step(observation, step, is_random=step <= settings.random_steps)
            count = settings.updates_at(step)
            if count:
                self.learnable.train_mode(True)
                with self.learnable.private_rng():
                    epoch.add(self._updates()(self.buffer, count), count)
            if step % settings.n_steps_per_epoch == 0 or step == settings.n_steps:
                metrics = epoch.metrics()
                require_finite(self.learnable, metrics, epoch.num_updates)
                yield {**metrics, **self._rollouts()}
                epoch = _Epoch()

    def _reset(self) -> Any:
        """Begins an episode; going on with a buffer means new ones, not those it holds already."""
        seeds = np.random.SeedSequence([self.learnable.seed, self.buffer.num_added])
        first, second = (int(word) for word in seeds.generate_state(2))
        self.env.action_space.seed(first)
        self._return = 0.0
        return self.env.reset(seed=second)[0]

    def _updates(self) -> Callable[[Any, int], dict[str, Any]]:
        """Returns what does updates: compiled ones where that was asked for and is possible."""
        if self.learnable.compile != "on":
            return self._update
        if not self._is_compile_settled:
            self.learnable.settle_compile(self.buffer, self.settings.updates_left)
            self._is_compile_settled = True
        return self.learnable.run_updates if self.learnable.is_compiled else self._update

    def _step(self, observation: Any, step: int, *, is_random: bool) -> Any:
        """Takes a step and returns the observation to go on from."""
        place = f"fit_online, step {step}"
        env = self.env
        action = (
            env.action_space.sample() if is_random else self.learnable.sample_action(observation)
        )
        following, given, ended, cut, _ = env.step(action)
        reward = reward_of(given, place)
        terminated, truncated = (
            flag_of("terminated", ended, place), flag_of("truncated", cut, place)
        )  # fmt: skip
        self.buffer.append(
            observation, action, reward, following, terminated=terminated, truncated=truncated
        )
        self._return += reward
        if not (terminated or truncated):
            return following
        self._returns.append(self._return)
        return self._reset()

    def _rollouts(self) -> Metrics:
        metrics = {
            "buffer/offline": float(self.buffer.num_offline),
            "buffer/online": float(self.buffer.num_online),
        }
        if self._returns:
            metrics["episode/return_mean"] = float(np.mean(self._returns))
        return metrics

    def close(self) -> None:
        """Closes the environment, if it was made here."""
        if self._is_own:
            self.env.close()


def fit_online(
    learnable: OfflineLearnable,
    env: EnvLike,
    buffer: ReplayBuffer | None,
    settings: OnlineSettings,
    update: Callable[[Any, int], dict[str, Any]],
    end: Callable[[int, Metrics], None],
) -> Iterator[tuple[int, Metrics]]:
    """Does what :meth:`OfflineLearnable.fit_online` promises; the arguments are checked at once.

    Args:
        learnable: Built and fitted here if that is not done yet.
        env: One gymnasium environment, or what makes one.
        buffer: Where transitions go and batches come from.
        settings: How often what happens.
        update: Does a number of plain updates on the buffer and returns sums of metrics.
        end: Called with number and metrics of each epoch.
    """
    fitter = OnlineFitter(learnable, env, buffer, settings, update)

    def epochs() -> Iterator[tuple[int, Metrics]]:
        first = settings.steps_done // settings.n_steps_per_epoch + 1
        try:
            for epoch, metrics in enumerate(fitter.epochs(), start=first):
                end(epoch, metrics)
                yield epoch, metrics
        finally:
            fitter.close()

    return epochs()
