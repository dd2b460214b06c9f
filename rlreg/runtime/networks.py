"""Encoders as torch modules, activations and initialisation.

An encoder takes observations as the flattening plan gives them and has an int ``output_size``.
Images that are still ``uint8`` are divided by 255 here and nowhere else: every observation scaler
returns floats, so whatever a scaler has touched is left alone and no image is scaled twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlreg.errors import ConfigError

if TYPE_CHECKING:
    from rlreg.components import PixelEncoder, VectorEncoder

ORTHOGONAL_GAIN = math.sqrt(2)


class GEGLU(nn.Module):
    """Halves the features: one half gated by the GELU of the other (Shazeer 2020)."""

    def forward(self, features: Tensor) -> Tensor:
        """Maps ``[..., 2 n]`` to ``[..., n]``."""
        kept, gate = features.chunk(2, dim=-1)
        return kept * functional.gelu(gate)


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
    "geglu": GEGLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
}


def scale_images(observations: Tensor) -> Tensor:
    """Turns ``uint8`` images into floats in [0, 1]; leaves everything else as it is."""
    if observations.dtype != torch.uint8:
        return observations
    # In place, on what was just made: a batch of frames is tens of MB, and memory is the cost.
    return observations.float().div_(255.0)


def flat_features(observations: Tensor, actions: Tensor | None = None) -> Tensor:
    """Flattens observations ``[B, *O]`` and puts actions ``[B, A]`` behind them: ``[B, O + A]``."""
    features = scale_images(observations).flatten(start_dim=1)
    return features if actions is None else torch.cat([features, actions], dim=1)


def dense_layers(
    in_size: int,
    hidden_units: Sequence[int],
    *,
    activation: str = "relu",
    use_batch_norm: bool = False,
    use_layer_norm: bool = False,
    dropout_rate: float | None = None,
    exclude_last_activation: bool = False,
    last_activation: str | None = None,
) -> nn.Sequential:
    """Builds fully connected layers; of each, in this order: linear, activation, norms, dropout.

    With ``geglu`` the linear layer is twice as wide, so that each width is what comes out.

    Args:
        in_size: Number of input features.
        hidden_units: Width of each layer.
        activation: Name of the activation.
        use_batch_norm: Whether to normalise over the batch after each activation.
        use_layer_norm: Whether to normalise over the features after each activation.
        dropout_rate: Share of features dropped in training, or none.
        exclude_last_activation: Whether the last layer has no activation.
        last_activation: Another activation for the last layer.

    Source: the layer order is d3rlpy's.
    """
    layers: list[nn.Module] = []
    for index, width in enumerate(hidden_units):
        is_last = index == len(hidden_units) - 1
        name: str | None = activation
        if is_last and exclude_last_activation:
            name = None
        elif is_last and last_activation is not None:
            name = last_activation
        layers.append(nn.Linear(in_size, width * 2 if name == "geglu" else width))
        if name is not None:
            layers.append(_ACTIVATIONS[name]())
        if use_batch_norm:
            layers.append(nn.BatchNorm1d(width))
        if use_layer_norm:
            layers.append(nn.LayerNorm(width))
        if dropout_rate is not None:
            layers.append(nn.Dropout(dropout_rate))
        in_size = width
    return nn.Sequential(*layers)


class VectorEncoderNetwork(nn.Module):
    """Fully connected layers; observations of any shape are flattened first.

    Args:
        config: Widths, activation, norms, dropout.
        observation_shape: Shape of one observation.
        action_size: Width of the action features that are put behind the observation, or none.
    """

    def __init__(
        self,
        config: VectorEncoder,
        observation_shape: tuple[int, ...],
        action_size: int | None = None,
    ) -> None:
        super().__init__()
        self.output_size = int(config.hidden_units[-1])
        self.layers = dense_layers(
            math.prod(observation_shape) + (action_size or 0),
            config.hidden_units,
            activation=config.activation,
            use_batch_norm=config.use_batch_norm,
            use_layer_norm=config.use_layer_norm,
            dropout_rate=config.dropout_rate,
            exclude_last_activation=config.exclude_last_activation,
            last_activation=config.last_activation,
        )

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Encodes ``[B, *O]``, and ``[B, A]`` where built for actions, to ``[B, output_size]``."""
        features: Tensor = self.layers(flat_features(observations, actions))
        return features


class PixelEncoderNetwork(nn.Module):
    """Convolutions and one linear layer over images.

    The smallest side of the image is taken for the channels: ``[H, W, C]`` is permuted, ``[C, H,
    W]`` stays as it is.

    Args:
        config: Filters, feature size, activation, norm, dropout.
        observation_shape: Shape of one image.
        action_size: Width of the action features that join before the linear layer, or none.

    Raises:
        ConfigError: If the shape is no image or too small for the filters.

    Source: Mnih et al. 2015 (Nature DQN); the layer order is d3rlpy's.
    """

    def __init__(
        self,
        config: PixelEncoder,
        observation_shape: tuple[int, ...],
        action_size: int | None = None,
    ) -> None:
        super().__init__()
        if len(observation_shape) != 3:
            raise ConfigError(
                f"encoder 'pixel' takes images [C, H, W], not observations of shape "
                f"{list(observation_shape)}; use {{type: vector}} or {{type: default}}"
            )
        self.is_channels_last = is_channels_last(observation_shape)
        channels, height, width = observation_shape
        if self.is_channels_last:
            height, width, channels = observation_shape
        self.output_size = int(config.feature_size)
        sides = (height, width)
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in config.filters:
            sides = tuple((side - kernel) // stride + 1 for side in sides)  # type: ignore[assignment]
            if min(sides) < 1:
                raise ConfigError(
                    f"encoder 'pixel': an image of shape {list(observation_shape)} is too small "
                    f"for the filters {[list(f) for f in config.filters]}; choose smaller kernels "
                    "and strides, or {type: vector}"
                )
            layers.append(nn.Conv2d(channels, out_channels, kernel, stride))
            layers.append(_pixel_activation(config.activation))
            if config.use_batch_norm:
                layers.append(nn.BatchNorm2d(out_channels))
            if config.dropout_rate is not None:
                layers.append(nn.Dropout2d(config.dropout_rate))
            channels = out_channels
        self.cnn_layers = nn.Sequential(*layers)
        self.last_layers = dense_layers(
            channels * sides[0] * sides[1] + (action_size or 0),
            [self.output_size],
            activation=config.activation,
            use_batch_norm=config.use_batch_norm,
            dropout_rate=config.dropout_rate,
            exclude_last_activation=config.exclude_last_activation,
            last_activation=config.last_activation,
        )

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Encodes images, and ``[B, A]`` where built for actions, to ``[B, output_size]``."""
        images = scale_images(observations)
        if self.is_channels_last:
            images = images.permute(0, 3, 1, 2)
        features = self.cnn_layers(images).flatten(start_dim=1)
        if actions is not None:
            features = torch.cat([features, actions], dim=1)
        encoded: Tensor = self.last_layers(features)
        return encoded


def _pixel_activation(name: str) -> nn.Module:
    if name == "geglu":
        raise ConfigError("encoder 'pixel': activation 'geglu' gates features, not channels")
    return _ACTIVATIONS[name]()


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Tells whether an image shape reads ``[H, W, C]``: whether its last side is the smallest."""
    return len(shape) == 3 and shape[2] < shape[0] and shape[2] < shape[1]


Initialization = Literal["torch", "orthogonal"]


def initialize(module: nn.Module, how: Initialization) -> nn.Module:
    """Initialises all linear and convolutional layers of a module, heads included.

    Args:
        module: Changed in place.
        how: ``torch`` leaves torch's own initialisation; ``orthogonal`` draws orthogonal weights
            with gain sqrt(2) and sets biases to 0.

    Returns:
        The module.
    """
    if how == "orthogonal":
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(layer.weight, ORTHOGONAL_GAIN)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Tells whether a module normalises over the batch, and so needs two rows or more to train."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
