"""Where the random numbers of an actor come from.

Every seed is a child of the run's SeedSequence, never a seed plus an index: two actors would share
almost all of their streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ENVIRONMENT, _POLICY = range(2)


@dataclass(frozen=True, slots=True)
class Streams:
    """Random streams of one actor, each a function of what it is for and of nothing else.

    Attributes:
        root: Root of the run.
        actor: Index of the actor.
        life: How often the actor was replaced; a new life sees new episodes.
    """

    root: np.random.SeedSequence
    actor: int
    life: int = 0

    def env_seed(self, env: int, episode: int) -> int:
        """Returns the seed for a reset; below 2**31, which every emulator takes."""
        words = self._child(self.life, _ENVIRONMENT, env, episode).generate_state(1)
        return int(words[0]) & 0x7FFF_FFFF

    def policy(self, sequence: int) -> np.random.Generator:
        """Returns the generator that samples the actions of one fragment."""
        return np.random.Generator(np.random.PCG64(self._child(self.life, _POLICY, sequence)))

    def _child(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(
            entropy=self.root.entropy, spawn_key=(*self.root.spawn_key, self.actor, *key)
        )
