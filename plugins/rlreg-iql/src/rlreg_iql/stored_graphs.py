"""Compiled steps as files: found in the user's cache folder, or made and kept there.

What the compiler needs before it finds a product of its own (its import, the tracing of an update)
takes several times as long as everything else before a run's first update. So a graph is kept as a
shared library, under a name that is a hash of all that decides what is in it: the step's plan, the
shapes of its tensors, the sources of rlreg, torch's build, the processor and the number of threads.
A library has to be whole, the user's own, and do what the plain step does once before it is used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor

import rlreg.runtime
from rlreg.atomic_file import replacing
from rlreg_iql import processor
from rlreg_iql.compiled_step import Step
from rlreg_iql.graph_library import GraphLibrary

_MOST_FILES = 100  # of some 2 MB; those that were used last stay
_TOLERANCE = 0.01  # of a norm; a graph of other numbers is off by more, rounding by far less
_FLOOR = 1e-6
_HASH_SIZE = 32
_LOAD_ERRORS = (OSError, AttributeError, RuntimeError)
_compiler_lock = threading.Lock()  # the compiler keeps its settings in module variables


class StoredStep:
    """A step by compiled graphs, one for each form of its arguments.

    Args:
        step: What is compiled.
        threads: That a graph shares its products among.
    """

    def __init__(self, step: Step, threads: int) -> None:
        self._step, self._threads = step, threads
        self._lasting: tuple[list[Tensor], ...] = ()
        self._graphs: dict[Any, Graph] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Calls the step; see :meth:`Step.__call__`.

        Raises:
            RuntimeError: If there is no graph, or it cannot be made.
        """
        *lasting, batch, rates = arguments[:6]
        changing = [*batch, rates, *(part for part in arguments[6:] if part is not None)]
        # The first four are lists of the same tensors at every call.
        if len(self._lasting) != len(lasting) or any(map(_is_other, lasting, self._lasting)):
            self._lasting, self._graphs = tuple(lasting), {}
            self._flat = [tensor for part in lasting for tensor in part]
        form = tuple((part.shape, part.stride(), part.dtype) for part in changing)
        graph = self._graphs.get(form)
        if graph is None:
            with _compiler_lock:
                graph = self._graphs[form] = _find_or_make(self._step, self._threads, arguments)
        return graph([*self._flat, *changing])


def _is_other(one: object, two: object) -> bool:
    return one is not two


class Graph:
    """A library, and how to read what it returns.

    Args:
        library: Called with all tensors of a step's arguments, in order.
        structure: Of what the step returns.
    """

    def __init__(self, library: GraphLibrary, structure: Any) -> None:
        self._library, self._structure = library, structure

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Calls it; returns what the step would."""
        return self._structure(self._library(tensors))


# --- finding ------------------------------------------------------------------------------------


def _find_or_make(step: Step, threads: int, arguments: Sequence[Any]) -> Graph:
    call = FlatStep(step, arguments)
    expected = call.on_copies()
    path = store() / f"{_key(step, threads, call.tensors)}.so"
    library = _found(path, call, expected)
    if library is None:
        with _only_one(path):
            library = _found(path, call, expected) or _made(call, threads, path)
        if not _agrees(library, call, expected):
            raise RuntimeError("its code computes something else than the plain update")
    with contextlib.suppress(OSError):
        os.utime(path)
    return Graph(library, call.structured)


class FlatStep:
    """A step as a function from tensors to tensors.

    Args:
        step: To be called.
        arguments: Of one call.

    Attributes:
        tensors: Among the arguments, in order; nothing here changes them.
        moments: Which of them are moments of the parameters.
    """

    def __init__(self, step: Step, arguments: Sequence[Any]) -> None:
        self._step = step
        *lists, rates = arguments[:6]
        more = arguments[6:]
        self._sizes = [len(part) for part in lists]
        self._is_there = [True, *(part is not None for part in more)]
        single = [part for part in (rates, *more) if part is not None]
        self.tensors: list[Tensor] = [*itertools.chain.from_iterable(lists), *single]
        self.moments = slice(self._sizes[0], sum(self._sizes[:3]))
        self._n_changed = sum(self._sizes[:4])

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

    def copies(self) -> list[Tensor]:
        """Returns tensors to try something on; those that nothing changes are the same ones.

        A copy of part of a table would not have its strides, which the compiler relies on.
        """
        n_changed = self._n_changed
        return [part.clone() for part in self.tensors[:n_changed]] + self.tensors[n_changed:]

    def on_copies(self, function: Callable[[list[Tensor]], list[Tensor]] | None = None) -> Tensor:
        """Calls the step, or what should do the same, on copies.

        Returns:
            All that it returned, and the moments that it left, in one vector of doubles for each.
        """
        copies = self.copies()
        results = self(*copies) if function is None else function(copies)
        return torch.cat([part.double().flatten() for part in (*results, *copies[self.moments])])


def _agrees(library: GraphLibrary, call: FlatStep, expected: Tensor) -> bool:
    if not bool(expected.isfinite().all()):
        return True  # says nothing; the chunk is done again by plain updates
    if library.n_inputs != len(call.tensors):
        return False
    found = call.on_copies(library)
    if found.shape != expected.shape:
        return False
    return bool((found - expected).norm() <= _TOLERANCE * expected.norm() + _FLOOR)


def _found(path: Path, call: FlatStep, expected: Tensor) -> GraphLibrary | None:
    try:
        library = GraphLibrary(path) if _is_ours(path) and _is_whole(path) else None
    except _LOAD_ERRORS:
        return None
    return library if library is not None and _agrees(library, call, expected) else None


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have put it there: it is code."""
    about = path.stat()
    is_own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
    return is_own and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_whole(path: Path) -> bool:
    """Whether the hash at its end is right: the system loads half a library, and crashes."""
    content = path.read_bytes()
    code, told = content[:-_HASH_SIZE], content[-_HASH_SIZE:]
    return hashlib.sha256(code).digest() == told


# --- names --------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder of what rlreg can make again: ``$RLREG_CACHE``, or one in the user's own."""
    return Path(os.environ.get("RLREG_CACHE") or platformdirs.user_cache_dir("rlreg"))


def store() -> Path:
    """The folder of the libraries."""
    return cache_folder() / "graphs"


def _key(step: Step, threads: int, tensors: Sequence[Tensor]) -> str:
    forms = [(tuple(part.shape), part.stride(), str(part.dtype)) for part in tensors]
    parts = [*step.identity(), repr(forms), str(threads), _surroundings()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _surroundings() -> str:
    """What decides a graph besides the step: sources, torch, processor, options."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, *map(Path, rlreg.runtime.__path__)):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    onednn = str(processor.prefers_onednn())
    build = [torch.__version__, str(torch.version.git_version), processor.identity(), onednn]
    return "\0".join([digest.hexdigest(), *build])


# --- making -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Lets one process at a time make a library, so that eight seeds do not all do."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(path.with_suffix(".lock")):
        yield


def _made(call: FlatStep, threads: int, path: Path) -> GraphLibrary:
    """Traces and compiles a step, and keeps the library."""
    # Imported here: a run that finds its graphs needs no compiler.
    from torch._inductor import aot_compile
    from torch.fx.experimental.proxy_tensor import make_fx

    with (
        _lasting_cache(),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as folder,
    ):
        # Traced twice: torch.export cannot look into gradients; the first trace resolves them.
        traced = make_fx(call)(*call.copies())
        program = torch.export.export(traced, tuple(call.copies()), strict=False)
        made = aot_compile(
            program.module(), tuple(call.copies()), options=_options(threads, Path(folder))
        )
        assert isinstance(made, str)
        # Loaded from here: a process that has loaded a path gets the same code by that path again.
        library = GraphLibrary(Path(made))
        code = Path(made).read_bytes()
        with replacing(path) as file:
            Path(file.name).chmod(0o600)
            file.write(code + hashlib.sha256(code).digest())
    _drop_oldest(path.parent)
    return library


def _options(threads: int, folder: Path) -> dict[str, Any]:
    """Says how to compile: between products, time goes to calls, and shapes are in the name."""
    options: dict[str, Any] = {
        "aot_inductor.output_path": str(folder / "graph.so"),
        "size_asserts": False,
        "alignment_asserts": False,
        "cpp.threads": threads,
    }
    if processor.prefers_onednn():
        from rlreg_iql.products import OneDNNProducts

        options["post_grad_custom_post_pass"] = OneDNNProducts()
    return options


@contextlib.contextmanager
def _lasting_cache() -> Iterator[None]:
    """Lets the compiler keep its own files beside ours: they make the next graph quicker.

    Its own default is the folder for temporary files.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    name, before = "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if before is not None and before != default_cache_dir():  # the user's own choice
        yield
        return
    os.environ[name] = str(cache_folder() / "inductor")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _drop_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MOST_FILES]:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
