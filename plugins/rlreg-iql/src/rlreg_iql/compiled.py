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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import torch
from torch import Tensor, nn

from rlreg.runtime.batch import Batch
from rlreg.runtime.networks import VectorEncoderNetwork
from rlreg.runtime.optimizers import Adam, AdamW, Schedule, StepExtras
from rlreg_iql.compiled_step import TRAINED, Leaf, Plan, Step, make_plan
from rlreg_iql.learner import RULES, Networks
from rlreg_iql.networks import ActionFeatures, StackedCritics
from rlreg_iql.objectives import Objectives

if TYPE_CHECKING:
    from rlreg_iql.config import IQLConfig

PAYS_FROM = 20_000
"""Updates from which on ``auto`` compiles: about what makes up for a cold start of 20 s."""
_MOST_CRITICS = 8  # the graph computes them one by one, and so grows with them
_COMPILE_ERRORS = (RuntimeError, OSError, ImportError, AssertionError, TypeError)

Optimizers = Mapping[str, torch.optim.Optimizer]


class NotCompiledError(RuntimeError):
    """The step could not be compiled on this machine."""


# --- whether ------------------------------------------------------------------------------------


def reason_against(
    networks: Networks, optimizers: Optimizers, features: ActionFeatures, device: torch.device
) -> str | None:
    """Says what keeps these networks and optimizers from a compiled step; ``None`` if nothing."""
    if device.type != "cpu":
        return f"compiled updates are for the CPU, not for {device}"
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


def _compile(step: Step) -> Callable[..., Tensor]:
    """Compiles a step for the shapes it is first called with."""
    # A code object of its own: the compiler counts recompilations by code object, and the steps of
    # different learnables would share it.
    code = Step.__call__.__code__.replace(co_name="update")
    own = types.FunctionType(code, Step.__call__.__globals__, "update")
    # Between products, time goes to calls: made from C++, and shapes are in the guards already.
    options: dict[str, Any] = {
        "guard_filter_fn": _kept_guards,
        "cpp_wrapper": True,
        "size_asserts": False,
        "alignment_asserts": False,
    }
    from rlreg_iql.products import OneDNNProducts, prefers_onednn  # imports the compiler

    if prefers_onednn():
        options["post_grad_custom_post_pass"] = OneDNNProducts()
    compiled: Callable[..., Tensor] = torch.compile(
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


class CompiledUpdates:
    """Runs chunks of updates through the graph.

    Args:
        config: Numbers of the update.
        networks: Changed by chunks.
        optimizers: ``actor`` and ``critic``, and ``value`` where the rule has one; the optimizers
            keep the moments and counts, but their ``step`` is not called.
        features: How actions enter the critics.
    """

    def __init__(
        self,
        config: IQLConfig,
        networks: Networks,
        optimizers: Optimizers,
        features: ActionFeatures,
    ) -> None:
        self._rule, self._tau = RULES[config.update_rule], config.tau
        self._networks, self._optimizers = networks, optimizers
        self._objectives = Objectives(config, features, self._rule.action_limit)
        self._modules = {name: getattr(networks, name) for name in TRAINED}
        self._plan: Plan | None = None

    def warm_up(self, batch: Batch) -> None:
        """Compiles for batches like this one; changes nothing.

        Raises:
            NotCompiledError: With the first line of what the compiler says.
        """
        self._prepare()
        try:
            with _lasting_cache(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the compiler says about itself
                self._copy_in()
                self._call(batch, torch.ones(self._step_plan.num_rows, 3))
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
        schedules = _Schedules(self._optimizers.values())
        with schedules.guard(), torch.no_grad():
            rates = self._rates(n_updates)
            self._copy_in()
            rows = [self._call(draw(), rates[k]) for k in range(n_updates)]
            totals = torch.stack(rows).double().sum(dim=0)
            if not bool(torch.isfinite(totals).all()):
                return None
            self._copy_out(n_updates)
            schedules.commit()
        return dict(zip(self._step.metric_names, totals, strict=False))

    @property
    def _step_plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def _call(self, batch: Batch, rates: Tensor) -> Tensor:
        parts = [batch[name] for name in batch]
        return self._compiled(
            self._trained, self._means, self._squares, self._targets, parts, rates
        )

    def _prepare(self) -> None:
        """Makes step and buffers, anew where settings of an optimizer were changed by hand."""
        for optimizer in self._optimizers.values():
            if isinstance(optimizer, StepExtras):
                optimizer.prepare()
        plan = make_plan(self._networks, self._optimizers)
        if plan == self._plan:
            return
        self._plan = plan
        self._step = Step(plan, self._networks, self._objectives, self._rule, self._tau)
        self._compiled = _compile(self._step)
        shapes = [leaf.of(self._parameter(leaf)) for leaf in plan.leaves]
        self._trained, self._means, self._squares = (
            [torch.empty_like(part) for part in shapes] for _ in range(3)
        )
        self._targets = [torch.empty_like(shapes[i]) for i in plan.targets]

    # --- the learnable's tensors ----------------------------------------------------------------

    def _parameter(self, leaf: Leaf) -> Tensor:
        parameter: Tensor = self._modules[leaf.network].get_parameter(leaf.name)
        return parameter.detach()

    def _target(self, index: int) -> Tensor:
        leaf = self._step_plan.leaves[index]
        return leaf.of(self._networks.target_critics.get_parameter(leaf.name).detach())

    def _state(self, leaf: Leaf) -> dict[str, Tensor] | None:
        parameter = self._modules[leaf.network].get_parameter(leaf.name)
        return self._optimizers[leaf.owner].state.get(parameter) or None

    def _copy_in(self) -> None:
        plan = self._step_plan
        torch._foreach_copy_(
            self._trained, [leaf.of(self._parameter(leaf)) for leaf in plan.leaves]
        )
        torch._foreach_copy_(self._targets, [self._target(i) for i in plan.targets])
        for leaf, mean, square in zip(plan.leaves, self._means, self._squares, strict=True):
            state = self._state(leaf)
            if state is None:
                mean.zero_()
                square.zero_()
            else:
                mean.copy_(leaf.of(state["exp_avg"]))
                square.copy_(leaf.of(state["exp_avg_sq"]))

    def _copy_out(self, n_updates: int) -> None:
        plan = self._step_plan
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    _count(optimizer, parameter, n_updates)
        torch._foreach_copy_(
            [leaf.of(self._parameter(leaf)) for leaf in plan.leaves], self._trained
        )
        torch._foreach_copy_([self._target(i) for i in plan.targets], self._targets)
        for leaf, mean, square in zip(plan.leaves, self._means, self._squares, strict=True):
            state = self._state(leaf)
            assert state is not None
            leaf.of(state["exp_avg"]).copy_(mean)
            leaf.of(state["exp_avg_sq"]).copy_(square)

    def _rates(self, n_updates: int) -> Tensor:
        """Returns ``[n, rows, 3]`` for the step, and moves the schedules on by n updates."""
        starts = [
            [_steps_done(optimizer, group) for group in optimizer.param_groups]
            for optimizer in self._optimizers.values()
        ]
        rows: list[list[list[float]]] = []
        for k in range(1, n_updates + 1):
            rows.append([])
            for optimizer, done in zip(self._optimizers.values(), starts, strict=True):
                for group, start in zip(optimizer.param_groups, done, strict=True):
                    rows[-1].append(_rates_of(group, start + k))
                if isinstance(optimizer, StepExtras):
                    optimizer.advance()
        return torch.tensor(rows, dtype=torch.float32)


def _rates_of(group: Mapping[str, Any], step: int) -> list[float]:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    inverse_root = 1.0 / (1.0 - beta2**step) ** 0.5
    return [lr / (1.0 - beta1**step), inverse_root, lr * group["weight_decay"]]


def _steps_done(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> int:
    state = optimizer.state.get(group["params"][0])
    return int(state["step"]) if state else 0


def _count(optimizer: torch.optim.Optimizer, parameter: Tensor, n_updates: int) -> None:
    """Counts updates; the state is made as torch makes it at the first step."""
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    state["step"] += n_updates


class _Schedules:
    """Remembers where learning rates stand, to put them back if a chunk does not come to its end.

    Args:
        optimizers: Whose.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._kept = [
            (optimizer, [group["lr"] for group in optimizer.param_groups], _schedule(optimizer))
            for optimizer in optimizers
        ]
        self._is_committed = False

    def commit(self) -> None:
        """Says that the chunk counts."""
        self._is_committed = True

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Puts everything back at the end of the block unless it was committed."""
        try:
            yield
        finally:
            if not self._is_committed:
                self._restore()

    def _restore(self) -> None:
        for optimizer, rates, state in self._kept:
            if state is not None and isinstance(optimizer, StepExtras) and optimizer.schedule:
                optimizer.schedule.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


def _schedule(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    schedule = optimizer.schedule if isinstance(optimizer, StepExtras) else None
    return None if schedule is None else dict(schedule.state_dict())
