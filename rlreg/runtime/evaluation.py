"""How good a policy is: the mean return of exactly n seeded episodes.

Episodes are played in rounds of :data:`LANES`. Each episode has its lane, its seed and, for a
policy that samples, its noise; predictions always have one row for each lane. So an episode is
the same, bit for bit, however many copies of the environment play at once, and however many
episodes there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError
from rlreg.runtime.arguments import function, whole_number
from rlreg.runtime.data.dataset import References, TransitionDataset
from rlreg.runtime.environments import EnvLike, env_name
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.playing import LANES as LANES
from rlreg.runtime.playing import PlayedEpisode, copies_of, play_together
from rlreg.runtime.references import find_references
from rlreg.runtime.spaces import Space

Policy: TypeAlias = Callable[[Any], Any]
"""From a batch of observations to a batch of actions."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        mean_return: Mean over the episodes.
        std_return: Standard deviation over the episodes (of this population, not of the mean).
        returns: Undiscounted sum of the rewards of each episode, in the order of the seeds.
        n_episodes: How many.
        normalized_score: Percent of the way from a random to an expert policy; ``None`` where
            nobody knows these for the environment.
        success_rate: Share of the episodes in which the environment reported success; ``None``
            where it reports none.
        lengths: Steps of each episode.
    """

    mean_return: float
    std_return: float
    returns: tuple[float, ...]
    n_episodes: int
    normalized_score: float | None = None
    success_rate: float | None = None
    lengths: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Gives the figures of a summary."""
        figures: dict[str, Any] = {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "n_episodes": self.n_episodes,
            "normalized_score": self.normalized_score,
        }
        if self.success_rate is not None:
            figures["success_rate"] = self.success_rate
        return figures


def evaluate(
    policy: Policy | Learnable,
    env: EnvLike,
    n_episodes: int = 10,
    seed: int = 10_000,
    *,
    deterministic: bool = True,
    references: References | None = None,
    num_copies: int | None = None,
    tick: Callable[[], None] | None = None,
) -> Evaluation:
    """Plays ``n_episodes`` whole episodes; episode ``i`` starts from ``reset(seed=seed + i)``.

    Args:
        policy: A learnable, or a function from a batch of observations to a batch of actions. A
            learnable's training streams stand afterwards where they stood before.
        env: Id, settings, spec or factory: played in several copies. An environment: by itself.
        n_episodes: How many, >= 1.
        seed: Seed of the first episode.
        deterministic: Whether a learnable acts by its mode instead of a sample.
        references: What makes the return a normalised score; looked up by name if not given.
        num_copies: How many copies at once; changes the time it takes and nothing else.
        tick: Called before each step; what it raises ends the evaluation.

    Raises:
        ConfigError: If ``n_episodes`` or ``num_copies`` is no whole number >= 1, or ``seed`` none
            >= 0.
        EnvironmentSpecError: If the environment cannot be made, or has other spaces.
    """
    actor = _actor_of(policy, deterministic)
    with actor.lent():
        return _evaluate(actor, env, n_episodes, seed, references, num_copies, tick)


def evaluate_random(
    env: EnvLike,
    n_episodes: int = 10,
    seed: int = 10_000,
    *,
    references: References | None = None,
    num_copies: int | None = None,
    tick: Callable[[], None] | None = None,
) -> Evaluation:
    """Plays ``n_episodes`` with uniformly random actions, on the same starts as :func:`evaluate`.

    Raises:
        ConfigError: If ``n_episodes`` is below 1.
        EnvironmentSpecError: If the environment cannot be made.
    """
    return _evaluate(_RandomActor(seed), env, n_episodes, seed, references, num_copies, tick)


def evaluate_behaviour(
    dataset: TransitionDataset, *, references: References | None = None
) -> Evaluation:
    """Returns what the policies that made a data set achieved in it, over all its episodes."""
    returns = dataset.episodes.returns
    return _summarized(returns, dataset.episodes.lengths, (), references)


def references_of(dataset: TransitionDataset) -> References | None:
    """Returns the reference returns of a data set: its own, or D4RL's if it is one of theirs."""
    return dataset.references or find_references(dataset.info.name)


# --- who acts -----------------------------------------------------------------------------------


class Actor(Protocol):
    """Who acts in the episodes of an evaluation."""

    def lent(self) -> contextlib.AbstractContextManager[None]:
        """Borrows what acting changes, and gives it back."""

    def check(self, observation_space: Space, action_space: Space) -> None:
        """Raises unless the policy fits the environment."""

    def begin(self, episode: int, action_space: Space) -> None:
        """Called when an episode starts."""

    def act(self, observations: Any, round_index: int, step: int, episodes: Sequence[int]) -> Any:
        """Returns one action for each lane; ``episodes`` are those of the lanes in use."""


class _FunctionActor:
    """A function of a batch of observations.

    One that remembers has ``begin_episodes(n)``, called before the first observations of a round,
    and one that draws has ``seed_noise(seed)``.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def lent(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check(self, observation_space: Space, action_space: Space) -> None:
        pass

    def begin(self, episode: int, action_space: Space) -> None:
        pass

    def act(self, observations: Any, round_index: int, step: int, episodes: Sequence[int]) -> Any:
        if step == 0 and hasattr(self.policy, "begin_episodes"):
            self.policy.begin_episodes(LANES)
        if hasattr(self.policy, "seed_noise"):
            self.policy.seed_noise(round_index << 32 | step)
        return self.policy(observations)


class _LearnableActor(_FunctionActor):
    """A learnable; noise is drawn anew for each round and step, its own stream is left alone."""

    def __init__(self, learnable: Learnable, deterministic: bool) -> None:
        super().__init__(learnable.predict if deterministic else learnable.sample_action)
        self.learnable = learnable

    @contextlib.contextmanager
    def _lend(self) -> Iterator[None]:
        streams = self.learnable.rng_state()
        try:
            yield
        finally:
            self.learnable.load_rng_state(streams)
            self.learnable.end_episodes()

    def lent(self) -> contextlib.AbstractContextManager[None]:
        return self._lend()

    def check(self, observation_space: Space, action_space: Space) -> None:
        self.learnable.check_spaces(observation_space, action_space)

    def act(self, observations: Any, round_index: int, step: int, episodes: Sequence[int]) -> Any:
        if step == 0:
            self.learnable.begin_episodes(LANES)
        self.learnable.seed_noise(round_index << 32 | step)
        return self.policy(observations)


class _RandomActor(_FunctionActor):
    """Uniformly random actions, a stream for each episode."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.spaces: dict[int, Space] = {}

    def begin(self, episode: int, action_space: Space) -> None:
        # A space of its own for each episode; copies of a space would share its generator.
        from rlreg.runtime.spaces import space_from_json, space_to_json

        space = space_from_json(space_to_json(action_space))
        space.seed(int(np.random.SeedSequence([self.seed, episode]).generate_state(1)[0]))
        self.spaces[episode] = space

    def act(self, observations: Any, round_index: int, step: int, episodes: Sequence[int]) -> Any:
        return [
            self.spaces[episode].sample() if episode in episodes else None
            for episode in range(round_index * LANES, (round_index + 1) * LANES)
        ]


def _actor_of(policy: Policy | Learnable, deterministic: bool) -> Actor:
    if isinstance(policy, Learnable):
        return _LearnableActor(policy, deterministic)
    owner = getattr(policy, "__self__", None)
    name = getattr(policy, "__name__", "")
    if isinstance(owner, Learnable) and name in ("predict", "sample_action"):
        return _LearnableActor(owner, name == "predict")
    function("policy", policy)
    return _FunctionActor(policy)


# --- playing ------------------------------------------------------------------------------------


def _evaluate(
    actor: Actor,
    env: EnvLike,
    n_episodes: int,
    seed: int,
    references: References | None,
    num_copies: int | None,
    tick: Callable[[], None] | None,
) -> Evaluation:
    n_episodes, seed = whole_number("n_episodes", n_episodes), whole_number("seed", seed, 0)
    if num_copies is not None:
        num_copies = whole_number("num_copies", num_copies)
    with copies_of(env, min(n_episodes, LANES, num_copies or LANES)) as copies:
        actor.check(copies[0].observation_space, copies[0].action_space)
        found: list[PlayedEpisode] = []
        for first in range(0, n_episodes, LANES):
            count = min(LANES, n_episodes - first)
            for start in range(first, first + count, len(copies)):
                stop = min(start + len(copies), first + count)
                found += play_together(actor, copies, range(start, stop), seed, tick)
    return _result(found, references or find_references(env_name(env)))


def _result(episodes: list[PlayedEpisode], references: References | None) -> Evaluation:
    returns = np.array([episode.total for episode in episodes])
    if not np.all(np.isfinite(returns)):
        raise EnvironmentSpecError("the environment gave rewards that are NaN or infinite")
    lengths = np.array([episode.length for episode in episodes])
    successes = [episode.success for episode in episodes if episode.success is not None]
    return _summarized(returns, lengths, successes, references)


def _summarized(
    returns: NDArray[np.float64],
    lengths: NDArray[np.int64],
    successes: Sequence[bool],
    references: References | None,
) -> Evaluation:
    mean = float(returns.mean())
    return Evaluation(
        mean_return=mean,
        std_return=float(returns.std()),
        returns=tuple(returns.tolist()),
        n_episodes=len(returns),
        normalized_score=None if references is None else references.normalize(mean),
        success_rate=float(np.mean(successes)) if successes else None,
        lengths=tuple(lengths.tolist()),
    )
