"""IQL's updates as one compiled graph: when that is possible, and the loop around it.

A chunk of updates works on copies: parameters and moments are copied in before it and back after
it, so between two chunks (where checkpoints, evaluations and readers of metrics are) the tensors of
the learnable are as if nothing had been compiled. The graph does not stop at NaN or inf, it counts
them; a chunk in which there were any is thrown away and done again update by update, which raises
where the plain path raises and leaves what it leaves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlreg.runtime.batch import Batch
from rlreg.runtime.networks import VectorEncoderNetwork
from rlreg.runtime.optimizers import Adam, AdamW, Schedule, StepExtras
from rlreg_iql.chains import VALUE_CHAINS, Chains
from rlreg_iql.compiled_step import CRITICS, NotCompiledError, Step, named_totals
from rlreg_iql.learner import Networks
from rlreg_iql.networks import ActionFeatures, StackedCritics
from rlreg_iql.stored_graphs import StoredStep
from rlreg_iql.working_copy import Optimizers, WorkingCopy

PAYS_FROM = 20_000
"""Updates from which on ``auto`` compiles: about what makes up for a cold start."""
_MOST_CRITICS = 8  # the graph computes them one by one, and so grows with them


# --- whether ------------------------------------------------------------------------------------


def reason_against(
    networks: Networks, optimizers: Optimizers, features: ActionFeatures, device: torch.device
) -> str | None:
    """Says what keeps these networks and optimizers from a compiled step; ``None`` if nothing."""
    if device.type not in ("cpu", "cuda"):
        return f"compiled updates are for CPUs and CUDA devices, not for {device}"
    if features.is_discrete:
        return "compiled updates take continuous actions only"
    return _network_reason(networks) or _optimizer_reason(optimizers.values())


def _network_reason(networks: Networks) -> str | None:
    critics = networks.critics
    encoders = [getattr(part, "encoder", None) for part in (networks.policy, networks.value)]
    is_plain = all(type(encoder) is VectorEncoderNetwork for encoder in encoders)
    # Batch normalisation cannot be stacked, so critics that have it are no StackedCritics.
    if not isinstance(critics, StackedCritics) or not is_plain:
        return "compiled updates take the encoders 'default' and 'vector' only"
    if len(critics.head.weight) > _MOST_CRITICS:
        return f"compiled updates take at most {_MOST_CRITICS} critics"
    modules = (networks.policy, critics, networks.value)
    for layer in (layer for module in modules for layer in module.modules()):
        if isinstance(layer, nn.Dropout | nn.modules.batchnorm._BatchNorm):
            return "compiled updates take neither dropout nor batch normalisation"
    if any(part.dtype != torch.float32 for module in modules for part in module.parameters()):
        return "compiled updates are in float32"
    return None


def _optimizer_reason(optimizers: Iterable[torch.optim.Optimizer]) -> str | None:
    for optimizer in optimizers:
        if type(optimizer) not in (Adam, AdamW):
            return "compiled updates take the optimizers 'adam' and 'adam_w' only"
        assert isinstance(optimizer, StepExtras)
        optimizer.prepare()
        if not isinstance(optimizer.schedule, Schedule | None):
            return "compiled updates take the schedules of rlreg itself only"
        for group in optimizer.param_groups:
            if group["amsgrad"] or group["maximize"] or isinstance(group["lr"], Tensor):
                return "compiled updates take no variant of Adam"
    return None


def _compile(step: Step, threads: int) -> Callable[..., Any]:
    """Compiles a step for the forms of what it is called with, and for so many threads."""
    return StoredStep(step, threads)


# --- how ----------------------------------------------------------------------------------------


class WholeSteps:
    """Does updates by one graph, which shares its products among all threads.

    Args:
        copy: What it works on.
    """

    def __init__(self, copy: WorkingCopy) -> None:
        self._copy = copy
        self._threads = 0

    def run(self, batches: Sequence[Batch], rates: Tensor) -> tuple[Sequence[str], Tensor]:
        """Does an update with each batch; see :meth:`rlreg_iql.chains.Chains.run`."""
        step, threads = self._copy.step, torch.get_num_threads()
        if threads != self._threads:
            self._compiled, self._threads = _compile(step, threads), threads
        rows = [
            self._compiled(*self._copy.arguments(batch, numbers))
            for batch, numbers in zip(batches, rates, strict=True)
        ]
        return step.metric_names, torch.stack(rows).double().sum(dim=0)


class CompiledUpdates:
    """Runs chunks of updates through compiled graphs.

    Args:
        copy: What they work on.
    """

    def __init__(self, copy: WorkingCopy) -> None:
        self._copy = copy
        self._steps: Chains | WholeSteps
        self._has_failed = False

    def warm_up(self, batch: Batch) -> None:
        """Compiles for batches like this one; changes nothing.

        Raises:
            NotCompiledError: With the first line of what the compiler says.
        """
        self._prepare()
        with torch.no_grad():
            self._copy.copy_in()
            self._steps.run([batch], torch.ones(1, self._copy.plan.num_rows, 3))

    def run(self, draw: Callable[[], Batch], n_updates: int) -> dict[str, Tensor] | None:
        """Does a chunk of updates.

        Args:
            draw: Gives the next batch.
            n_updates: How many.

        Returns:
            Sums of the metrics; ``None`` if something was not finite or another graph was needed
            and could not be made, and then nothing but what ``draw`` has drawn is changed.
        """
        if self._has_failed:
            return None
        self._prepare()
        schedules = self._copy.schedules()
        with schedules.guard(), torch.no_grad():
            rates = self._copy.rates(n_updates)
            batches = [draw() for _ in range(n_updates)]
            self._copy.copy_in()
            try:
                names, totals = self._steps.run(batches, rates)
            except NotCompiledError as error:
                self._has_failed = True
                warnings.warn(f"updates are plain from here on: {error}", stacklevel=2)
                return None
            if not bool(torch.isfinite(totals).all()):
                return None
            self._copy.copy_out(n_updates)
            schedules.commit()
        return named_totals(names, totals)

    def _prepare(self) -> None:
        """Compiles anew where settings of an optimizer were changed by hand."""
        if self._copy.prepare():
            self._steps = self._chains() or WholeSteps(self._copy)

    def _chains(self) -> Chains | None:
        """Returns the chains, unless one norm is clipped over the parameters of both."""
        plan = self._copy.plan
        clipped = {owner for owner, clip in plan.clips if clip is not None}
        for owner in clipped:
            networks = {leaf.network for leaf in plan.leaves if leaf.owner == owner}
            if CRITICS in networks and networks != {CRITICS}:
                return None
        rule = self._copy.rule
        return Chains(self._copy, rule, _compile) if rule in VALUE_CHAINS else None
