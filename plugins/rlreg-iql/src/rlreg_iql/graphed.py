"""IQL's updates on a GPU: several of them as one CUDA graph that is launched again and again.

A small network leaves a GPU waiting for the calls that start its kernels; a graph starts those of
all its updates with one. It always reads and writes the same memory, so whatever changes from
launch to launch is copied into buffers before it: learning rates, numbers of updates, and the
batches. These are drawn by the learnable's own generator, as for plain updates, and gathered for a
whole chunk at once; no graph holds the address of a data set or of a scaler.

On a CPU, where there are no graphs, the same function is called instead; the tests do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlreg.runtime.batch import Batch
from rlreg_iql.compiled_step import Leaf, NotCompiledError, Step, named_totals
from rlreg_iql.working_copy import WorkingCopy

UPDATES_PER_GRAPH = 10
"""Of a chunk of 50, five launches; what is left of another chunk is called without a graph."""
_WARM_UP_CALLS = 3  # as many as torch's own helpers make before a capture
_TOLERANCE = 1e-3  # of the metrics; a graph that reads an old batch is off by a tenth and more
_CAPTURE_ERRORS = (RuntimeError, OSError, ImportError, AssertionError)


class FusedStep(Step):
    """The same update in fewer kernels: critics as one product, and the plain path's Adam kernel.

    Parameters and moments are changed in place; ``rates`` has learning rate and number of the
    update, and the kernel corrects the bias.
    """

    has_split_critics = False

    @staticmethod
    def rates_of(group: Mapping[str, Any], step: int) -> list[float]:
        """Returns learning rate and number of the update."""
        return [group["lr"], float(step)]

    def _squared_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return nn.utils.get_total_norm(list(gradients)).square()

    def _move_targets(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(list(targets), list(sources), self._tau)

    def _optimize(
        self,
        own: Sequence[int],
        gradients: Sequence[Tensor],
        new: list[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        rates: Tensor,
    ) -> list[tuple[int, Tensor, Tensor]]:
        by_index = dict(zip(own, gradients, strict=True))
        for row in dict.fromkeys(self._plan.leaves[i].row for i in own):
            group = [i for i in own if self._plan.leaves[i].row == row]
            settings = self._plan.settings[group[0]]
            follow = torch._fused_adamw_ if settings.is_decoupled else torch._fused_adam_
            follow(
                [new[i] for i in group],
                # The kernel reads in the order of memory, which a gradient may not have.
                [by_index[i].contiguous() for i in group],
                [means[i] for i in group],
                [squares[i] for i in group],
                [],
                [rates[row, 1]] * len(group),
                lr=rates[row, 0],
                beta1=settings.betas[0],
                beta2=settings.betas[1],
                weight_decay=settings.weight_decay,
                eps=settings.eps,
                amsgrad=False,
                maximize=False,
            )
        return []

    def _all(
        self, tensors: Sequence[tuple[Leaf, Tensor]], observations: Tensor, actions: Tensor
    ) -> Tensor:
        own = {leaf.name: tensor for leaf, tensor in tensors}
        values: Tensor = torch.func.functional_call(self._critics, own, (observations, actions))
        return values


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


class GraphedUpdates:
    """Runs chunks of updates through a graph.

    Args:
        copy: What they work on; its step is a :class:`FusedStep`.
        device: That of the networks.
    """

    def __init__(self, copy: WorkingCopy, device: torch.device) -> None:
        self._copy = copy
        self._device = device
        self._replay: Callable[[], object] | None = None

    def warm_up(self, draw: Callable[[int], Batch]) -> None:
        """Records the graph and compares it with the function that was recorded.

        Changes nothing but what ``draw`` draws.

        Args:
            draw: Gives the next so many batches, scaled and on the device: parts ``[n, B, ...]``.

        Raises:
            NotCompiledError: If it cannot be recorded, or does something else.
        """
        batches = draw(2 * UPDATES_PER_GRAPH)
        try:
            with torch.no_grad():
                self._prepare(batches)
                with self._copy.schedules().guard():
                    self._check(batches)
        except _CAPTURE_ERRORS as error:
            raise NotCompiledError(
                f"{UPDATES_PER_GRAPH} updates could not be made a graph: {_cause(error)}"
            ) from error

    def run(self, draw: Callable[[int], Batch], n_updates: int) -> dict[str, Tensor] | None:
        """Does a chunk of updates.

        Args:
            draw: As in :meth:`warm_up`.
            n_updates: How many.

        Returns:
            Sums of the metrics; ``None`` if something was not finite, and then nothing but what
            ``draw`` has drawn is changed.
        """
        batches = draw(n_updates)
        with torch.no_grad():
            self._prepare(batches)
            schedules = self._copy.schedules()
            with schedules.guard():
                inputs = self._inputs(batches)
                self._copy.copy_in()
                totals = torch.cat([self._launch(*part) for part in inputs]).double().sum(dim=0)
                if not bool(torch.isfinite(totals).all()):  # the one wait for the device in a chunk
                    return None
                self._copy.copy_out(n_updates)
                schedules.commit()
        return named_totals(self._copy.step.metric_names, totals)

    def _prepare(self, batches: Batch) -> None:
        """Records where that was not done yet, or settings of an optimizer were changed by hand."""
        is_new = self._copy.prepare()
        if not is_new and self._replay is not None:
            return
        self._replay = None  # an older graph knows other tensors
        count = UPDATES_PER_GRAPH
        self._batches = [
            torch.zeros(count, *part.shape[1:], dtype=part.dtype, device=self._device)
            for part in batches.values()
        ]
        self._rates = torch.ones(count, self._copy.plan.num_rows, 2, device=self._device)
        self._copy.copy_in()
        self._metrics = torch.zeros_like(self._updates(self._batches, self._rates))
        self._replay = record(self._fill_metrics, self._device)

    def _fill_metrics(self) -> None:
        self._metrics.copy_(self._updates(self._batches, self._rates))

    def _updates(self, batches: Sequence[Tensor], rates: Tensor) -> Tensor:
        """Does an update with each batch; returns their metrics, a row for each."""
        return torch.stack(
            [
                self._copy.step(*self._copy.arguments(Batch(*parts), numbers))
                for *parts, numbers in zip(*batches, rates, strict=True)
            ]
        )

    def _inputs(self, batches: Batch) -> list[tuple[list[Tensor], Tensor]]:
        """Moves the schedules on; returns batches and rates ``[k, rows, 2]`` of each launch."""
        n_updates = len(batches.rewards)
        rates = self._copy.rates(n_updates).to(self._device)
        starts = range(0, n_updates, UPDATES_PER_GRAPH)
        portions = [slice(start, start + UPDATES_PER_GRAPH) for start in starts]
        return [([part[own] for part in batches.values()], rates[own]) for own in portions]

    def _launch(self, batches: Sequence[Tensor], rates: Tensor) -> Tensor:
        """Does the updates, by the graph where there are as many as it has."""
        if len(rates) != UPDATES_PER_GRAPH:
            return self._updates(batches, rates)
        assert self._replay is not None
        torch._foreach_copy_([*self._batches, self._rates], [*batches, rates])
        self._replay()
        return self._metrics.clone()  # the next launch writes over them

    def _check(self, batches: Batch) -> None:
        """Compares launches with calls.

        Raises:
            AssertionError: If they differ.
        """
        inputs = self._inputs(batches)
        self._copy.copy_in()
        called = [self._updates(*part) for part in inputs]
        self._copy.copy_in()
        launched = [self._launch(*part) for part in inputs]
        torch.testing.assert_close(
            torch.cat(launched),
            torch.cat(called),
            rtol=_TOLERANCE,
            atol=_TOLERANCE,
            equal_nan=True,
            msg=lambda text: f"it does not do what the updates do ({text.splitlines()[0]})",
        )


def _cause(error: BaseException) -> str:
    """Returns the first line of the first error; ending a capture that failed raises another."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
