"""torch's optimizers without the import of its compiler, for runs that compile nothing."""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

import torch

_WRAPPERS = {("torch._compile", "inner"), ("torch.optim.optimizer", "_use_grad")}
"""Modules and names of the wrappers by which torch keeps an optimizer out of compiled graphs."""


def without_compiler(method: Any) -> Any:
    """Takes torch's wrapper off a method as long as nothing is compiled.

    The wrapper imports ``torch._dynamo`` at its first call: half the time of importing torch, for
    runs that compile nothing. Without that module there is no graph to stay out of.

    Args:
        method: A bound method of an optimizer.
    """
    function = getattr(method, "__func__", None)
    if "torch._dynamo" in sys.modules or function is None or not hasattr(function, "__wrapped__"):
        return method
    where = function.__globals__["__name__"], function.__code__.co_name
    if where not in _WRAPPERS:
        return method
    optimizer = method.__self__
    plain = MethodType(function.__wrapped__, optimizer)

    def step(closure: Any) -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):  # as the wrapper does
            return plain(closure)

    return step if where[1] == "_use_grad" else plain
