"""CartPole-v1 until it is solved: rlreg's IMPALA, RLlib's, and SB3's PPO and A2C, one at a time.

    scripts/make_peers.sh rllib sb3
    python benchmarks/evidence/impala_peers.py [--only PROGRAM]... [--seeds N] [--minutes M]

Solved is the same for all: the last 100 training episodes return 475 or more on average. After that
(or at the limit of transitions or seconds) 100 seeded episodes are played by the policy's mode; 20
with RLlib, which is slow at it.
Each program runs with settings that its own authors publish for CartPole-v1 (the peers' files say
where) and as long as those say; only RLlib has two actors instead of four, as there are two cores.

Wall time is a result: run it on a quiet machine. Every run is a process of its own, seed by seed
with the programs in turn. What is in the results file is not run again, so that the script can be
stopped at any time; `--minutes` stops it by itself, before a run that might take longer.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from record import RESULTS, load, machine, versions, write  # noqa: E402  # by the line above

PEERS = HERE.parent / ".peers"
GOAL, WINDOW = 475.0, 100
SECONDS = 300.0
"""Of training, for each run."""

SLACK_S = 25.0
"""What starting and judging may take beside it."""

# Program: what is run, and transitions at most.
PROGRAMS: dict[str, tuple[list[str], int]] = {
    "rlreg, impala/small": ([sys.executable, str(HERE / "impala_peers.py"), "--run", "small"],
                            300_000),
    "rlreg, impala/throughput": (
        [sys.executable, str(HERE / "impala_peers.py"), "--run", "throughput"], 1_000_000),
    "SB3 PPO": ([str(PEERS / "sb3/bin/python"), str(HERE / "impala_peers_sb3.py"), "ppo"], 100_000),
    "SB3 A2C": ([str(PEERS / "sb3/bin/python"), str(HERE / "impala_peers_sb3.py"), "a2c"], 500_000),
    "RLlib IMPALA": ([str(PEERS / "rllib/bin/python"), str(HERE / "impala_peers_rllib.py")],
                     2_000_000),
}  # fmt: skip


class SolvedError(Exception):
    """Ends training: solved, or out of time."""


def run_rlreg(preset: str, seed: int, limit: int, seconds: float, began: float) -> dict[str, Any]:
    """Trains in this process until it is solved."""
    import torch

    import rlreg

    torch.set_num_threads(1)
    record = next(r for r in rlreg.list_presets("impala") if r.preset.id == f"impala/{preset}")
    parts: dict[str, dict[str, Any]] = {"learnable": {}, "engine": {"type": "process"}}
    for name, value in record.preset.settings.items():
        section, _, field = name.partition(".")
        parts[section][field] = value
    learnable = rlreg.create("impala", device="cpu", seed=seed, **parts["learnable"])
    started, clock = time.time(), time.perf_counter()
    returns: deque[float] = deque(maxlen=WINDOW)
    found: dict[str, Any] = {"reached": False}

    def tick(_: int) -> None:
        episodes, took = learnable.session.intake.episodes, time.perf_counter() - clock
        if episodes.returns.maxlen != WINDOW:
            episodes.returns = deque(episodes.returns, maxlen=WINDOW)
        returns.clear()
        returns.extend(episodes.returns)
        found["wall_s"], found["transitions"] = took, learnable.env_steps
        found["reached"] = len(returns) == WINDOW and sum(returns) / WINDOW >= GOAL
        if found["reached"] or took > seconds:
            raise SolvedError

    try:
        for _ in learnable.trainer("CartPole-v1", n_steps=limit, engine=parts["engine"], tick=tick):
            pass
    except SolvedError:
        pass
    found["with_start_s"] = started - began + found["wall_s"]
    found["last_mean"] = sum(returns) / max(1, len(returns))
    judged = learnable.evaluate("CartPole-v1", n_episodes=100, seed=10_000 + seed)
    found["evaluated"] = judged.mean_return
    found["version"] = f"rlreg-impala {versions('rlreg-impala')['rlreg-impala']}"
    return found


def measure(program: str, seed: int) -> dict[str, Any]:
    """Runs a program once, in a process of its own."""
    command, limit = PROGRAMS[program]
    before = load()
    rest = [str(seed), str(limit), str(SECONDS), str(time.time())]
    done = subprocess.run([*command, *rest], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program}, seed {seed}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seed": seed, "load": before, **found}


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        preset, seed, limit = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        json.dump(run_rlreg(preset, seed, limit, *map(float, sys.argv[5:7])), sys.stdout)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(PROGRAMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run that ends later")
    parser.add_argument("--out", type=Path, help="the results file")
    parser.add_argument("--list", action="store_true", help="print the programs and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name}: {limit:,} transitions" for name, (_, limit) in PROGRAMS.items()))
        return
    # As an exception it also ends the run under way, which would go on by itself otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    target = arguments.out or RESULTS / "evidence_impala_peers.json"
    end = time.monotonic() + 60 * arguments.minutes
    for seed in range(arguments.seeds):
        for program in arguments.only or list(PROGRAMS):
            document = json.loads(target.read_text("utf-8")) if target.exists() else {}
            document.pop("benchmark", None)
            runs = document.setdefault("programs", {}).setdefault(program, {"runs": []})["runs"]
            if any(run["seed"] == seed for run in runs):
                continue
            if time.monotonic() + SECONDS + SLACK_S > end:
                print("no time for the next run; start again to go on")
                return
            runs.append(measure(program, seed))
            document["programs"][program]["limit"] = PROGRAMS[program][1]
            document |= {
                "title": "CartPole-v1 to 475 over 100 training episodes",
                "machine": machine(),
                "goal": GOAL,
                "seconds": SECONDS,
                "programs": {
                    name: document["programs"][name]
                    for name in PROGRAMS
                    if name in document["programs"]
                },
            }
            print(f"{program}, seed {seed}: {runs[-1]}", flush=True)
            write("evidence_impala_peers", document, target)


if __name__ == "__main__":
    main()
