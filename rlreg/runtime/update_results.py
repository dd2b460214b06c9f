"""What an author's ``update`` takes and returns, checked where it meets the training loop.

Nothing here waits for the device in an update: shapes are looked at once a chunk, numbers once an
epoch, where they are read anyway.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from rlreg.errors import LearnerError, NonFiniteError
from rlreg.runtime.batch import Batch

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Learnable
    from rlreg.runtime.offline import OfflineLearnable


def checked_update(
    written: Callable[[Any, Batch], Mapping[str, Any]],
) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]]:
    """Puts the checks around an author's ``update``.

    A :class:`Batch` comes from the training loop (or from ``super().update``) and passes straight
    through; anything else comes from a user: it is checked and scaled, and floats are returned.
    """

    @functools.wraps(written)
    def update(self: OfflineLearnable, batch: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(batch, Batch):
            return _results(self, written, batch)
        prepared = self.prepare_batch(batch)
        self.train_mode(True)
        with self.private_rng():
            metrics = _results(self, written, prepared)
        self.grad_step += 1
        return {name: _number(self, name, value) for name, value in metrics.items()}

    return update


def _results(
    learnable: OfflineLearnable, written: Callable[..., Any], batch: Batch
) -> dict[str, Any]:
    try:
        metrics = written(learnable, batch)
    except NonFiniteError as error:
        raise _placed(learnable, error) from error
    if not isinstance(metrics, dict):
        if not isinstance(metrics, Mapping):
            _refuse(learnable, f"it returned {_described(metrics)}")
        return dict(metrics)
    return metrics


def _placed(learnable: OfflineLearnable, error: NonFiniteError) -> NonFiniteError:
    """Says in which update something was not finite, unless the author did."""
    where = f"update {learnable.grad_step + 1}"
    if where in str(error):
        return error
    return NonFiniteError(
        f"{learnable.config.get_type()}, {where}: {error}; a smaller learning rate, or a scaler of "
        "observations or rewards, often helps"
    )


def refuse_values(learnable: OfflineLearnable, metrics: Mapping[str, Any]) -> NoReturn:
    """Says which value of an update cannot be added up.

    Raises:
        LearnerError: With its name and what it is.
    """
    for name, value in metrics.items():
        if not isinstance(value, bool | int | float) and getattr(value, "numel", int)() != 1:
            _refuse(learnable, f"{name!r} is {_described(value)}")
    _refuse(learnable, f"it returned {dict(metrics)!r}")


def require_scalars(learnable: OfflineLearnable, totals: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns sums of metrics as they are.

    Raises:
        LearnerError: If one has more than one entry: a mean or sum is missing in ``update``.
    """
    for name, total in totals.items():
        if total.numel() != 1:
            _refuse(learnable, f"{name!r} is {_described(total)}")
    return totals


def other_names(
    learnable: OfflineLearnable, before: Mapping[str, Any], now: Mapping[str, Any]
) -> LearnerError:
    """What to raise where an update returns other names than the one before."""
    return LearnerError(
        f"{learnable.config.get_type()!r}: {type(learnable).__name__}.update returned "
        f"{', '.join(sorted(now)) or 'nothing'} in update {learnable.grad_step + 1} and "
        f"{', '.join(sorted(before)) or 'nothing'} before; return the same names from every "
        "update, as the row of an epoch is the mean over all of them"
    )


def require_finite(
    learnable: Learnable, metrics: Mapping[str, float], num_updates: int, *, after: str = ""
) -> None:
    """Raises at the end of an epoch whose losses or weights are not finite.

    Args:
        learnable: At the end of the epoch.
        metrics: Its means; those that are called a loss count.
        num_updates: Updates of the epoch; 0 where that is not known.
        after: What to add, e.g. which checkpoint is good.

    Raises:
        NonFiniteError: With the loss or the weight, the updates and what to do.
    """
    bad = [
        f"{name} is {value}"
        for name, value in metrics.items()
        if "loss" in name and not math.isfinite(value)
    ]
    bad = bad or _bad_weights(learnable)
    if not bad:
        return
    last = learnable.grad_step
    first = last - num_updates + 1
    where = f" in updates {first} to {last}" if num_updates > 1 else f" in update {last}"
    where = where if num_updates else ""
    raise NonFiniteError(
        f"{learnable.config.get_type()}: {', '.join(bad[:4])}{where}; its author should call "
        f"rlreg.runtime.guard.check_step between backward() and step(){after}"
    )


def _bad_weights(learnable: Learnable) -> list[str]:
    """Names parameters that are not finite, after one look at the largest of all."""
    named = [
        (f"{network}.{name}", parameter.detach())
        for network, module in learnable.modules().items()
        for name, parameter in module.named_parameters()
        if parameter.is_floating_point() and parameter.numel()
    ]
    largest = nn.utils.get_total_norm([parameter for _, parameter in named], math.inf)
    if bool(torch.isfinite(largest)):
        return []
    return [
        f"{name} is not finite"
        for name, parameter in named
        if not bool(torch.isfinite(parameter).all())
    ]


def _number(learnable: OfflineLearnable, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        _refuse(learnable, f"{name!r} is {_described(value)}")


def _described(value: Any) -> str:
    if value is None:
        return "None"
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _refuse(learnable: OfflineLearnable, what: str) -> NoReturn:
    raise LearnerError(
        f"{learnable.config.get_type()!r}: {type(learnable).__name__}.update must return a dict of "
        f"scalar losses; {what}"
    )
