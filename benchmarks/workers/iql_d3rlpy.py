"""d3rlpy's IQL as its fit loop runs it, without that loop's logging: sample, then update."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import d3rlpy
import numpy as np
import structlog
import torch
from d3rlpy.algos import IQLConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import serve

OBSERVATION_SIZE, ACTION_SIZE, BATCH_SIZE = 17, 6, 256


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    transitions, updates = int(sys.argv[1]), int(sys.argv[2])
    rng = np.random.default_rng(0)
    ends = np.zeros(transitions, np.float32)
    ends[999::1000] = 1
    dataset = d3rlpy.dataset.MDPDataset(
        rng.normal(size=(transitions, OBSERVATION_SIZE)).astype(np.float32),
        rng.uniform(-1, 1, (transitions, ACTION_SIZE)).astype(np.float32),
        rng.normal(size=transitions).astype(np.float32),
        ends,
    )
    algorithm = IQLConfig().create(device="cpu:0")
    algorithm.build_with_dataset(dataset)

    def turn() -> float:
        begun = time.perf_counter()
        for _ in range(updates):
            algorithm.update(dataset.sample_transition_batch(BATCH_SIZE))
        return time.perf_counter() - begun

    versions = {"d3rlpy": d3rlpy.__version__, "torch": torch.__version__}
    serve({"threads": torch.get_num_threads(), "versions": versions}, turn)


if __name__ == "__main__":
    main()
