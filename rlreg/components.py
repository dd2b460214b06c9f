"""Core's own components: data only. Their ``create`` bodies reach into `rlreg.runtime`.

Tags, field names and defaults are d3rlpy's (2.8) where it has the component, in flat form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rlreg.config import (
    EncoderFactory,
    LoggerFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    make_lr_scheduler_field,
)
from rlreg.scalers import ClipRewardScaler as ClipRewardScaler
from rlreg.scalers import MinMaxActionScaler as MinMaxActionScaler
from rlreg.scalers import MinMaxObservationScaler as MinMaxObservationScaler
from rlreg.scalers import MinMaxRewardScaler as MinMaxRewardScaler
from rlreg.scalers import MultiplyRewardScaler as MultiplyRewardScaler
from rlreg.scalers import PixelObservationScaler as PixelObservationScaler
from rlreg.scalers import ShiftRewardScaler as ShiftRewardScaler
from rlreg.scalers import StandardObservationScaler as StandardObservationScaler
from rlreg.scalers import StandardRewardScaler as StandardRewardScaler
from rlreg.search import Search

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from rlreg.open_union import OpenUnion

Width = Annotated[int, Field(ge=1, le=65_536)]
Pixels = Annotated[int, Field(ge=1, le=1024)]
Filter = tuple[Width, Pixels, Pixels]
Activation = Literal["relu", "tanh", "swish", "gelu", "geglu", "elu", "sigmoid"]
Rate = Annotated[float, Field(ge=0, lt=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

_ACTIVATION: Any = Field("relu", description="Activation after each layer. Default: d3rlpy, ReLU.")
_BATCH_NORM: Any = Field(
    False, description="Batch normalisation after each layer. Default: d3rlpy, off."
)
_LAYER_NORM: Any = Field(
    False, description="Layer normalisation after each layer. Default: d3rlpy, off."
)
_DROPOUT: Any = Field(
    None, description="Dropout rate in training; null for none. Default: d3rlpy, null."
)


# --- encoders -----------------------------------------------------------------------------------


class DefaultEncoder(EncoderFactory):
    """A pixel encoder for images of 36 x 36 and more, a vector encoder for everything else."""

    type: Literal["default"] = "default"
    activation: Activation = _ACTIVATION
    use_batch_norm: bool = _BATCH_NORM
    dropout_rate: Rate | None = _DROPOUT

    def _chosen(self, observation_shape: tuple[int, ...]) -> EncoderFactory:
        options: dict[str, Any] = {
            "activation": self.activation,
            "use_batch_norm": self.use_batch_norm,
            "dropout_rate": self.dropout_rate,
        }
        # Nature DQN's filters need 36 pixels; a grid of MiniGrid's kind is a flat observation.
        is_picture = len(observation_shape) == 3 and sorted(observation_shape)[1] >= 36
        return PixelEncoder(**options) if is_picture else VectorEncoder(**options)

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder that fits the shape; see :class:`EncoderFactory`."""
        return self._chosen(observation_shape).create(observation_shape)

    def create_with_action(self, observation_shape: tuple[int, ...], action_size: int) -> nn.Module:
        """Builds the encoder that fits the shape; see :class:`EncoderFactory`."""
        return self._chosen(observation_shape).create_with_action(observation_shape, action_size)


class VectorEncoder(EncoderFactory):
    """Fully connected layers over a flat observation."""

    type: Literal["vector"] = "vector"
    hidden_units: Annotated[
        tuple[Width, ...],
        Field(min_length=1, max_length=64),
        Search(choices=((64, 64), (256, 256), (256, 256, 256), (512, 512))),
    ] = Field(
        (256, 256),
        description="Width of each layer. Default: d3rlpy and the IQL paper, [256, 256].",
    )
    activation: Activation = _ACTIVATION
    use_batch_norm: bool = _BATCH_NORM
    use_layer_norm: bool = _LAYER_NORM
    dropout_rate: Rate | None = _DROPOUT
    exclude_last_activation: bool = Field(
        False, description="Leave out the activation of the last layer. Default: d3rlpy, false."
    )
    last_activation: Activation | None = Field(
        None, description="Another activation for the last layer. Default: d3rlpy, null."
    )

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder; see :class:`EncoderFactory`."""
        from rlreg.runtime.networks import VectorEncoderNetwork

        return VectorEncoderNetwork(self, observation_shape)

    def create_with_action(self, observation_shape: tuple[int, ...], action_size: int) -> nn.Module:
        """Builds the encoder of ``[observation, action]``; see :class:`EncoderFactory`."""
        from rlreg.runtime.networks import VectorEncoderNetwork

        return VectorEncoderNetwork(self, observation_shape, action_size)


class PixelEncoder(EncoderFactory):
    """Convolutions over an image ``[C, H, W]``, then one linear layer (Nature DQN)."""

    type: Literal["pixel"] = "pixel"
    filters: Annotated[tuple[Filter, ...], Field(min_length=1, max_length=32)] = Field(
        ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
        description="Channels, kernel size, stride of each layer. Default: DQN, Nature 2015.",
    )
    feature_size: Width = Field(
        512, description="Width of the linear layer. Default: Mnih et al. 2015."
    )
    activation: Activation = _ACTIVATION
    use_batch_norm: bool = _BATCH_NORM
    dropout_rate: Rate | None = _DROPOUT
    exclude_last_activation: bool = Field(
        False, description="Leave out the activation of the last layer. Default: d3rlpy, false."
    )
    last_activation: Activation | None = Field(
        None, description="Another activation for the last layer. Default: d3rlpy, null."
    )

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder; see :class:`EncoderFactory`."""
        from rlreg.runtime.networks import PixelEncoderNetwork

        return PixelEncoderNetwork(self, observation_shape)

    def create_with_action(self, observation_shape: tuple[int, ...], action_size: int) -> nn.Module:
        """Builds the encoder; the action joins the features before the linear layer."""
        from rlreg.runtime.networks import PixelEncoderNetwork

        return PixelEncoderNetwork(self, observation_shape, action_size)


# --- learning-rate schedules --------------------------------------------------------------------


class WarmupScheduler(LRSchedulerFactory):
    """Grows the learning rate linearly from 0, then keeps it."""

    type: Literal["warmup"] = "warmup"
    warmup_steps: int = Field(
        10_000, ge=1, le=10**9, description="Updates until the full rate. Default: d3rlpy, 10,000."
    )

    def create(self, optimizer: Optimizer, total_steps: int | None) -> Any:
        """Builds the schedule; see :class:`LRSchedulerFactory`."""
        from rlreg.runtime.optimizers import warmup

        return warmup(self, optimizer)


class CosineAnnealingScheduler(LRSchedulerFactory):
    """Lets the learning rate fall along half a cosine."""

    type: Literal["cosine_annealing"] = "cosine_annealing"
    T_max: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        None,
        description="Updates until the minimum; null takes the length of the run. Default: ours.",
    )
    eta_min: float = Field(0.0, ge=0, le=1, description="The minimum. Default: d3rlpy, 0.")

    def create(self, optimizer: Optimizer, total_steps: int | None) -> Any:
        """Builds the schedule; see :class:`LRSchedulerFactory`."""
        from rlreg.runtime.optimizers import cosine_annealing

        return cosine_annealing(self, optimizer, total_steps)


class LinearScheduler(LRSchedulerFactory):
    """Moves the learning rate in a straight line to a share of itself."""

    type: Literal["linear"] = "linear"
    total_steps: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        None,
        description="Updates until the end value; null takes the length of the run. Default: ours.",
    )
    end_factor: float = Field(
        0.0,
        ge=0,
        le=1,
        description="End value as a share of the learning rate. Default: IMPALA paper, 0.",
    )

    def create(self, optimizer: Optimizer, total_steps: int | None) -> Any:
        """Builds the schedule; see :class:`LRSchedulerFactory`."""
        from rlreg.runtime.optimizers import linear

        return linear(self, optimizer, total_steps)


# --- optimizers ---------------------------------------------------------------------------------


class _OptimizerWithExtras(OptimizerFactory):
    """What every optimizer of core has: gradient clipping and a schedule, both off by default."""

    clip_grad_norm: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="Largest norm of all gradients together; null for none. Default: d3rlpy, null.",
    )
    lr_scheduler_factory: LRSchedulerFactory | None = make_lr_scheduler_field()

    def create(self, named_modules: Any, lr: float) -> Optimizer:
        """Builds the optimizer; see :class:`OptimizerFactory`."""
        from rlreg.runtime.optimizers import make_optimizer

        return make_optimizer(self, named_modules, lr)


class SGD(_OptimizerWithExtras):
    """Stochastic gradient descent."""

    type: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Search(0.0, 0.99)] = Field(
        0.0, ge=0, le=1, description="Momentum. Default: d3rlpy, 0."
    )
    dampening: float = Field(
        0.0, ge=0, le=1, description="Dampening of momentum. Default: d3rlpy, 0."
    )
    weight_decay: float = Field(0.0, ge=0, le=1e3, description="L2 penalty. Default: d3rlpy, 0.")
    nesterov: bool = Field(False, description="Nesterov momentum. Default: d3rlpy, false.")


class Adam(_OptimizerWithExtras):
    """Adam."""

    type: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="Decay rates. Default: Adam paper.")
    eps: float = Field(1e-8, gt=0, le=1, description="Added outside the root. Default: Adam paper.")
    weight_decay: float = Field(0.0, ge=0, le=1e3, description="L2 penalty. Default: d3rlpy, 0.")
    amsgrad: bool = Field(False, description="The AMSGrad variant. Default: d3rlpy, false.")


class AdamW(_OptimizerWithExtras):
    """Adam with decoupled weight decay."""

    type: Literal["adam_w"] = "adam_w"
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="Decay rates. Default: Adam paper.")
    eps: float = Field(1e-8, gt=0, le=1, description="Added outside the root. Default: Adam paper.")
    weight_decay: Annotated[float, Search(1e-6, 1e-2, log=True)] = Field(
        0.0, ge=0, le=1e3, description="Weight decay. Default: d3rlpy, 0."
    )
    amsgrad: bool = Field(False, description="The AMSGrad variant. Default: d3rlpy, false.")


class RMSprop(_OptimizerWithExtras):
    """RMSprop with torch's eps, outside the root."""

    type: Literal["rmsprop"] = "rmsprop"
    alpha: float = Field(0.95, ge=0, lt=1, description="Smoothing. Default: d3rlpy (DQN), 0.95.")
    eps: float = Field(
        1e-2, gt=0, le=1, description="Added outside the root. Default: d3rlpy, 0.01."
    )
    weight_decay: float = Field(0.0, ge=0, le=1e3, description="L2 penalty. Default: d3rlpy, 0.")
    momentum: float = Field(0.0, ge=0, le=1, description="Momentum. Default: d3rlpy, 0.")
    centered: bool = Field(True, description="Subtract the mean gradient. Default: d3rlpy, true.")


# --- loggers ------------------------------------------------------------------------------------


class JsonlLogger(LoggerFactory):
    """Writes `metrics.jsonl` into the run folder, one flat object a line."""

    type: Literal["jsonl"] = "jsonl"

    def create(self) -> Any:
        """Builds the logger; see `rlreg.runtime.logging`."""
        from rlreg.runtime.logging import JsonlMetrics

        return JsonlMetrics()


class TensorboardLogger(LoggerFactory):
    """Writes TensorBoard event files into the run folder."""

    type: Literal["tensorboard"] = "tensorboard"

    def create(self) -> Any:
        """Builds the logger; see `rlreg.runtime.logging`."""
        from rlreg.runtime.logging import TensorboardMetrics

        return TensorboardMetrics()


CORE_COMPONENTS: tuple[type[OpenUnion], ...] = (
    DefaultEncoder,
    VectorEncoder,
    PixelEncoder,
    WarmupScheduler,
    CosineAnnealingScheduler,
    LinearScheduler,
    SGD,
    Adam,
    AdamW,
    RMSprop,
    PixelObservationScaler,
    MinMaxObservationScaler,
    StandardObservationScaler,
    MinMaxActionScaler,
    MultiplyRewardScaler,
    ClipRewardScaler,
    MinMaxRewardScaler,
    StandardRewardScaler,
    ShiftRewardScaler,
    JsonlLogger,
    TensorboardLogger,
)
"""What core registers; everything else comes from plugins."""
