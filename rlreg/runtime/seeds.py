"""The same run with several seeds, and what they say together.

Spread over the cores, each seed is a process of its own with a fixed number of threads, so it is
bit-equal to a run by itself with as many threads. Stacked on a GPU, all seeds are one computation
in this process (`stacked_seeds.py`), each within rounding of a run by itself.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlreg.atomic_file import write_text
from rlreg.documents import RUN_FILE
from rlreg.errors import FileFormatError, RunError
from rlreg.files import dump_yaml
from rlreg.parent_process import environment_of_child, python_command
from rlreg.run_config import LARGEST_SEED, RunConfig
from rlreg.run_defaults import DEFAULT_DATASET
from rlreg.runtime.data.load import load_dataset
from rlreg.runtime.lock import differences, lock_from_json, lock_of
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import SEEDS_FILE, RunFolder, read_json, require_empty, to_text
from rlreg.runtime.stacked_seeds import check_stackable, train_stacked
from rlreg.runtime.stacking import NotStackedError
from rlreg.runtime.train import RunResult, make_learnable, resume, train
from rlreg.starting import end_start

SUMMARY_FILE = "summary.json"
_NUM_RESAMPLES = 2000
_CONFIDENCE = 0.95
_POLL_S = 0.1

StopFunction = Callable[[], bool]
Arrangement = Literal["auto", "spread", "stacked"]
"""How seeds are trained: in processes, as one computation, or as fits the device."""


def train_seeds(
    run: RunConfig,
    out: Path,
    num_seeds: int,
    show_progress: bool,
    should_stop: StopFunction,
    arrangement: Arrangement = "auto",
) -> RunResult:
    """Trains a resolved run with ``num_seeds`` seeds from its own on.

    Args:
        run: The resolved run.
        out: Folder of all, new or empty.
        num_seeds: How many.
        show_progress: Whether to show anything.
        should_stop: Asked every few updates; ``True`` ends training with checkpoints.
        arrangement: ``auto`` stacks on a GPU. What cannot be stacked is spread, with a notice.

    Raises:
        RunError: If ``out`` is not empty, or a seed failed.
    """
    last = run.seed + num_seeds - 1
    if last > LARGEST_SEED:
        raise RunError(
            f"seeds {run.seed} to {last}: the largest is {LARGEST_SEED}; begin with a smaller one"
        )
    require_empty(out)
    if run.dataset is not None and str(run.dataset) == DEFAULT_DATASET:
        load_dataset(run.dataset, generate=True).close()  # made once, not by all at once
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / RUN_FILE, dump_yaml(run))
        seeds = list(range(run.seed, run.seed + num_seeds))
        settled = _settle(run, arrangement, is_shown=show_progress)
        write_text(out / SEEDS_FILE, to_text({"seeds": seeds, "arrangement": settled}))
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror or error}") from error
    return _run_all(run, out, seeds, settled, show_progress, should_stop)


def _settle(run: RunConfig, wanted: Arrangement, *, is_shown: bool) -> Arrangement:
    """Decides whether seeds are stacked; written down, so that a resumed run does the same."""
    if wanted == "spread":
        return "spread"
    if wanted == "auto" and make_learnable(run).device.type == "cpu":
        return "spread"
    try:
        check_stackable(run)
    except NotStackedError as error:
        display = Display(0, is_shown=is_shown)
        display.note(f"the seeds are not stacked but spread over the cores: {error}")
        display.close()
        return "spread"
    return "stacked"


def resume_seeds(
    path: Path, show_progress: bool, should_stop: StopFunction, *, strict_lock: bool = False
) -> RunResult:
    """Goes on with the seeds that are not finished."""
    run = RunFolder.open(path).read_run()
    seeds, arrangement = _read_seeds(path / SEEDS_FILE)
    summaries = [_summary_of(path, seed) for seed in seeds]
    if all(item is not None for item in summaries) and (path / SUMMARY_FILE).exists():
        return RunResult(path, "already finished", summarize(run, summaries, seeds))
    if strict_lock:
        _require_same_code(path, run, seeds)
    return _run_all(run, path, seeds, arrangement, show_progress, should_stop)


def _read_seeds(path: Path) -> tuple[list[int], Arrangement]:
    """Reads which seeds there are, and how they are trained.

    Raises:
        FileFormatError: If the file does not say so.
    """
    settings = read_json(path)
    seeds: Any = settings.get("seeds")
    arrangement: Any = settings.get("arrangement", "spread")
    is_list = isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)
    if not is_list or arrangement not in ("spread", "stacked"):
        raise FileFormatError(
            f"{path}: damaged: expected a list of seeds, and spread or stacked as arrangement; "
            "each seed-N beside it can be resumed by itself"
        )
    return seeds, arrangement


def _require_same_code(path: Path, run: RunConfig, seeds: list[int]) -> None:
    """Raises where a seed that is not finished began with other versions than are installed."""
    for seed in seeds:
        lock = RunFolder(_folder_of(path, seed)).read_lock()
        if lock and _summary_of(path, seed) is None:
            changes = differences(lock_from_json(lock), lock_of(run))
            if changes:
                raise RunError(f"{_folder_of(path, seed)}: {'; '.join(changes)}")


def _run_all(
    run: RunConfig,
    out: Path,
    seeds: list[int],
    arrangement: Arrangement,
    show_progress: bool,
    should_stop: StopFunction,
) -> RunResult:
    end_start()
    if arrangement == "stacked":
        waiting = {s: _folder_of(out, s) for s in seeds if _summary_of(out, s) is None}
        is_finished = not waiting or train_stacked(
            run, waiting, show_progress=show_progress, should_stop=should_stop
        )
    else:
        is_finished = _run_one_by_one(run, out, seeds, show_progress, should_stop)
    summary = summarize(run, [_summary_of(out, seed) for seed in seeds], seeds)
    if is_finished:
        write_text(out / SUMMARY_FILE, to_text(summary))
    return RunResult(out, "finished" if is_finished else "interrupted", summary)


def _run_one_by_one(
    run: RunConfig, out: Path, seeds: list[int], show_progress: bool, should_stop: StopFunction
) -> bool:
    """Runs every seed as a run of its own, side by side where that is possible."""
    display = Display(len(seeds), unit="seeds", is_shown=show_progress)
    try:
        if any(entry.is_local for entry in lock_of(run)):
            # What was registered by call exists in this process alone.
            return _run_here(run, out, seeds, should_stop)
        return _run_apart(out, seeds, display, should_stop)
    finally:
        display.close()


def _folder_of(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def _summary_of(out: Path, seed: int) -> dict[str, Any] | None:
    folder = _folder_of(out, seed)
    return RunFolder(folder).read_summary() if folder.is_dir() else None


def _run_here(run: RunConfig, out: Path, seeds: list[int], should_stop: StopFunction) -> bool:
    for seed in seeds:
        folder = _folder_of(out, seed)
        if (folder / RUN_FILE).is_file():
            result = resume(folder, show_progress=False, should_stop=should_stop)
        else:
            one = run.model_copy(update={"seed": seed})
            result = train(one, out=folder, show_progress=False, should_stop=should_stop)
        if result.status == "interrupted":
            return False
    return True


# --- side by side -------------------------------------------------------------------------------


def split_cores(num_seeds: int, num_cores: int) -> tuple[int, int]:
    """Returns how many seeds run at once, and with how many threads each."""
    num_workers = max(1, min(num_seeds, num_cores))
    return num_workers, max(1, num_cores // num_workers)


def _run_apart(out: Path, seeds: list[int], display: Display, should_stop: StopFunction) -> bool:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    num_workers, num_threads = split_cores(len(seeds), num_cores or 1)
    threads = f"{num_threads} thread{'' if num_threads == 1 else 's'}"
    display.note(f"{len(seeds)} seeds, {num_workers} at once with {threads} each")
    waiting = [seed for seed in seeds if _summary_of(out, seed) is None]
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                seed = waiting.pop(0)
                running[seed] = _start(out, seed, num_threads)
            time.sleep(_POLL_S)
            for seed in _ended(running):
                _report(out, seed, running.pop(seed).returncode, display)
            if should_stop():
                return False
    except KeyboardInterrupt as error:
        error.add_note(f"the last checkpoints are intact; go on with: rlreg resume {out}")
        raise
    finally:
        # Each saves a checkpoint, whether we were asked to stop or one of the others failed.
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return True


def _ended(running: dict[int, subprocess.Popen[bytes]]) -> Iterator[int]:
    yield from [seed for seed, process in running.items() if process.poll() is not None]


def _start(out: Path, seed: int, num_threads: int) -> subprocess.Popen[bytes]:
    folder = _folder_of(out, seed)
    if (folder / RUN_FILE).is_file():
        arguments = ["resume", str(folder)]
    else:
        arguments = ["train", str(out / RUN_FILE), "--seed", str(seed), "--out", str(folder)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    with (out / f"seed-{seed}.log").open("ab") as log:
        return subprocess.Popen(
            [*python_command(), "-m", "rlreg", *arguments],
            env=environment_of_child({**os.environ, **threads}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches us alone, and we ask each to stop
        )


def _report(out: Path, seed: int, code: int, display: Display) -> None:
    summary = _summary_of(out, seed)
    if summary is None:
        log = out / f"seed-{seed}.log"
        lines = log.read_text(errors="replace").strip().splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("error:")), "")
        raise RunError(
            f"seed {seed} ended with code {code}: {reason or 'see its log'} ({log}); "
            f"`rlreg resume {out}` goes on with the others"
        )
    display.advance(1)
    final = summary.get("final")
    result = f"mean return {final['mean_return']:.4g}" if final else "not evaluated"
    display.note(f"seed {seed} is finished: {result}")


# --- what they say together ---------------------------------------------------------------------


def summarize(
    run: RunConfig, summaries: Sequence[dict[str, Any] | None], seeds: Sequence[int]
) -> dict[str, Any]:
    """Puts the summaries of all seeds into one."""
    finals = [item["final"] for item in summaries if item is not None and item["final"]]
    returns = [final["mean_return"] for final in finals]
    scores = [
        final["normalized_score"] for final in finals if final["normalized_score"] is not None
    ]
    return {
        "learnable": run.learnable.get_type(),
        "seeds": list(seeds),
        "num_finished": sum(item is not None for item in summaries),
        "final": {
            "mean_return": statistics_of(returns) if returns else None,
            "normalized_score": statistics_of(scores) if scores else None,
        },
        "runs": [item for item in summaries if item is not None],
    }


def statistics_of(values: Sequence[float]) -> dict[str, Any]:
    """Returns mean, deviation, and the interquartile mean with a bootstrap interval over seeds."""
    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(0)
    picked = data[rng.integers(len(data), size=(_NUM_RESAMPLES, len(data)))]
    means = _interquartile_mean(picked)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return {
        "mean": float(data.mean()),
        "std": float(data.std()),
        "interquartile_mean": float(_interquartile_mean(data)),
        "interval": [float(low), float(high)],
        "confidence": _CONFIDENCE,
        "values": data.tolist(),
    }


def _interquartile_mean(values: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Mean of the middle half along the last axis (Agarwal et al. 2021)."""
    size = values.shape[-1]
    cut = size // 4
    return np.sort(values, axis=-1)[..., cut : size - cut].mean(axis=-1)
