"""The contract of behaviour cloning: its settings, and no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlreg import (
    EncoderFactory,
    LearnableConfig,
    ObservationScaler,
    OptimizerFactory,
    make_encoder_field,
    make_observation_scaler_field,
    make_optimizer_field,
)

if TYPE_CHECKING:
    from rlreg.config import DeviceLike

    from .learnable import BC


class BCConfig(LearnableConfig):
    """Behaviour cloning: imitates the actions of the data set."""

    regime: ClassVar[str] = "offline"

    type: Literal["bc"] = "bc"
    schema_version: Literal[1] = 1
    batch_size: int = Field(
        100, ge=1, le=1_000_000, description="Transitions in a minibatch. Default: d3rlpy, 100."
    )
    learning_rate: float = Field(1e-3, gt=0, le=10, description="Step size. Default: d3rlpy, 1e-3.")
    encoder_factory: EncoderFactory = make_encoder_field()
    optim_factory: OptimizerFactory = make_optimizer_field()
    observation_scaler: ObservationScaler | None = make_observation_scaler_field()

    def create(self, device: DeviceLike = "auto") -> BC:
        """Makes the learnable on a device; weights come with build, fit or load."""
        from .learnable import BC

        return BC(self, device)
