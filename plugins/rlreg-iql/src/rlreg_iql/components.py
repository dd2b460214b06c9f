"""Components that IQL brings along: data only, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlreg.config import EncoderFactory, RewardScaler

if TYPE_CHECKING:
    from torch import nn

Return = Annotated[float, Field(ge=-1e30, le=1e30)]


class SimBaEncoder(EncoderFactory):
    """Residual blocks with layer normalisation over a flat observation (SimBa)."""

    type: Literal["simba"] = "simba"
    feature_size: int = Field(
        256, ge=1, le=65_536, description="Width of the residual stream. Default: d3rlpy, 256."
    )
    hidden_size: int = Field(
        1024, ge=1, le=65_536, description="Width inside a block. Default: d3rlpy, 1024."
    )
    n_blocks: int = Field(1, ge=1, le=256, description="Residual blocks. Default: d3rlpy, 1.")

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder; see :class:`rlreg.EncoderFactory`."""
        from rlreg_iql.simba import SimBaNetwork

        return SimBaNetwork(self, observation_shape)

    def create_with_action(self, observation_shape: tuple[int, ...], action_size: int) -> nn.Module:
        """Builds the encoder of observation and action; see :class:`rlreg.EncoderFactory`."""
        from rlreg_iql.simba import SimBaNetwork

        return SimBaNetwork(self, observation_shape, action_size)


class ReturnRewardScaler(RewardScaler):
    """Divides rewards by the range of the episodes' returns, then multiplies them.

    When all returns are equal there is no range, and rewards are only multiplied.
    """

    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = (("return_min", "return_max"),)
    type: Literal["return"] = "return"
    return_max: Return | None = Field(
        None,
        description="Highest return of an episode, not below return_min; null fits it. "
        "Default: d3rlpy, null.",
    )
    return_min: Return | None = Field(
        None,
        description="Lowest return of an episode, not above return_max; null fits it. "
        "Default: d3rlpy, null.",
    )
    multiplier: float = Field(
        1.0, ge=-1e9, le=1e9, description="Factor applied last. Default: d3rlpy, 1."
    )

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg_iql.rewards import ReturnScaler

        return ReturnScaler(self.return_min, self.return_max, self.multiplier)
