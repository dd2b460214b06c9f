"""What can be odd about a data set: kinds of findings, how bad they are, and what handles them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Kind:
    """What is always the same about a kind of finding."""

    severity: Literal["problem", "note"]
    fix: str = ""
    reference: str = ""


def _option(name: str) -> str:
    """Says where an option of loading is given."""
    return (
        f"`--set dataset.{name}=true`, {name}: true beside the id of a run's dataset, or "
        f"{name}=True in Python"
    )


KINDS: Mapping[str, Kind] = {
    "nan": Kind("problem", _option("allow_non_finite"), "d3rlpy #255, #372"),
    "inf": Kind("problem", _option("allow_non_finite"), "d3rlpy #255, #372"),
    "too_large": Kind("problem", _option("allow_non_finite"), "d3rlpy #255, #372"),
    "action_out_of_bounds": Kind("problem", _option("clip_actions"), "d3rlpy #57, #256"),
    "missing_final_observation": Kind(
        "problem", "none needed: the last step is left out", "Minari #199, scripts #14"
    ),
    "lengths": Kind("problem", "repair the file", "Minari #199"),
    "damaged": Kind("problem", "fetch or make the data set again"),
    "row_order": Kind("note", "record long episodes as HDF5"),
    "unsupported_space": Kind("problem", "wrap the environment and record again", "d3rlpy #388"),
    "success_parking": Kind("problem", _option("cut_after_success"), "Minari #296, #313"),
    "all_rewards_zero": Kind(
        "problem", "check the reward of the environment", "Gymnasium-Robotics #155, #190"
    ),
    "lossy_images": Kind("note", "record with jpeg_encoding=False"),
    "constant_column": Kind("note", "none needed: scalers leave such a column alone"),
    "zero_observation": Kind("note", "check for padding"),
    "missing_references": Kind("note", "references=References(min, max)", "Minari #323, #141"),
    "no_termination": Kind(
        "note", "none needed: every step is bootstrapped", "Gymnasium-Robotics #190"
    ),
    "unflagged_end": Kind("note", "none needed: taken as truncated", "d3rlpy #98"),
    "flag_inside": Kind(
        "note", "if they are ends, record an episode for each part; values stop at terminations"
    ),
    "bang_bang_actions": Kind("note", "none needed: the space says they are continuous"),
    "no_timeouts": Kind("note", "add timeouts or next_observations to the file"),
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
        fix: The option of loading that handles it, or what else to do.
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
