"""A step as a function from tensors to tensors, and a trial of whatever should do the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlreg_iql.compiled_step import Step

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""
Function = Callable[[Sequence[Tensor]], list[Tensor]]
_TOLERANCE = 2e-4  # of what is compared; rounding is some hundredth of that
_FLOOR = 1e-6  # where there is nothing but rounding


def form_of(tensor: Tensor) -> Form:
    """Returns what a compiled graph relies on."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


class FlatStep:
    """A step, called with all of its tensors in one list.

    Args:
        step: To be called.
        arguments: Of one call; only their forms count.

    Attributes:
        forms: Of the tensors in the arguments, in order.
    """

    def __init__(self, step: Step, arguments: Sequence[Any]) -> None:
        self._step = step
        *lists, rates = arguments[:6]
        more = arguments[6:]
        self._sizes = [len(part) for part in lists]
        self._is_there = [True, *(part is not None for part in more)]
        single = [part for part in (rates, *more) if part is not None]
        self.forms = [form_of(part) for part in (*itertools.chain.from_iterable(lists), *single)]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Calls the step; remembers how what it returns is made up."""
        rest = iter(tensors)
        lists = [list(itertools.islice(rest, size)) for size in self._sizes]
        single = [next(rest) if is_there else None for is_there in self._is_there]
        result: Any = self._step(*lists, *single)  # type: ignore[arg-type]  # a link takes one more
        self._is_single = not isinstance(result, tuple)
        parts = (result,) if self._is_single else result
        self._is_result = [part is not None for part in parts]
        return [part for part in parts if part is not None]

    def structured(self, results: Sequence[Tensor]) -> Any:
        """Makes what the step returns of the tensors in it."""
        if self._is_single:
            return results[0]
        rest = iter(results)
        return tuple([next(rest) if is_result else None for is_result in self._is_result])

    # --- a trial --------------------------------------------------------------------------------

    def examples(self) -> list[Tensor]:
        """Draws arguments of these forms, always the same ones.

        Small parameters, moments that are neither zero nor of one size, so that no gradient is
        turned into a sign, and rates that show. No data set can make them say nothing.
        """
        generator = torch.Generator().manual_seed(0)
        trained, means, squares, targets, batch = self._sizes
        spreads = [
            *[(-0.3, 0.3)] * trained, *[(-1.0, 1.0)] * means, *[(0.5, 2.0)] * squares,
            *[(-0.3, 0.3)] * targets, *[(-0.9, 0.9)] * batch,
            (0.1, 0.2), *[(-1.0, 1.0)] * sum(self._is_there[1:]),
        ]  # fmt: skip
        return [
            _drawn(form, spread, generator)
            for form, spread in zip(self.forms, spreads, strict=True)
        ]

    def trial(self, function: Function | None = None) -> Trial:
        """Calls the step, or what should do the same, with the examples."""
        n_changed = sum(self._sizes[:4])
        after = self.examples()
        before = [part.clone() for part in after[:n_changed]]
        results = self(*after) if function is None else function(after)
        changes = [new - old for new, old in zip(after[:n_changed], before, strict=True)]
        return Trial(torch.cat([part.detach().flatten() for part in results]), changes)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a step has come to.

    Attributes:
        results: The numbers that it returned.
        changes: By how much it has changed each of the tensors that a step changes.
    """

    results: Tensor
    changes: list[Tensor]

    def is_like(self, other: Trial) -> bool:
        """Whether both are the same but for rounding: number by number, and tensor by tensor."""
        if self.results.shape != other.results.shape:
            return False
        scale = _FLOOR * (1.0 + float(other.results.norm()))
        if not torch.allclose(self.results, other.results, rtol=_TOLERANCE, atol=scale):
            return False
        return all(
            bool((one - two).norm() <= _TOLERANCE * two.norm() + _FLOOR * two.numel() ** 0.5)
            for one, two in zip(self.changes, other.changes, strict=True)
        )


def _drawn(form: Form, spread: tuple[float, float], generator: torch.Generator) -> Tensor:
    shape, strides, dtype = form
    values = torch.rand(shape, generator=generator) * (spread[1] - spread[0]) + spread[0]
    result = torch.empty_strided(shape, strides, dtype=dtype)
    if 0 in strides:  # one number for all: an expanded tensor
        return result.fill_(float(values.flatten()[0])) if result.numel() else result
    return result.copy_(values)
