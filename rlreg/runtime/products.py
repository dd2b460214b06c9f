"""Which library multiplies matrices on a CPU.

torch on x86 calls MKL, which on AMD processors leaves their 512-bit units alone; oneDNN, which
torch carries too, uses them: about twice as fast there (docs/performance.md). Which one is used
depends on the processor alone, never on a measurement, so that a run and its resumption on one
machine round alike. Plain updates keep to torch's choice: they are what all others are compared
with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDE = 64
"""Sides of a product from which a call of oneDNN costs less than it saves."""

NARROW = 8
"""The same of what is summed over."""

LEAST_WORK = 120_000_000
"""Multiplications of all networks' forward passes that save more than ``OneDNNStacks`` costs.

Measured on one thread with two layers of 32 to 256 units, 256 rows and 2 to 16 networks.
"""

_bmm = torch.ops.aten.bmm.default


def has_onednn() -> bool:
    """Whether torch was built with what is called here."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def prefers_onednn() -> bool:
    """Whether products should go to oneDNN on this machine."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not has_onednn():
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in text


def onednn_product(left: Tensor, right: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Multiplies ``[M, K]`` and ``[K, N]`` by oneDNN, float32 in CPU memory.

    Args:
        left: ``[M, K]``, contiguous or it is copied.
        right: ``[K, N]``, of any layout.
        bias: ``[N]``, added.
        activation: ``none`` or ``relu``, applied last.
    """
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, activation, [], "")
    return result


class OneDNNStacks(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's, as below
    """Inside, products of stacked matrices go to oneDNN, those of their gradients too.

    A mode costs some 5 us for every call of torch, whatever it is for: see ``LEAST_WORK``.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Computes what torch was asked for."""
        if func is _bmm and not kwargs and _is_worth_it(*args):
            lefts, rights = (part.unbind() for part in args)
            products = [
                onednn_product(left, right, None, "none")
                for left, right in zip(lefts, rights, strict=True)
            ]
            return torch.stack(products)
        return func(*args, **(kwargs or {}))


def _is_worth_it(left: Tensor, right: Tensor) -> bool:
    for part in (left, right):
        is_plain = part.is_cpu and part.dtype == torch.float32 and part.layout == torch.strided
        if not is_plain or part.ndim != 3:
            return False
    (rows, inner), columns = left.shape[1:], right.shape[2]
    # Shapes that do not fit are torch's to refuse.
    fits = right.shape[:2] == (len(left), inner)
    return fits and min(rows, columns) >= WIDE and inner >= NARROW and len(left) > 0


def work_of(modules: Iterable[nn.Module], num_rows: int) -> int:
    """Returns the multiplications of a forward pass that are large enough for oneDNN.

    Args:
        modules: Their layers are told by parameters in CPU memory, ``[..., out, in]``.
        num_rows: Of a batch.
    """
    if num_rows < WIDE:
        return 0
    parameters = (part for module in modules for part in module.parameters() if part.is_cpu)
    shapes = [part.shape for part in parameters if part.ndim in (2, 3)]
    wide = (shape for shape in shapes if shape[-2] >= WIDE and shape[-1] >= NARROW)
    return num_rows * sum(shape.numel() for shape in wide)


@contextlib.contextmanager
def fast_stacks(work: int) -> Iterator[None]:
    """Inside, products of stacked matrices go to the library that this processor likes best.

    Several threads share a stack of products in MKL, but each single product in oneDNN: with more
    than one, torch's choice stays.

    Args:
        work: What ``work_of`` says of all networks together.
    """
    if work < LEAST_WORK or torch.get_num_threads() > 1 or not prefers_onednn():
        yield
        return
    with OneDNNStacks():  # type: ignore[no-untyped-call]
        yield
