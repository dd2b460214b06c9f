"""The compiled update as two chains of graphs that run side by side, each on half of the threads.

One half of an update's work is the critics', the other half that of value and policy, and the two
need no more of each other than two vectors: the critics' targets and the target critics' values.
Two threads that meet twice in an update lose less than threads that share every small product, and
much less where other programs compute beside them (docs/performance.md).

The graphs are the same however many threads there are, and who calls them changes no bit: with one
thread they are called in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

import torch
from torch import Tensor

from rlreg.runtime.batch import Batch
from rlreg.runtime.torch_threads import torch_threads
from rlreg_iql.compiled_step import CRITICS, POLICY, VALUE, Step
from rlreg_iql.learner import Step as StepName
from rlreg_iql.objectives import Work
from rlreg_iql.working_copy import WorkingCopy

Shared = Literal["target_values", "td_targets"]
Compile = Callable[[Step, int], Callable[..., Any]]
"""Compiles a step for so many threads."""


@dataclass(frozen=True, slots=True)
class Link:
    """One graph of a chain.

    Attributes:
        steps: What it does, in order.
        takes: What its steps read of the other chain.
        gives: What it computes for the other chain, after its steps.
    """

    steps: tuple[StepName, ...] = ()
    takes: Shared | None = None
    gives: Shared | None = None


CRITICS_CHAIN = (Link(gives="target_values"), Link(("critics", "targets"), takes="td_targets"))
VALUE_CHAINS = {
    "d3rlpy": (Link(gives="td_targets"), Link(("value", "actor"), takes="target_values")),
}
"""Of the update rules in which neither chain waits for long.

By `paper` the critics' targets are of the value after its step, and that step waits for the target
critics: a third of an update would be waiting, and one graph on all threads is faster.
"""


class LinkStep(Step):
    """The graph of a link.

    Args:
        plan: Of its chain's networks.
        *more: As for any step, then the link.
    """

    def __init__(self, plan: Any, *more: Any) -> None:
        super().__init__(plan, *more[:-1])
        self.link: Link = more[-1]

    def identity(self) -> tuple[str, ...]:
        """As for any step."""
        return *super().identity(), repr(self.link)

    def __call__(  # type: ignore[override]  # a link is called by its chain only
        self,
        trained: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        targets: Sequence[Tensor],
        batch: Sequence[Tensor],
        rates: Tensor,
        known: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Takes the steps of the link.

        Args:
            trained: As for any step, of this chain's networks; the same for the next five.
            means: First moments.
            squares: Second moments.
            targets: Parameters of the target critics, for the chain of the critics.
            batch: The parts of a batch.
            rates: Of all parameter groups.
            known: What it takes, ``[B]``; ``None`` if that is nothing.

        Returns:
            What it gives, ``[B]``, and what a step returns; ``None`` in place of nothing.
        """
        rows = Batch(*batch)
        scored, features = self._objectives.actions(rows)
        new, row = list(trained), None
        if known is not None:
            # The steps of a link read the one of the two that it takes.
            work = Work(rows, scored, features, target_values=known, td_targets=known)
            new, row = self._take(self.link.steps, trained, means, squares, targets, work, rates)
        functions = self._functions(new, targets)
        if self.link.gives == "target_values":
            return self._objectives.target_values(functions, rows.observations, features), row
        if self.link.gives == "td_targets":
            return self._objectives.td_targets(functions, rows), row
        return None, row


class ClosedError(Exception):
    """The other chain has ended early."""


class Mailbox:
    """What one chain gives to the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Tensor | None] = SimpleQueue()

    def put(self, value: Tensor) -> None:
        """Gives a vector."""
        self._queue.put(value)

    def get(self) -> Tensor:
        """Waits for a vector.

        Raises:
            ClosedError: If none will come.
        """
        value = self._queue.get()
        if value is None:
            raise ClosedError
        return value

    def close(self) -> None:
        """Ends the wait of whoever takes."""
        self._queue.put(None)


class Chain:
    """The graphs of one chain, and the tensors of its networks.

    Args:
        copy: Whose networks they are.
        networks: Their names.
        links: In order.
    """

    def __init__(self, copy: WorkingCopy, networks: Sequence[str], links: Sequence[Link]) -> None:
        part = copy.part(*networks)
        self._tensors = part.tensors
        self._steps = [copy.new_step(LinkStep, part.plan, link) for link in links]
        self._graphs: list[Callable[..., Any]] = []

    def compile(self, compiler: Compile, threads: int) -> None:
        """Has all links compiled at their first call."""
        self._graphs = [compiler(step, threads) for step in self._steps]

    def work(
        self, batches: Sequence[Batch], rates: Tensor, inbox: Mailbox, outbox: Mailbox
    ) -> Iterator[None]:
        """Does this chain's share of an update with each batch; halts after every link."""
        self._rows: list[list[Tensor]] = [[] for _ in self._steps]
        for batch, numbers in zip(batches, rates, strict=True):
            parts, known = [batch[name] for name in batch], None
            for step, graph, rows in zip(self._steps, self._graphs, self._rows, strict=True):
                if step.link.takes is not None and known is None:
                    known = inbox.get()
                given, row = graph(*self._tensors, parts, numbers, known)
                if given is not None:
                    outbox.put(given)
                if row is not None:
                    rows.append(row)
                yield

    def totals(self) -> tuple[list[str], list[Tensor]]:
        """Returns names of the metrics and sums over the updates; no name is that of a check."""
        working = [step for step in self._steps if step.link.steps]
        names = [name for step in working for name in (*step.metric_names, "")]
        return names, [torch.stack(rows).double().sum(dim=0) for rows in self._rows if rows]


class Chains:
    """Does updates by both chains.

    Args:
        copy: What they work on.
        rule: Name of the update rule.
        compiler: Compiles a step.
    """

    def __init__(self, copy: WorkingCopy, rule: str, compiler: Compile) -> None:
        self._critics = Chain(copy, [CRITICS], CRITICS_CHAIN)
        self._value = Chain(copy, [VALUE, POLICY], VALUE_CHAINS[rule])
        self._compiler = compiler
        self._threads = 0

    def run(self, batches: Sequence[Batch], rates: Tensor) -> tuple[list[str], Tensor]:
        """Does an update with each batch.

        Args:
            batches: All of one shape.
            rates: ``[n, rows, 3]``.

        Returns:
            Names of the metrics and their sums. Those without a name are finite if all losses and
            gradients were.
        """
        threads = torch.get_num_threads()
        share = max(1, threads // 2)
        is_new = share != self._threads
        if is_new:
            for chain in (self._critics, self._value):
                chain.compile(self._compiler, share)
        to_value, to_critics = Mailbox(), Mailbox()
        critics = self._critics.work(batches, rates, to_critics, to_value)
        value = self._value.work(batches, rates, to_value, to_critics)
        with torch_threads(share):
            if is_new or threads == 1:  # the compiler is called in one thread only
                for _ in zip(critics, value, strict=True):
                    pass
            else:
                _side_by_side(critics, value, (to_value, to_critics), share)
        self._threads = share
        names, totals = self._critics.totals()
        more_names, more_totals = self._value.totals()
        return names + more_names, torch.cat(totals + more_totals)


def _side_by_side(
    here: Iterator[None], there: Iterator[None], boxes: Sequence[Mailbox], threads: int
) -> None:
    """Works one chain off here and the other one in a thread that ends before this returns.

    Raises:
        BaseException: Whatever ended one of them; the other one then ends as well.
    """
    errors: list[BaseException] = []

    def work(chain: Iterator[None]) -> None:
        try:
            for _ in chain:
                pass
        except BaseException as error:  # noqa: BLE001  # raised below, when both have ended
            errors.append(error)
            for box in boxes:
                box.close()

    def work_there() -> None:
        torch.set_num_threads(threads)  # that of a new thread is not always its maker's
        with torch.no_grad():
            work(there)

    other = threading.Thread(target=work_there, name="rlreg-iql-value-chain", daemon=True)
    other.start()
    work(here)
    try:
        other.join()
    except BaseException as error:  # noqa: BLE001  # a signal: the other chain has to end first
        errors.append(error)
        other.join()
    for found in errors:
        if not isinstance(found, ClosedError):
            raise found
