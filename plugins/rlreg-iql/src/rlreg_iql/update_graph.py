"""Several updates as one CUDA graph that is launched again and again.

A graph starts all kernels of its updates with one call. It always reads and writes the same memory,
so whatever changes from launch to launch is copied into buffers before it: batches, learning rates,
numbers of updates. No graph holds the address of a data set or of a scaler.

On a CPU, where there are no graphs, the same function is called instead; the tests do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

UPDATES_PER_GRAPH = 10
"""Of a chunk of 50, five launches; what is left of another chunk is called without a graph."""
CAPTURE_ERRORS = (RuntimeError, OSError, ImportError, AssertionError)
_WARM_UP_CALLS = 3  # as many as torch's own helpers make before a capture
_TOLERANCE = 1e-3  # of the metrics; a graph that reads an old batch is off by a tenth and more

Updates = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Does an update for each row of batches ``[k, ...]`` and numbers ``[k, ...]``; returns a row of
metrics for each."""


def record(function: Callable[[], None], device: torch.device) -> Callable[[], object]:
    """Records the kernels that a function starts.

    Args:
        function: Starts the same kernels on the same memory whenever it is called, and waits for
            none of them.
        device: Where.

    Returns:
        What starts them all again; on a CPU the function itself.

    Raises:
        RuntimeError: If they cannot be recorded.
    """
    if device.type != "cuda":
        return function
    with torch.cuda.device(device):
        own, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(own)
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_CALLS):
                function()
        own.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                function()
        finally:
            torch.cuda.set_stream(own)  # torch stays on the other one when a capture fails
    replay: Callable[[], object] = graph.replay
    return replay


class UpdateGraph:
    """``UPDATES_PER_GRAPH`` updates as one graph, and the buffers that it reads and writes.

    Args:
        updates: What is recorded. It changes tensors that stay where they are.
        batches: Parts of some batches, ``[n, ...]``, for the calls before the first launch.
        numbers: What else changes from update to update, ``[n, ...]``, likewise.

    Raises:
        RuntimeError: If it cannot be recorded.
    """

    def __init__(self, updates: Updates, batches: Sequence[Tensor], numbers: Tensor) -> None:
        self._updates = updates
        rows = torch.arange(UPDATES_PER_GRAPH, device=numbers.device) % len(batches[0])
        self.batches = [part[rows] for part in batches]  # real ones: zero may be no action
        self.numbers = numbers.new_ones(UPDATES_PER_GRAPH, *numbers.shape[1:])
        self._metrics = torch.zeros_like(updates(self.batches, self.numbers))
        self.replay = record(self._fill, numbers.device)

    def _fill(self) -> None:
        self._metrics.copy_(self._updates(self.batches, self.numbers))

    def run(self, batches: Sequence[Tensor], numbers: Tensor) -> Tensor:
        """Does an update for each row, by launches where there are enough for one.

        Returns:
            Their metrics, a row for each.
        """
        return torch.cat([self._launch(*part) for part in _portions(batches, numbers)])

    def _launch(self, batches: Sequence[Tensor], numbers: Tensor) -> Tensor:
        if len(numbers) != UPDATES_PER_GRAPH:
            return self._updates(batches, numbers)
        torch._foreach_copy_([*self.batches, self.numbers], [*batches, numbers])
        self.replay()
        return self._metrics.clone()  # the next launch writes over them

    def check(
        self, batches: Sequence[Tensor], numbers: Tensor, start: Callable[[], object]
    ) -> None:
        """Compares launches with calls.

        Args:
            batches: For at least two launches, so that an old batch is seen.
            numbers: Beside them.
            start: Puts the tensors that updates change where they were.

        Raises:
            AssertionError: If they differ.
        """
        start()
        called = [self._updates(*part) for part in _portions(batches, numbers)]
        start()
        launched = self.run(batches, numbers)
        torch.testing.assert_close(
            launched,
            torch.cat(called),
            rtol=_TOLERANCE,
            atol=_TOLERANCE,
            equal_nan=True,
            msg=lambda text: f"it does not do what the updates do ({text.splitlines()[0]})",
        )


def _portions(batches: Sequence[Tensor], numbers: Tensor) -> list[tuple[list[Tensor], Tensor]]:
    starts = range(0, len(numbers), UPDATES_PER_GRAPH)
    slices = [slice(start, start + UPDATES_PER_GRAPH) for start in starts]
    return [([part[own] for part in batches], numbers[own]) for own in slices]


def refusal(error: BaseException) -> str:
    """Says that there is no graph: the first line of the first error.

    Ending a capture that failed raises another one.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{UPDATES_PER_GRAPH} updates could not be made a graph: {cause}"
