"""rlreg's training loop, sampling included: plain or compiled."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import serve

import rlreg
from rlreg.runtime.bench import Workload


def main() -> None:
    mode, transitions, updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    learnable = rlreg.create("iql", device="cpu", compile=mode)
    dataset = Workload(transitions).dataset()
    learnable.build_with_dataset(dataset)
    begun = time.perf_counter()
    reason = learnable.settle_compile(dataset, updates)
    compile_s = time.perf_counter() - begun
    if mode == "on" and not learnable.is_compiled:
        raise SystemExit(reason)
    learnable.train_epoch(dataset, 50)

    def turn() -> float:
        begun = time.perf_counter()
        learnable.train_epoch(dataset, updates)
        return time.perf_counter() - begun

    versions = {"rlreg": rlreg.__version__, "torch": torch.__version__}
    about = {"threads": torch.get_num_threads(), "compile_s": compile_s, "versions": versions}
    serve(about, turn)


if __name__ == "__main__":
    main()
