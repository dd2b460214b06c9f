"""How actions of a space become one array, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import EnvironmentSpecError, ShapeError
from rlreg.runtime.space_json import Space
from rlreg.runtime.space_values import MAX_COLUMNS, as_categories, as_contiguous, to_numpy


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """How actions of a space become one array.

    Attributes:
        space: Box, Discrete, MultiDiscrete or MultiBinary. The space decides, never the values:
            bang-bang actions of a Box stay continuous.
        shape: Shape of one action in the store: ``(A,)``, or ``()`` for Discrete.
        is_discrete: Whether actions are categories, kept as int64 exactly as the environment has
            them.
    """

    space: Space
    shape: tuple[int, ...]
    is_discrete: bool

    @classmethod
    def of(cls, space: Space) -> ActionPlan:
        """Makes the plan of an action space.

        Raises:
            EnvironmentSpecError: The space is of another kind.
        """
        if isinstance(space, spaces.Box):
            if np.dtype(space.dtype).kind != "f":
                raise EnvironmentSpecError(
                    f"action space {space} is a Box of {space.dtype}; categories belong into a "
                    "Discrete or MultiDiscrete"
                )
            return cls(space, (math.prod(space.shape),), False)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            shape = () if isinstance(space, spaces.Discrete) else (math.prod(space.shape or ()),)
            plan = cls(space, shape, True)
            if sum(plan.category_counts) > MAX_COLUMNS:
                raise EnvironmentSpecError(
                    f"action space {space} has {sum(plan.category_counts):,} categories; at most "
                    f"{MAX_COLUMNS:,} are taken"
                )
            return plan
        raise EnvironmentSpecError(
            f"action space {space} cannot be used; expected Box, Discrete or MultiDiscrete"
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """``int64`` for categories, ``float32`` otherwise."""
        return np.dtype(np.int64) if self.is_discrete else np.dtype(np.float32)

    @property
    def size(self) -> int:
        """Number of columns of one action in the store."""
        return math.prod(self.shape)

    @property
    def takes_scaler(self) -> bool:
        """Whether actions are brought to [-1, 1] on their way in and back on their way out.

        A plan with a unit of its own for continuous actions says no; nobody asks the space for
        finite bounds then.
        """
        return not self.is_discrete

    @property
    def category_counts(self) -> tuple[int, ...]:
        """Number of categories of each column of a discrete action; empty for a Box."""
        if isinstance(self.space, spaces.Discrete):
            return (int(self.space.n),)
        if isinstance(self.space, spaces.MultiDiscrete):
            return tuple(int(count) for count in self.space.nvec.reshape(-1))
        return (2,) * self.size if isinstance(self.space, spaces.MultiBinary) else ()

    @property
    def category_starts(self) -> tuple[int, ...]:
        """Lowest category of each column of a discrete action; empty for a Box."""
        start = getattr(self.space, "start", 0)
        columns = len(self.category_counts)
        return tuple(int(part) for part in np.broadcast_to(np.ravel(start), (columns,)))

    def flatten(self, actions: object) -> NDArray[Any]:
        """Flattens a batch of actions to ``[B, *shape]``.

        Raises:
            ShapeError: The actions do not have the shape of the space, or are no numbers.
            EnvironmentSpecError: A category is no whole number.
        """
        values = to_numpy(actions)
        if values.ndim == 0 or values.size != len(values) * self.size:
            own = "".join(f", {side}" for side in self.space.shape or ())
            raise ShapeError.of("actions", f"[B{own}]", values.shape)
        rows = values.reshape(len(values), *self.shape)
        if self.is_discrete:
            return as_categories(rows, self.space, "actions")
        return as_contiguous(rows, self.dtype, "actions")

    def unflatten(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Gives a flat batch ``[B, *shape]`` the shape and dtype of the space."""
        shape = tuple(self.space.shape or ())
        return actions.reshape(len(actions), *shape).astype(np.dtype(self.space.dtype), copy=False)
