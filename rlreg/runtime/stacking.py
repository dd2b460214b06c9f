"""Equal learnables with different seeds as one computation: what any algorithm can use for it.

The parameters of all members lie in one tensor with the member first, and one vectorised call does
for all what a call does for one: on a GPU, which a single small network leaves idle, many seeds
take little longer than one. A chunk of updates works on stacked copies, so between two chunks every
member is as if it had been trained alone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rlreg.errors import RlregError
from rlreg.runtime.optimizers import (
    SGD,
    Adam,
    AdamW,
    RMSprop,
    Schedule,
    Schedules,
    StepExtras,
    parameters_in,
)

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset

_ELEMENTWISE = (Adam, AdamW, RMSprop, SGD)
_CLIP_SLACK = 1e-6  # as in torch's clip_grad_norm_


class NotStackedError(RlregError):
    """These learnables cannot be trained as one computation; the message says why."""


class StackedUpdates(Protocol):
    """Updates of several learnables at once: what ``OfflineLearnable.stacked_with`` returns."""

    def run(self, dataset: TransitionDataset, n_steps: int) -> list[dict[str, Tensor]] | None:
        """Does ``n_steps`` updates of every member on batches of its own stream.

        Returns:
            For each member the sums of its metrics over the updates; ``None`` if a loss or gradient
            was not finite, and then no member has changed.
        """


# --- noise --------------------------------------------------------------------------------------


class NoiseStreams:
    """The members' own streams of noise, from which their dropout draws.

    Noise is drawn outside of what is vectorised, where every random number counts for one member
    only. So the dropout layers of each phase of an update are noted when it is computed for the
    first time, and their masks drawn before it from then on, in the order in which the layers of
    one learnable draw.

    Attributes:
        member: Inside a vectorised function: which member is computed, a scalar.
    """

    def __init__(self) -> None:
        self.member: Tensor | None = None
        self._generators: list[torch.Generator] = []
        self._layers: dict[str, list[_MemberDropout]] = {}
        self._masks: list[Tensor] = []
        self._noted: list[_MemberDropout] | None = None

    def begin(self, states: Sequence[Tensor]) -> None:
        """Starts from where the members' streams stand."""
        self._generators = [torch.Generator() for _ in states]
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def states(self) -> list[Tensor]:
        """Returns where they stand now."""
        return [generator.get_state() for generator in self._generators]

    @property
    def is_used(self) -> bool:
        """Whether something drops out in a phase that was computed before."""
        return any(self._layers.values())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Surrounds the computation of a phase; the first time, nothing is dropped in it."""
        layers = self._layers.get(name)
        if layers is None:
            self._noted = []
        else:
            self._masks = [self._drawn(layer) for layer in layers]
        try:
            yield
            if self._noted is not None:
                self._layers[name] = self._noted
        finally:
            self._noted = None

    def _drawn(self, layer: _MemberDropout) -> Tensor:
        kept = 1.0 - layer.rate
        drawn = [
            torch.empty_like(layer.like).bernoulli_(kept, generator=generator).div_(kept)
            for generator in self._generators
        ]
        return torch.stack(drawn).to(layer.device)

    def next(self, layer: _MemberDropout) -> Tensor | None:
        """Returns the next mask ``[S, ...]``; ``None`` while layers are only noted."""
        if self._noted is not None:
            self._noted.append(layer)
            return None
        return self._masks.pop(0)


class _MemberDropout(nn.Module):
    """Dropout inside a vectorised function: each member draws from its own stream.

    Args:
        rate: Share of features that is dropped.
        given: Features of one member as the layer meets them: torch draws in the order of memory.
        streams: Where masks come from.
    """

    def __init__(self, rate: float, given: Tensor, streams: NoiseStreams) -> None:
        super().__init__()
        self.rate, self.device, self.like = (
            rate,
            given.device,
            torch.empty_like(given, device="cpu"),
        )
        self._streams = streams

    def forward(self, features: Tensor) -> Tensor:
        masks = self._streams.next(self)
        return features if masks is None else features * masks[self._streams.member]


# --- networks -----------------------------------------------------------------------------------


class StackedNetwork:
    """The same network of every member.

    Args:
        modules: Of each member, equally built.
        streams: Where dropout draws from.
        probe: Calls a module as an update does; needed for the shapes that dropout meets.

    Attributes:
        tensors: Stacked parameters ``[S, ...]`` by name.

    Raises:
        NotStackedError: If the network has buffers (batch normalisation) or noise of another kind.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        streams: NoiseStreams,
        probe: Callable[[nn.Module], object],
    ) -> None:
        self._modules = list(modules)
        for name, _ in modules[0].named_buffers():
            raise NotStackedError(
                f"the running statistics of batch normalisation, or other buffers ({name}), belong "
                "to one network"
            )
        self._template = copy.deepcopy(modules[0]).requires_grad_(False)
        self._replace_dropout(streams, _dropout_inputs(modules[0], probe))
        parameters, _ = torch.func.stack_module_state(self._modules)
        self.tensors: dict[str, Tensor] = {
            name: part.detach().requires_grad_(modules[0].get_parameter(name).requires_grad)
            for name, part in parameters.items()
        }

    def _replace_dropout(self, streams: NoiseStreams, inputs: Mapping[str, Tensor]) -> None:
        for name, layer in list(self._template.named_modules()):
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
                if type(layer) is not nn.Dropout or name not in inputs:
                    raise NotStackedError(f"a layer {type(layer).__name__} draws noise of its own")
                own: nn.Module = _MemberDropout(layer.p, inputs[name], streams)
                self._template.set_submodule(name, own)
            elif isinstance(layer, nn.modules.dropout._DropoutNd):
                self._template.set_submodule(name, nn.Identity())

    def __call__(self, tensors: Mapping[str, Tensor], *arguments: Tensor) -> Any:
        """Calls the network of one member, with its parameters."""
        return torch.func.functional_call(self._template, dict(tensors), arguments)

    def named(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Gives each parameter of the first member with its stack."""
        for name, stacked in self.tensors.items():
            yield self._modules[0].get_parameter(name), stacked

    @torch.no_grad()
    def copy_in(self) -> None:
        """Takes the members' parameters."""
        for name, stacked in self.tensors.items():
            for own, module in zip(stacked.unbind(), self._modules, strict=True):
                own.copy_(module.get_parameter(name))

    @torch.no_grad()
    def copy_out(self) -> None:
        """Gives them back."""
        for name, stacked in self.tensors.items():
            for own, module in zip(stacked.unbind(), self._modules, strict=True):
                module.get_parameter(name).copy_(own)


def _dropout_inputs(module: nn.Module, probe: Callable[[nn.Module], object]) -> dict[str, Tensor]:
    """Finds out what the dropout layers of a module are given, by calling it once."""
    found: dict[str, Tensor] = {}

    def look(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            features = arguments[0]
            known = found.setdefault(name, features)
            if known.shape != features.shape or known.stride() != features.stride():
                raise NotStackedError(f"dropout layer {name} is used for features of two shapes")

        return hook

    hooks = [
        layer.register_forward_pre_hook(look(name))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Dropout)
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if hooks:
                probe(module)
    finally:
        for hook in hooks:
            hook.remove()
    return found


# --- optimizers ---------------------------------------------------------------------------------


class StackedOptimizer:
    """The same optimizer of every member, as one over the stacked parameters.

    Only optimizers that treat every number by itself can be stacked; the norm that gradients are
    clipped by is each member's own.

    Args:
        optimizers: Of each member, equally built.
        stacks: By the first member's parameters: the stacked ones.

    Raises:
        NotStackedError: If it is of a kind that looks at several numbers together.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        stacks: Mapping[nn.Parameter, Tensor],
    ) -> None:
        own: list[StepExtras] = []
        for optimizer in optimizers:
            if type(optimizer) not in _ELEMENTWISE or not isinstance(optimizer, StepExtras):
                raise NotStackedError(f"optimizer {type(optimizer).__name__} cannot be stacked")
            optimizer.prepare()
            if not isinstance(optimizer.schedule, Schedule | None):
                raise NotStackedError("only the learning-rate schedules of rlreg can be stacked")
            own.append(optimizer)
        self._optimizers = own
        groups = [
            {**group, "params": [stacks[part] for part in group["params"]]}
            for group in own[0].param_groups
        ]
        cls: Any = type(own[0])
        self._stacked: torch.optim.Optimizer = cls(groups)
        self.parameters = parameters_in(self._stacked)

    @property
    def num_groups(self) -> int:
        """Of parameters, each with a learning rate."""
        return len(self._stacked.param_groups)

    def rates(self, n_updates: int) -> list[list[float]]:
        """Returns learning rates, a row for each update, and moves all schedules on so far."""
        rows: list[list[float]] = []
        for _ in range(n_updates):
            rows.append([float(group["lr"]) for group in self._optimizers[0].param_groups])
            for optimizer in self._optimizers:
                optimizer.advance()
        return rows

    def step(self, gradients: Sequence[Tensor], rates: Sequence[float | Tensor]) -> Tensor:
        """Clips by the norms of the members, and updates.

        Args:
            gradients: ``[S, ...]``, in the order of ``parameters``.
            rates: Of each group: a row of :meth:`rates`, or scalars on the device.

        Returns:
            Squared norms ``[S]``: not finite where a gradient is not, or is too large to square.
        """
        squares = torch.stack([g.square().flatten(start_dim=1).sum(dim=1) for g in gradients])
        squared = squares.sum(dim=0)  # [S]
        limit = self._optimizers[0].clip_grad_norm
        if limit is not None:
            factors = (limit / (squared.sqrt() + _CLIP_SLACK)).clamp(max=1.0)
            gradients = [g * factors.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            # Fused steps read both in the order of memory, which vectorised gradients may not have.
            parameter.grad = gradient.contiguous()
        for group, rate in zip(self._stacked.param_groups, rates, strict=True):
            group["lr"] = rate
        self._stacked.step()
        return squared

    # --- the members' moments and rates ---------------------------------------------------------

    def copy_in(self) -> None:
        """Takes the members' moments.

        Raises:
            NotStackedError: If the members stand at different points.
        """
        for optimizer in self._optimizers:
            optimizer.prepare()
        places = Schedules(self._optimizers).places
        if any(place != places[0] for place in places):
            raise NotStackedError("the members' learning rates differ")
        for stacked, own in self._rows():
            pairs = zip(self._optimizers, own, strict=True)
            states = [optimizer.state.get(part, {}) for optimizer, part in pairs]
            self._take(stacked, _joined(states, own[0]))

    @torch.no_grad()
    def _take(self, stacked: Tensor, found: Mapping[str, Any]) -> None:
        """Takes the moments of one parameter, where it has some already into the same memory."""
        own = self._stacked.state[stacked]
        if self.is_recordable and own:
            for name, moment in own.items():
                moment.copy_(found[name]) if found else moment.zero_()
        else:
            self._stacked.state[stacked] = dict(found)

    @property
    def is_recordable(self) -> bool:
        """Whether a step is one kernel that reads all its numbers from the device.

        If so, moments stay where they are from the first step on.
        """
        is_adam = isinstance(self._stacked, torch.optim.Adam | torch.optim.AdamW)
        return is_adam and all(group["fused"] for group in self._stacked.param_groups)

    def make_recordable(self) -> None:
        """Lets torch record steps in a CUDA graph, for which it asks."""
        for group in self._stacked.param_groups:
            group["capturable"] = True

    def copy_out(self) -> None:
        """Gives the moments back."""
        for stacked, own in self._rows():
            state = self._stacked.state[stacked]
            for index, (optimizer, part) in enumerate(zip(self._optimizers, own, strict=True)):
                optimizer.state[part] = {
                    name: _part(value, index, part) for name, value in state.items()
                }

    def _rows(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Gives each stacked parameter with those of the members."""
        columns = [parameters_in(optimizer) for optimizer in self._optimizers]
        yield from zip(self.parameters, map(list, zip(*columns, strict=True)), strict=True)


def _joined(states: Sequence[Mapping[str, Any]], like: Tensor) -> dict[str, Any]:
    """Stacks moments; what is no moment, as the number of steps, has to be equal everywhere."""
    first = states[0]
    if any(state.keys() != first.keys() for state in states):
        raise NotStackedError("the members' optimizers stand at different steps")
    joined: dict[str, Any] = {}
    for name, value in first.items():
        if isinstance(value, Tensor) and value.shape == like.shape and name != "step":
            joined[name] = torch.stack([state[name] for state in states])
        elif any(bool(state[name] != value) for state in states):
            raise NotStackedError("the members' optimizers stand at different steps")
        else:
            joined[name] = value.clone() if isinstance(value, Tensor) else value
    return joined


def _part(value: Any, index: int, like: Tensor) -> Any:
    if isinstance(value, Tensor) and value.shape[1:] == like.shape and value.ndim > like.ndim:
        return value[index].clone()
    return value.clone() if isinstance(value, Tensor) else value
