"""Compiled steps as files: found in the user's cache folder, or made and kept there.

What the compiler needs before it finds a product of its own (its import, the tracing of an update)
takes several times as long as everything else before a run's first update. So a graph is kept as a
shared library, under a name that is a hash of all that decides what is in it: the step's plan, the
shapes of its tensors, the sources of rlreg, torch's build, the processor and the number of threads.
A library has to be whole, the user's own, and do on an example what the plain step does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rlreg.runtime
from rlreg.atomic_file import replacing
from rlreg.runtime.data.cache import cache_folder, hash_files
from rlreg_iql import processor
from rlreg_iql.compiled_step import NotCompiledError, Step
from rlreg_iql.flat_step import FlatStep, Form, Trial, form_of
from rlreg_iql.graph_library import GraphLibrary

_MOST_FILES = 100  # of some 2 MB; those that were used last stay
_HASH_SIZE = 32
_LOAD_ERRORS = (OSError, AttributeError, RuntimeError)
_COMPILE_ERRORS = (*_LOAD_ERRORS, ImportError, AssertionError, TypeError, ValueError)
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
            NotCompiledError: With the first line of what the compiler says.
        """
        *lasting, batch, rates = arguments[:6]
        changing = [*batch, rates, *(part for part in arguments[6:] if part is not None)]
        # The first four are lists of the same tensors at every call.
        pairs = zip(lasting, self._lasting, strict=False)
        if not self._lasting or any(one is not two for one, two in pairs):
            self._lasting, self._graphs = tuple(lasting), {}
            self._flat = [tensor for part in lasting for tensor in part]
        form = tuple([form_of(part) for part in changing])
        graph = self._graphs.get(form)
        if graph is None:
            graph = self._graphs[form] = self._new_graph(arguments)
        return graph([*self._flat, *changing])

    def _new_graph(self, arguments: Sequence[Any]) -> Graph:
        try:
            with _compiler_lock:
                return _find_or_make(self._step, self._threads, arguments)
        except _COMPILE_ERRORS as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise NotCompiledError(f"the update could not be compiled: {lines[0]}") from error


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
    expected = call.trial()
    path = store() / f"{_key(step, threads, call.forms)}.so"
    library = _found(path, call, expected)
    if library is None:
        with _only_one(path):
            library = _found(path, call, expected) or _made(path, call, expected, threads)
    with contextlib.suppress(OSError):
        os.utime(path)
    return Graph(library, call.structured)


def _agrees(library: GraphLibrary, call: FlatStep, expected: Trial) -> bool:
    return library.n_inputs == len(call.forms) and call.trial(library).is_like(expected)


def _found(path: Path, call: FlatStep, expected: Trial) -> GraphLibrary | None:
    try:
        is_safe = _is_ours(path.parent) and _is_ours(path) and _is_whole(path)
        library = GraphLibrary(path) if is_safe else None
    except _LOAD_ERRORS:
        return None
    return library if library is not None and _agrees(library, call, expected) else None


def _is_ours(path: Path) -> bool:
    """Whether nobody else can write to a file or folder: what is in it will be run."""
    about = path.stat()
    is_own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
    return is_own and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_whole(path: Path) -> bool:
    """Whether the hash at its end is right: the system loads half a library, and crashes."""
    content = path.read_bytes()
    code, told = content[:-_HASH_SIZE], content[-_HASH_SIZE:]
    return hashlib.sha256(code).digest() == told


# --- names --------------------------------------------------------------------------------------


def store() -> Path:
    """The folder of the libraries."""
    return cache_folder() / "graphs"


def _key(step: Step, threads: int, forms: Sequence[Form]) -> str:
    parts = [*step.identity(), repr(forms), str(threads), _surroundings()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _surroundings() -> str:
    """What decides a graph besides the step: sources, torch, processor, options."""
    folders = Path(__file__).parent, *map(Path, rlreg.runtime.__path__)
    sources = hash_files([path for folder in folders for path in sorted(folder.glob("*.py"))])
    onednn = str(processor.prefers_onednn())
    build = [torch.__version__, str(torch.version.git_version), processor.identity(), onednn]
    return "\0".join([sources, *build])


# --- making -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Lets one process at a time make a library, so that eight seeds do not all do."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_ours(path.parent):
        raise RuntimeError(f"others may write to {path.parent}, from which code is run: chmod go-w")
    with FileLock(path.with_suffix(".lock")):
        yield


def _made(path: Path, call: FlatStep, expected: Trial, threads: int) -> GraphLibrary:
    """Compiles a step, tries what has come out, and keeps it."""
    # In the folder for temporary files: the compiler cannot write to a path that has a space in it.
    with tempfile.TemporaryDirectory(prefix="rlreg-") as folder:
        made = _compiled(call, threads, Path(folder))
        # Loaded from here: a process that has loaded a path gets the same code by that path again.
        library = GraphLibrary(made)
        if not _agrees(library, call, expected):
            raise RuntimeError("its code computes something else than the plain update")
        _keep(made.read_bytes(), path)
    return library


def _compiled(call: FlatStep, threads: int, folder: Path) -> Path:
    """Traces and compiles a step to a library in a folder."""
    # Imported here: a run that finds its graphs needs no compiler.
    from torch._inductor import aot_compile
    from torch.fx.experimental.proxy_tensor import make_fx

    with warnings.catch_warnings(), _interrupts_noticed():
        warnings.simplefilter("ignore")  # what the compiler says about itself
        # Traced twice: torch.export cannot look into gradients; the first trace resolves them.
        traced = make_fx(call)(*call.examples())
        examples = tuple(call.examples())
        program = torch.export.export(traced, examples, strict=False)
        made = aot_compile(program.module(), examples, options=_options(threads, folder))
    assert isinstance(made, str)
    return Path(made)


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
def _interrupts_noticed() -> Iterator[None]:
    """Turns a failure after Ctrl-C into :class:`KeyboardInterrupt`.

    A terminal sends it to the C++ compiler too, whose end would read as a machine without one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, heard = signal.getsignal(signal.SIGINT), False

    def notice(number: int, frame: Any) -> None:
        nonlocal heard
        heard = True
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, notice)
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _keep(code: bytes, path: Path) -> None:
    """Writes a library, and deletes those that were not used for longest."""
    with replacing(path) as file:
        Path(file.name).chmod(0o600)
        file.write(code + hashlib.sha256(code).digest())
    with contextlib.suppress(OSError):
        files = sorted(path.parent.glob("*.so"), key=lambda path: path.stat().st_mtime)
        for old in files[:-_MOST_FILES]:
            old.unlink(missing_ok=True)
            old.with_suffix(".lock").unlink(missing_ok=True)
