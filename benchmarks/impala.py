"""rlreg's IMPALA against RLlib's on CartPole-v1 with `gym.make`, turn by turn.

    scripts/make_peers.sh rllib
    python benchmarks/impala.py [--rounds 3] [--seconds 20] [--json FILE]

Each round runs one after the other, in changing order, and a ratio is taken within a round, so that
whatever else the machine does hits both. rlreg trains with the preset `impala/throughput`; RLlib
with networks of the same size in the setting of `impala_rllib.py` that was fastest on two cores.
Every measurement is a process of its own, with a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
PEER = HERE / ".peers" / "rllib" / "bin" / "python"
PRESET = "impala/throughput"


def measure_rlreg(seconds):
    """Asks `rlreg bench impala`; returns its row for gym.make."""
    command = [sys.executable, "-m", "rlreg", "bench", "impala", "--preset", PRESET, "--json"]
    command += ["--env", "CartPole-v1", "--seconds", str(2 * seconds), "--device", "cpu"]
    rows = json.loads(output_of(command))["rows"]
    return {row["name"]: row for row in rows}


def measure_rllib(seconds, settings):
    command = [str(PEER), str(HERE / "impala_rllib.py"), "--seconds", str(seconds), *settings]
    return json.loads(output_of(command))


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def run_rounds(rounds, seconds, settings):
    results = []
    for turn in range(rounds):
        result = {"load_before": os.getloadavg()[0]}
        for name in ("rlreg", "rllib") if turn % 2 else ("rllib", "rlreg"):
            if name == "rlreg":
                result[name] = measure_rlreg(seconds)
            else:
                result[name] = measure_rllib(seconds, settings)
        ours = result["rlreg"]["gym.make"]["rates"]["end_to_end"]
        theirs = result["rllib"]["transitions_per_s"]
        result["ratio"] = ours / theirs
        results.append(result)
        print(
            f"round {turn + 1}: rlreg {ours:,.0f}/s, RLlib {theirs:,.0f}/s, "
            f"ratio {result['ratio']:.1f}, load {result['load_before']:.1f}",
            file=sys.stderr,
        )
    return results


def summary(results):
    def middle(pick):
        return statistics.median(pick(result) for result in results)

    ratios = [result["ratio"] for result in results]
    rows = {
        name: {
            "rates": {
                part: middle(lambda r, n=name, p=part: r["rlreg"][n]["rates"][p])
                for part in results[0]["rlreg"][name]["rates"]
            },
            "figures": {
                part: middle(lambda r, n=name, p=part: r["rlreg"][n]["figures"][p])
                for part in results[0]["rlreg"][name]["figures"]
            },
            "bottleneck": results[-1]["rlreg"][name]["bottleneck"],
        }
        for name in results[0]["rlreg"]
    }
    return {
        "benchmark": "impala",
        "env": "CartPole-v1",
        "preset": PRESET,
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ("rlreg", "torch", "numpy", "gymnasium")}
        | {"ray": results[0]["rllib"]["ray"], "python": platform.python_version()},
        "rllib_per_s": middle(lambda r: r["rllib"]["transitions_per_s"]),
        "rllib_settings": {
            name: results[0]["rllib"][name] for name in ("runners", "envs", "fragment", "batch")
        },
        "rlreg": rows,
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": results,
    }


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("rllib", nargs="*", help="settings of impala_rllib.py, after --")
    arguments = parser.parse_args()
    if not PEER.exists():
        raise SystemExit("RLlib is not there: run scripts/make_peers.sh rllib")
    result = summary(run_rounds(arguments.rounds, arguments.seconds, arguments.rllib))
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(text)
    sys.stdout.write(text if not arguments.json else f"ratio {result['ratio']:.1f}\n")


if __name__ == "__main__":
    main()
