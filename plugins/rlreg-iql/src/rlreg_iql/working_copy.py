"""The tensors that a chunk of updates works on: copies of a learnable's, given back at its end.

What runs such chunks (a compiled graph, a CUDA graph) needs tensors that stay where they
are, and numbers that are computed outside of it: learning rates and bias corrections.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rlreg.runtime.batch import Batch
from rlreg.runtime.optimizers import Schedules, StepExtras
from rlreg_iql.compiled_step import TRAINED, Leaf, Plan, Step, make_plan
from rlreg_iql.learner import RULES, Networks
from rlreg_iql.networks import ActionFeatures
from rlreg_iql.objectives import Objectives

if TYPE_CHECKING:
    from rlreg_iql.config import IQLConfig

Optimizers = Mapping[str, torch.optim.Optimizer]
_AnyStep = TypeVar("_AnyStep", bound=Step)


@dataclass(frozen=True, slots=True)
class Part:
    """What a step on some of the networks works on.

    Attributes:
        plan: Of these networks only.
        tensors: The first four arguments of a step.
    """

    plan: Plan
    tensors: tuple[list[Tensor], ...]


class WorkingCopy:
    """Parameters, moments and target parameters, and the step that works on them.

    Args:
        config: Numbers of the update.
        networks: Whose parameters are copied.
        optimizers: ``actor`` and ``critic``, and ``value`` where the rule has one; the optimizers
            keep the moments and counts, but their ``step`` is not called.
        features: How actions enter the critics.
        step_class: What one update is.

    Attributes:
        rule: Name of the update rule.
        step: The update; there is none before :meth:`prepare`.
    """

    def __init__(
        self,
        config: IQLConfig,
        networks: Networks,
        optimizers: Optimizers,
        features: ActionFeatures,
        step_class: type[Step] = Step,
    ) -> None:
        self.rule: str = config.update_rule
        self._rule, self._tau = RULES[self.rule], config.tau
        self._networks, self._optimizers = networks, optimizers
        self._objectives = Objectives(config, features, self._rule.action_limit)
        self._modules = {name: getattr(networks, name) for name in TRAINED}
        self._step_class = step_class
        self._plan: Plan | None = None
        self.step: Step

    def prepare(self) -> bool:
        """Makes step and tensors where there are none, or where settings were changed by hand.

        Returns:
            Whether they are new.
        """
        for optimizer in self._optimizers.values():
            if isinstance(optimizer, StepExtras):
                optimizer.prepare()
        plan = make_plan(
            self._networks, self._optimizers, is_split=self._step_class.has_split_critics
        )
        if plan == self._plan:
            return False
        self._plan = plan
        self.step = self.new_step(self._step_class, plan)
        shapes = [leaf.of(self._parameter(leaf)) for leaf in plan.leaves]
        self._trained, self._means, self._squares = (
            [torch.empty_like(part) for part in shapes] for _ in range(3)
        )
        self._targets = [torch.empty_like(shapes[i]) for i in plan.targets]
        return True

    @property
    def plan(self) -> Plan:
        """What the tensors are."""
        assert self._plan is not None
        return self._plan

    def arguments(self, batch: Batch, rates: Tensor) -> tuple[Any, ...]:
        """Returns what the step is called with."""
        parts = [batch[name] for name in batch]
        return self._trained, self._means, self._squares, self._targets, parts, rates

    def part(self, *networks: str) -> Part:
        """Returns what belongs to some of the trained networks, target critics to the critics."""
        plan = self.plan
        own = [i for i, leaf in enumerate(plan.leaves) if leaf.network in networks]
        places = {i: place for place, i in enumerate(own)}
        targets = [k for k, i in enumerate(plan.targets) if i in places]
        smaller = dataclasses.replace(
            plan,
            leaves=tuple(plan.leaves[i] for i in own),
            targets=tuple(places[plan.targets[k]] for k in targets),
            settings=tuple(plan.settings[i] for i in own),
        )
        mine = [[of[i] for i in own] for of in (self._trained, self._means, self._squares)]
        return Part(smaller, (*mine, [self._targets[k] for k in targets]))

    def new_step(self, step_class: Callable[..., _AnyStep], plan: Plan, *more: Any) -> _AnyStep:
        """Makes a step for a plan, of these networks and by these rules."""
        return step_class(plan, self._networks, self._objectives, self._rule, self._tau, *more)

    # --- the learnable's tensors ----------------------------------------------------------------

    def _parameter(self, leaf: Leaf) -> Tensor:
        parameter: Tensor = self._modules[leaf.network].get_parameter(leaf.name)
        return parameter.detach()

    def _target(self, index: int) -> Tensor:
        leaf = self.plan.leaves[index]
        return leaf.of(self._networks.target_critics.get_parameter(leaf.name).detach())

    def _moments(self) -> tuple[list[Tensor], list[Tensor]]:
        """Returns our moments and the optimizers', of the parameters that have some."""
        own: list[Tensor] = []
        theirs: list[Tensor] = []
        for leaf, *moments in zip(self.plan.leaves, self._means, self._squares, strict=True):
            parameter = self._modules[leaf.network].get_parameter(leaf.name)
            state = self._optimizers[leaf.owner].state.get(parameter)
            if state:
                own += moments
                theirs += [leaf.of(state[name]) for name in ("exp_avg", "exp_avg_sq")]
        return own, theirs

    def copy_in(self) -> None:
        """Takes the learnable's parameters and moments."""
        plan = self.plan
        torch._foreach_copy_(
            self._trained, [leaf.of(self._parameter(leaf)) for leaf in plan.leaves]
        )
        torch._foreach_copy_(self._targets, [self._target(i) for i in plan.targets])
        torch._foreach_zero_([*self._means, *self._squares])
        own, theirs = self._moments()
        if own:  # none before the first update
            torch._foreach_copy_(own, theirs)

    def copy_out(self, n_updates: int) -> None:
        """Gives them back, and counts the updates in the optimizers."""
        plan = self.plan
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    _count(optimizer, parameter, n_updates)
        torch._foreach_copy_(
            [leaf.of(self._parameter(leaf)) for leaf in plan.leaves], self._trained
        )
        torch._foreach_copy_([self._target(i) for i in plan.targets], self._targets)
        own, theirs = self._moments()
        torch._foreach_copy_(theirs, own)

    # --- learning rates -------------------------------------------------------------------------

    def rates(self, n_updates: int) -> Tensor:
        """Returns ``[n, rows, ...]`` for the step, and moves the schedules on by n updates."""
        starts = [
            [_steps_done(optimizer, group) for group in optimizer.param_groups]
            for optimizer in self._optimizers.values()
        ]
        rows: list[list[list[float]]] = []
        for k in range(1, n_updates + 1):
            rows.append([])
            for optimizer, done in zip(self._optimizers.values(), starts, strict=True):
                for group, start in zip(optimizer.param_groups, done, strict=True):
                    rows[-1].append(self._step_class.rates_of(group, start + k))
                if isinstance(optimizer, StepExtras):
                    optimizer.advance()
        return torch.tensor(rows, dtype=torch.float32)

    def schedules(self) -> Schedules:
        """Remembers where the learning rates stand."""
        return Schedules(self._optimizers.values())


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
