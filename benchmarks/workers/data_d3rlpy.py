"""A Minari set as d3rlpy reads it: by its ``get_minari``, or its file by h5py without Minari."""

from __future__ import annotations

import logging
import sys
import time

import d3rlpy
import h5py
import minari
import numpy as np
import structlog
from d3rlpy.datasets import get_minari


def load(path: str) -> d3rlpy.dataset.ReplayBuffer:
    parts: dict[str, list[np.ndarray]] = {"terminations": [], "truncations": [], "rewards": []}
    parts |= {"observations": [], "actions": []}
    with h5py.File(path, "r") as file:
        for number in range(len(file)):
            episode = file[f"episode_{number}"]
            for name, rows in parts.items():
                rows.append(episode[name][()])
    counts = [len(rewards) for rewards in parts["rewards"]]
    kept = zip(parts["observations"], counts, strict=True)
    parts["observations"] = [rows[:count] for rows, count in kept]
    whole = {name: np.concatenate(rows) for name, rows in parts.items()}
    return d3rlpy.dataset.MDPDataset(
        whole["observations"], whole["actions"], whole["rewards"],
        whole["terminations"].astype(np.float32), whole["truncations"].astype(np.float32),
    )  # fmt: skip


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    way, source = sys.argv[1:]
    minari.list_local_datasets()  # loads what Minari only loads when it is needed
    begun, processor = time.perf_counter(), time.process_time()
    buffer = get_minari(source)[0] if way == "get_minari" else load(source)
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    begun = time.perf_counter()
    for _ in range(200):
        buffer.sample_transition_batch(256)
    batches = 200 / (time.perf_counter() - begun)
    print(f"{seconds!r} {processor!r} {batches!r} {buffer.transition_count} {d3rlpy.__version__}")


if __name__ == "__main__":
    main()
