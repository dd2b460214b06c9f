"""V-trace against the usual loop over time steps, interleaved in one process.

    python benchmarks/vtrace.py [--rounds N] [--threads N] [--json]

The baseline is our own rewriting of the algorithm of TorchBeast and scalable_agent: it indexes the
tensors at every step and stacks the rows at the end. The two are timed in turn, round by round, so
that whatever else the machine does hits both; a ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import load, machine, spread, versions, write
from torch import Tensor

from rlreg_impala.vtrace import from_importance_weights

SHAPES = [(20, 32), (100, 32), (100, 512)]


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


def seconds_per_call(function: Callable[..., object], inputs: list[Tensor], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(*inputs)
    return (time.perf_counter() - start) / calls


def compare(T: int, B: int, *, rounds: int, calls: int) -> dict[str, Any]:
    inputs = make_inputs(T, B)
    for ours, theirs in zip(from_importance_weights(*inputs), index_loop(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    times: list[tuple[float, float]] = []
    for turn in range(rounds):
        order = [index_loop, from_importance_weights][:: 1 if turn % 2 else -1]
        measured = {function: seconds_per_call(function, inputs, calls) for function in order}
        times.append((measured[index_loop], measured[from_importance_weights]))
    ratios = [loop / ours for loop, ours in times]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "T": T,
        "B": B,
        "loop_us": 1e6 * statistics.median(loop for loop, _ in times),
        "rlreg_us": 1e6 * statistics.median(ours for _, ours in times),
        "ratio": statistics.median(ratios),
        "ratio_quartile_1": low,
        "ratio_quartile_3": high,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratio_spread": spread(ratios),
        "loop_spread": spread([1 / loop for loop, _ in times]),
        "rlreg_spread": spread([1 / ours for _, ours in times]),
    }


def document(
    results: list[dict[str, Any]], arguments: argparse.Namespace, before: float
) -> dict[str, Any]:
    """Gives the results the form of all results files."""
    rates, compared = {}, {}
    for own in results:
        name = f"{own['T']} x {own['B']}"
        rates[f"loop, {name}"], rates[f"rlreg, {name}"] = own["loop_spread"], own["rlreg_spread"]
        compared[f"rlreg, {name}"] = own["ratio_spread"]
    return {
        "title": "V-trace, calls per second",
        "settings": {key: getattr(arguments, key) for key in ("rounds", "calls", "threads")},
        "machine": machine(),
        "load_before": before,
        "load_after": load(),
        "versions": versions("rlreg", "torch"),
        "unit": "calls/s",
        "rates": rates,
        "ratios": {"the loop": compared},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=10, help="calls per round and function")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, help="also write a results file there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    before = load()
    results = [compare(*s, rounds=arguments.rounds, calls=arguments.calls) for s in SHAPES]
    if arguments.out is not None:
        write("vtrace", document(results, arguments, before), arguments.out)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"float32, {arguments.threads} thread(s), {arguments.rounds} rounds, medians")
    print(f"{'T x B':>10}  {'loop us':>8}  {'rlreg us':>8}  {'ratio':>6}  quartiles    min-max")
    for r in results:
        quartiles = f"{r['ratio_quartile_1']:.1f}-{r['ratio_quartile_3']:.1f}"
        extremes = f"{r['ratio_min']:.1f}-{r['ratio_max']:.1f}"
        size = f"{r['T']} x {r['B']}"
        times = f"{r['loop_us']:>8.0f}  {r['rlreg_us']:>8.0f}"
        print(f"{size:>10}  {times}  {r['ratio']:>6.1f}  {quartiles:<11}  {extremes}")


if __name__ == "__main__":
    main()
