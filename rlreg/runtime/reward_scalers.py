"""Reward scalers: a factor, a shift, a clip, or statistics of the rewards of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlreg.errors import ConfigError
from rlreg.runtime.scalers import Scaler, moments_of, quotient, range_of

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset


class _RewardScaler(Scaler):
    subject = "reward"


class AffineRewardScaler(_RewardScaler):
    """Multiplies rewards, then adds a constant.

    Args:
        scale: The factor.
        shift: Added after multiplying.
    """

    def __init__(self, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def transform(self, values: Tensor) -> Tensor:
        """Returns ``scale * r + shift``."""
        return values * self.scale + self.shift

    def inverse(self, values: Tensor) -> Tensor:
        """Returns ``(r - shift) / scale``; 0 where the scale is 0 and nothing can be known."""
        return (values - self.shift) / self.scale if self.scale else torch.zeros_like(values)


class ClippingRewardScaler(_RewardScaler):
    """Clips rewards, then multiplies them.

    Args:
        low: Lowest reward, or none.
        high: Highest reward, or none.
        multiplier: The factor.

    Raises:
        ConfigError: If ``low`` is above ``high``.
    """

    def __init__(
        self, low: float | None = None, high: float | None = None, multiplier: float = 1.0
    ) -> None:
        super().__init__()
        if low is not None and high is not None and low > high:
            raise ConfigError(f"reward_scaler: low {low} is above high {high}")
        self.low, self.high, self.multiplier = low, high, multiplier

    def transform(self, values: Tensor) -> Tensor:
        """Returns the clipped rewards times the multiplier."""
        if self.low is not None or self.high is not None:
            values = values.clamp(self.low, self.high)
        return values * self.multiplier

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes the multiplication; what was clipped is lost."""
        return values / self.multiplier if self.multiplier else torch.zeros_like(values)


class MinMaxRewards(_RewardScaler):
    """Maps rewards to [0, multiplier]; rewards that are all equal to 0.

    Args:
        minimum: Lowest reward; fitted if ``None``.
        maximum: Highest reward; fitted if ``None``.
        multiplier: Applied last.
    """

    minimum: Tensor
    maximum: Tensor

    def __init__(
        self, minimum: float | None = None, maximum: float | None = None, multiplier: float = 1.0
    ) -> None:
        super().__init__()
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ConfigError(f"reward_scaler: minimum {minimum} is above maximum {maximum}")
        self.multiplier = multiplier
        self.add_statistic("minimum", minimum)
        self.add_statistic("maximum", maximum)

    def fit(self, dataset: TransitionDataset) -> None:
        """Takes the range of the data for what was not given."""
        if not self.is_fitted:
            low, high = range_of(dataset, "rewards")
            self.fill("minimum", low)
            self.fill("maximum", high)

    def transform(self, values: Tensor) -> Tensor:
        """Returns ``multiplier * (r - minimum) / (maximum - minimum)``."""
        self.require_fitted()
        return self.multiplier * quotient(values - self.minimum, self.maximum - self.minimum)

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes :meth:`transform`."""
        self.require_fitted()
        share = values / self.multiplier if self.multiplier else torch.zeros_like(values)
        return share * (self.maximum - self.minimum) + self.minimum


class StandardRewards(_RewardScaler):
    """Subtracts the mean reward and divides by the deviation plus ``eps``.

    Args:
        mean: Fitted if ``None``.
        std: Population standard deviation; fitted if ``None``.
        eps: Added to the deviation, >= 0.
        multiplier: Applied last.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: float | None = None,
        std: float | None = None,
        eps: float = 1e-3,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.eps, self.multiplier = eps, multiplier
        self.add_statistic("mean", mean)
        self.add_statistic("std", std)

    def fit(self, dataset: TransitionDataset) -> None:
        """Takes the moments of the data for what was not given."""
        if not self.is_fitted:
            mean, std = moments_of(dataset, "rewards")
            self.fill("mean", mean)
            self.fill("std", std)

    def transform(self, values: Tensor) -> Tensor:
        """Returns ``multiplier * (r - mean) / (std + eps)``."""
        self.require_fitted()
        return self.multiplier * quotient(values - self.mean, self.std + self.eps)

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes :meth:`transform`."""
        self.require_fitted()
        share = values / self.multiplier if self.multiplier else torch.zeros_like(values)
        return share * (self.std + self.eps) + self.mean
