"""IQL's updates on a GPU: several of them as one CUDA graph (`update_graph.py`).

A small network leaves a GPU waiting for the calls that start its kernels; a graph starts those of
all its updates with one. Batches are drawn by the learnable's own generator, as for plain updates,
and gathered for a whole chunk at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlreg.runtime.batch import Batch
from rlreg_iql.compiled_step import Leaf, NotCompiledError, Step, named_totals
from rlreg_iql.update_graph import CAPTURE_ERRORS, UPDATES_PER_GRAPH, UpdateGraph, refusal
from rlreg_iql.working_copy import WorkingCopy


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


class GraphedUpdates:
    """Runs chunks of updates through a graph.

    Args:
        copy: What they work on; its step is a :class:`FusedStep`.
        device: That of the networks.

    Attributes:
        graph: What is launched; there is none before :meth:`warm_up`.
    """

    def __init__(self, copy: WorkingCopy, device: torch.device) -> None:
        self._copy = copy
        self._device = device
        self.graph: UpdateGraph | None = None

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
                graph = self._prepare(batches)
                with self._copy.schedules().guard():
                    parts, rates = self._inputs(batches)
                    graph.check(parts, rates, self._copy.copy_in)
        except CAPTURE_ERRORS as error:
            raise NotCompiledError(refusal(error)) from error

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
            graph = self._prepare(batches)
            schedules = self._copy.schedules()
            with schedules.guard():
                inputs = self._inputs(batches)
                self._copy.copy_in()
                totals = graph.run(*inputs).double().sum(dim=0)
                if not bool(torch.isfinite(totals).all()):  # the one wait for the device in a chunk
                    return None
                self._copy.copy_out(n_updates)
                schedules.commit()
        return named_totals(self._copy.step.metric_names, totals)

    def _prepare(self, batches: Batch) -> UpdateGraph:
        """Records where that was not done yet, or settings of an optimizer were changed by hand."""
        is_new = self._copy.prepare()
        if is_new or self.graph is None:
            self.graph = None  # an older graph knows other tensors
            rates = torch.ones(1, self._copy.plan.num_rows, 2, device=self._device)
            self._copy.copy_in()
            self.graph = UpdateGraph(self._updates, list(batches.values()), rates)
        return self.graph

    def _updates(self, batches: Sequence[Tensor], rates: Tensor) -> Tensor:
        """Does an update with each batch; returns their metrics, a row for each."""
        return torch.stack(
            [
                self._copy.step(*self._copy.arguments(Batch(*parts), numbers))
                for *parts, numbers in zip(*batches, rates, strict=True)
            ]
        )

    def _inputs(self, batches: Batch) -> tuple[list[Tensor], Tensor]:
        """Moves the schedules on; returns batches, and rates ``[n, rows, 2]`` beside them."""
        rates = self._copy.rates(len(batches.rewards)).to(self._device)
        return list(batches.values()), rates
