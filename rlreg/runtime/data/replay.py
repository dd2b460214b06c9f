"""Transitions collected while training goes on, by themselves or on top of a data set.

A data set it starts from is read where it is, never copied, so it may be larger than memory. What
is collected goes into rows that are reused, oldest first, once the buffer is full. A row keeps both
observations: the next observation of a truncated step is the true one, whatever came to stand in
the row behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlreg.errors import CheckpointError, ConfigError, NonFiniteError
from rlreg.runtime.arguments import whole_number
from rlreg.runtime.data.dataset import TransitionDataset, draw_indices
from rlreg.runtime.data.store import Batch, Layout
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space, space_difference

DEFAULT_LIMIT = 1_000_000
"""Transitions that a buffer keeps, as in d3rlpy."""
_FIRST_ROWS = 1024


class ReplayBuffer:
    """A first-in, first-out buffer of transitions; samples like a :class:`TransitionDataset`.

    Args:
        limit: Transitions it keeps at most, those of ``dataset`` included. With a
            ``balanced_share`` the data set stays whole and the limit is for what is collected.
        dataset: What it starts from; its first transitions are the oldest.
        balanced_share: Share of each batch that comes from the data set, the rest from what was
            collected; ``None`` draws uniformly from everything.
        observation_space: Of the environment; the data set's if there is one.
        action_space: The same.

    Attributes:
        num_added: Transitions added so far, those that have left it included.
        device: Where batches go; what was collected stays on the CPU.
    """

    def __init__(
        self,
        limit: int = DEFAULT_LIMIT,
        *,
        dataset: TransitionDataset | None = None,
        balanced_share: float | None = None,
        observation_space: Space | None = None,
        action_space: Space | None = None,
    ) -> None:
        if dataset is not None:
            observation_space = observation_space or dataset.observation_space
            action_space = action_space or dataset.action_space
        if observation_space is None or action_space is None:
            raise ConfigError("a replay buffer needs a data set or both spaces")
        limit = whole_number("limit", limit)
        if balanced_share is not None:
            is_share = isinstance(balanced_share, int | float) and 0 < balanced_share < 1
            if dataset is None or not is_share:
                raise ConfigError("balanced_share needs a data set, and a share between 0 and 1")
        self.limit, self.dataset, self.balanced_share = limit, dataset, balanced_share
        self.observation_space, self.action_space = observation_space, action_space
        self.plan, self.action_plan = (
            FlatteningPlan.of(observation_space),
            ActionPlan.of(action_space),
        )
        self.num_added = 0
        self.device = torch.device("cpu") if dataset is None else dataset.device
        self._layout = Layout.of(self.plan, self.action_plan)
        self._pixels = self._layout.observation_size if self._layout.is_image else 0
        head = self._layout.head
        # [observation | action | reward, termination, truncation, interval | next observation]
        self._numbers = torch.zeros(0, self._layout.width + head)
        self._images = torch.zeros(0, 2 * self._pixels, dtype=torch.uint8)
        self._check_spaces()

    def _check_spaces(self) -> None:
        if self.dataset is None:
            return
        difference = space_difference(
            self.observation_space, self.dataset.observation_space
        ) or space_difference(self.action_space, self.dataset.action_space, "action")
        if difference:
            raise ConfigError(f"the data set has other spaces than the buffer: {difference}")

    # --- what is in it --------------------------------------------------------------------------

    @property
    def num_online(self) -> int:
        """Collected transitions that are still in it."""
        return min(self.num_added, self.limit)

    @property
    def num_offline(self) -> int:
        """Transitions of the data set that are still in it."""
        size = 0 if self.dataset is None else len(self.dataset)
        return size if self.balanced_share is not None else min(size, self.limit - self.num_online)

    def __len__(self) -> int:
        return self.num_offline + self.num_online

    def append(
        self,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any,
        *,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Adds what one step of an environment gave; the oldest transition leaves a full buffer.

        Args:
            observation: Where the action was taken.
            action: In the environment's units.
            reward: As paid, unscaled.
            next_observation: What the environment showed then, also at the end of an episode.
            terminated: Whether that is a terminal state: nothing is bootstrapped from it.
            truncated: Whether the episode only ends: the next observation still has a value.

        Raises:
            NonFiniteError: If a number is NaN or infinite; nothing is added then.
        """
        first, following = self._flat(observation), self._flat(next_observation)
        flat = self.action_plan.flatten(np.asarray(action)[None])
        ends = np.array([reward, terminated, truncated, 1.0], np.float32)
        numbers = [flat.reshape(-1).astype(np.float32), ends]
        if not self._pixels:
            numbers = [first, *numbers, following]
        row = np.concatenate(numbers)
        if not np.isfinite(row).all():
            raise NonFiniteError(
                f"transition {self.num_added}: an observation, action or reward of the "
                "environment is not finite; it was not added"
            )
        self._make_room()
        place = self.num_added % self.limit
        self._numbers[place] = torch.from_numpy(row)
        if self._pixels:
            self._images[place] = torch.from_numpy(np.concatenate([first, following]))
        self.num_added += 1

    def _flat(self, observation: Any) -> NDArray[Any]:
        flat, _ = self.plan.as_batch(observation)
        return flat.reshape(-1)

    def _make_room(self) -> None:
        rows = len(self._numbers)
        if self.num_added < rows or rows == self.limit:
            return
        grown = min(self.limit, max(_FIRST_ROWS, 2 * rows))
        self._numbers = _extended(self._numbers, grown)
        self._images = _extended(self._images, grown)

    # --- sampling -------------------------------------------------------------------------------

    def sample(self, batch_size: int, generator: torch.Generator | np.random.Generator) -> Batch:
        """Draws transitions with replacement; the names and types are a data set's.

        With a ``balanced_share`` that part of the batch comes from the data set; all of it does as
        long as nothing was collected.

        Raises:
            ConfigError: If the buffer is empty, or an argument is something else.
        """
        if len(self) == 0:
            raise ConfigError("the replay buffer is empty")
        batch_size = whole_number("batch_size", batch_size)
        if self.balanced_share is None:
            drawn = _draw(len(self), batch_size, generator)
            is_online = drawn >= self.num_offline
            offline, online = drawn[~is_online], drawn[is_online] - self.num_offline
        else:
            count = round(batch_size * self.balanced_share) if self.num_online else batch_size
            offline = _draw(self.num_offline, count, generator)
            online = _draw(self.num_online, batch_size - count, generator)
        batch = self._gather(offline, online)
        return {name: part.to(self.device) for name, part in batch.items()}

    def _gather(self, offline: Tensor, online: Tensor) -> Batch:
        """Collects transitions by age: of the data set those that are left, then the others."""
        if self.dataset is None or len(offline) == 0:
            return self._collected(online)
        skipped = len(self.dataset) - self.num_offline
        first = self.dataset.gather(offline + skipped)
        if len(online) == 0:
            return first
        device = self.dataset.device
        second = {name: part.to(device) for name, part in self._collected(online).items()}
        return {name: torch.cat([first[name], second[name]]) for name in first}

    def _collected(self, ages: Tensor) -> Batch:
        layout, size = self._layout, len(ages)
        oldest = self.num_added - self.num_online
        rows = (ages + oldest) % self.limit
        numbers = self._numbers.index_select(0, rows)
        head, tail, width = layout.head, layout.head + layout.action_size, layout.width
        if self._pixels:
            both = self._images.index_select(0, rows)
            observations, following = both[:, : self._pixels], both[:, self._pixels :]
        else:
            observations, following = numbers[:, :head], numbers[:, width:]
        actions = numbers[:, head:tail].reshape(size, *layout.action_shape)
        return {
            "observations": observations.reshape(size, *layout.observation_shape),
            "actions": actions.long() if layout.is_discrete else actions,
            "rewards": numbers[:, tail],
            "next_observations": following.reshape(size, *layout.observation_shape),
            "terminations": numbers[:, tail + 1],
            "truncations": numbers[:, tail + 2],
            "intervals": numbers[:, tail + 3],
        }

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what was collected (copies); the data set has a file of its own."""
        count = self.num_online
        return {
            "numbers": self._numbers[:count].clone(),
            "images": self._images[:count].clone(),
            "num_added": self.num_added,
            "limit": self.limit,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave.

        Raises:
            CheckpointError: If it is of a buffer with another limit or other spaces.
        """
        numbers, images, added = state["numbers"], state["images"], int(state["num_added"])
        count = min(added, self.limit)
        wanted = [(count, self._numbers.shape[1]), (count, self._images.shape[1])]
        if state["limit"] != self.limit or [tuple(numbers.shape), tuple(images.shape)] != wanted:
            raise CheckpointError(
                f"the state of a replay buffer with limit {state['limit']:,} and rows of "
                f"{list(numbers.shape)} numbers does not fit this one ({self.limit:,}, "
                f"{list(wanted[0])})"
            )
        self._numbers, self._images, self.num_added = numbers.clone(), images.clone(), added

    def __repr__(self) -> str:
        counts = f"{self.num_offline:,} offline and {self.num_online:,} collected transitions"
        return f"<ReplayBuffer: {counts}, limit {self.limit:,}>"


def _draw(size: int, count: int, generator: torch.Generator | np.random.Generator) -> Tensor:
    return draw_indices(max(size, 1), count, generator).cpu()


def _extended(rows: Tensor, count: int) -> Tensor:
    grown = rows.new_zeros(count, math.prod(rows.shape[1:]))
    grown[: len(rows)] = rows
    return grown
