"""Data sets of arrays: all steps one after the other, or a list of episodes.

The flat form also serves the original D4RL files, whose arrays are read in blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import DatasetError, LeftOutWarning, RlregError
from rlreg.runtime.data.build import DatasetBuilder, LoadOptions, Place
from rlreg.runtime.data.dataset import DatasetInfo, TransitionDataset
from rlreg.runtime.data.episodes import (
    EMPTY_NOTE,
    MASKED_NOTE,
    NO_FLAG_NOTE,
    RawEpisode,
    add_episode,
    as_float32,
    finite,
)
from rlreg.runtime.data.given_arrays import (
    as_arrays,
    column,
    flags,
    length,
    numbers,
    refuse_unknown_parts,
    rows_of,
)
from rlreg.runtime.data.guessing import guess_action_space as guess_action_space
from rlreg.runtime.data.guessing import guess_observation_space as guess_observation_space
from rlreg.runtime.data.store import Block, rows_within_budget
from rlreg.runtime.spaces import Space, to_numpy

_BLOCK = 65_536
# As in the reference implementation of IQL: what differs by less is the same observation.
_SAME_OBSERVATION = 1e-6

TIMEOUT_NOTE = "truncated episodes without a final observation; their last step is left out"
SPLIT_NOTE = "episodes ended where next_observations[i] is not observations[i + 1]"


@dataclass(frozen=True, slots=True)
class FlatSource:
    """Steps one after the other; ``observations`` and ``actions`` may be open HDF5 data sets.

    Attributes:
        observations: ``[N, ...]`` in the structure of the observation space; anything sliceable.
        actions: ``[N, ...]``.
        rewards: ``[N]``.
        terminations: ``[N]`` bool.
        truncations: ``[N]`` bool, or None where the source does not know.
        next_observations: As observations, or None.
        intervals: ``[N]``, or None for ones.
    """

    observations: object
    actions: object
    rewards: NDArray[Any]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_] | None
    next_observations: object = None
    intervals: NDArray[Any] | None = None


def dataset_from_arrays(
    observations: object,
    actions: object,
    rewards: object,
    terminations: object,
    truncations: object,
    *,
    next_observations: object,
    intervals: object,
    observation_space: Space | None,
    action_space: Space | None,
    info: DatasetInfo,
    allow_non_finite: bool,
) -> TransitionDataset:
    """Does what ``TransitionDataset.from_arrays`` promises."""
    source = FlatSource(
        as_arrays(observations),
        numbers(actions, "actions"),
        column(rewards, "rewards"),
        flags(terminations, "terminations"),
        None if truncations is None else flags(truncations, "truncations"),
        None if next_observations is None else as_arrays(next_observations),
        None if intervals is None else column(intervals, "intervals"),
    )
    if observation_space is not None:
        refuse_unknown_parts(observation_space, source.observations)
    builder = DatasetBuilder(
        info.name,
        observation_space or guess_observation_space(source.observations),
        action_space or guess_action_space(source.actions),
        options=LoadOptions(allow_non_finite=allow_non_finite),
        capacity=len(source.rewards) * 21 // 20 + 1,
    )
    add_flat(builder, source)
    dataset = builder.finish(info)
    _warn_of_left_out(builder, "next_observations=... keeps them")
    return dataset


def _warn_of_left_out(builder: DatasetBuilder, remedy: str) -> None:
    """Says loudly that steps are lost, of which the last may be the only one that paid."""
    ledger = builder.ledger
    if ledger.left_out_steps:
        warnings.warn(
            f"{builder.name}: the last step of {ledger.left_out_steps:,} truncated episodes, with "
            f"{ledger.left_out_reward:,.6g} of the {ledger.reward_sum:,.6g} reward in all, is left "
            f"out, because nothing says which observation followed it; {remedy}",
            LeftOutWarning,
            stacklevel=4,
        )


def dataset_from_episodes(
    episodes: Sequence[Mapping[str, object]],
    *,
    observation_space: Space | None,
    action_space: Space | None,
    info: DatasetInfo,
    allow_non_finite: bool,
) -> TransitionDataset:
    """Does what ``TransitionDataset.from_episodes`` promises."""
    raws = [_raw_episode(index, episode) for index, episode in enumerate(episodes)]
    if not raws:
        raise DatasetError(f"{info.name}: no episodes")
    if action_space is None:
        action_space = guess_action_space(np.concatenate([to_numpy(raw.actions) for raw in raws]))
    builder = DatasetBuilder(
        info.name,
        observation_space or guess_observation_space(raws[0].observations),
        action_space,
        options=LoadOptions(allow_non_finite=allow_non_finite),
        capacity=sum(len(raw.rewards) + 1 for raw in raws),
    )
    for raw in raws:
        add_episode(builder, raw, mask_terminated=True)
    dataset = builder.finish(info)
    _warn_of_left_out(builder, "T + 1 observations for T steps keep them")
    return dataset


def _raw_episode(index: int, episode: Mapping[str, object]) -> RawEpisode:
    missing = [key for key in ("observations", "actions", "rewards") if key not in episode]
    if missing:
        raise DatasetError(f"episode {index} lacks {', '.join(missing)}; it has {sorted(episode)}")
    rewards = column(episode["rewards"], "rewards")
    intervals = episode.get("intervals")
    return RawEpisode(
        index,
        as_arrays(episode["observations"]),
        numbers(episode["actions"], "actions"),
        rewards,
        _episode_flags(episode.get("terminations", False), len(rewards), "terminations"),
        _episode_flags(episode.get("truncations", False), len(rewards), "truncations"),
        None if intervals is None else column(intervals, "intervals"),
    )


def _episode_flags(value: object, steps: int, name: str) -> NDArray[np.bool_]:
    given = to_numpy(value)
    if given.ndim > 0:
        return flags(given, name)
    result = np.zeros(steps, dtype=np.bool_)
    result[-1:] = bool(given)  # one bool speaks of the last step
    return result


# -------------------------------------------------------------------------------------- flat source


def add_flat(builder: DatasetBuilder, source: FlatSource) -> None:
    """Adds all transitions of a flat source to a data set.

    Raises:
        DatasetError: Lengths differ, a part does not fit its space, or ``next_observations`` do not
            continue inside an episode although the source says where episodes end.
    """
    _check_lengths(builder.name, source)
    total = len(source.rewards)
    if total == 0:
        return
    ends = _episode_ends(builder, source)
    of_episode: NDArray[Any] = np.cumsum(ends) - ends  # [N] episode of each step
    first = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
    place = Place(of_episode, np.arange(total) - first[of_episode])
    kept, last = _kept(builder, source, ends)
    _account(builder, source, kept)
    truncations = last & ~source.terminations
    # Lengths of the episodes as kept: transitions between the ends.
    counts = np.cumsum(kept)
    edges = np.flatnonzero(last)
    lengths = np.diff(counts[edges], prepend=0)
    rows = rows_within_budget(builder.row_bytes, _BLOCK)
    for start in range(0, total, rows):
        stop = min(start + rows, total)
        chosen = np.flatnonzero(kept[start:stop]) + start
        if len(chosen) == 0:
            continue
        block = _block(builder, source, (start, stop), chosen, last[chosen], truncations[chosen])
        ended = slice(*np.searchsorted(edges, [start, stop]).tolist())
        where = Place(place.episodes[chosen], place.steps[chosen])
        builder.add(block, where, lengths[ended])


def _check_lengths(name: str, source: FlatSource) -> None:
    total = len(source.rewards)
    sizes = {
        "observations": length(source.observations),
        "actions": length(source.actions),
        "terminations": len(source.terminations),
        "truncations": total if source.truncations is None else len(source.truncations),
        "next_observations": (
            total if source.next_observations is None else length(source.next_observations)
        ),
        "intervals": total if source.intervals is None else len(source.intervals),
    }
    wrong = [f"{size:,} {what}" for what, size in sizes.items() if size != total]
    if wrong:
        raise DatasetError(f"{name}: {total:,} rewards but {', '.join(wrong)}")


def _episode_ends(builder: DatasetBuilder, source: FlatSource) -> NDArray[np.bool_]:
    ends = source.terminations.copy()
    if source.truncations is not None:
        ends |= source.truncations
    if source.next_observations is not None:
        broken = _breaks(builder, source) & ~ends
        if broken.any():
            _judge_breaks(builder, source, broken)
            ends |= broken
    if not ends[-1]:
        builder.ledger.note(NO_FLAG_NOTE)
        ends[-1] = True
    return ends


def _judge_breaks(builder: DatasetBuilder, source: FlatSource, broken: NDArray[np.bool_]) -> None:
    count, first = int(broken.sum()), int(np.argmax(broken))
    if source.truncations is not None and not builder.options.split_at_breaks:
        raise DatasetError(
            f"{builder.name}: next_observations[i] is not observations[i + 1] at {count:,} steps "
            f"inside episodes, the first at step {first:,}. Leave truncations out (arrays) or pass "
            "split_at_breaks=True (files) to end an episode at each of them"
        )
    builder.ledger.note(SPLIT_NOTE, count)


def _breaks(builder: DatasetBuilder, source: FlatSource) -> NDArray[np.bool_]:
    total = len(source.rewards)
    broken = np.zeros(total, dtype=np.bool_)
    rows = rows_within_budget(builder.row_bytes, _BLOCK)
    for start in range(0, total - 1, rows):
        stop = min(start + rows, total - 1)
        following = _flatten(builder, source.next_observations, start, stop)
        own = _flatten(builder, source.observations, start + 1, stop + 1)
        a, b = following.reshape(stop - start, -1), own.reshape(stop - start, -1)
        if a.dtype.kind != "f":
            broken[start:stop] = (a != b).any(axis=1)
            continue
        near = np.abs(a - b) <= _SAME_OBSERVATION * (1.0 + np.abs(b))
        both_odd = ~np.isfinite(a) & ~np.isfinite(b)
        broken[start:stop] = ~(near | both_odd).all(axis=1)
    return broken


def _kept(
    builder: DatasetBuilder, source: FlatSource, ends: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Says which steps give a transition, and which of those are the last of their episode."""
    if source.next_observations is not None:
        return np.ones(len(ends), dtype=np.bool_), ends
    dropped = ends & ~source.terminations
    if dropped.any():
        builder.ledger.note(TIMEOUT_NOTE, int(dropped.sum()))
    masked = int((ends & source.terminations).sum())
    if masked:
        builder.ledger.note(MASKED_NOTE, masked)
    last = ends & ~dropped
    # The step before a dropped one now ends its episode, unless it belongs to another episode.
    before = np.flatnonzero(dropped) - 1
    alone = (before < 0) | ends[before]
    if alone.any():
        builder.ledger.note(EMPTY_NOTE, int(alone.sum()))
    last[before[~alone]] = True
    return ~dropped, last


def _account(builder: DatasetBuilder, source: FlatSource, kept: NDArray[np.bool_]) -> None:
    ledger = builder.ledger
    rewards = finite(source.rewards)
    ledger.steps += len(rewards)
    ledger.reward_sum += float(rewards.sum())
    ledger.reward_magnitude += float(np.abs(rewards).sum())
    ledger.terminations += int(source.terminations.sum())
    ledger.left_out_steps += int((~kept).sum())
    ledger.left_out_reward += float(rewards[~kept].sum())


def _block(
    builder: DatasetBuilder,
    source: FlatSource,
    bounds: tuple[int, int],
    chosen: NDArray[Any],
    last: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
) -> Block:
    start, stop = bounds
    total = len(source.rewards)
    observations = _flatten(builder, source.observations, start, min(stop + 1, total))
    ended = chosen[last]
    if source.next_observations is not None:
        extra = _flatten(builder, source.next_observations, start, stop)[ended - start]
    else:
        extra = np.zeros((len(ended), *observations.shape[1:]), dtype=observations.dtype)
        known = ~source.terminations[ended]
        extra[known] = observations[ended[known] + 1 - start]
    try:
        actions = builder.action_plan.flatten(rows_of(source.actions, start, stop))
    except RlregError as cause:
        raise DatasetError(f"{builder.name}: {cause}") from cause
    ones = np.ones(len(chosen), np.float32)
    return Block(
        observations[chosen - start],
        actions[chosen - start],
        as_float32(source.rewards[chosen]),
        source.terminations[chosen],
        truncations,
        ones if source.intervals is None else source.intervals[chosen],
        last,
        extra,
    )


def _flatten(builder: DatasetBuilder, values: object, start: int, stop: int) -> NDArray[Any]:
    try:
        return builder.plan.flatten(rows_of(values, start, stop))
    except RlregError as cause:
        raise DatasetError(f"{builder.name}: {cause}") from cause
