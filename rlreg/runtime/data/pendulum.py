"""``rlreg/pendulum/mixed-v0``: Pendulum-v1, a swing-up controller mixed with noise and random play.

Nothing beyond gymnasium is needed, and 30,000 steps take seconds: the data of the demo and of the
tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rlreg.runtime.data.recipe import CollectedEpisode, Scores
from rlreg.runtime.spaces import Space

Kind: TypeAlias = Literal["controller", "noisy", "random"]
Policy: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float32]]

_ENV_ID = "Pendulum-v1"
_EPISODE_STEPS = 200
# One controller episode to two noisy and two random ones, interleaved so that a shorter data set
# has the same mixture.
_PATTERN: tuple[Kind, ...] = ("controller", "noisy", "random", "noisy", "random")
_NOISE_STD = 1.9
_NUM_SCORED = 200
_MAX_TORQUE = 2.0


@dataclass(frozen=True, slots=True)
class PendulumController:
    """Swings Pendulum-v1 up by pumping energy and holds it upright with a PD law.

    Attributes:
        energy_gain: Torque per unit of missing energy and angular velocity.
        angle_gain: Torque per radian near the top.
        velocity_gain: Torque per rad/s near the top.
        catch_cosine: Cosine of the angle above which the PD law takes over.
    """

    energy_gain: float = 1.0
    angle_gain: float = 20.0
    velocity_gain: float = 4.0
    catch_cosine: float = 0.85

    def __call__(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """Returns the torque for one or many observations.

        Args:
            observation: ``[3]`` or ``[B, 3]``: cosine and sine of the angle, angular velocity.

        Returns:
            ``[1]`` or ``[B, 1]`` torque within [-2, 2].
        """
        values = np.asarray(observation, dtype=np.float64)
        cosine, sine, velocity = values[..., 0], values[..., 1], values[..., 2]
        # Per unit of inertia: thdd = 15 sin(th) + 3 u, so the energy at rest upright is 15.
        missing = 15.0 - (0.5 * velocity**2 + 15.0 * cosine)
        # At rest at the bottom there is no velocity to amplify: any push will do.
        direction = np.where(velocity == 0.0, 1.0, velocity)
        pump = self.energy_gain * missing * direction
        hold = -self.angle_gain * np.arctan2(sine, cosine) - self.velocity_gain * velocity
        torque = np.where(cosine > self.catch_cosine, hold, pump)
        return np.clip(torque, -_MAX_TORQUE, _MAX_TORQUE).astype(np.float32)[..., None]


@dataclass(frozen=True, slots=True)
class PendulumRecipe:
    """The recipe of ``rlreg/pendulum/mixed-v0``."""

    dataset_id: str = "rlreg/pendulum/mixed-v0"
    summary: str = (
        "Pendulum-v1: a scripted swing-up controller, the same with noise, and random play"
    )
    default_steps: int = 30_000
    algorithm: str = "energy swing-up and PD controller; Gaussian noise on it; uniform random"
    requirements: tuple[str, ...] = ()

    def check(self) -> None:
        """Gymnasium is all it needs."""

    def spaces(self) -> tuple[Space, Space]:
        """Returns the spaces of Pendulum-v1."""
        env = gymnasium.make(_ENV_ID)
        env.close()
        return env.observation_space, env.action_space

    def env_specs(self) -> tuple[EnvSpec, EnvSpec | None]:
        """Returns the spec of Pendulum-v1, in which the policy is also evaluated."""
        return gymnasium.spec(_ENV_ID), None

    def episodes(self, n_steps: int, seed: int) -> Iterator[CollectedEpisode]:
        """Plays episodes of 200 steps, the policies in a fixed pattern; the last may be shorter."""
        streams = np.random.SeedSequence(seed)
        with gymnasium.make(_ENV_ID) as env:
            for index, start in enumerate(range(0, n_steps, _EPISODE_STEPS)):
                kind = _PATTERN[index % len(_PATTERN)]
                rng = np.random.default_rng(streams.spawn(1)[0])
                episode_seed = int(rng.integers(2**31))
                steps = min(_EPISODE_STEPS, n_steps - start)
                yield _play(env, _policy(kind, rng), steps, kind, episode_seed)

    def scores(self, seed: int) -> Scores:
        """Measures random play and the controller over 200 episodes with the same starts."""
        returns: dict[Kind, list[float]] = {"random": [], "controller": []}
        streams = np.random.SeedSequence(seed, spawn_key=(1_000_000,))
        with gymnasium.make(_ENV_ID) as env:
            for child in streams.spawn(_NUM_SCORED):
                rng = np.random.default_rng(child)
                start = int(rng.integers(2**31))
                for kind, found in returns.items():
                    episode = _play(env, _policy(kind, rng), _EPISODE_STEPS, kind, start)
                    found.append(float(episode.rewards.sum()))
        means = {kind: float(np.mean(found)) for kind, found in returns.items()}
        return Scores(means["random"], means["controller"], None, _NUM_SCORED)


def _policy(kind: Kind, rng: np.random.Generator) -> Policy:
    controller = PendulumController()
    if kind == "controller":
        return controller
    if kind == "random":
        return lambda _: rng.uniform(-_MAX_TORQUE, _MAX_TORQUE, size=1).astype(np.float32)

    def noisy(observation: NDArray[Any]) -> NDArray[np.float32]:
        torque = controller(observation) + rng.normal(0.0, _NOISE_STD, size=1)
        return np.clip(torque, -_MAX_TORQUE, _MAX_TORQUE).astype(np.float32)

    return noisy


def _play(
    env: gymnasium.Env[Any, Any], policy: Policy, steps: int, kind: Kind, seed: int
) -> CollectedEpisode:
    observation, _ = env.reset(seed=seed)
    observations, actions = [observation], []
    rewards, terminations, truncations = [], [], []
    for step in range(steps):
        action = policy(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        terminations.append(terminated)
        # A data set may end inside an episode of the environment.
        truncations.append(truncated or step == steps - 1)
    return CollectedEpisode(
        np.stack(observations),
        np.stack(actions),
        np.array(rewards),
        np.array(terminations),
        np.array(truncations),
        kind=kind,
        seed=seed,
    )
