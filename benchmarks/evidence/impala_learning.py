"""What IMPALA learns with its presets, task by task and seed by seed: resumable.

    python benchmarks/evidence/impala_learning.py [--only TASK]... [--seeds N] [--quick] [--list]

Each run is a run folder under `build/evidence/impala`; one that is finished is read, one that was
interrupted goes on, so the script can be stopped at any time. After each run the file
`benchmarks/results/evidence_impala.json` is written anew from all folders that are finished.

Actors are processes in deterministic mode: a seed fixes every bit; fragments are one update old.
Scores are means over seeded episodes with the policy's mode, never the returns of training; random
actions are scored on the same starts. `--quick` trains a tenth as long and writes beside the runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

from record import RESULTS, load, machine, versions, write  # noqa: E402  # found by the line above

RUNS = HERE.parent.parent / "build" / "evidence" / "impala"
RECALL = "impala_envs:Recall-v0"


@dataclass(frozen=True)
class Task:
    """One row: an environment, a preset, and for how long.

    Attributes:
        env: As in a run file.
        preset: Without `impala/`.
        n_steps: Transitions.
        every: Transitions between evaluations.
        goal: What counts as solved, for the first evaluation that reaches it; ``None`` if unknown.
        n_episodes: Of an evaluation.
        settings: Of the learnable, over the preset.
        engine: Over the preset's.
        needs: Modules that have to be there.
        packages: Distributions whose versions decide the result.
        is_listed_only: Left out unless it is asked for by name.
    """

    env: Any
    preset: str
    n_steps: int
    every: int
    goal: float | None = None
    n_episodes: int = 20
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    is_listed_only: bool = False


def minatar(game: str, *, is_listed_only: bool = False) -> Task:
    env = {"id": f"MinAtar/{game}-v1", "register": "minatar.gym:register_envs"}
    return Task(
        env, "minatar", 5_000_000, 1_000_000, n_episodes=100, needs=("minatar",),
        packages=("minatar",), is_listed_only=is_listed_only,
    )  # fmt: skip


def recall(core: str) -> Task:
    settings = {"core": core, "core_size": 32, "critic_encoder_factory": None}
    return Task(RECALL, "small", 150_000, 50_000, 0.95, 100, settings)


PONG = {
    "id": "ALE/Pong-v5",
    "kwargs": {"frameskip": 1, "repeat_action_probability": 0.0},
    "wrappers": [
        {"id": "gymnasium.wrappers:AtariPreprocessing", "kwargs": {"screen_size": 42}},
        {"id": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 4}},
    ],
}

# The cheapest first.
TASKS = {
    "cartpole": Task("CartPole-v1", "small", 150_000, 50_000, 475.0),
    "recall-lstm": recall("lstm"),
    "recall-none": recall("none"),
    "pendulum": Task("Pendulum-v1", "continuous", 200_000, 50_000, -300.0),
    # At -1 a step the critic starts far from the truth, and the policy can settle before it has
    # seen the goal once: one seed of three did. A tenth of the rewards is a tenth of the way.
    "acrobot": Task(
        "Acrobot-v1", "small", 200_000, 50_000, -100.0, settings={"reward_scale": 0.1}
    ),
    "acrobot-unscaled": Task("Acrobot-v1", "small", 200_000, 50_000, -100.0, is_listed_only=True),
    "cartpole-throughput": Task("CartPole-v1", "throughput", 1_000_000, 250_000, 475.0),
    "minatar-breakout": minatar("Breakout"),
    "lunarlander": Task(
        "LunarLander-v3", "long_episodes", 4_000_000, 500_000, 200.0, needs=("Box2D",),
        packages=("box2d",),
    ),
    "minatar-asterix": minatar("Asterix", is_listed_only=True),
    "minatar-freeway": minatar("Freeway", is_listed_only=True),
    "minatar-space-invaders": minatar("SpaceInvaders", is_listed_only=True),
    "pong": Task(
        PONG, "atari_small", 2_000_000, 250_000, 18.0, 10, needs=("ale_py", "cv2"),
        packages=("ale-py",), is_listed_only=True,
    ),
    # The same but for what is done to frames: as bytes divided by 255.
    "pong-raw": Task(
        PONG, "atari_small", 1_000_000, 250_000, 18.0, 10,
        settings={"observation_normalization": "none"}, needs=("ale_py", "cv2"),
        packages=("ale-py",), is_listed_only=True,
    ),
}  # fmt: skip


# --- one run ------------------------------------------------------------------------------------


def run_of(task: Task, seed: int, share: float = 1.0) -> dict[str, Any]:
    """The run file of one seed; the preset comes beneath it."""
    every, n_episodes = task.every, task.n_episodes
    if share < 1:
        every, n_episodes = task.n_steps, min(5, n_episodes)
    return {
        "learnable": {"type": "impala", **task.settings},
        "env": task.env,
        "device": "cpu",
        "seed": seed,
        "engine": {"type": "process", "deterministic": True, **task.engine},
        "train": {"n_steps": max(1, int(share * task.n_steps))},
        "evaluation": {"every": every, "n_episodes": n_episodes},
        "checkpoint": {"every_epochs": 100},
    }


def do(task: Task, seed: int, folder: Path, share: float) -> None:
    """Trains in a folder, or goes on there."""
    import torch

    import rlreg

    torch.set_num_threads(1)
    if (folder / "run.yaml").exists():
        rlreg.resume(folder, show_progress=False)
    else:
        run, preset = run_of(task, seed, share), f"impala/{task.preset}"
        rlreg.train(run, out=folder, preset=preset, show_progress=False)


def read(folder: Path) -> dict[str, Any] | None:
    """What a finished folder says; ``None`` where there is none."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if summary is None or summary.get("status", "finished") != "finished":
        return None
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    training = [[r["step"], r["episode/return_mean"]] for r in rows if "episode/return_mean" in r]
    curve = [[e["step"], e["mean_return"], e["std_return"]] for e in summary["evaluations"]]
    lags = [row["queue/policy_lag"] for row in rows if "queue/policy_lag" in row]
    return {
        "seed": summary["seed"],
        "transitions": summary["steps"],
        "wall_s": summary["wall_s"],
        "final": summary["final"]["mean_return"],
        "best": summary["best"]["mean_return"],
        "curve": curve,
        "training": training[:: -max(1, len(training) // 25)][::-1],  # the last one included
        "best_training": max(pair[1] for pair in training),
        "mean_lag": sum(lags) / max(1, len(lags)),
        "random": summary["baselines"]["random"]["mean_return"],
    }


# --- all of them --------------------------------------------------------------------------------


def row_of(name: str, work: Path) -> dict[str, Any] | None:
    """Sums up the finished seeds of a task."""
    task, runs = TASKS[name], []
    for folder in sorted(work.glob(f"{name}-s*"), key=lambda path: int(path.name.split("-s")[-1])):
        found = read(folder)
        if found is not None:
            runs.append(found)
    if not runs:
        return None
    randoms = {found.pop("random") for found in runs}
    for found in runs:
        goal = task.goal
        reached = [step for step, mean, _ in found["curve"] if goal is not None and mean >= goal]
        found["goal_at"] = reached[0] if reached else None
    return {
        "env": task.env,
        "preset": f"impala/{task.preset}",
        "settings": dict(task.settings),
        "engine": dict(task.engine),
        "n_steps": task.n_steps,
        "n_episodes": task.n_episodes,
        "goal": task.goal,
        "seeds": [found["seed"] for found in runs],
        "random": min(randoms) if len(randoms) == 1 else sorted(randoms),
        "reached": sum(found["goal_at"] is not None for found in runs),
        "versions": versions("rlreg-impala", "torch", "gymnasium", *_there(task.packages)),
        "runs": runs,
    }


def _there(packages: tuple[str, ...]) -> Iterator[str]:
    import importlib.metadata

    for name in packages:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield name


def collect(work: Path, out: Path | None) -> Path:
    """Writes the results file from what is finished; the ablations in it stay."""
    target = out or RESULTS / "evidence_impala.json"
    before = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    rows = {name: row_of(name, work) for name in TASKS}
    document: dict[str, Any] = {
        "title": "What IMPALA learns with its presets",
        "machine": machine(),
        "load": load(),
        "curve": ["transitions", "mean return", "standard deviation over episodes"],
        # A task of which this machine has no folder keeps what was measured before.
        "tasks": {
            **before.get("tasks", {}),
            **{name: row for name, row in rows.items() if row is not None},
        },
    }
    document |= {name: before[name] for name in before if name.startswith("ablation")}
    path: Path = write("evidence_impala", document, target)
    return path


def show(name: str, found: Mapping[str, Any]) -> None:
    line = " ".join(f"{mean:.1f}" for _, mean, _ in found["curve"])
    print(
        f"{name} seed {found['seed']}: {line} (random {found['random']:.1f}), "
        f"{found['transitions']:,} transitions, {found['wall_s']:.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(TASKS), help="may be repeated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=RUNS, help="where the run folders are")
    parser.add_argument("--quick", action="store_true", help="a tenth of the transitions")
    parser.add_argument("--out", type=Path, help="the results file")
    parser.add_argument("--list", action="store_true", help="print the tasks and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for name, task in TASKS.items():
            print(f"{name}: impala/{task.preset}, {task.n_steps:,} transitions")
        return
    work, out, share = arguments.work, arguments.out, 1.0
    if arguments.quick:
        work, share = work / "quick", 0.1
        out = out or work / "evidence_impala.json"
    names = arguments.only or [name for name, task in TASKS.items() if not task.is_listed_only]
    for name in names:
        missing = [one for one in TASKS[name].needs if importlib.util.find_spec(one) is None]
        if missing:
            print(f"{name}: left out, {', '.join(missing)} is not installed")
            continue
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            folder = work / f"{name}-s{seed}"
            if read(folder) is None:
                do(TASKS[name], seed, folder, share)
            found = read(folder)
            if found is None:
                raise SystemExit(f"{folder}: interrupted; start again to go on")
            show(name, found)
            collect(work, out)
    print(f"written to {collect(work, out)}")


if __name__ == "__main__":
    main()
