"""A compiled graph in a shared library, called without the compiler and without Python's lock.

torch's own loader for such libraries holds the interpreter's lock while the graph computes, so
that two graphs in two threads would take turns. Python's ``ctypes`` gives it away; what is called
is the library's interface in C (torch/csrc/inductor/aoti_runtime/interface.h), which torch keeps
stable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_PREFIX = "AOTInductorModelContainer"
_ONE_MODEL = 1  # a library is called by one thread at a time

_pointer_in: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_of: Any = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype = ctypes.py_object
_capsule_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class GraphLibrary:
    """Loads a library and calls the graph in it. What it changes in place, it changes for good.

    Nothing is checked at a call: tensors have to be of the shapes, strides and types, and as many,
    as those it was compiled for. It stays loaded until the process ends.

    Args:
        path: Of the library.

    Raises:
        OSError: If it cannot be loaded.
        AttributeError: If there is no graph in it, or this torch cannot hand tensors over.
        RuntimeError: If it does not start.
    """

    def __init__(self, path: Path) -> None:
        binding: Any = torch._C._aoti
        self._take_in = binding.unsafe_alloc_void_ptrs_from_tensors
        self._give_back = binding.alloc_tensors_by_stealing_from_void_ptrs
        library = ctypes.CDLL(str(path))
        self._run: Any = getattr(library, f"{_PREFIX}RunSingleThreaded")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]
        self._container = ctypes.c_void_p()
        create = getattr(library, f"{_PREFIX}CreateWithDevice")
        _check(create(ctypes.byref(self._container), size(_ONE_MODEL), b"cpu", None))
        counts = [ctypes.c_size_t() for _ in range(2)]
        for count, what in zip(counts, ("Inputs", "Outputs"), strict=True):
            _check(getattr(library, f"{_PREFIX}GetNum{what}")(self._container, ctypes.byref(count)))
        self.n_inputs, self.n_outputs = (count.value for count in counts)
        self._inputs: Any = ctypes.c_void_p * self.n_inputs
        self._outputs: Any = ctypes.c_void_p * self.n_outputs

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Calls the graph.

        Raises:
            RuntimeError: If it fails; it has printed why.
        """
        # The graph takes these handles, not the tensors, and frees them.
        handles = self._inputs(*[_pointer_in(one, None) for one in self._take_in(list(tensors))])
        results = self._outputs()
        n_inputs, n_outputs = self.n_inputs, self.n_outputs
        _check(self._run(self._container, handles, n_inputs, results, n_outputs, None, None))
        found: list[Tensor] = self._give_back([_capsule_of(one, None, None) for one in results])
        return found


def _check(code: int) -> None:
    if code != 0:
        raise RuntimeError("a compiled graph failed; torch has printed why")
