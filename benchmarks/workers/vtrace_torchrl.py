"""torchrl's V-trace estimator as a function, in the layout that suits it best: ``[T, B]``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torchrl
from torchrl.objectives.value.functional import vtrace_advantage_estimate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import serve

GAMMA = 0.99


@torch.no_grad()
def main() -> None:
    T, B, calls, threads = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    generator = torch.Generator().manual_seed(0)
    log_rhos, rewards, values = torch.randn(3, T, B, generator=generator)
    done = torch.rand(T, B, generator=generator) < 0.01
    last = torch.randn(1, B, generator=generator)
    inputs = {
        "log_pi": 0.3 * log_rhos,
        "log_mu": torch.zeros(T, B),
        "state_value": values,
        "next_state_value": torch.cat([values[1:], last]),
        "reward": rewards,
        "done": done,
        "terminated": done,
    }

    def turn() -> float:
        begun = clock()
        for _ in range(calls):
            vtrace_advantage_estimate(GAMMA, **inputs)
        return clock() - begun

    serve({"versions": {"torchrl": torchrl.__version__}}, turn)


if __name__ == "__main__":
    main()
