"""The matrix products of one update and nothing else: those of plain torch, or of oneDNN."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import serve

WIDTH, BATCH_SIZE, NARROW = 256, 256, 23
NUM_WIDE = 16  # forward: 2 targets, 2 critics, value of s', of s, new value, actor; backward: 4 x 2
NUM_NARROW = 12  # first layers, forward and their weights' gradients


def main() -> None:
    updates, library = int(sys.argv[1]), sys.argv[2]
    square, wide = torch.randn(WIDTH, WIDTH), torch.randn(BATCH_SIZE, WIDTH)
    out = torch.empty(BATCH_SIZE, WIDTH)
    first, narrow = torch.randn(NARROW, WIDTH), torch.randn(BATCH_SIZE, NARROW)

    def by_torch(left: torch.Tensor, right: torch.Tensor) -> None:
        torch.mm(left, right, out=out)

    def by_onednn(left: torch.Tensor, right: torch.Tensor) -> None:
        torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")

    multiply = by_onednn if library == "onednn" else by_torch

    @torch.no_grad()
    def turn() -> float:
        begun = time.perf_counter()
        for _ in range(updates):
            for _ in range(NUM_WIDE):
                multiply(wide, square)
            for _ in range(NUM_NARROW):
                multiply(narrow, first)
        return time.perf_counter() - begun

    serve({"threads": torch.get_num_threads(), "versions": {}}, turn)


if __name__ == "__main__":
    main()
