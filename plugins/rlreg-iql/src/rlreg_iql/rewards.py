"""The reward scaling of the paper's locomotion runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlreg.errors import ConfigError
from rlreg.runtime.scalers import Scaler

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset


class ReturnScaler(Scaler):
    """Divides rewards by the range of the returns of whole episodes.

    Args:
        return_min: Lowest return; fitted if ``None``.
        return_max: Highest return; fitted if ``None``.
        multiplier: Applied last.

    Source: the authors' `train_offline.py`. Differs from d3rlpy in that the last reward of a
    truncated episode counts, and that equal returns divide by 1 instead of 0.
    """

    subject = "reward"
    return_min: Tensor
    return_max: Tensor

    def __init__(
        self,
        return_min: float | None = None,
        return_max: float | None = None,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        if return_min is not None and return_max is not None and return_min > return_max:
            raise ConfigError(
                f"reward_scaler: return_min {return_min} is above return_max {return_max}"
            )
        self.multiplier = multiplier
        self.add_statistic("return_min", return_min)
        self.add_statistic("return_max", return_max)

    def fit(self, dataset: TransitionDataset) -> None:
        """Takes the range of the returns in the data for what was not given."""
        if not self.is_fitted:
            returns = dataset.episodes.returns
            self.fill("return_min", float(returns.min()))
            self.fill("return_max", float(returns.max()))

    def transform(self, values: Tensor) -> Tensor:
        """Returns ``multiplier * r / (return_max - return_min)``."""
        self.require_fitted()
        return values * (self.multiplier / self._range())

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes :meth:`transform`."""
        self.require_fitted()
        share = values / self.multiplier if self.multiplier else torch.zeros_like(values)
        return share * self._range()

    def _range(self) -> Tensor:
        spread = self.return_max - self.return_min
        return torch.where(spread == 0, 1.0, spread)
