"""A Minari file as rlreg reads it: to a ready store in memory, or to one in mapped files."""

from __future__ import annotations

import os
import sys
import time

import h5py  # noqa: F401 - as in the worker of d3rlpy, imports take no part
import torch

import rlreg.runtime.data


def anonymous_mib() -> float:
    """Returns the memory of this process that no file is behind."""
    with open(f"/proc/{os.getpid()}/status", encoding="ascii") as file:
        found = next(line for line in file if line.startswith("RssAnon"))
    return int(found.split()[1]) / 1024


def main() -> None:
    name, is_mapped = sys.argv[1], sys.argv[2] == "mapped"
    before = anonymous_mib()
    begun, processor = time.perf_counter(), time.process_time()
    dataset = rlreg.load_dataset(name, memory_map=is_mapped)
    draws = torch.Generator().manual_seed(0)
    dataset.sample(256, draws)
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    for _ in range(200):
        dataset.sample(256, draws)  # the pages of a mapped file, once
    begun = time.perf_counter()
    for _ in range(1000):
        dataset.sample(256, draws)
    batches = 1000 / (time.perf_counter() - begun)
    print(f"{seconds!r} {processor!r} {batches!r} {len(dataset)} {anonymous_mib() - before!r}")


if __name__ == "__main__":
    main()
