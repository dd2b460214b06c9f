"""Core's own scalers: data only. Their ``create`` bodies reach into `rlreg.runtime`.

Tags, field names and defaults are d3rlpy's (2.8) where it has the scaler, in flat form.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlreg.config import ActionScaler, ObservationScaler, RewardScaler

Finite = Annotated[float, Field(ge=-1e30, le=1e30)]
Row = Annotated[tuple[Finite, ...], Field(min_length=1, max_length=1_000_000)]


class PixelObservationScaler(ObservationScaler):
    """Divides 8-bit images by 255."""

    type: Literal["pixel"] = "pixel"

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.scalers import PixelScaler

        return PixelScaler()


class MinMaxObservationScaler(ObservationScaler):
    """Maps each column of the data to [-1, 1]; a constant column to 0."""

    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = (("minimum", "maximum"),)
    type: Literal["min_max"] = "min_max"
    minimum: Row | None = Field(
        None,
        description="Lowest value by column, not above maximum; null fits it. Default: d3rlpy.",
    )
    maximum: Row | None = Field(
        None,
        description="Highest value by column, not below minimum; null fits it. Default: d3rlpy.",
    )

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.scalers import MinMaxScaler

        return MinMaxScaler("observations", self.minimum, self.maximum)


class StandardObservationScaler(ObservationScaler):
    """Subtracts the mean of each column and divides by its standard deviation plus eps."""

    type: Literal["standard"] = "standard"
    mean: Row | None = Field(None, description="Mean by column; null fits it. Default: d3rlpy.")
    std: Row | None = Field(None, description="Deviation by column; null fits it. Default: d3rlpy.")
    eps: float = Field(
        1e-3, ge=0, le=1, description="Added to the deviation. Default: d3rlpy, 1e-3."
    )

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.scalers import StandardScaler

        return StandardScaler("observations", self.mean, self.std, self.eps)


class MinMaxActionScaler(ActionScaler):
    """Maps each action dimension to [-1, 1], by the bounds of the space where it has them."""

    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = (("minimum", "maximum"),)
    type: Literal["min_max"] = "min_max"
    minimum: Row | None = Field(
        None, description="Lowest action, not above maximum; null takes the space's. Default: ours."
    )
    maximum: Row | None = Field(
        None,
        description="Highest action, not below minimum; null takes the space's. Default: ours.",
    )

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.scalers import MinMaxScaler

        return MinMaxScaler("actions", self.minimum, self.maximum)


_MULTIPLIER: Any = Field(
    1.0, ge=-1e9, le=1e9, description="Factor applied last. Default: d3rlpy, 1."
)


class MultiplyRewardScaler(RewardScaler):
    """Multiplies rewards."""

    type: Literal["multiply"] = "multiply"
    multiplier: float = Field(1.0, ge=-1e9, le=1e9, description="The factor. Default: d3rlpy, 1.")

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.reward_scalers import AffineRewardScaler

        return AffineRewardScaler(scale=self.multiplier)


class ClipRewardScaler(RewardScaler):
    """Clips rewards, then multiplies them."""

    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = (("low", "high"),)
    type: Literal["clip"] = "clip"
    low: Finite | None = Field(
        None, description="Lowest reward, not above high; null for none. Default: d3rlpy."
    )
    high: Finite | None = Field(
        None, description="Highest reward, not below low; null for none. Default: d3rlpy."
    )
    multiplier: float = _MULTIPLIER

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.reward_scalers import ClippingRewardScaler

        return ClippingRewardScaler(self.low, self.high, self.multiplier)


class MinMaxRewardScaler(RewardScaler):
    """Maps the rewards of the data to [0, multiplier]."""

    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = (("minimum", "maximum"),)
    type: Literal["min_max"] = "min_max"
    minimum: Finite | None = Field(
        None, description="Lowest reward, not above maximum; null fits it. Default: d3rlpy."
    )
    maximum: Finite | None = Field(
        None, description="Highest reward, not below minimum; null fits it. Default: d3rlpy."
    )
    multiplier: float = _MULTIPLIER

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.reward_scalers import MinMaxRewards

        return MinMaxRewards(self.minimum, self.maximum, self.multiplier)


class StandardRewardScaler(RewardScaler):
    """Subtracts the mean reward and divides by the standard deviation plus eps."""

    type: Literal["standard"] = "standard"
    mean: Finite | None = Field(None, description="Mean reward; null fits it. Default: d3rlpy.")
    std: Annotated[float, Field(ge=0, le=1e30)] | None = Field(
        None, description="Standard deviation; null fits it. Default: d3rlpy."
    )
    eps: float = Field(
        1e-3, ge=0, le=1, description="Added to the deviation. Default: d3rlpy, 1e-3."
    )
    multiplier: float = _MULTIPLIER

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.reward_scalers import StandardRewards

        return StandardRewards(self.mean, self.std, self.eps, self.multiplier)


class ShiftRewardScaler(RewardScaler):
    """Adds a constant to rewards and multiplies them."""

    type: Literal["shift"] = "shift"
    shift: float = Field(
        0.0, ge=-1e9, le=1e9, description="Added to each reward. Default: ours, 0."
    )
    multiplier: float = Field(1.0, ge=-1e9, le=1e9, description="The factor. Default: d3rlpy, 1.")
    multiply_first: bool = Field(
        False, description="Multiply before adding. Default: d3rlpy, false."
    )

    def create(self) -> Any:
        """Builds the scaler; see `rlreg.runtime.scalers`."""
        from rlreg.runtime.reward_scalers import AffineRewardScaler

        shift = self.shift if self.multiply_first else self.shift * self.multiplier
        return AffineRewardScaler(scale=self.multiplier, shift=shift)
