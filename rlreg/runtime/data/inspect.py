"""Looks at a data set the way a doctor does: what is odd, where, and what handles it.

One pass, an episode or a block at a time, over data of any size; and over data that loading
refuses, since that is when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.errors import DatasetError, RlregError
from rlreg.runtime.data.arrays import guess_action_space, guess_observation_space
from rlreg.runtime.data.build import LARGEST_USABLE, Place
from rlreg.runtime.data.d4rl import REQUIRED_KEYS, open_hdf5, read_flat
from rlreg.runtime.data.episodes import finite
from rlreg.runtime.data.load import locate
from rlreg.runtime.data.minari import MinariFile
from rlreg.runtime.data.store import Layout, rows_within_budget
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space

_BLOCK = 65_536
_SMALLEST_JPEG_SIDE = 32


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is always the same about a kind of finding."""

    severity: Literal["problem", "note"]
    fix: str = ""
    reference: str = ""


_KINDS: dict[str, _Kind] = {
    "nan": _Kind("problem", "allow_non_finite=True", "d3rlpy #255, #372"),
    "inf": _Kind("problem", "allow_non_finite=True", "d3rlpy #255, #372"),
    "too_large": _Kind("problem", "allow_non_finite=True", "d3rlpy #255, #372"),
    "action_out_of_bounds": _Kind("problem", "clip_actions=True", "d3rlpy #57, #256"),
    "missing_final_observation": _Kind(
        "problem", "none needed: the last step is left out", "Minari #199, scripts #14"
    ),
    "lengths": _Kind("problem", "repair the file", "Minari #199"),
    "damaged": _Kind("problem", "fetch or make the data set again"),
    "row_order": _Kind("note", "record long episodes as HDF5"),
    "unsupported_space": _Kind("problem", "wrap the environment and record again", "d3rlpy #388"),
    "success_parking": _Kind("problem", "cut_after_success=True", "Minari #296, #313"),
    "all_rewards_zero": _Kind(
        "problem", "check the reward of the environment", "Gymnasium-Robotics #155, #190"
    ),
    "lossy_images": _Kind("note", "record with jpeg_encoding=False"),
    "constant_column": _Kind("note", "none needed: scalers leave such a column alone"),
    "zero_observation": _Kind("note", "check for padding"),
    "missing_references": _Kind("note", "references=References(min, max)", "Minari #323, #141"),
    "no_termination": _Kind(
        "note", "none needed: every step is bootstrapped", "Gymnasium-Robotics #190"
    ),
    "unflagged_end": _Kind("note", "none needed: taken as truncated", "d3rlpy #98"),
    "bang_bang_actions": _Kind("note", "none needed: the space says they are continuous"),
    "no_timeouts": _Kind("note", "add timeouts or next_observations to the file"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of oddity, with the first place where it occurs.

    Attributes:
        kind: Short name, e.g. ``nan``.
        severity: ``problem`` (loading refuses it or learning suffers) or ``note``.
        message: What was found.
        count: How often.
        episode: Episode of the first occurrence; None where it concerns the whole.
        index: Step within that episode.
        fix: The argument of ``load_dataset`` that handles it, or what else to do.
        reference: Issues in which users met it, or empty.
    """

    kind: str
    severity: Literal["problem", "note"]
    message: str
    count: int
    episode: int | None = None
    index: int | None = None
    fix: str = ""
    reference: str = ""

    def __str__(self) -> str:
        where = "" if self.episode is None else f" (first: episode {self.episode}"
        if where:
            where += ")" if self.index is None else f", index {self.index})"
        parts = [f"{self.severity:7} {self.kind}: {self.message}{where}"]
        parts += [f"fix: {self.fix}"] if self.fix else []
        parts += [f"see {self.reference}"] if self.reference else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in a data set.

    Attributes:
        source: Id or path.
        figures: Counts and sums of the whole, for orientation.
        findings: Problems first.
    """

    source: str
    figures: dict[str, float]
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings that are more than notes."""
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    def to_json(self) -> dict[str, object]:
        """Gives everything as values for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"source": self.source, "figures": dict(self.figures), "findings": findings}

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:,.6g}" for name, value in self.figures.items())
        lines = [str(finding) for finding in self.findings] or ["nothing odd"]
        return "\n".join([f"{self.source}: {figures}", *lines])


def inspect(source: str | os.PathLike[str]) -> Inspection:
    """Inspects a data set.

    Args:
        source: Id or path, as for ``load_dataset``.

    Returns:
        The findings; those of severity ``problem`` are what a check should fail on.

    Raises:
        MissingDatasetError: There is no such data set.
        DatasetError: It cannot be read at all.
    """
    path = locate(source)
    tally = _inspect_minari(path) if path.is_dir() else _inspect_d4rl(path)
    return tally.result(os.fspath(source))


# ----------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive steps as read; observations and actions flattened, None where that failed."""

    observations: NDArray[Any] | None
    actions: NDArray[Any] | None
    rewards: NDArray[Any]
    place: Place
    observation_place: Place


def _inspect_minari(folder: Path) -> _Tally:
    file = MinariFile(folder)
    tally = _Tally(file.action_space)
    if file.references() is None:
        tally.find("missing_references", "the file has no usable ref_min_score and ref_max_score")
    if bool(file.metadata.get("jpeg_encoding", True)):
        for leaf in _image_leaves(file.observation_space):
            tally.find("lossy_images", f"{leaf} is stored as JPEG")
    plan = _plan(tally, FlatteningPlan.of, file.observation_space)
    action_plan = _plan(tally, ActionPlan.of, file.action_space)
    try:
        for raw in file.episodes(with_success=True):
            steps = len(raw.rewards)
            tally.episode(raw.index, raw.rewards, raw.terminations, raw.truncations)
            tally.success(raw.index, raw.success)
            if raw.doubt:
                tally.find("row_order", raw.doubt, episode=raw.index)
            observations = _flatten(tally, plan, raw.observations, raw.index)
            actions = _flatten(tally, action_plan, raw.actions, raw.index)
            if observations is not None:
                tally.lengths(raw.index, steps, len(observations))
            if actions is not None and len(actions) != steps:
                text = f"{len(actions)} actions for {steps} rewards"
                tally.find("lengths", text, episode=raw.index, group="actions")
            where = Place(np.full(steps, raw.index), np.arange(steps))
            size = 0 if observations is None else len(observations)
            seen = Place(np.full(size, raw.index), np.arange(size))
            tally.add(_Piece(observations, actions, raw.rewards, where, seen))
    except DatasetError as cause:
        tally.find("damaged", str(cause))
    return tally


def _inspect_d4rl(path: Path) -> _Tally:
    with open_hdf5(path) as file:
        source = read_flat(file, path)
        sizes = [len(file[key]) for key in REQUIRED_KEYS]
        total = min(sizes)
        action_space = guess_action_space(source.actions)
        plan = FlatteningPlan.of(guess_observation_space(source.observations))
        action_plan = ActionPlan.of(action_space)
        # The space is a guess from the actions themselves: nothing can lie outside.
        tally = _Tally(action_space)
        tally.find("missing_references", "D4RL files have no reference returns")
        if source.truncations is None and source.next_observations is None:
            tally.find("no_timeouts", "a reset without a terminal cannot be seen in this file")
        if len(set(sizes)) > 1:
            tally.find("lengths", f"{', '.join(REQUIRED_KEYS)} have lengths {sizes}")
        truncations = source.truncations
        if truncations is None:
            truncations = np.zeros(total, dtype=np.bool_)
        ends = source.terminations[:total] | truncations[:total]
        starts = np.concatenate([[0], np.flatnonzero(ends) + 1])
        starts = starts[starts < total]
        for episode, (start, stop) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
            part = slice(start, stop)
            flags = source.terminations[part], truncations[part]
            tally.episode(episode, source.rewards[part], *flags)
        numbers: NDArray[Any] = np.cumsum(ends) - ends
        rows = rows_within_budget(Layout.of(plan, action_plan).row_bytes(), _BLOCK)
        for start in range(0, total, rows):
            part = slice(start, min(start + rows, total))
            episodes: NDArray[Any] = numbers[part]
            where = Place(episodes, np.arange(total)[part] - starts[episodes])
            observations = _flatten(tally, plan, file["observations"][part], int(episodes[0]))
            actions = _flatten(tally, action_plan, file["actions"][part], int(episodes[0]))
            tally.add(_Piece(observations, actions, source.rewards[part], where, where))
    return tally


def _plan(tally: _Tally, make: Any, space: Space) -> Any:
    try:
        return make(space)
    except RlregError as cause:
        tally.find("unsupported_space", str(cause))
        return None


def _flatten(tally: _Tally, plan: Any, values: object, episode: int) -> NDArray[Any] | None:
    if plan is None:
        return None
    try:
        return np.asarray(plan.flatten(values))
    except RlregError as cause:
        tally.find("lengths", str(cause), episode=episode)
        return None


def _image_leaves(space: Space, name: str = "observation") -> Iterator[str]:
    """Names the parts that Minari compresses."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _image_leaves(part, f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _image_leaves(part, f"{name}[{index}]")
    elif isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in {2, 3}:
        full = bool(np.all(space.low == 0) and np.all(space.high == 255))
        if full and min(space.shape[:2]) >= _SMALLEST_JPEG_SIDE:
            yield name


# ---------------------------------------------------------------------------------- counting


@dataclass(slots=True)
class _Sighting:
    """First place, text and number of occurrences of one oddity."""

    message: str
    episode: int | None
    index: int | None
    count: int = 0


@dataclass(slots=True)
class _Columns:
    """Running extremes of each column."""

    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None

    def add(self, flat: NDArray[Any]) -> None:
        """Takes in ``[n, columns]``; NaN takes no part."""
        low, high = np.fmin.reduce(flat, axis=0), np.fmax.reduce(flat, axis=0)
        self.low = low if self.low is None else np.fmin(self.low, low)
        self.high = high if self.high is None else np.fmax(self.high, high)


@dataclass(slots=True)
class _Tally:
    """Everything seen so far."""

    action_space: Space
    sightings: dict[tuple[str, str], _Sighting] = field(default_factory=dict)
    columns: _Columns = field(default_factory=_Columns)
    num_episodes: int = 0
    num_steps: int = 0
    num_rewarded: int = 0
    reward_sum: float = 0.0
    returns: list[float] = field(default_factory=list)
    num_terminations: int = 0
    num_successes: int = 0
    num_parked: int = 0
    only_extreme_actions: bool = True

    def find(
        self,
        kind: str,
        message: str,
        *,
        episode: int | None = None,
        index: int | None = None,
        count: int = 1,
        group: str = "",
    ) -> None:
        """Counts an oddity; the first of a kind (and group) says where."""
        key = (kind, group or message)
        sighting = self.sightings.setdefault(key, _Sighting(message, episode, index))
        sighting.count += count

    def episode(
        self,
        number: int,
        rewards: NDArray[Any],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
    ) -> None:
        """Counts an episode as a whole."""
        known = finite(rewards)
        self.num_episodes += 1
        self.num_steps += len(known)
        self.num_rewarded += int(np.count_nonzero(known))
        self.reward_sum += float(known.sum())
        self.returns.append(float(known.sum()))
        self.num_terminations += int(terminations.sum())
        sizes = {len(rewards), len(terminations), len(truncations)}
        if len(sizes) > 1:
            text = f"rewards, terminations and truncations differ in length: {sorted(sizes)}"
            self.find("lengths", text, episode=number, group="flags")
        elif len(known) and not (terminations[-1] or truncations[-1]):
            text = "episodes end neither terminated nor truncated"
            self.find("unflagged_end", text, episode=number, index=len(known) - 1)

    def success(self, number: int, success: NDArray[np.bool_] | None) -> None:
        """Counts successful steps, and those that only come after the first one."""
        if success is None or not success.any():
            return
        first = int(np.argmax(success))
        parked = len(success) - first - 1
        self.num_successes += int(success.sum())
        self.num_parked += parked
        if parked:
            self.find("success_parking", "", episode=number, index=first, count=parked)

    def lengths(self, number: int, steps: int, observations: int) -> None:
        """Compares the number of observations with T + 1."""
        if observations == steps:
            text = "episodes have T observations where T + 1 belong"
            self.find("missing_final_observation", text, episode=number, index=steps)
        elif observations != steps + 1:
            text = f"{observations} observations for {steps} rewards"
            self.find("lengths", text, episode=number, group="observations")

    def add(self, piece: _Piece) -> None:
        """Looks at the numbers."""
        self._non_finite("rewards", piece.rewards.reshape(-1, 1), piece.place)
        if piece.actions is not None:
            actions = piece.actions.reshape(len(piece.actions), -1)
            self._non_finite("actions", actions, piece.place)
            self._bounds(actions, piece.place)
        if piece.observations is not None and piece.observations.dtype.kind == "f":
            flat = piece.observations.reshape(len(piece.observations), -1)
            self._non_finite("observations", flat, piece.observation_place)
            if len(flat):
                self.columns.add(flat)
                self._zero_rows(flat, piece.observation_place)

    def _non_finite(self, what: str, flat: NDArray[Any], place: Place) -> None:
        if flat.size == 0 or flat.dtype.kind != "f":
            return
        if float(np.abs(flat).max()) <= LARGEST_USABLE:
            return
        nan, inf = np.isnan(flat), np.isinf(flat)
        large = (np.abs(flat) > LARGEST_USABLE) & ~inf
        for kind, mask, word in (
            ("nan", nan, "NaN"),
            ("inf", inf, "infinite"),
            ("too_large", large, f"beyond {LARGEST_USABLE:g}"),
        ):
            self._mask(kind, f"numbers in {what} are {word}", mask, place)

    def _mask(self, kind: str, message: str, mask: NDArray[np.bool_], place: Place) -> None:
        if mask.any():
            row = int(np.argmax(mask.any(axis=1)))
            episode, index = _at(place.episodes, row), _at(place.steps, row)
            self.find(kind, message, episode=episode, index=index, count=int(mask.sum()))

    def _bounds(self, actions: NDArray[Any], place: Place) -> None:
        space = self.action_space
        if isinstance(space, spaces.Box):
            low = space.low.reshape(-1).astype(np.float32)
            high = space.high.reshape(-1).astype(np.float32)
            self.only_extreme_actions &= bool(((actions == low) | (actions == high)).all())
        elif isinstance(space, spaces.Discrete):
            low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
        elif isinstance(space, spaces.MultiDiscrete):
            low, high = space.start.ravel(), (space.start + space.nvec - 1).ravel()
        else:
            return
        beyond: NDArray[np.bool_] = np.logical_or(actions < low, actions > high)
        outside = np.asarray(beyond.any(axis=1)).reshape(-1, 1)
        self._mask("action_out_of_bounds", f"actions lie outside {space}", outside, place)

    def _zero_rows(self, flat: NDArray[Any], place: Place) -> None:
        if flat.shape[1] > 1:
            zero = (flat == 0).all(axis=1, keepdims=True)
            self._mask("zero_observation", "observations are zero in every component", zero, place)

    # ------------------------------------------------------------------------------- result

    def result(self, source: str) -> Inspection:
        """Draws the conclusions that need the whole."""
        self._conclude()
        findings = []
        for (kind, _), sighting in self.sightings.items():
            known = _KINDS[kind]
            message = self._message(kind, sighting)
            findings.append(
                Finding(
                    kind,
                    known.severity,
                    message,
                    sighting.count,
                    sighting.episode,
                    sighting.index,
                    known.fix,
                    known.reference,
                )
            )
        findings.sort(key=lambda finding: finding.severity != "problem")
        return Inspection(source, self._figures(), tuple(findings))

    def _conclude(self) -> None:
        if self.num_steps and self.num_rewarded == 0:
            self.find("all_rewards_zero", "every reward is 0")
        if self.num_steps and self.num_terminations == 0:
            self.find("no_termination", "no step terminates: a continuing task")
        box = isinstance(self.action_space, spaces.Box)
        if box and self.num_steps and self.only_extreme_actions:
            self.find("bang_bang_actions", "all actions lie on the bounds of the space")
        low, high = self.columns.low, self.columns.high
        if low is not None and high is not None and self.num_steps > 1:
            constant = np.flatnonzero(low == high).tolist()
            if constant:
                text = f"observation columns never change: {_shorten(constant)}"
                self.find("constant_column", text, count=len(constant))

    def _message(self, kind: str, sighting: _Sighting) -> str:
        if kind == "success_parking":
            share = 100.0 * self.num_parked / self.num_steps
            return f"{self.num_parked:,} steps ({share:.1f} %) come after a success"
        several = sighting.count > 1 and kind != "constant_column"
        return f"{sighting.count:,} {sighting.message}" if several else sighting.message

    def _figures(self) -> dict[str, float]:
        figures: dict[str, float] = {
            "episodes": self.num_episodes,
            "steps": self.num_steps,
            "reward_sum": self.reward_sum,
            "terminations": self.num_terminations,
            "rewarded_steps": self.num_rewarded,
        }
        if self.returns:
            figures["return_min"] = min(self.returns)
            figures["return_mean"] = self.reward_sum / len(self.returns)
            figures["return_max"] = max(self.returns)
        if self.num_successes:
            figures["success_share"] = self.num_successes / self.num_steps
        return figures


def _at(values: NDArray[Any], row: int) -> int:
    return int(values[row]) if row < len(values) else row


def _shorten(columns: list[int]) -> str:
    shown = ", ".join(str(column) for column in columns[:10])
    return shown if len(columns) <= 10 else f"{shown}, ... ({len(columns)} in all)"
