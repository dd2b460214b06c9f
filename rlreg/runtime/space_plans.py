"""What a learnable is built for: two spaces, and how what is in them becomes arrays."""

from __future__ import annotations

from dataclasses import dataclass

from rlreg.errors import RlregError
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space


class NotBuiltError(RlregError):
    """The learnable has no networks yet: build it with spaces, a data set or an environment."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """What a learnable is built for.

    Attributes:
        observation_space: As the environment declares it.
        action_space: As the environment declares it.
        observation_plan: How observations become one array.
        action_plan: How actions become one array.
    """

    observation_space: Space
    action_space: Space
    observation_plan: FlatteningPlan
    action_plan: ActionPlan

    @classmethod
    def of(cls, observation_space: Space, action_space: Space) -> Spaces:
        """Makes the plans of two gymnasium spaces.

        Raises:
            EnvironmentSpecError: If one of them cannot be flattened.
        """
        plan, action_plan = FlatteningPlan.of(observation_space), ActionPlan.of(action_space)
        return cls(observation_space, action_space, plan, action_plan)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one flat observation: ``[O]`` or ``[C, H, W]``."""
        return self.observation_plan.shape

    @property
    def action_size(self) -> int:
        """Columns of a continuous action, or categories of a Discrete one."""
        if self.action_plan.is_discrete and not self.action_plan.shape:
            return int(getattr(self.action_space, "n", 0))
        return self.action_plan.size

    @property
    def is_discrete(self) -> bool:
        """Whether actions are categories."""
        return self.action_plan.is_discrete
