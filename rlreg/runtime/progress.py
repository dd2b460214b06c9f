"""How training shows on the screen: a live bar on a terminal, one line an epoch everywhere else.

Everything goes to stderr; stdout belongs to results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Metrics = Mapping[str, float]
M = TypeVar("M", bound=Metrics)

_NUM_SHOWN = 4


class Display:
    """Shows how far training is.

    Args:
        total: Steps of the whole run.
        done: Steps done before it goes on.
        unit: What a step is, e.g. ``updates``.
        is_shown: Whether to show anything at all.
    """

    def __init__(
        self, total: int, *, done: int = 0, unit: str = "updates", is_shown: bool = True
    ) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._total, self._done, self._unit = total, done, unit
        self._begun, self._begun_at = done, time.perf_counter()
        self._bar: Progress | None = None
        if is_shown and self._console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[losses]}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done, losses="", rate="")
            self._bar.start()

    def note(self, text: str) -> None:
        """Shows a remark, above the bar."""
        self._console.print(escape(text), soft_wrap=True, highlight=False)

    def advance(self, count: int) -> None:
        """Moves on by some steps."""
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=self._rate())

    def epoch(self, epoch: int, num_epochs: int | None, metrics: Metrics) -> None:
        """Shows the metrics of an epoch that has ended."""
        losses = shown_metrics(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, losses=losses, rate=self._rate())
            return
        of = f"/{num_epochs}" if num_epochs else ""
        parts = [f"epoch {epoch}{of}", f"{self._done:,}/{self._total:,} {self._unit}"]
        self.note("  ".join([*parts, losses, self._rate(), f"ETA {self._remaining()}"]))

    def move_to(self, done: int) -> None:
        """Moves to a number of steps."""
        self.advance(done - self._done)

    def leave_out(self, seconds: float) -> None:
        """Leaves seconds in which nothing was trained (an evaluation) out of the rate."""
        self._begun_at += seconds

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _speed(self) -> float:
        return (self._done - self._begun) / max(time.perf_counter() - self._begun_at, 1e-9)

    def _rate(self) -> str:
        return f"{self._speed():,.0f} {self._unit}/s"

    def _remaining(self) -> str:
        seconds = (self._total - self._done) / max(self._speed(), 1e-9)
        minutes, rest = divmod(int(seconds), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def shown_metrics(metrics: Metrics) -> str:
    """Picks what fits on a line: losses first, then returns."""
    losses = [name for name in metrics if name.endswith("loss")]
    returns = [name for name in metrics if name.endswith(("mean_return", "return_mean"))]
    picked = (losses or [name for name in metrics if "/" not in name])[:_NUM_SHOWN] + returns[:1]
    return "  ".join(f"{name.rpartition('/')[2]} {metrics[name]:.4g}" for name in picked)


def progress(
    fitter: Iterator[tuple[int, M]], n_steps: int, n_steps_per_epoch: int, *, is_shown: bool = True
) -> Iterator[tuple[int, M]]:
    """Passes on what a fitter yields and shows it."""
    display = Display(n_steps, is_shown=is_shown)
    num_epochs = -(-n_steps // n_steps_per_epoch)
    done = 0
    try:
        for epoch, metrics in fitter:
            display.advance(min(n_steps_per_epoch, n_steps - done))
            done += n_steps_per_epoch
            display.epoch(epoch, num_epochs, metrics)
            yield epoch, metrics
    finally:
        display.close()
