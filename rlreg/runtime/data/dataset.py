"""The data set that offline algorithms train on: transitions, their episodes, their origin.

Readers (``minari.py``, ``d4rl.py``) fill it through ``build.py``; learners call ``sample``. Arrays
carry Gymnasium's names. ``terminations`` stop the bootstrap, ``truncations`` only end the sequence,
and the last transition of a truncated episode keeps its true next observation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rlreg.errors import ConfigError, DatasetError
from rlreg.runtime.arguments import whole_number
from rlreg.runtime.data.episode_views import Episodes as Episodes
from rlreg.runtime.data.episode_views import EpisodeView as EpisodeView
from rlreg.runtime.data.info import DatasetInfo as DatasetInfo
from rlreg.runtime.data.info import References as References
from rlreg.runtime.data.laws import Laws
from rlreg.runtime.data.store import Batch, Store
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space, space_to_json

# Leave room on a device for networks, optimizer states and the allocator's slack.
_USABLE_SHARE = 0.7


class TransitionDataset:
    """Transitions, sampled uniformly with replacement.

    Row i belongs together: ``actions[i]`` was taken at ``observations[i]``, ``rewards[i]`` is what
    the environment paid for it, ``next_observations[i]`` is what it showed then, and the two flags
    say whether that was the end.

    Attributes:
        observation_space: Space of the environment's observations, before flattening.
        action_space: Space of the environment's actions.
        plan: How observations are flattened.
        action_plan: How actions are flattened.
        episodes: The episodes, with lengths and returns.
        laws: The conservation report of the load.
        info: Name, source, environment and reference returns.
        device: Where batches are.
    """

    def __init__(
        self,
        store: Store,
        *,
        observation_space: Space,
        action_space: Space,
        episodes: Episodes,
        laws: Laws,
        info: DatasetInfo,
        device: torch.device | None = None,
    ) -> None:
        self._store: Store | None = store
        self._size = len(store)
        self._hash: str | None = None
        self.observation_space = observation_space
        self.action_space = action_space
        self.plan = FlatteningPlan.of(observation_space)
        self.action_plan = ActionPlan.of(action_space)
        self.episodes = episodes
        self.laws = laws
        self.info = info
        self.device = store.device if device is None else device

    # -------------------------------------------------------------------------------------- making

    @classmethod
    def from_arrays(
        cls,
        observations: object,
        actions: object,
        rewards: object,
        terminations: object,
        truncations: object = None,
        *,
        next_observations: object = None,
        intervals: object = None,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        info: DatasetInfo | None = None,
        allow_non_finite: bool = False,
    ) -> TransitionDataset:
        """Makes a data set of arrays of all steps, one after the other.

        An episode ends where ``terminations`` or ``truncations`` say so, and with the last row.
        Without ``truncations`` but with ``next_observations`` it also ends where
        ``next_observations[i]`` is not ``observations[i + 1]``, so shuffled transitions work.
        Without ``next_observations`` the last step of a truncated episode has no next observation
        and is left out, with a :class:`rlreg.errors.LeftOutWarning`.

        Args:
            observations: ``[N, ...]`` in the structure of the observation space.
            actions: ``[N, ...]``; integers are categories unless ``action_space`` says otherwise.
            rewards: ``[N]`` or ``[N, 1]``.
            terminations: ``[N]`` or ``[N, 1]``, bool or 0/1.
            truncations: The same, or None.
            next_observations: ``[N, ...]``, or None.
            intervals: ``[N]`` steps between the two observations of a transition; 1 by default.
            observation_space: Guessed from the arrays if None.
            action_space: Guessed from the arrays if None.
            info: Name and origin.
            allow_non_finite: Let NaN, inf and numbers beyond 1e18 in.

        Returns:
            The data set, in memory.

        Raises:
            DatasetError: Lengths differ, numbers are not finite, or episodes are broken inside.
        """
        # The builder makes data sets, so it imports this module.
        from rlreg.runtime.data.arrays import dataset_from_arrays

        return dataset_from_arrays(
            observations,
            actions,
            rewards,
            terminations,
            truncations,
            next_observations=next_observations,
            intervals=intervals,
            observation_space=observation_space,
            action_space=action_space,
            info=info or DatasetInfo(),
            allow_non_finite=allow_non_finite,
        )

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Mapping[str, object]],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        info: DatasetInfo | None = None,
        allow_non_finite: bool = False,
    ) -> TransitionDataset:
        """Makes a data set of episodes.

        Args:
            episodes: One mapping each with ``observations`` (``[T + 1, ...]``; ``[T, ...]`` is
                treated as in ``from_arrays``), ``actions``, ``rewards``, ``terminations`` and
                optionally ``truncations`` and ``intervals`` (``[T]``; a single bool marks the last
                step).
            observation_space: Guessed from the first episode if None.
            action_space: Guessed from all episodes if None.
            info: Name and origin.
            allow_non_finite: Let NaN, inf and numbers beyond 1e18 in.

        Returns:
            The data set, in memory.

        Raises:
            DatasetError: An episode's lengths do not fit together, or numbers are not finite.
        """
        from rlreg.runtime.data.arrays import dataset_from_episodes

        return dataset_from_episodes(
            episodes,
            observation_space=observation_space,
            action_space=action_space,
            info=info or DatasetInfo(),
            allow_non_finite=allow_non_finite,
        )

    # ------------------------------------------------------------------------------------- sampling

    def __len__(self) -> int:
        return self._size

    def sample(self, batch_size: int, generator: torch.Generator | np.random.Generator) -> Batch:
        """Draws transitions uniformly with replacement.

        Args:
            batch_size: Number of transitions ``B``.
            generator: The stream of indices; a torch generator may be on any device.

        Returns:
            ``observations, actions, rewards, next_observations, terminations, truncations,
            intervals`` as tensors on ``device``: float32 (images uint8, discrete actions int64),
            flags 0 or 1, per-item scalars ``[B]``.
        """
        return self.gather(self.sample_indices(batch_size, generator))

    def sample_indices(
        self, batch_size: int, generator: torch.Generator | np.random.Generator
    ) -> torch.Tensor:
        """Draws the indices that ``sample`` would draw, ``[B]`` int64 on the generator's device.

        Raises:
            ConfigError: If an argument is something else.
        """
        return draw_indices(self._size, whole_number("batch_size", batch_size), generator)

    def gather(self, indices: torch.Tensor) -> Batch:
        """Collects the transitions with these indices, as ``sample`` returns them.

        Args:
            indices: ``[B]`` int64 on any device.

        Returns:
            The batch; its parts are views of one block, so nothing may write into them.
        """
        store = self._open_store()
        batch = store.gather(indices.to(store.device))
        if store.device == self.device:
            return batch
        return {name: part.to(self.device) for name, part in batch.items()}

    def chunks(self, size: int = 65_536) -> Iterator[Batch]:
        """Goes through all transitions in order, without holding more than one chunk.

        For statistics over data that may be larger than memory. A chunk of images may be smaller.
        """
        return self._open_store().chunks(size)

    def to(self, device: torch.device | str) -> TransitionDataset:
        """Returns the data set with batches on ``device``; the rows move there if they fit.

        A data set that does not fit stays where it is and only its batches travel.
        """
        target, store = torch.device(device), self._open_store()
        if str(target) == "cuda":  # a data set has to know which one
            target = torch.device("cuda", torch.cuda.current_device())
        if target != store.device and _fits(store.nbytes, target):
            store = store.to(target)
        moved = TransitionDataset(
            store,
            observation_space=self.observation_space,
            action_space=self.action_space,
            episodes=self.episodes.on(store),
            laws=self.laws,
            info=self.info,
            device=target,
        )
        moved._hash = self._hash
        return moved

    def close(self) -> None:
        """Lets go of the memory or the mapped files; the data set cannot be sampled afterwards."""
        self._store = None
        self.episodes.close()

    def _open_store(self) -> Store:
        if self._store is None:
            raise DatasetError(f"data set {self.info.name} is closed")
        return self._store

    # --------------------------------------------------------------------------------------- arrays

    @property
    def observations(self) -> NDArray[Any]:
        """``[N, *O]`` flattened observations, a copy."""
        return self._column("observations")

    @property
    def actions(self) -> NDArray[Any]:
        """``[N, *A]`` actions, a copy."""
        return self._column("actions")

    @property
    def rewards(self) -> NDArray[Any]:
        """``[N]`` float32, a copy."""
        return self._column("rewards")

    @property
    def next_observations(self) -> NDArray[Any]:
        """``[N, *O]``, a copy; zeros where a terminated episode of the file lacks the last one."""
        return self._column("next_observations")

    @property
    def terminations(self) -> NDArray[Any]:
        """``[N]`` bool: the episode ended in a terminal state, nothing is to be bootstrapped."""
        return self._column("terminations") > 0

    @property
    def truncations(self) -> NDArray[Any]:
        """``[N]`` bool: the sequence ends here and the next observation still has a value."""
        return self._column("truncations") > 0

    @property
    def intervals(self) -> NDArray[Any]:
        """``[N]`` float32 steps between the two observations of each transition."""
        return self._column("intervals")

    def _column(self, name: str) -> NDArray[Any]:
        # Copies: a view of one column would keep its whole chunk.
        return np.concatenate([np.array(chunk[name].cpu().numpy()) for chunk in self.chunks()])

    # --------------------------------------------------------------------------------- what it is

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one flattened observation."""
        return self.plan.shape

    @property
    def action_size(self) -> int:
        """Components of a continuous action, or number of categories of a Discrete one."""
        return int(getattr(self.action_space, "n", self.action_plan.size))

    @property
    def env_spec(self) -> EnvSpec | None:
        """The environment that made the data, if known."""
        return self.info.env_spec

    @property
    def env_id(self) -> str | None:
        """Its id, if known."""
        return None if self.info.env_spec is None else self.info.env_spec.id

    @property
    def references(self) -> References | None:
        """Reference returns, if known."""
        return self.info.references

    @property
    def nbytes(self) -> int:
        """Bytes of the store."""
        return self._open_store().nbytes

    def content_hash(self) -> str:
        """Returns the sha256 of spaces, episodes and all numbers; equal on every machine.

        The same transitions give the same hash from whatever file they were read.
        """
        if self._hash is None:
            digest = hashlib.sha256()
            spaces = [space_to_json(self.observation_space), space_to_json(self.action_space)]
            digest.update(json.dumps(spaces, sort_keys=True).encode())
            digest.update(self.episodes.lengths.astype("<i8").tobytes())
            store = self._open_store()
            for tensor in (store.numbers, store.images):
                for part in () if tensor is None else torch.split(tensor, 65_536):
                    digest.update(np.ascontiguousarray(part.cpu().numpy()).data)
            self._hash = digest.hexdigest()
        return self._hash

    def __repr__(self) -> str:
        size = f"{len(self):,} transitions, {len(self.episodes):,} episodes"
        shapes = (
            f"observations {self.plan.shape}, actions {self.action_plan.shape or self.action_size}"
        )
        return f"<TransitionDataset {self.info.name}: {size}, {shapes}, on {self.device}>"


def _fits(size: int, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size < free * _USABLE_SHARE


def draw_indices(
    size: int, count: int, generator: torch.Generator | np.random.Generator
) -> torch.Tensor:
    """Draws ``[count]`` int64 below ``size``, with replacement, on the generator's device.

    Raises:
        ConfigError: If the generator is none of torch or numpy.
    """
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.integers(size, size=count))
    if not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator: expected one of torch or numpy, got {generator!r}")
    return torch.randint(size, (count,), generator=generator, device=generator.device)
