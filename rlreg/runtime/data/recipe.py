"""What a recipe for a data set owes the writer in ``generate.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rlreg.runtime.spaces import Space


@dataclass(frozen=True, slots=True)
class CollectedEpisode:
    """An episode as played, in the structure of the spaces.

    Attributes:
        observations: ``[T + 1, ...]``, an array or a mapping of arrays.
        actions: ``[T, A]``.
        rewards: ``[T]`` float64.
        terminations: ``[T]`` bool.
        truncations: ``[T]`` bool.
        infos: ``[T + 1, ...]`` arrays by name.
        kind: Which policy played, e.g. ``controller``.
        seed: Seed of the reset that began it, or None where the environment went on.
    """

    observations: object
    actions: NDArray[Any]
    rewards: NDArray[Any]
    terminations: NDArray[Any]
    truncations: NDArray[Any]
    infos: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    kind: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean returns over seeded episodes.

    Attributes:
        random: Of uniformly random actions.
        controller: Of the recipe's controller without noise.
        behavior: Of what made the data; None where the data are whole episodes of the environment
            the scores are measured in and tell by themselves.
        num_episodes: Over how many episodes each.
    """

    random: float
    controller: float
    behavior: float | None
    num_episodes: int


class Recipe(Protocol):
    """A way to make one data set."""

    @property
    def dataset_id(self) -> str:
        """Minari id."""

    @property
    def summary(self) -> str:
        """One sentence for lists and for the data set's own description."""

    @property
    def default_steps(self) -> int:
        """Steps made when nobody says how many."""

    @property
    def algorithm(self) -> str:
        """What played, in a few words."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """What the environment needs, as pip requirements."""

    def check(self) -> None:
        """Raises ``MissingExtraError`` where the environment cannot be made here."""

    def spaces(self) -> tuple[Space, Space]:
        """Returns the observation and the action space."""

    def env_specs(self) -> tuple[EnvSpec, EnvSpec | None]:
        """Returns the environment of the data, and the one to evaluate in where it is another."""

    def episodes(self, n_steps: int, seed: int) -> Iterator[CollectedEpisode]:
        """Plays exactly ``n_steps`` steps; equal arguments give equal bits."""

    def scores(self, seed: int) -> Scores:
        """Measures reference returns; equal seeds give equal figures."""
