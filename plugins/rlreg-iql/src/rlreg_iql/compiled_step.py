"""One update of IQL as a function of tensors, for the compiler.

Forward, gradients, Adam and the moving targets are one graph, so that nothing between two matrix
products costs a call or a temporary. The critics, one stacked module to everybody else, are
computed one after the other here: two products on both cores each are faster than a batched one
inside a graph (docs/performance.md).

Source: the formulas of a step are those of torch.optim's fused Adam and AdamW, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlreg.runtime.batch import Batch
from rlreg.runtime.ensemble import EnsembleLayerNorm, EnsembleLinear
from rlreg.runtime.networks import flat_features
from rlreg.runtime.optimizers import AdamW, StepExtras
from rlreg_iql.learner import OWNERS, Networks, UpdateRule
from rlreg_iql.learner import Step as StepName
from rlreg_iql.networks import PolicyScore, StackedCritics
from rlreg_iql.objectives import Functions, Metrics, Objectives, Work

TRAINED = CRITICS, POLICY, VALUE = "critics", "policy", "value"
MOVED: Mapping[StepName, tuple[str, ...]] = {
    "critics_and_value": (CRITICS, VALUE),
    "value": (VALUE,),
    "actor": (POLICY,),
    "critics": (CRITICS,),
}
"""Which networks a step moves."""
_CLIP_SLACK = 1e-6  # as in torch's clip_grad_norm_


class NotCompiledError(RuntimeError):
    """Updates could not be compiled on this machine."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A parameter as the graph sees it: whole, or that of one critic.

    Attributes:
        network: ``critics``, ``policy`` or ``value``.
        name: Of the parameter in its module.
        member: Which critic, where they are split; ``None`` elsewhere.
        owner: Name of its optimizer.
        group: Its parameter group in it.
        row: Its row of step sizes.
    """

    network: str
    name: str
    member: int | None
    owner: str
    group: int
    row: int

    def of(self, tensor: Tensor) -> Tensor:
        """Returns this leaf's part of a tensor that belongs to the whole parameter."""
        return tensor if self.member is None else tensor[self.member]


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """What does not change during a run in the optimizer of a leaf.

    Attributes:
        betas: Decay rates of both moments.
        eps: Added to the root.
        weight_decay: Its factor.
        is_decoupled: Whether it acts on the parameter (AdamW) instead of the gradient.
    """

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    is_decoupled: bool

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> AdamSettings:
        """Reads a parameter group."""
        betas = (float(group["betas"][0]), float(group["betas"][1]))
        decoupled = isinstance(optimizer, AdamW)
        return cls(betas, float(group["eps"]), float(group["weight_decay"]), decoupled)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a step that is no tensor; two equal plans have the same graph.

    Attributes:
        leaves: The trained parameters, in the order of the optimizers.
        targets: For each critic leaf, in order: its index among ``leaves``.
        settings: Of each leaf.
        clips: Largest norm of the gradients of each optimizer, or none.
        num_rows: How many rows of step sizes there are.
    """

    leaves: tuple[Leaf, ...]
    targets: tuple[int, ...]
    settings: tuple[AdamSettings, ...]
    clips: tuple[tuple[str, float | None], ...]
    num_rows: int


def make_plan(
    networks: Networks, optimizers: Mapping[str, torch.optim.Optimizer], *, is_split: bool = True
) -> Plan:
    """Lists the parameters of all optimizers.

    Args:
        networks: Whose parameters they are.
        optimizers: By name.
        is_split: Whether each of the stacked critics has leaves of its own.
    """
    places = {
        id(parameter): (network, name)
        for network in TRAINED
        for name, parameter in getattr(networks, network).named_parameters()
    }
    leaves: list[Leaf] = []
    settings: list[AdamSettings] = []
    row = 0
    for owner, optimizer in optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                network, name = places[id(parameter)]
                is_stack = network == CRITICS and is_split
                members = range(len(parameter)) if is_stack else [None]
                leaves += [Leaf(network, name, member, owner, index, row) for member in members]
                settings += [AdamSettings.of(optimizer, group)] * len(members)
            row += 1
    clips = tuple(
        (owner, optimizer.clip_grad_norm if isinstance(optimizer, StepExtras) else None)
        for owner, optimizer in optimizers.items()
    )
    targets = tuple(i for i, leaf in enumerate(leaves) if leaf.network == CRITICS)
    return Plan(tuple(leaves), targets, tuple(settings), clips, row)


def named_totals(names: Sequence[str], totals: Tensor) -> dict[str, Tensor]:
    """Gives sums of metrics their names, and adds what is itself a sum of two."""
    metrics = {name: total for name, total in zip(names, totals, strict=False) if name}
    return {**metrics, "critic_loss": metrics["q_loss"] + metrics["v_loss"]}


class Step:
    """One update: called with tensors, changes the first four lists in place.

    Args:
        plan: What the tensors are.
        networks: Say how to compute; their own parameters are not used.
        objectives: What is minimised.
        rule: In which order.
        tau: Share of the critics that their targets take over.

    Attributes:
        has_split_critics: Whether it wants a plan in which each critic has leaves of its own.
    """

    has_split_critics = True

    def __init__(
        self, plan: Plan, networks: Networks, objectives: Objectives, rule: UpdateRule, tau: float
    ) -> None:
        self._plan, self._objectives, self._rule, self._tau = plan, objectives, rule, tau
        self._critics = cast("StackedCritics", networks.critics)
        self._score, self._value = PolicyScore(networks.policy), networks.value
        self._modules = networks.policy, networks.critics, networks.value
        self._clips = dict(plan.clips)
        self.metric_names: tuple[str, ...] = ()

    def identity(self) -> tuple[str, ...]:
        """Returns what decides its graph, besides the forms of the tensors it is called with."""
        own = type(self).__qualname__, repr(self._plan), repr(self._rule), repr(self._tau)
        return *own, self._objectives.identity(), *map(repr, self._modules)

    def __call__(
        self,
        trained: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        targets: Sequence[Tensor],
        batch: Sequence[Tensor],
        rates: Tensor,
    ) -> Tensor:
        """Does the update.

        Args:
            trained: Parameters, one for each leaf; changed.
            means: First moments; changed.
            squares: Second moments; changed.
            targets: Parameters of the target critics; changed.
            batch: The parts of a :class:`Batch`, in its order.
            rates: ``[rows, ...]``: what :meth:`rates_of` gives for each parameter group.

        Returns:
            The metrics in the order of ``metric_names``, then a number that is finite if every
            loss and every squared norm of gradients was.
        """
        work = self._objectives.prepare(self._functions(trained, targets), Batch(*batch))
        return self._take(self._rule.steps, trained, means, squares, targets, work, rates)[1]

    def _take(
        self,
        steps: Sequence[StepName],
        trained: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        targets: Sequence[Tensor],
        work: Work,
        rates: Tensor,
    ) -> tuple[list[Tensor], Tensor]:
        """Takes steps, and changes the tensors in place.

        Returns:
            The parameters after the steps, and what :meth:`__call__` returns.
        """
        new = list(trained)
        metrics: Metrics = {}
        check = torch.zeros((), dtype=rates.dtype, device=rates.device)
        moments: list[tuple[int, Tensor, Tensor]] = []
        for step in steps:
            if step == "targets":
                continue
            own = [i for i, leaf in enumerate(self._plan.leaves) if leaf.network in MOVED[step]]
            gradients, loss, reported = self._gradients(step, own, new, targets, work)
            metrics.update(reported)
            squared = self._squared_norm(gradients)
            check = check + loss + squared
            clip = self._clips.get(OWNERS[step])
            if clip is not None:
                factor = (clip / (squared.sqrt() + _CLIP_SLACK)).clamp(max=1.0)
                gradients = [part * factor for part in gradients]
            moments += self._optimize(own, gradients, new, means, squares, rates)
        if "targets" in steps:
            self._move_targets(targets, [new[i] for i in self._plan.targets])
        for i, mean, square in moments:
            means[i].copy_(mean)
            squares[i].copy_(square)
            trained[i].copy_(new[i])
        self.metric_names = tuple(metrics)
        return new, torch.stack([*metrics.values(), check])

    def _gradients(
        self,
        step: str,
        own: Sequence[int],
        current: Sequence[Tensor],
        targets: Sequence[Tensor],
        work: Work,
    ) -> tuple[list[Tensor], Tensor, Metrics]:
        objective: Callable[[Functions, Work], tuple[Tensor, Metrics]]
        objective = getattr(self._objectives, step)

        mixed = list(current)
        # Not torch.func.grad: it imports the compiler, and a found graph does without.
        with torch.enable_grad():
            parameters = [current[i].detach().requires_grad_() for i in own]
            for i, parameter in zip(own, parameters, strict=True):
                mixed[i] = parameter
            loss, metrics = objective(self._functions(mixed, targets), work)
            gradients = list(torch.autograd.grad(loss, parameters))
        loss = loss.detach()
        return gradients, loss, metrics

    # --- following gradients --------------------------------------------------------------------

    @staticmethod
    def rates_of(group: Mapping[str, Any], step: int) -> list[float]:
        """Returns the numbers of a parameter group that change from update to update.

        Args:
            group: Of an Adam.
            step: Number of the update, from 1.

        Returns:
            Step size over the first bias correction, inverse root of the second, step size times
            decoupled weight decay.
        """
        lr, (beta1, beta2) = group["lr"], group["betas"]
        inverse_root = 1.0 / (1.0 - beta2**step) ** 0.5
        return [lr / (1.0 - beta1**step), inverse_root, lr * group["weight_decay"]]

    def _squared_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.square().sum() for part in gradients]).sum()

    def _move_targets(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.lerp_(source, self._tau)

    def _optimize(
        self,
        own: Sequence[int],
        gradients: Sequence[Tensor],
        new: list[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        rates: Tensor,
    ) -> list[tuple[int, Tensor, Tensor]]:
        """Puts the next parameters into ``new``.

        Returns:
            Index, first and second moment of each leaf whose moments are still to be written.
        """
        moments: list[tuple[int, Tensor, Tensor]] = []
        for i, gradient in zip(own, gradients, strict=True):
            new[i], mean, square = self._adam(i, new[i], gradient, means[i], squares[i], rates)
            moments.append((i, mean, square))
        return moments

    def _adam(
        self, i: int, value: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings, row = self._plan.settings[i], rates[self._plan.leaves[i].row]
        beta1, beta2 = settings.betas
        if settings.weight_decay and settings.is_decoupled:
            value = value - row[2] * value
        elif settings.weight_decay:
            gradient = gradient + settings.weight_decay * value
        mean = mean + (gradient - mean) * (1 - beta1)
        square = square * beta2 + gradient * gradient * (1 - beta2)
        root = square.sqrt() * row[1] + settings.eps
        return value - row[0] * (mean / root), mean, square

    # --- networks from tensors ------------------------------------------------------------------

    def _functions(self, trained: Sequence[Tensor], targets: Sequence[Tensor]) -> Functions:
        leaves = self._plan.leaves
        own = list(zip(leaves, trained, strict=True))
        critics = [(leaf, value) for leaf, value in own if leaf.network == CRITICS]
        slow = [(leaves[i], value) for i, value in zip(self._plan.targets, targets, strict=True)]
        policy = {f"policy.{leaf.name}": value for leaf, value in own if leaf.network == POLICY}
        value = {leaf.name: value for leaf, value in own if leaf.network == VALUE}
        return Functions(
            lambda observations, actions: torch.func.functional_call(
                self._score, policy, (observations, actions)
            ),
            lambda observations, actions: self._all(critics, observations, actions),
            lambda observations, actions: self._all(slow, observations, actions),
            lambda observations: torch.func.functional_call(self._value, value, (observations,)),
        )

    def _all(
        self, tensors: Sequence[tuple[Leaf, Tensor]], observations: Tensor, actions: Tensor
    ) -> Tensor:
        """Computes all critics, ``[E, B]``, one after the other."""
        features = flat_features(observations, actions)
        members: dict[int, dict[str, Tensor]] = {}
        for leaf, value in tensors:
            assert leaf.member is not None
            members.setdefault(leaf.member, {})[leaf.name] = value
        return torch.stack([self._one(members[e], features) for e in sorted(members)])

    def _one(self, own: Mapping[str, Tensor], features: Tensor) -> Tensor:
        layers = cast("nn.Sequential", self._critics.encoder)
        for name, layer in layers.named_children():
            if isinstance(layer, EnsembleLinear):
                weight, bias = own[f"encoder.{name}.weight"], own[f"encoder.{name}.bias"]
                features = functional.linear(features, weight, bias)
            elif isinstance(layer, EnsembleLayerNorm):
                shape = list(layer.normalized_shape)
                weight, bias = own[f"encoder.{name}.weight"], own[f"encoder.{name}.bias"]
                features = functional.layer_norm(features, shape, weight, bias, layer.eps)
            else:
                features = layer(features)
        return functional.linear(features, own["head.weight"], own["head.bias"]).squeeze(1)
