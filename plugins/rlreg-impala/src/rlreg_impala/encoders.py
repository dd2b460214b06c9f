"""The two image networks that this plugin registers, as torch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from rlreg.errors import ConfigError
from rlreg.runtime.networks import scale_images

if TYPE_CHECKING:
    from .components import IMPALAResNetEncoder, MinAtarEncoder


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        # The first ReLU works on a copy: the skip connection carries what came in.
        residual: Tensor = self.layers(images)
        return images + residual


class IMPALAResNet(nn.Module):
    """Sections of convolution, max pooling and two residual blocks, then one linear layer.

    Args:
        config: Channels of the sections, feature size, channel axis.
        observation_shape: ``[C, H, W]`` or ``[H, W, C]``.

    Source: IMPALA paper, figure 3 (right).
    """

    def __init__(self, config: IMPALAResNetEncoder, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.output_size = config.feature_size
        self.channels_last = _channels_last("impala_resnet", observation_shape, config.channel_axis)
        channels, height, width = _sides(observation_shape, channels_last=self.channels_last)
        layers: list[nn.Module] = []
        for filters in config.filters:
            layers += [
                nn.Conv2d(channels, filters, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _Residual(filters),
                _Residual(filters),
            ]
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.Sequential(
            *layers,
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * height * width, config.feature_size),
            nn.ReLU(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Encodes images ``[B, *O]`` to ``[B, output_size]``."""
        features: Tensor = self.layers(_channels_first(observations, last=self.channels_last))
        return features


class MinAtarConv(nn.Module):
    """One convolution and one linear layer.

    Args:
        config: Channels, kernel, feature size, channel axis.
        observation_shape: ``[C, H, W]`` or ``[H, W, C]``.

    Source: Young and Tian 2019 (MinAtar), the network of their DQN; their actor-critic has the same
    layers, with SiLU and its derivative in place of relu, which learned worse here.
    """

    def __init__(self, config: MinAtarEncoder, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.output_size = config.feature_size
        self.channels_last = _channels_last("minatar_conv", observation_shape, config.channel_axis)
        channels, height, width = _sides(observation_shape, channels_last=self.channels_last)
        height, width = height - config.kernel_size + 1, width - config.kernel_size + 1
        if min(height, width) < 1:
            raise ConfigError(
                f"encoder 'minatar_conv': an image of shape {list(observation_shape)} is smaller "
                f"than the kernel, {config.kernel_size}"
            )
        self.layers = nn.Sequential(
            nn.Conv2d(channels, config.filters, config.kernel_size),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(config.filters * height * width, config.feature_size),
            nn.ReLU(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Encodes images ``[B, *O]`` to ``[B, output_size]``."""
        features: Tensor = self.layers(_channels_first(observations, last=self.channels_last))
        return features


def _channels_last(
    tag: str, shape: tuple[int, ...], axis: Literal["auto", "first", "last"]
) -> bool:
    if len(shape) != 3:
        raise ConfigError(
            f"encoder '{tag}' takes images [C, H, W] or [H, W, C], not observations of shape "
            f"{list(shape)}; use {{type: vector}} or {{type: default}}"
        )
    return shape[2] < shape[0] if axis == "auto" else axis == "last"


def _sides(shape: tuple[int, ...], *, channels_last: bool) -> tuple[int, int, int]:
    first, second, third = shape
    return (third, first, second) if channels_last else (first, second, third)


def _channels_first(observations: Tensor, *, last: bool) -> Tensor:
    images = scale_images(observations)
    return images.permute(0, 3, 1, 2) if last else images
