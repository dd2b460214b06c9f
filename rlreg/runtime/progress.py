"""How training shows on the screen: live on a terminal, one line an epoch everywhere else.

A learnable that names its figures (``live_metrics``) gets a table of them above the bar.

Everything goes to stderr; stdout belongs to results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

Metrics = Mapping[str, float]
M = TypeVar("M", bound=Metrics)

_NUM_SHOWN = 4
_FIGURES_PER_ROW = 3


class Display:
    """Shows how far training is.

    Args:
        total: Steps of the whole run.
        unit: What a step is, e.g. ``updates``.
        counts_calls: Whether a call of :meth:`advance` is one step, whatever it is told.
        is_shown: Whether to show anything at all.
        figures: What a table shows on a terminal: captions and names of metrics.
    """

    def __init__(
        self,
        total: int,
        *,
        unit: str = "updates",
        counts_calls: bool = False,
        is_shown: bool = True,
        figures: Mapping[str, str] | None = None,
    ) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._total, self._done, self._unit = total, 0, unit
        self._counts_calls = counts_calls
        self._begun, self._begun_at = 0, time.perf_counter()
        self._figures = dict(figures or {})
        self._metrics: dict[str, float] = {}
        self._bar: Progress | None = None
        self._live: Live | None = None
        if is_shown and self._console.is_terminal:
            self._bar = self._make_bar()
            self._task = self._bar.add_task("", total=total, losses="", rate="")
            # The table and the bar are one picture, drawn a few times a second.
            self._live = Live(get_renderable=self._picture, console=self._console, transient=True)
            self._live.start()

    def _make_bar(self) -> Progress:
        columns = [
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        ]
        if not self._figures:
            columns.append(TextColumn("{task.fields[losses]}"))
        return Progress(*columns, console=self._console)

    def _picture(self) -> Group:
        assert self._bar is not None
        return Group(self._table(), self._bar) if self._figures else Group(self._bar)

    def _table(self) -> Table:
        figures = [(self._unit, f"{self._done:,} / {self._total:,}")]
        figures.append((f"{self._unit}/s", f"{self._speed():,.0f}"))
        figures += [
            (caption, f"{self._metrics[name]:,.4g}")
            for caption, name in self._figures.items()
            if name in self._metrics
        ]
        table = Table.grid(padding=(0, 2))
        for start in range(0, len(figures), _FIGURES_PER_ROW):
            row = figures[start : start + _FIGURES_PER_ROW]
            table.add_row(*[cell for name, value in row for cell in (f"[dim]{name}", value)])
        return table

    def note(self, text: str) -> None:
        """Shows a remark, above the bar."""
        self._console.print(escape(text), soft_wrap=True, highlight=False)

    def advance(self, count: int) -> None:
        """Moves on by some steps."""
        self._done += 1 if self._counts_calls else count
        self._draw_steps()

    def _draw_steps(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=self._rate())

    def epoch(self, epoch: int, num_epochs: int | None, metrics: Metrics) -> None:
        """Shows the metrics of an epoch that has ended."""
        losses = shown_metrics(metrics)
        # Replaced and not changed: another thread may be drawing. Evaluations are not in each.
        self._metrics = {**self._metrics, **metrics}
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, losses=losses, rate=self._rate())
            return
        of = f"/{num_epochs}" if num_epochs else ""
        parts = [f"epoch {epoch}{of}", f"{self._done:,}/{self._total:,} {self._unit}"]
        self.note("  ".join([*parts, losses, self._rate(), f"ETA {self._remaining()}"]))

    def move_to(self, done: int) -> None:
        """Moves to a number of steps."""
        self._done = done
        self._draw_steps()

    def start_from(self, done: int) -> None:
        """Counts on from a number of steps that were done before."""
        self._begun = done
        self.move_to(done)

    def leave_out(self, seconds: float) -> None:
        """Leaves seconds in which nothing was trained (an evaluation) out of the rate."""
        self._begun_at += seconds

    def close(self) -> None:
        """Takes table and bar away."""
        if self._live is not None:
            self._live.stop()
            self._live = self._bar = None

    def _speed(self) -> float:
        return (self._done - self._begun) / max(time.perf_counter() - self._begun_at, 1e-9)

    def _rate(self) -> str:
        return f"{self._speed():,.0f} {self._unit}/s"

    def _remaining(self) -> str:
        # The last update of an online run may exceed what was asked for.
        seconds = max(0, self._total - self._done) / max(self._speed(), 1e-9)
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
