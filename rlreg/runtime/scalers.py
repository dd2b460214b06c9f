"""Scalers: how observations, actions and rewards become numbers that networks like.

A scaler is fitted once, over every transition of a data set, in float64 and chunk by chunk. Its
statistics are buffers, so they move with ``to(device)`` and travel in the state; an empty buffer is
one that has not been fitted. Columns that never change, and returns that are all equal, carry
nothing to scale by: they map to 0 or stay as they are, never to NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.runtime.spaces import Space

if TYPE_CHECKING:
    from rlreg.config import LearnableConfig
    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.space_plans import Spaces


class Scaler(nn.Module):
    """Base of all scalers; this one changes nothing.

    Attributes:
        subject: What it scales, for messages: ``observation``, ``action`` or ``reward``.
    """

    subject = "value"

    def add_statistic(self, name: str, value: float | Sequence[float] | None) -> None:
        """Declares a statistic, empty until it is fitted unless a value is given."""
        given = () if value is None else value
        self.register_buffer(name, torch.as_tensor(given, dtype=torch.float32))

    @property
    def is_fitted(self) -> bool:
        """Whether every statistic has a value."""
        return all(statistic.numel() > 0 for statistic in self.buffers())

    def fit(self, dataset: TransitionDataset) -> None:
        """Computes the statistics that were not given, over all transitions of a data set."""

    def fit_space(self, space: Space) -> None:
        """Takes what a gymnasium space knows (its bounds); nothing by default."""

    def set_shape(self, shape: tuple[int, ...]) -> None:
        """Tells the shape of one item, so that given statistics are checked before training.

        Raises:
            ConfigError: If a given statistic has another number of components.
        """

    def transform(self, values: Tensor) -> Tensor:
        """Scales ``[B, ...]``.

        Raises:
            ConfigError: If the scaler is not fitted.
        """
        return values

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes :meth:`transform`."""
        return values

    def inverse_distance(self, distances: Tensor) -> Tensor:
        """Undoes the scaling of a distance, e.g. of a standard deviation; nothing is clipped."""
        return distances

    def forward(self, values: Tensor) -> Tensor:
        """The same as :meth:`transform`."""
        return self.transform(values)

    def require_fitted(self) -> None:
        """Raises unless the scaler is fitted.

        Raises:
            ConfigError: With what to do.
        """
        if not self.is_fitted:
            raise ConfigError(
                f"the {self.subject} scaler {type(self).__name__} has no statistics yet: "
                "fit it with build_with_dataset or fit, load a checkpoint, or give its statistics "
                "in the config"
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # Statistics take the shape they were saved with: before fitting nobody knows it.
        for name, statistic in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if statistic is not None and isinstance(saved, Tensor):
                self._buffers[name] = statistic.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def fill(self, name: str, value: Any) -> None:
        """Fills a statistic that has no value yet."""
        statistic: Tensor = getattr(self, name)
        if statistic.numel() == 0:
            setattr(self, name, torch.as_tensor(value).to(statistic))


def _float(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.float()


def _columns(dataset: TransitionDataset, what: str) -> Iterator[NDArray[np.float64]]:
    """Goes through one array of a data set as float64 chunks ``[n, *shape]``."""
    for chunk in dataset.chunks():
        yield chunk[what].cpu().numpy().astype(np.float64)


def range_of(dataset: TransitionDataset, what: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns lowest and highest value of one array of a data set, by component."""
    low: Any = np.inf
    high: Any = -np.inf
    for values in _columns(dataset, what):
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    return np.asarray(low), np.asarray(high)


def moments_of(dataset: TransitionDataset, what: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns mean and population deviation, merged chunk by chunk (Chan et al. 1979)."""
    count, mean, squares = 0, np.float64(0), np.float64(0)
    for values in _columns(dataset, what):
        size = len(values)
        own = values.mean(axis=0)
        distance = own - mean
        squares = squares + ((values - own) ** 2).sum(axis=0)
        squares = squares + distance**2 * (count * size / (count + size))
        mean = mean + distance * (size / (count + size))
        count += size
    return np.asarray(mean), np.sqrt(np.asarray(squares) / max(count, 1))


def quotient(values: Tensor, divisor: Tensor) -> Tensor:
    """Divides; gives 0 where the divisor is 0."""
    is_zero = divisor == 0
    return torch.where(is_zero, 0.0, values / torch.where(is_zero, 1.0, divisor))


# --- observations and actions -------------------------------------------------------------------


class PixelScaler(Scaler):
    """Divides 8-bit images by 255."""

    subject = "observation"

    def transform(self, values: Tensor) -> Tensor:
        """Maps [0, 255] to [0, 1]."""
        return values.float() / 255.0

    def inverse(self, values: Tensor) -> Tensor:
        """Maps [0, 1] to [0, 255], in floats."""
        return values * 255.0


class _ColumnScaler(Scaler):
    """What scalers with one statistic for each component share.

    Args:
        what: ``observations`` or ``actions``: the array of a data set it is fitted on.
        given: Statistics by name; ``None`` for those to be fitted.
    """

    def __init__(self, what: str, **given: Sequence[float] | None) -> None:
        super().__init__()
        self.what, self.subject = what, what.removesuffix("s")
        for name, value in given.items():
            self.add_statistic(name, value)

    def set_shape(self, shape: tuple[int, ...]) -> None:
        """Gives statistics from the config, which are flat, the shape of one item."""
        wanted = torch.Size(shape)
        for name, statistic in self.named_buffers():
            if statistic.numel() == 0:
                continue
            if statistic.numel() != wanted.numel():
                raise ConfigError(
                    f"{self.subject}_scaler.{name}: {statistic.numel()} values, but an "
                    f"{self.subject} has {wanted.numel()} components"
                )
            setattr(self, name, statistic.reshape(wanted))


class MinMaxScaler(_ColumnScaler):
    """Maps each component to [-1, 1]; one that never changes to 0.

    Args:
        what: ``observations`` or ``actions``.
        minimum: Lowest value by component; fitted if ``None``.
        maximum: Highest value by component; fitted if ``None``.

    For actions a bounded Box gives both, and whatever comes out of :meth:`inverse` lies in the Box.
    """

    minimum: Tensor
    maximum: Tensor

    def __init__(
        self,
        what: str,
        minimum: Sequence[float] | None = None,
        maximum: Sequence[float] | None = None,
    ) -> None:
        super().__init__(what, minimum=minimum, maximum=maximum)
        # Not statistics: the space belongs to the environment, not to what was learnt from data.
        self._bounds: tuple[Tensor, Tensor] | None = None
        if minimum is not None and maximum is not None and len(minimum) == len(maximum):
            self._check_order()

    def fit(self, dataset: TransitionDataset) -> None:
        """Takes the range of the data for what was not given."""
        if not self.is_fitted:
            low, high = range_of(dataset, self.what)
            self.set_shape(low.shape)
            self.fill("minimum", low)
            self.fill("maximum", high)
            self._check_order()

    def fit_space(self, space: Space) -> None:
        """Takes the bounds of a Box, if it has them all, for what was not given."""
        if not isinstance(space, spaces.Box):
            return
        low, high = _inner_bounds(space)
        self.set_shape(tuple(low.shape))
        if bool(np.isfinite(low).all() and np.isfinite(high).all()):
            self.fill("minimum", low)
            self.fill("maximum", high)
            self._check_order()
        self._bounds = torch.from_numpy(low), torch.from_numpy(high)

    def _check_order(self) -> None:
        if bool((self.minimum > self.maximum).any()):
            raise ConfigError(
                f"{self.subject}_scaler: minimum {self.minimum.tolist()} is above maximum "
                f"{self.maximum.tolist()}"
            )

    def transform(self, values: Tensor) -> Tensor:
        """Maps the range to [-1, 1]."""
        self.require_fitted()
        span = self.maximum - self.minimum
        scaled = quotient(_float(values) - self.minimum, span) * 2.0 - 1.0
        return torch.where(span == 0, 0.0, scaled)

    def inverse(self, values: Tensor) -> Tensor:
        """Maps [-1, 1] to the range, and into the Box where there is one."""
        self.require_fitted()
        original = (values + 1.0) * 0.5 * (self.maximum - self.minimum) + self.minimum
        if self._bounds is None:
            return original
        low, high = (bound.to(original) for bound in self._bounds)
        return torch.minimum(torch.maximum(original, low), high)

    def inverse_distance(self, distances: Tensor) -> Tensor:
        """Maps a distance in [-1, 1] to one in the range."""
        self.require_fitted()
        return distances * 0.5 * (self.maximum - self.minimum)


class StandardScaler(_ColumnScaler):
    """Subtracts the mean of each component and divides by its deviation plus ``eps``.

    Args:
        what: ``observations`` or ``actions``.
        mean: By component; fitted if ``None``.
        std: Population standard deviation by component; fitted if ``None``.
        eps: Added to the deviation, >= 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        what: str,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        eps: float = 1e-3,
    ) -> None:
        super().__init__(what, mean=mean, std=std)
        self.eps = eps
        if std is not None and min(std) < 0:
            raise ConfigError(f"{self.subject}_scaler.std: {list(std)} has negative values")

    def fit(self, dataset: TransitionDataset) -> None:
        """Takes the moments of the data for what was not given."""
        if not self.is_fitted:
            mean, std = moments_of(dataset, self.what)
            self.set_shape(mean.shape)
            self.fill("mean", mean)
            self.fill("std", std)

    def transform(self, values: Tensor) -> Tensor:
        """Standardises; a component without deviation and eps becomes 0."""
        self.require_fitted()
        return quotient(_float(values) - self.mean, self.std + self.eps)

    def inverse(self, values: Tensor) -> Tensor:
        """Undoes :meth:`transform`."""
        self.require_fitted()
        return values * (self.std + self.eps) + self.mean

    def inverse_distance(self, distances: Tensor) -> Tensor:
        """Multiplies by the deviation plus ``eps``."""
        self.require_fitted()
        return distances * (self.std + self.eps)


def _inner_bounds(space: spaces.Box) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Flat float32 bounds that lie inside the Box, whose own bounds may need float64."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    near_low, near_high = low.astype(np.float32), high.astype(np.float32)
    near_low = np.where(near_low < low, np.nextafter(near_low, np.float32(np.inf)), near_low)
    near_high = np.where(near_high > high, np.nextafter(near_high, np.float32(-np.inf)), near_high)
    return near_low.astype(np.float32), near_high.astype(np.float32)


def bounds_scaler(action_space: Space) -> Scaler | None:
    """Makes the scaler that a Box of actions needs when none was chosen.

    Returns:
        A scaler between the Box and [-1, 1]; ``None`` if the Box is [-1, 1] already, or no Box.

    Raises:
        EnvironmentSpecError: If a bound is infinite, or the distance of the two in float32: nothing
            says then what -1 and 1 should mean.
    """
    if not isinstance(action_space, spaces.Box):
        return None
    low, high = action_space.low, action_space.high
    if bool((low == -1).all() and (high == 1).all()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        # Bounds may be finite where their distance is not; nobody means such bounds.
        extent = high.astype(np.float32) - low.astype(np.float32)
    if not bool(np.isfinite(extent).all()):
        raise EnvironmentSpecError(
            f"action space {action_space} has infinite bounds, or as good as infinite ones, so "
            "actions cannot be scaled to [-1, 1]; set action_scaler to {type: min_max, minimum: "
            "[...], maximum: [...]} or to {type: min_max}, which takes the range of the data, or "
            "wrap the environment in gymnasium.wrappers.RescaleAction"
        )
    scaler = MinMaxScaler("actions")
    scaler.fit_space(action_space)
    return scaler


def make_scalers(config: LearnableConfig, built_for: Spaces) -> dict[str, Scaler | None]:
    """Makes the scalers that a config chooses, and the one that bounded actions need anyway.

    Raises:
        ConfigError: If a scaler of actions is chosen for categories.
        EnvironmentSpecError: If actions have infinite bounds and no scaler is chosen.
    """
    made: dict[str, Scaler | None] = {}
    for name in ("observation_scaler", "action_scaler", "reward_scaler"):
        chosen = getattr(config, name, None)
        made[name] = None if chosen is None else chosen.create()
    observation_scaler, action_scaler = made["observation_scaler"], made["action_scaler"]
    if observation_scaler is not None:
        observation_scaler.set_shape(built_for.observation_shape)
    if action_scaler is None:
        if built_for.action_plan.takes_scaler:
            made["action_scaler"] = bounds_scaler(built_for.action_space)
    elif built_for.is_discrete:
        raise ConfigError(f"action_scaler: {built_for.action_space} is not continuous")
    else:
        action_scaler.fit_space(built_for.action_space)
    return made
