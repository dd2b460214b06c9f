"""What is known about a data set beyond its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True, slots=True)
class References:
    """Returns that give a score its scale: ``100 * (return - ref_min) / (ref_max - ref_min)``.

    Attributes:
        ref_min: Mean return of a random policy.
        ref_max: Mean return of an expert or reference controller.
        behavior: Mean return of the policies that made the data, if it was measured.
        source: Where the figures come from.
    """

    ref_min: float
    ref_max: float
    behavior: float | None = None
    source: str = ""

    def normalize(self, mean_return: float) -> float:
        """Gives a return as percent of the way from ``ref_min`` to ``ref_max``."""
        return 100.0 * (mean_return - self.ref_min) / (self.ref_max - self.ref_min)


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What is known about a data set beyond its numbers.

    Attributes:
        name: Its id, or the name of its file.
        source: Where it was read from; empty for arrays.
        env_spec: The environment that made it, if the file says so.
        eval_env_spec: The environment to evaluate in, where that is another one.
        references: Reference returns, if known.
        metadata: Everything else the file states about itself.
    """

    name: str = "arrays"
    source: str = ""
    env_spec: EnvSpec | None = None
    eval_env_spec: EnvSpec | None = None
    references: References | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
