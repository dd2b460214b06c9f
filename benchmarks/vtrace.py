"""V-trace against the usual loop over time steps and torchrl's estimator, taking turns.

    python benchmarks/vtrace.py [--rounds N] [--threads N] [--out FILE]

The loop is our own rewriting of the algorithm of TorchBeast and scalable_agent: it indexes the
tensors at every step and stacks the rows at the end. Programs are timed in turn, round by round, so
that whatever else the machine does hits all of them; a ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import load, machine, ratios, spread, versions, write
from torch import Tensor
from turns import Worker, is_there

from rlreg_impala.vtrace import from_importance_weights

SHAPES = [(20, 32), (100, 32), (100, 512)]
OURS, LOOP, TORCHRL = "rlreg", "the loop", "torchrl"


@torch.no_grad()
def index_loop(log_rhos, discounts, rewards, values, bootstrap_value):
    rhos = torch.exp(log_rhos)
    clipped_rhos = torch.clamp(rhos, max=1.0)
    cs = torch.clamp(rhos, max=1.0)
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    deltas = clipped_rhos * (rewards + discounts * next_values - values)
    later = torch.zeros_like(bootstrap_value)
    backwards = []
    for t in reversed(range(discounts.shape[0])):
        later = deltas[t] + discounts[t] * cs[t] * later
        backwards.append(later)
    vs = torch.stack(backwards[::-1]) + values
    next_vs = torch.cat([vs[1:], bootstrap_value.unsqueeze(0)])
    advantages = torch.clamp(rhos, max=1.0) * (rewards + discounts * next_vs - values)
    return vs, advantages


def make_inputs(T: int, B: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    log_rhos, rewards, values = torch.randn(3, T, B, generator=generator)
    discounts = 0.99 * (torch.rand(T, B, generator=generator) > 0.01)
    return [0.3 * log_rhos, discounts, rewards, values, torch.randn(B, generator=generator)]


def timed(function: Callable[..., object], inputs: list[Tensor], calls: int) -> float:
    # One thread is timed by its own clock, which other programs do not move.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    for _ in range(calls):
        function(*inputs)
    return clock() - begun


def compare(
    T: int, B: int, arguments: argparse.Namespace, found: dict[str, str]
) -> dict[str, list[float]]:
    """Returns calls per second by program, one for each round."""
    inputs, calls = make_inputs(T, B), arguments.calls
    for ours, theirs in zip(from_importance_weights(*inputs), index_loop(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    programs: dict[str, Callable[[], float]] = {
        OURS: lambda: timed(from_importance_weights, inputs, calls),
        LOOP: lambda: timed(index_loop, inputs, calls),
    }
    peer = None
    if is_there(TORCHRL):
        words = [str(number) for number in (T, B, calls, arguments.threads)]
        peer = Worker(TORCHRL, TORCHRL, ["workers/vtrace_torchrl.py", *words], arguments.threads)
        found.update(peer.about["versions"])
        programs[TORCHRL] = peer.turn
    rates: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    for turn in range(-1, arguments.rounds):  # the first round warms up
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = programs[name]()
            if turn >= 0:
                rates[name].append(calls / seconds)
    if peer is not None:
        peer.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=30, help="calls per round and program")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--out", type=Path, help="benchmarks/results/vtrace.json if not given")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    before, found = load(), versions("rlreg", "torch")
    rates: dict[str, Any] = {}
    compared: dict[str, Any] = {LOOP: {}, TORCHRL: {}}
    for T, B in SHAPES:
        own = compare(T, B, arguments, found)
        for name, values in own.items():
            rates[f"{name}, {T} x {B}"] = spread(values)
        for base in set(compared) & set(own):
            against = ratios(own, base)[OURS]
            compared[base][f"{OURS}, {T} x {B}"] = against
            print(f"{T} x {B}: {against['median']:.2f} x {base}")
    if not compared[TORCHRL]:
        print("torchrl: left out; `make bench-peers` builds its environment")
        del compared[TORCHRL]
    document = {
        "title": "V-trace, calls per second",
        "settings": {key: getattr(arguments, key) for key in ("rounds", "calls", "threads")},
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": found,
        "unit": "calls/s",
        "rates": rates,
        "ratios": compared,
    }
    print(f"written: {write('vtrace', document, arguments.out)}")


if __name__ == "__main__":
    main()
