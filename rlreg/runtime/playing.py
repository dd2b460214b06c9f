"""Whole episodes played in lock step, each in its own copy of an environment."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlreg.errors import EndlessEpisodeWarning, EnvironmentSpecError, RlregError
from rlreg.runtime.env_answers import flag_of, reward_of
from rlreg.runtime.environments import Env, EnvLike, close_env, env_factory, no_exit

if TYPE_CHECKING:
    from rlreg.runtime.evaluation import Actor

LANES = 16
"""Episodes of a round, and rows of a prediction: fixed, so that results depend on neither."""

LONG_EPISODE = 100_000
"""Steps after which an episode is suspected of having no end; D4RL's and Atari's are shorter."""

_SUCCESS_KEYS = ("success", "is_success")


@dataclass(slots=True)
class PlayedEpisode:
    """What one episode gave so far."""

    total: float = 0.0
    length: int = 0
    success: bool | None = None


@contextlib.contextmanager
def copies_of(env: EnvLike, count: int) -> Iterator[list[Env]]:
    """Makes copies of an environment and closes them; one that was given stays open."""
    if isinstance(env, gymnasium.Env):
        yield [env]
        return
    make = env_factory(env)
    made: list[Env] = []
    try:
        for _ in range(count):
            made.append(make())
        yield made
    finally:
        for item in made:
            close_env(item)


def play_together(
    actor: Actor,
    copies: list[Env],
    episodes: range,
    seed: int,
    tick: Callable[[], None] | None,
) -> list[PlayedEpisode]:
    """Plays the episodes of one round, each in its copy, in lock step."""
    envs = dict(zip(episodes, copies, strict=False))
    played = {episode: PlayedEpisode() for episode in episodes}
    rows: list[Any] = [None] * LANES
    for episode, env in envs.items():
        with _blamed(f"episode {episode}, reset"):
            rows[episode % LANES], _ = env.reset(seed=seed + episode)
        actor.begin(episode, env.action_space)
    filler = rows[episodes[0] % LANES]
    running, round_index, step = list(episodes), episodes[0] // LANES, 0
    next_warning = LONG_EPISODE
    while running:
        if tick is not None:
            tick()
        batch = _stack([filler if row is None else row for row in rows])
        actions = actor.act(batch, round_index, step, running)
        for episode in list(running):
            lane = episode % LANES
            place = f"episode {episode}, step {step + 1}"
            with _blamed(place):
                answer = envs[episode].step(actions[lane])
            observation, is_over = _noted(answer, played[episode], f"evaluation, {place}")
            rows[lane] = observation
            if is_over:
                running.remove(episode)
        step += 1
        if step == next_warning:
            _warn_of_no_end(running, step)
            next_warning *= 10
    return [played[episode] for episode in episodes]


def _noted(answer: Any, episode: PlayedEpisode, place: str) -> tuple[Any, bool]:
    try:
        observation, reward, terminated, truncated, info = answer
    except (TypeError, ValueError) as error:
        raise EnvironmentSpecError(
            f"{place}: the environment gave {type(answer).__name__}; expected observation, reward, "
            "terminated, truncated, info"
        ) from error
    episode.total += reward_of(reward, place)
    episode.length += 1
    for key in _SUCCESS_KEYS:
        if key in info:
            episode.success = bool(episode.success) or bool(np.any(info[key]))
    is_over = flag_of("terminated", terminated, place) | flag_of("truncated", truncated, place)
    return observation, is_over


def _warn_of_no_end(episodes: Sequence[int], step: int) -> None:
    named = ", ".join(map(str, episodes[:3])) + (", ..." if len(episodes) > 3 else "")
    warnings.warn(
        f"evaluation: after {step:,} steps episode {named} goes on. If the environment never ends "
        "one, give it a limit: kwargs: {max_episode_steps: 1000} beside its id",
        EndlessEpisodeWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def _blamed(place: str) -> Iterator[None]:
    """Says where an environment failed: it is the user's, so this is bad input and no bug."""
    try:
        with no_exit():
            yield
    except RlregError:
        raise
    except Exception as error:
        raise EnvironmentSpecError(
            f"evaluation, {place}: the environment raised {type(error).__name__}: {error}"
        ) from error


def _stack(rows: Sequence[Any]) -> Any:
    """Stacks observations of any structure into a batch."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: _stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[index] for row in rows]) for index in range(len(first)))
    arrays = [np.asarray(row) for row in rows]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise EnvironmentSpecError(
            f"evaluation: the environment gave observations of different shapes: {shapes}"
        )
    stacked: NDArray[Any] = np.stack(arrays)
    return stacked
