"""Keeps a small checkpoint from asking for large networks.

A config says how large networks are, and they are made before a checkpoint's numbers are put into
them: without a limit a file of some kilobytes could fill the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlreg.errors import CheckpointError

# What parameters are made with. Zeros are not counted: they may be buffers that no file keeps.
_FACTORIES = frozenset({torch.empty, torch.rand, torch.randn})
# What is made and not kept: initial weights drawn in double precision, parts that are replaced.
_FACTOR, _ALLOWANCE = 4, 64 * 2**20


class BuildLimit(TorchFunctionMode):
    """Within it, tensors made by size may not have many more bytes than a checkpoint holds.

    Args:
        num_bytes: What the checkpoint's tensors have.

    Raises:
        CheckpointError: Before the tensor is made that goes beyond the limit.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._held = num_bytes
        self._left = _FACTOR * num_bytes + _ALLOWANCE

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Counts a tensor before it is made."""
        options = dict(kwargs or {})
        if func in _FACTORIES:
            self._left -= _bytes_of(args, options)
            if self._left < 0:
                raise CheckpointError(
                    "its config asks for networks of many more numbers than it holds "
                    f"({self._held:,} bytes)"
                )
        return func(*args, **options)


def bytes_in(state: Any) -> int:
    """Returns how many bytes the tensors of a nested state have; nothing is copied."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(bytes_in(part) for part in state.values())
    if isinstance(state, list | tuple):
        return sum(bytes_in(part) for part in state)
    return 0


def _bytes_of(args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Size of a tensor that is to be made: by one sequence of lengths, or by lengths one by one."""
    first = options.get("size", args[0] if args else ())
    shape = first if isinstance(first, list | tuple) else [a for a in args if isinstance(a, int)]
    dtype = options.get("dtype") or torch.get_default_dtype()
    return math.prod(int(length) for length in shape) * int(dtype.itemsize)
