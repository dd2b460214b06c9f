"""IQL's updates as one compiled graph: when that is possible, and the loop around it.

A chunk of updates works on copies: parameters and moments are copied in before it and back after
it, so between two chunks (where checkpoints, evaluations and readers of metrics are) the tensors of
the learnable are as if nothing had been compiled. The graph does not stop at NaN or inf, it counts
them; a chunk in which there were any is thrown away and done again update by update, which raises
where the plain path raises and leaves what it leaves.
"""

from __future__ import annotations

import contextlib
import os
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

from rlreg.runtime.batch import Batch
from rlreg.runtime.networks import VectorEncoderNetwork
from rlreg.runtime.optimizers import Adam, AdamW, Schedule, StepExtras
from rlreg_iql.chains import VALUE_CHAINS, Chains
from rlreg_iql.compiled_step import CRITICS, Step, named_totals
from rlreg_iql.learner import Networks
from rlreg_iql.networks import ActionFeatures, StackedCritics
from rlreg_iql.working_copy import Optimizers, WorkingCopy

PAYS_FROM = 20_000
"""Updates from which on ``auto`` compiles: about what makes up for a cold start of 20 s."""
_MOST_CRITICS = 8  # the graph computes them one by one, and so grows with them
_COMPILE_ERRORS = (RuntimeError, OSError, ImportError, AssertionError, TypeError)


class NotCompiledError(RuntimeError):
    """The step could not be compiled on this machine."""


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


@contextlib.contextmanager
def _lasting_cache() -> Iterator[None]:
    """Lets the compiler keep what it makes in the user's cache folder.

    Its own default is the folder for temporary files, so that every restart would begin anew.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    name, before = "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if before is not None and before != default_cache_dir():  # the user's own choice
        yield
        return
    root = os.environ.get("RLREG_CACHE") or platformdirs.user_cache_dir("rlreg")
    os.environ[name] = str(Path(root) / "inductor")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _compile(step: Step, threads: int) -> Callable[..., Any]:
    """Compiles a step for the shapes it is first called with, and for so many threads."""
    # A code object of its own: the compiler counts recompilations by code object, and the steps of
    # different learnables would share it.
    call = type(step).__call__
    own = types.FunctionType(call.__code__.replace(co_name="update"), call.__globals__, "update")
    # Between products, time goes to calls: made from C++, and shapes are in the guards already.
    options: dict[str, Any] = {
        "guard_filter_fn": _kept_guards,
        "cpp_wrapper": True,
        "size_asserts": False,
        "alignment_asserts": False,
        "cpp.threads": threads,
    }
    from rlreg_iql.products import OneDNNProducts, prefers_onednn  # imports the compiler

    if prefers_onednn():
        options["post_grad_custom_post_pass"] = OneDNNProducts()
    compiled: Callable[..., Any] = torch.compile(
        types.MethodType(own, step), fullgraph=True, dynamic=False, options=options
    )
    return compiled


def _kept_guards(entries: Sequence[Any]) -> list[bool]:
    """Keeps what can change from call to call: tensors, and torch's settings (threads, for one).

    Everything else is in the plan, and another plan is another step.
    """
    kept = ("TENSOR_MATCH", "GLOBAL_STATE", "GRAD_MODE", "DEFAULT_DEVICE")
    return [entry.guard_type in kept for entry in entries]


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

    def warm_up(self, batch: Batch) -> None:
        """Compiles for batches like this one; changes nothing.

        Raises:
            NotCompiledError: With the first line of what the compiler says.
        """
        self._prepare()
        try:
            with _lasting_cache(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the compiler says about itself
                self._copy.copy_in()
                self._steps.run([batch], torch.ones(1, self._copy.plan.num_rows, 3))
        except _COMPILE_ERRORS as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise NotCompiledError(f"the update could not be compiled: {lines[0]}") from error

    def run(self, draw: Callable[[], Batch], n_updates: int) -> dict[str, Tensor] | None:
        """Does a chunk of updates.

        Args:
            draw: Gives the next batch.
            n_updates: How many.

        Returns:
            Sums of the metrics; ``None`` if something was not finite, and then nothing but what
            ``draw`` has drawn is changed.
        """
        self._prepare()
        schedules = self._copy.schedules()
        with schedules.guard(), torch.no_grad():
            rates = self._copy.rates(n_updates)
            batches = [draw() for _ in range(n_updates)]
            self._copy.copy_in()
            names, totals = self._steps.run(batches, rates)
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
