"""What the step of an environment gave, read strictly: it is somebody else's code."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlreg.errors import EnvironmentSpecError


def reward_of(value: Any, place: str) -> float:
    """Reads a reward; one of shape ``[1]`` is common.

    Args:
        value: As the environment gave it.
        place: What is said of where, ``evaluation, episode 3, step 12``.

    Raises:
        EnvironmentSpecError: If it is not one finite number.
    """
    number = np.asarray(value)
    if number.ndim > 1 or number.size != 1 or number.dtype.kind not in "fiub":
        raise EnvironmentSpecError(
            f"{place}: the environment gave reward = {value!r}; expected one number"
        )
    found = float(number.item())
    if not np.isfinite(found):
        raise EnvironmentSpecError(f"{place}: the environment gave reward = {found}")
    return found


def flag_of(name: str, value: Any, place: str) -> bool:
    """Reads ``terminated`` or ``truncated``; a truth value would end an episode, or not.

    Raises:
        EnvironmentSpecError: If it is neither ``True`` nor ``False``, alone or as a number.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if np.ndim(value) <= 1 and np.size(value) == 1 and np.asarray(value).dtype.kind in "biu":
        return bool(np.asarray(value).item())
    raise EnvironmentSpecError(
        f"{place}: the environment gave {name} = {value!r}; expected True or False"
    )
