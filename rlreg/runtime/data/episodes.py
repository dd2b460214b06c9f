"""One episode as a file holds it, and the rule that turns it into transitions.

An episode of T steps with T + 1 observations gives T transitions. Only where the final observation
is missing is a step left out, and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import DatasetError, RlregError
from rlreg.runtime.data.build import DatasetBuilder, Place
from rlreg.runtime.data.store import Block
from rlreg.runtime.space_values import NUMBER_KINDS

SHORT_NOTE = "episodes with T observations where T + 1 belong; their last step is left out"
MASKED_NOTE = "terminated episodes without a final observation; zeros stand in for it, masked"
NO_FLAG_NOTE = "episodes that end without a flag, taken as truncated"
INSIDE_NOTE = "episodes that go on after a termination; no value is carried across it"
CUT_NOTE = "episodes cut after their first success (cut_after_success=True)"
EMPTY_NOTE = "episodes too short to give a transition"


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """An episode before flattening.

    Attributes:
        index: Its number in the file.
        observations: ``[T + 1, ...]`` or ``[T, ...]`` in the structure of the observation space.
        actions: ``[T, ...]``.
        rewards: ``[T]`` in the precision of the file.
        terminations: ``[T]`` bool.
        truncations: ``[T]`` bool.
        intervals: ``[T]``, or None for ones.
        success: ``[T]`` bool, whether the state after each step is a success; None if unknown.
        kind: What the file calls the episode's policy; empty if it does not.
        doubt: What a reader cannot rule out about it; empty for nothing.
    """

    index: int
    observations: object
    actions: object
    rewards: NDArray[Any]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    intervals: NDArray[Any] | None = None
    success: NDArray[np.bool_] | None = None
    kind: str = ""
    doubt: str = ""


def add_episode(builder: DatasetBuilder, raw: RawEpisode, *, mask_terminated: bool = False) -> bool:
    """Adds the transitions of an episode to a data set.

    Args:
        builder: Where they go.
        raw: The episode.
        mask_terminated: Keep the last step of a terminated episode whose final observation is
            missing, with zeros in its place. For sources that never had one (arrays); a Minari file
            that lacks it is damaged, and nothing says which observation is gone.

    Returns:
        Whether the episode gave any transition.

    Raises:
        DatasetError: Lengths do not fit together, or a part does not fit its space.
    """
    observations, actions = _flatten(builder, raw)
    steps = len(raw.rewards)
    _account(builder, raw)
    stop = steps
    if raw.doubt:
        builder.ledger.note(raw.doubt)
    if len(observations) == steps:
        if steps and mask_terminated and bool(raw.terminations[-1]):
            blank = np.zeros((1, *observations.shape[1:]), dtype=observations.dtype)
            observations = np.concatenate([observations, blank])
            builder.ledger.note(MASKED_NOTE)
        else:
            stop = steps - 1
            builder.ledger.note(SHORT_NOTE)
    if builder.options.cut_after_success and raw.success is not None and raw.success[:stop].any():
        first = int(np.argmax(raw.success[:stop]))
        if first + 1 < stop:
            stop = first + 1
            builder.ledger.note(CUT_NOTE)
    _leave_out(builder, raw, max(stop, 0))
    if stop <= 0:
        builder.ledger.note(EMPTY_NOTE)
        return False
    if stop == steps and not (raw.terminations[-1] or raw.truncations[-1]):
        builder.ledger.note(NO_FLAG_NOTE)
    if raw.terminations[: stop - 1].any():
        builder.ledger.note(INSIDE_NOTE)
    _add(builder, raw, observations[: stop + 1], actions[:stop])
    return True


def _flatten(builder: DatasetBuilder, raw: RawEpisode) -> tuple[NDArray[Any], NDArray[Any]]:
    steps = len(raw.rewards)
    try:
        observations = builder.plan.flatten(raw.observations)
        actions = builder.action_plan.flatten(raw.actions)
    except RlregError as cause:
        raise DatasetError(f"{builder.name}: episode {raw.index}: {cause}") from cause
    if raw.rewards.dtype.kind not in NUMBER_KINDS:
        raise DatasetError(
            f"{builder.name}: episode {raw.index}: rewards: expected numbers, got "
            f"{raw.rewards.dtype}"
        )
    for name, size in (
        ("actions", len(actions)),
        ("terminations", len(raw.terminations)),
        ("truncations", len(raw.truncations)),
        ("intervals", steps if raw.intervals is None else len(raw.intervals)),
    ):
        if size != steps:
            raise DatasetError(
                f"{builder.name}: episode {raw.index}: {steps} rewards but {size} {name}"
            )
    if len(observations) not in {steps, steps + 1}:
        raise DatasetError(
            f"{builder.name}: episode {raw.index}: {steps} rewards and {len(observations)} "
            f"observations; expected {steps + 1}"
        )
    return observations, actions


def _account(builder: DatasetBuilder, raw: RawEpisode) -> None:
    ledger = builder.ledger
    rewards = finite(raw.rewards)
    ledger.steps += len(rewards)
    ledger.reward_sum += float(rewards.sum())
    ledger.reward_magnitude += float(np.abs(rewards).sum())
    ledger.terminations += int(np.count_nonzero(raw.terminations))


def _leave_out(builder: DatasetBuilder, raw: RawEpisode, stop: int) -> None:
    ledger = builder.ledger
    if stop == len(raw.rewards):
        return
    ledger.left_out_steps += len(raw.rewards) - stop
    ledger.left_out_reward += float(finite(raw.rewards[stop:]).sum())
    ledger.left_out_terminations += int(raw.terminations[stop:].sum())


def _add(
    builder: DatasetBuilder, raw: RawEpisode, observations: NDArray[Any], actions: NDArray[Any]
) -> None:
    size = len(actions)
    terminations, truncations = raw.terminations[:size], raw.truncations[:size].copy()
    # The sequence ends here whatever the file says; only a termination stops the bootstrap.
    truncations[-1] |= not terminations[-1]
    breaks = np.zeros(size, dtype=np.bool_)
    breaks[-1] = True
    intervals = np.ones(size, np.float32) if raw.intervals is None else raw.intervals[:size]
    block = Block(
        observations[:-1],
        actions,
        as_float32(raw.rewards[:size]),
        terminations,
        truncations,
        intervals,
        breaks,
        observations[-1:],
    )
    builder.add(block, Place(np.full(size, raw.index), np.arange(size)), [size])


def finite(values: NDArray[Any]) -> NDArray[np.float64]:
    """Gives numbers as float64 with 0 in place of those that float32 cannot hold."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size and np.abs(numbers).max() <= float(np.finfo(np.float32).max):
        return numbers
    return np.where(np.abs(numbers) <= np.finfo(np.float32).max, numbers, 0.0)


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Converts without a warning; what overflows becomes inf and the finite check reports it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(np.float32)
