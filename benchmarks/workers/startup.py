"""A program that ends when `rlreg train` has done its first update, or a base to compare it with.

Prints one line of JSON for each event on the way: its name, the processor seconds of this process
so far and what `time.perf_counter` says, which on Linux all processes share.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def say(event: str) -> None:
    """Tells the parent how far this process is."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    row = {"event": event, "cpu_s": used.ru_utime + used.ru_stime, "at": time.perf_counter()}
    print(json.dumps(row), flush=True)


def read_by_h5py(path: str) -> Any:
    """Reads a Minari file as plainly as can be: five arrays an episode, joined."""
    import h5py
    import numpy as np
    import torch

    names = ("observations", "actions", "rewards", "terminations", "truncations")
    with h5py.File(path) as file:
        episodes = [[group[name][()] for name in names] for group in file.values()]
    return [torch.from_numpy(np.concatenate(parts)) for parts in zip(*episodes, strict=True)]


def base(what: str, source: str) -> None:
    """Imports torch; with ``h5py`` or ``load`` reads the data set too."""
    import torch  # noqa: F401 - the import is what is measured

    if what == "h5py":
        root = Path(os.environ["MINARI_DATASETS_PATH"])
        read_by_h5py(str(root / source / "data" / "main_data.hdf5"))
    elif what == "load":
        import rlreg

        rlreg.load_dataset(source)
    say("done")


def offline(words: list[str]) -> None:
    """Trains offline up to the end of the first update."""
    when_imported("rlreg.runtime.offline", report_first_updates)
    train(words)


def report_first_updates(offline: Any) -> None:
    """Makes a learnable say when its first update begins, and end after it (compiled: a chunk)."""
    plain = offline.OfflineLearnable.train_epoch

    def first(self: Any, dataset: Any, count: int, **_: Any) -> Any:
        say("reached")
        plain(self, dataset, 1)
        say("done")
        os._exit(0)

    offline.OfflineLearnable.train_epoch = first


def online(words: list[str]) -> None:
    """Trains IMPALA up to the end of the first update."""
    when_imported("rlreg_impala.trainer", report_first_update)
    train(words)


def report_first_update(trainer: Any) -> None:
    """Makes the trainer say when its first batch is there, and end after its first update."""
    collect, update = trainer.Intake.collect, trainer.MultiStepIMPALA.update

    def first_batch(self: Any, *given: Any) -> Any:
        fragments = collect(self, *given)
        say("reached")
        return fragments

    def first_update(self: Any) -> Any:
        update(self)
        say("done")
        self.stop()
        os._exit(0)

    trainer.Intake.collect = first_batch
    trainer.MultiStepIMPALA.update = first_update


def when_imported(name: str, change: Callable[[Any], None]) -> None:
    """Changes a module as soon as the command imports it: not earlier, the order is measured."""

    class Finder:
        def find_spec(self, wanted: str, *given: Any) -> Any:
            if wanted != name:
                return None
            sys.meta_path.remove(self)  # type: ignore[arg-type]  # a finder of one method
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            run = spec.loader.exec_module

            def run_and_change(module: Any) -> None:
                run(module)
                change(module)

            spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]  # a finder of one method


def train(words: list[str]) -> None:
    """Runs the command as a shell would."""
    from rlreg.cli.main import main

    sys.argv = ["rlreg", "train", *words]
    main()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "base":
        base(*rest)
    else:
        {"offline": offline, "online": online}[kind](rest)
