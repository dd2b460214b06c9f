"""What must not change between a file and the store, and the report that shows it.

A loader that drops, shifts or invents rows looks like a working loader: training goes on, on other
data. So every load counts in the file, counts again in the finished store through the path that
training samples from, and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlreg.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Law:
    """One quantity that file and store must agree on.

    Attributes:
        name: What was counted.
        expected: The figure from the file, less what was left out on purpose.
        found: The figure from the store.
        tolerance: Largest difference that rounding to float32 explains.
    """

    name: str
    expected: float
    found: float
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the two figures agree."""
        return abs(self.expected - self.found) <= self.tolerance

    def __str__(self) -> str:
        mark = "ok  " if self.holds else "FAIL"
        return f"{mark} {self.name}: file {_figure(self.expected)}, store {_figure(self.found)}"


@dataclass(slots=True)
class Ledger:
    """What a reader counted in the file while it read.

    Attributes:
        steps: Steps (rewards) in the file, all episodes.
        declared_steps: What the file's own metadata says about that, if anything.
        left_out_steps: Steps left out on purpose; each reader says why in a note.
        episodes: Episodes that gave at least one transition.
        reward_sum: Float64 sum of all finite rewards in the file.
        reward_magnitude: Float64 sum of their absolute values, the scale of rounding.
        left_out_reward: Part of ``reward_sum`` that belongs to steps left out on purpose.
        terminations: Steps flagged terminated in the file.
        left_out_terminations: Those among them that were left out on purpose.
        probe: Sum over transitions of observation and action components, weighted by position, so
            that a shift of rows shows.
        probe_magnitude: The scale of rounding of ``probe``.
        non_finite: Numbers that are NaN, infinite or too large, let in by ``allow_non_finite``.
        notes: What a reader should know about how the file was read, one sentence each.
    """

    steps: int = 0
    declared_steps: int | None = None
    left_out_steps: int = 0
    episodes: int = 0
    reward_sum: float = 0.0
    reward_magnitude: float = 0.0
    left_out_reward: float = 0.0
    terminations: int = 0
    left_out_terminations: int = 0
    probe: float = 0.0
    probe_magnitude: float = 0.0
    non_finite: int = 0
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, text: str, count: int = 1) -> None:
        """Remembers something about the reading; equal notes are counted, not repeated."""
        self.notes[text] = self.notes.get(text, 0) + count


@dataclass(frozen=True, slots=True)
class StoreCount:
    """The same quantities, counted in the finished store by gathering every transition."""

    transitions: int
    reward_sum: float
    terminations: int
    probe: float
    broken_links: int


@dataclass(frozen=True, slots=True)
class Laws:
    """The conservation report of a data set.

    Attributes:
        laws: One entry per quantity.
        notes: What was left out or assumed, and how often.
        episodes: Number of episodes in the store.
    """

    laws: tuple[Law, ...]
    notes: tuple[str, ...]
    episodes: int

    @property
    def hold(self) -> bool:
        """Whether every law holds."""
        return all(law.holds for law in self.laws)

    def require(self, source: str) -> None:
        """Raises unless every law holds.

        Raises:
            DatasetError: File and store differ; the message is the whole report.
        """
        if not self.hold:
            raise DatasetError(f"{source}: the store does not hold what the file holds\n{self}")

    def to_json(self) -> dict[str, object]:
        """Gives the report as values for JSON."""
        rows = [
            {"name": law.name, "file": law.expected, "store": law.found, "holds": law.holds}
            for law in self.laws
        ]
        return {
            "holds": self.hold,
            "episodes": self.episodes,
            "laws": rows,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        notes = [f"note {note}" for note in self.notes]
        return "\n".join([*(str(law) for law in self.laws), *notes])


def compare(ledger: Ledger, count: StoreCount) -> Laws:
    """Compares what a reader counted with what the store holds."""
    laws = [
        Law("transitions", ledger.steps - ledger.left_out_steps, count.transitions),
        Law(
            "sum of rewards",
            ledger.reward_sum - ledger.left_out_reward,
            count.reward_sum,
            # float32 keeps 24 bits; float64 sums in another order differ far less than that.
            tolerance=1e-6 * ledger.reward_magnitude + 1e-9,
        ),
        Law("terminations", ledger.terminations - ledger.left_out_terminations, count.terminations),
        Law(
            "position-weighted sum of observations and actions",
            ledger.probe,
            count.probe,
            tolerance=1e-9 * ledger.probe_magnitude + 1e-9,
        ),
        Law("breaks between next_observations[i] and observations[i+1]", 0, count.broken_links),
    ]
    if ledger.declared_steps is not None:
        laws.insert(0, Law("steps declared and read", ledger.declared_steps, ledger.steps))
    notes = [f"{text} ({n:,})" if n > 1 else text for text, n in ledger.notes.items()]
    if ledger.left_out_steps:
        reward = _figure(ledger.left_out_reward)
        notes.append(f"{ledger.left_out_steps:,} steps left out, sum of their rewards {reward}")
    if ledger.non_finite:
        notes.append(f"{ledger.non_finite:,} non-finite numbers let in (allow_non_finite=True)")
    return Laws(tuple(laws), tuple(notes), ledger.episodes)


def _figure(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:,.6f}"
