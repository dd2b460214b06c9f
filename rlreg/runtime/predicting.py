"""From observations as an environment gives them to actions it takes, through an author's ``act``.

What an author returns is checked here: a shape that broadcasts would train and act on nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from rlreg.errors import ConfigError, LearnerError
from rlreg.runtime.spaces import require_finite, to_numpy

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Learnable
    from rlreg.runtime.space_plans import Spaces


def choose_actions(learnable: Learnable, observations: Any, *, deterministic: bool) -> Any:
    """Does what :meth:`rlreg.Learnable.predict` promises.

    Raises:
        LearnerError: If ``act`` gives another shape than ``[B, A]``, or ``[B]`` of one category.
    """
    spaces, flat, is_single = _flat(learnable, observations)
    learnable.train_mode(False)
    with torch.no_grad(), learnable.private_rng():
        actions = learnable.act(flat, deterministic)
        shape = (len(flat), *spaces.action_plan.shape)
        if not isinstance(actions, Tensor) or actions.shape != shape:
            actions = _as_stored(learnable, spaces, actions, len(flat))
        if learnable.action_scaler is not None:
            actions = learnable.action_scaler.inverse(actions)
    if is_torch(observations):
        shaped = actions.reshape(len(actions), *(spaces.action_space.shape or ()))
        return shaped[0] if is_single else shaped
    array = spaces.action_plan.unflatten(actions.cpu().numpy())
    return array[0] if is_single else array


def estimate_values(learnable: Learnable, observations: Any, actions: Any) -> Any:
    """Does what :meth:`rlreg.Learnable.predict_value` promises.

    Raises:
        ConfigError: If there are more or fewer actions than observations.
        NonFiniteError: If there is NaN or inf in one of them.
        LearnerError: If ``action_value`` gives another shape than ``[B]``.
    """
    spaces, flat, is_single = _flat(learnable, observations)
    given = to_numpy(actions)[None] if is_single else to_numpy(actions)
    taken = spaces.action_plan.flatten(given)
    require_finite(taken, "actions")
    rows = torch.from_numpy(taken).to(learnable.device)
    if len(rows) != len(flat):
        raise ConfigError(f"{len(flat)} observations, but {len(rows)} actions")
    learnable.train_mode(False)
    with torch.no_grad():
        if learnable.action_scaler is not None:
            rows = learnable.action_scaler.transform(rows)
        values = learnable.action_value(flat, rows)
    if not isinstance(values, Tensor) or values.shape != (len(flat),):
        _refuse(learnable, "action_value", values, [len(flat)])
    result = values if is_torch(observations) else values.cpu().numpy()
    return result[0] if is_single else result


def _flat(learnable: Learnable, observations: Any) -> tuple[Spaces, Tensor, bool]:
    spaces = learnable.spaces
    if spaces is None:
        learnable.require_built()  # raises
    assert spaces is not None
    array, is_single = spaces.observation_plan.as_finite_batch(observations)
    flat = torch.from_numpy(array).to(learnable.device)
    return spaces, learnable.scale_observations(flat), is_single


def _as_stored(learnable: Learnable, spaces: Spaces, actions: Any, size: int) -> Tensor:
    """Takes ``[B, 1]`` for one category too, which means nothing else; refuses the rest."""
    plan = spaces.action_plan
    is_column = getattr(actions, "shape", None) == (size, 1)
    if not (plan.is_discrete and not plan.shape and is_column and isinstance(actions, Tensor)):
        _refuse(learnable, "act", actions, [size, *plan.shape])
    return actions[:, 0]


def _refuse(learnable: Learnable, method: str, given: Any, expected: list[int]) -> NoReturn:
    what = list(given.shape) if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise LearnerError(
        f"{learnable.config.get_type()!r}: {type(learnable).__name__}.{method} returned {what}, "
        f"expected a tensor of shape {expected}"
    )


def is_torch(value: Any) -> bool:
    """Whether observations are tensors, or hold them."""
    if isinstance(value, Mapping):
        return any(is_torch(part) for part in value.values())
    if isinstance(value, tuple):
        return any(is_torch(part) for part in value)
    return isinstance(value, Tensor)
