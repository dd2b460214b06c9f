"""rlreg's IMPALA against RLlib's on CartPole-v1 with `gym.make`, turn by turn.

    scripts/make_peers.sh rllib
    python benchmarks/impala.py [--rounds 5] [--seconds 20] [--out FILE] [-- SETTINGS OF RLLIB]

A ratio is taken within a round, so that whatever else the machine does hits both; the order changes
from round to round. rlreg trains with the preset `impala/throughput`; RLlib with networks of the
same size in the setting of `impala_rllib.py` that was the fastest of six on two cores. Every
measurement is a process of its own, with a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from record import load, machine, ratios, spread, versions, write

HERE = Path(__file__).resolve().parent
PEER = HERE / ".peers" / "rllib" / "bin" / "python"
PRESET = "impala/throughput"

RLREG, NATIVE, RLLIB = "rlreg, gym.make", "rlreg, native vector", "RLlib, gym.make"
ENVS, POLICY, LEARNER = "environments alone", "policy alone", "learner alone"
PARTS = {"env_only": ENVS, "inference": POLICY, "learner": LEARNER, "end_to_end": RLREG}


def measure_rlreg(seconds: float) -> dict[str, Any]:
    """Returns what `rlreg bench impala` says, by the kind of environment."""
    command = [sys.executable, "-m", "rlreg", "bench", "impala", "--preset", PRESET, "--json"]
    command += ["--env", "CartPole-v1", "--seconds", str(2 * seconds), "--device", "cpu"]
    return {row["name"]: row for row in json.loads(output_of(command))["rows"]}


def measure_rllib(seconds: float, settings: list[str]) -> dict[str, Any]:
    command = [str(PEER), str(HERE / "impala_rllib.py"), "--seconds", str(seconds), *settings]
    document: dict[str, Any] = json.loads(output_of(command))
    return document


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def run_rounds(count: int, seconds: float, settings: list[str]) -> list[dict[str, Any]]:
    rounds = []
    for turn in range(count):
        found: dict[str, Any] = {"load": load()}
        for name in ("rlreg", "rllib") if turn % 2 else ("rllib", "rlreg"):
            is_ours = name == "rlreg"
            found[name] = measure_rlreg(seconds) if is_ours else measure_rllib(seconds, settings)
        rounds.append(found)
        ours = found["rlreg"]["gym.make"]["rates"]["end_to_end"]
        theirs = found["rllib"]["transitions_per_s"]
        print(
            f"round {turn + 1}: rlreg {ours:,.0f}/s, RLlib {theirs:,.0f}/s, "
            f"{ours / theirs:.1f} x, load {found['load']}"
        )
    return rounds


def document_of(rounds: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    rates = {
        name: [one["rlreg"]["gym.make"]["rates"][part] for one in rounds]
        for part, name in PARTS.items()
    }
    rates[NATIVE] = [one["rlreg"]["native vector"]["rates"]["end_to_end"] for one in rounds]
    rates[RLLIB] = [one["rllib"]["transitions_per_s"] for one in rounds]
    peer = rounds[0]["rllib"]
    kinds = rounds[0]["rlreg"]
    return {
        "title": "IMPALA transitions per second, from end to end",
        "settings": {
            "environment": "CartPole-v1",
            "preset": PRESET,
            "rounds": len(rounds),
            "seconds": seconds,
            **{f"rllib_{key}": peer[key] for key in ("runners", "envs", "fragment", "batch")},
        },
        "machine": machine(),
        "load_before": rounds[0]["load"],
        "load_after": load(),
        "versions": {**versions("rlreg", "torch", "gymnasium"), "ray": peer["ray"]},
        "unit": "transitions/s",
        "rates": {name: {**spread(own), "rounds": own} for name, own in rates.items()},
        "ratios": {base: ratios(rates, base) for base in (RLLIB, ENVS)},
        "figures": {
            kind: {
                name: spread([one["rlreg"][kind]["figures"][name] for one in rounds])
                for name in kinds[kind]["figures"]
            }
            for kind in kinds
        },
        "bottlenecks": {kind: kinds[kind]["bottleneck"] for kind in kinds},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--out", type=Path, help="benchmarks/results/impala.json if not given")
    parser.add_argument("rllib", nargs="*", help="settings of impala_rllib.py, after --")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds: a spread needs at least 2")
    if not PEER.exists():
        raise SystemExit("RLlib is not there: run scripts/make_peers.sh rllib")
    rounds = run_rounds(arguments.rounds, arguments.seconds, arguments.rllib)
    document = document_of(rounds, arguments.seconds)
    path = write("impala", document, arguments.out)
    print(f"{document['ratios'][RLLIB][RLREG]['median']:.1f} x RLlib; written to {path}")


if __name__ == "__main__":
    main()
