"""Counts what is odd about a data set while it is read, and draws the conclusions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlreg.runtime.data.build import LARGEST_USABLE, Place
from rlreg.runtime.data.episodes import finite
from rlreg.runtime.data.findings import KINDS, Finding, Inspection
from rlreg.runtime.spaces import Space


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive steps as read; observations and actions flattened, None where that failed."""

    observations: NDArray[Any] | None
    actions: NDArray[Any] | None
    rewards: NDArray[Any]
    place: Place
    observation_place: Place


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
class Tally:
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
            return
        ends = np.flatnonzero(terminations[:-1] | truncations[:-1])
        if len(ends):
            text = "steps inside episodes are flagged as their end"
            self.find("flag_inside", text, episode=number, index=int(ends[0]), count=len(ends))
        if len(known) and not (terminations[-1] or truncations[-1]):
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

    def add(self, piece: Piece) -> None:
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
            known = KINDS[kind]
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
