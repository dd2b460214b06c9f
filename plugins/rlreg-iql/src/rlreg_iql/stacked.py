"""Updates of several IQL learnables, one for each seed, as one vectorised computation.

The losses are those of `objectives.py`, vectorised over the members; parameters, batches and
moments have the member first. The sum of the members' losses has for each member's parameters the
gradient of its own loss, so one backward pass serves all. On a GPU ten such updates are a CUDA
graph (`update_graph.py`), unless there is dropout, whose masks are drawn on the CPU, or an
optimizer other than Adam.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlreg.runtime.batch import Batch
from rlreg.runtime.optimizers import Schedules
from rlreg.runtime.stacking import (
    NoiseStreams,
    NotStackedError,
    StackedNetwork,
    StackedOptimizer,
)
from rlreg_iql.learner import OWNERS, RULES, Networks, Step
from rlreg_iql.networks import ActionFeatures, PolicyScore
from rlreg_iql.objectives import Functions, Metrics, Objectives, Work
from rlreg_iql.update_graph import CAPTURE_ERRORS, UPDATES_PER_GRAPH, UpdateGraph, refusal

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset
    from rlreg_iql.learnable import IQL

NETWORKS = POLICY, CRITICS, TARGETS, VALUE = "policy", "critics", "target_critics", "value"
Optimizers = Mapping[str, torch.optim.Optimizer]
_STACKING_ERRORS = (RuntimeError, TypeError, ValueError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Parts:
    """What one learnable is made of: see `IQL.parts`."""

    networks: Networks
    optimizers: Optimizers
    features: ActionFeatures


class StackedIQL:
    """Updates of all members at once.

    Args:
        members: Built for the same spaces, with equal configs, at the same update.
        parts: Of each member.
        dataset: Where batches come from, on the device.

    Raises:
        NotStackedError: If networks or optimizers cannot be stacked.
    """

    _is_tried_on_cpu = False  # tests say so, to see all but the recording

    def __init__(
        self, members: Sequence[IQL], parts: Sequence[Parts], dataset: TransitionDataset
    ) -> None:
        self._members, first = list(members), parts[0]
        config = members[0].config
        self._rule, self._tau = RULES[config.update_rule], config.tau
        self._objectives = Objectives(config, first.features, self._rule.action_limit)
        self._streams = NoiseStreams()
        self._check_scalers()
        for member in members:
            member.train_mode(True)
        scratch = [torch.Generator() for _ in members]
        sample = [part[0] for part in self._batches(dataset, scratch, 1)]
        self._networks = self._stack_networks(parts, Batch(*(part[0] for part in sample)))
        stacks = {own: stack for net in self._networks.values() for own, stack in net.named()}
        self._optimizers = {
            name: StackedOptimizer([part.optimizers[name] for part in parts], stacks)
            for name in first.optimizers
        }
        self._try(sample)
        self._metric_names: tuple[str, ...] = ()
        self._graph: UpdateGraph | None = None
        self._is_recordable = self._can_record()
        if self._is_recordable:
            self._record(self._batches(dataset, scratch, 2 * UPDATES_PER_GRAPH))

    def _check_scalers(self) -> None:
        first = self._members[0].scalers()
        for member in self._members[1:]:
            for name, scaler in member.scalers().items():
                for key, value in scaler.state_dict().items():
                    other = first[name].state_dict()[key]
                    same = (
                        torch.equal(value, other) if isinstance(value, Tensor) else value == other
                    )
                    if not same:
                        raise NotStackedError(f"the members' {name.replace('_', ' ')}s differ")

    def _stack_networks(self, parts: Sequence[Parts], batch: Batch) -> dict[str, StackedNetwork]:
        features = parts[0].features
        is_discrete = features.is_discrete
        scored = features.categories(batch.actions) if is_discrete else batch.actions
        encoded = features.encode(batch.actions, batch.rewards.dtype)
        scores = [PolicyScore(part.networks.policy) for part in parts]
        observations = batch.observations
        critics = [part.networks.critics for part in parts]
        targets = [part.networks.target_critics for part in parts]
        return {
            POLICY: StackedNetwork(scores, self._streams, lambda net: net(observations, scored)),
            CRITICS: StackedNetwork(critics, self._streams, lambda net: net(observations, encoded)),
            TARGETS: StackedNetwork(targets, self._streams, lambda net: net(observations, encoded)),
            VALUE: StackedNetwork(
                [part.networks.value for part in parts],
                self._streams,
                lambda net: net(observations),
            ),
        }

    def _try(self, sample: list[Tensor]) -> None:
        """Computes all losses and gradients once, and uses none of them."""
        self._begin_noise()
        try:
            work = self._prepare(sample)
            for step in self._rule.steps:
                if step != "targets":
                    self._gradients(step, sample, work)
        except _STACKING_ERRORS as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise NotStackedError(f"the networks cannot be vectorised: {lines[0]}") from error

    # --- a graph ---------------------------------------------------------------------------------

    def _can_record(self) -> bool:
        """Whether updates can be a CUDA graph: nothing in them may come from the CPU."""
        is_on_gpu = self._members[0].device.type == "cuda"
        if not (is_on_gpu or self._is_tried_on_cpu) or self._streams.is_used:
            return False
        return all(optimizer.is_recordable for optimizer in self._optimizers.values())

    def _record(self, batches: list[Tensor]) -> None:
        """Makes a graph and compares it with what it does; without one, updates are as right."""
        for optimizer in self._optimizers.values():
            optimizer.make_recordable()
        every = [part for member in self._members for part in member.optimizers().values()]
        try:
            with Schedules(every).guard():
                rates = self._rates(2 * UPDATES_PER_GRAPH)
                self._copy_in()
                graph = UpdateGraph(self._updates, batches, rates)
                graph.check(batches, rates, self._copy_in)
            self._graph = graph
        except CAPTURE_ERRORS as error:
            message = f"stacked seeds: {refusal(error)}; updates are launched one by one"
            warnings.warn(message, stacklevel=2)

    # --- running --------------------------------------------------------------------------------

    def run(self, dataset: TransitionDataset, n_steps: int) -> list[dict[str, Tensor]] | None:
        """Does a chunk of updates; see :class:`rlreg.runtime.stacking.StackedUpdates`."""
        generators = [member.generator for member in self._members]
        drawn = [generator.get_state() for generator in generators]
        for member in self._members:
            member.train_mode(True)
        self._copy_in()
        every = [part for member in self._members for part in member.optimizers().values()]
        schedules = Schedules(every)
        with schedules.guard():
            totals = self._chunk(dataset, generators, n_steps).double().sum(dim=0)
            if not bool(torch.isfinite(totals).all()):  # the one wait for a GPU in a chunk
                for generator, state in zip(generators, drawn, strict=True):
                    generator.set_state(state)
                return None
            self._copy_out(n_steps)
            schedules.commit()
        return [
            dict(zip(self._metric_names, own, strict=False)) for own in totals.unbind(dim=1)
        ]  # the last row is the check

    def _chunk(
        self, dataset: TransitionDataset, generators: Sequence[torch.Generator], n_steps: int
    ) -> Tensor:
        """Does updates on the stacks; returns metrics and checks ``[n, metrics, S]``."""
        rates, found = self._rates(n_steps), []
        # No more batches than are used at once: of images, a chunk's would be gigabytes.
        size = 1 if self._graph is None else UPDATES_PER_GRAPH
        work = self._updates if self._graph is None else self._graph.run
        for part in torch.split(rates, size):
            found.append(work(self._batches(dataset, generators, len(part)), part))
        return torch.cat(found)

    def _batches(
        self, dataset: TransitionDataset, generators: Sequence[torch.Generator], n_steps: int
    ) -> list[Tensor]:
        """Draws batches for each member from its own stream: parts ``[n, S, B, ...]``."""
        size, first = self._members[0].config.batch_size, self._members[0]
        indices = [
            [dataset.sample_indices(size, generator) for _ in range(n_steps)]
            for generator in generators
        ]
        in_order = [own for update in zip(*indices, strict=True) for own in update]
        rows = first.scale_batch(Batch(**dataset.gather(torch.cat(in_order))))
        shape = (n_steps, len(generators), size)
        return [part.reshape(*shape, *part.shape[1:]) for part in rows.values()]

    def _rates(self, n_steps: int) -> Tensor:
        """Returns learning rates ``[n, groups]``, and moves the schedules on."""
        rows = [optimizer.rates(n_steps) for optimizer in self._optimizers.values()]
        flat = [[rate for own in update for rate in own] for update in zip(*rows, strict=True)]
        if self._is_recordable:  # a kernel reads them from its device, in single precision
            return torch.tensor(flat, dtype=torch.float32).to(self._members[0].device)
        return torch.tensor(flat, dtype=torch.float64)

    def _updates(self, batches: Sequence[Tensor], rates: Tensor) -> Tensor:
        """Does an update with each batch; returns metrics and a check: ``[n, metrics, S]``."""
        found = []
        for *batch, numbers in zip(*batches, rates, strict=True):
            metrics, check = self._update(batch, numbers)
            self._metric_names = tuple(metrics)
            found.append(torch.stack([*metrics.values(), check]))
        return torch.stack(found)

    def _update(self, batch: list[Tensor], rates: Tensor) -> tuple[Metrics, Tensor]:
        """Does one update; returns metrics ``[S]``, and ``[S]`` that is finite if all is."""
        work = self._prepare(batch)
        metrics: Metrics = {}
        check = torch.zeros(len(self._members), device=batch[0].device)
        own_rates = self._by_optimizer(rates)
        for step in self._rule.steps:
            if step == "targets":
                self._move_targets()
                continue
            gradients, loss, reported = self._gradients(step, batch, work)
            owner = OWNERS[step]
            check = check + loss + self._optimizers[owner].step(gradients, own_rates[owner])
            metrics.update(reported)
        metrics["critic_loss"] = metrics["q_loss"] + metrics["v_loss"]
        return metrics, check

    def _by_optimizer(self, rates: Tensor) -> dict[str, list[float | Tensor]]:
        rest = iter(rates.unbind() if self._is_recordable else rates.tolist())
        return {
            name: [next(rest) for _ in range(optimizer.num_groups)]
            for name, optimizer in self._optimizers.items()
        }

    @torch.no_grad()
    def _move_targets(self) -> None:
        targets, sources = self._networks[TARGETS].tensors, self._networks[CRITICS].tensors
        torch._foreach_lerp_(list(targets.values()), [sources[name] for name in targets], self._tau)

    # --- losses and gradients -------------------------------------------------------------------

    def _prepare(self, batch: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        def prepare(functions: Functions, parts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            work = self._objectives.prepare(functions, Batch(*parts))
            return work.actions, work.action_features, work.target_values

        with self._streams.phase("prepare"):
            result: tuple[Tensor, Tensor, Tensor] = self._vectorised(prepare)(batch)
        return result

    def _gradients(
        self, step: Step, batch: list[Tensor], work: tuple[Tensor, ...]
    ) -> tuple[Sequence[Tensor], Tensor, Metrics]:
        """Returns gradients of what a step trains, losses ``[S]`` and metrics ``[S]``."""
        objective = getattr(self._objectives, step)

        def compute(functions: Functions, parts: list[Tensor], *shared: Tensor) -> Any:
            return objective(functions, Work(Batch(*parts), *shared))

        with self._streams.phase(step):
            losses, metrics = self._vectorised(compute)(batch, *work)
        parameters = self._optimizers[OWNERS[step]].parameters
        return torch.autograd.grad(losses.sum(), parameters), losses.detach(), metrics

    def _vectorised(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Turns a function of one member's networks and tensors into one of all members'."""

        def one(member: Tensor, tensors: dict[str, dict[str, Tensor]], *arguments: Any) -> Any:
            self._streams.member = member
            return function(self._functions(tensors), *arguments)

        tensors = {name: network.tensors for name, network in self._networks.items()}
        numbers = torch.arange(len(self._members), device=self._members[0].device)
        return lambda *arguments: torch.vmap(one)(numbers, tensors, *arguments)

    def _functions(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> Functions:
        def call(name: str) -> Callable[..., Any]:
            return lambda *arguments: self._networks[name](tensors[name], *arguments)

        return Functions(call(POLICY), call(CRITICS), call(TARGETS), call(VALUE))

    # --- the members ----------------------------------------------------------------------------

    def _begin_noise(self) -> None:
        self._streams.begin([member.rng_state()["noise"] for member in self._members])

    def _copy_in(self) -> None:
        self._begin_noise()
        for network in self._networks.values():
            network.copy_in()
        for optimizer in self._optimizers.values():
            optimizer.copy_in()

    def _copy_out(self, n_steps: int) -> None:
        for network in self._networks.values():
            network.copy_out()
        for optimizer in self._optimizers.values():
            optimizer.copy_out()
        for member, noise in zip(self._members, self._streams.states(), strict=True):
            member.load_rng_state({**member.rng_state(), "noise": noise})
            member.grad_step += n_steps
