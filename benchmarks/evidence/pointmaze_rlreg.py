"""One job of rlreg's: IQL, cloning, or the references of a maze. `pointmaze_jobs.py` starts it.

python benchmarks/evidence/pointmaze_rlreg.py '{"kind": "iql", ...}' OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from offline_runs import ROW, Judge, train_cloning, train_iql
from pointmaze_task import (
    FIRST_SEED,
    NUM_CURVE_EPISODES,
    NUM_EPISODES,
    Stopwatch,
    dataset_id,
    figures,
    final_figures,
    flatten,
    judge,
    judged_environment,
    tanh_policy,
    write_json,
)

import rlreg
from rlreg.runtime.data.pointmaze import WaypointController
from rlreg.runtime.data.replay import ReplayBuffer
from rlreg.runtime.environments import make_env
from rlreg.runtime.evaluation import evaluate_random


def load(maze: str) -> rlreg.TransitionDataset:
    return rlreg.load_dataset(dataset_id(maze), memory_map=False)


def judged_on(maze: str) -> Judge:
    """What a point of a curve is made of."""
    return lambda policy: figures(judge(policy, maze, NUM_CURVE_EPISODES))


def run_iql(job: dict[str, Any], out: Path) -> dict[str, Any]:
    maze, watch, dataset = job["maze"], Stopwatch(), load(job["maze"])
    run = train_iql(job, dataset, job["settings"], judged_on(maze))
    run.learnable.save(out.with_suffix(".rlreg"))
    return {
        "curve": run.curve,
        "losses": {"every": ROW, **run.losses},
        "is_compiled": run.learnable.is_compiled,
        "rewards_seen": float(dataset.rewards.sum()),
        "transitions": run.transitions,
        "cpu_s": watch.seconds(),
        "final": final_figures(run.learnable, maze),
    }


def run_finetuning(job: dict[str, Any], out: Path) -> dict[str, Any]:
    """Goes on with what an offline job left, in the environment of the task."""
    maze, watch, dataset = job["maze"], Stopwatch(), load(job["maze"])
    learnable = rlreg.load(out.parent / f"{job['start']}.rlreg", device="cpu")
    buffer = ReplayBuffer(dataset=dataset, balanced_share=job["share"], limit=100_000)
    curve = [{"update": 0, **figures(judge(learnable, maze, job["episodes"]))}]

    def look(own: Any, epoch: int, _: int) -> None:
        result = judge(own, maze, job["episodes"])
        curve.append({"update": epoch * job["every"], **figures(result)})

    learnable.fit_online(
        judged_environment(maze), buffer, job["steps"], job["every"],
        callbacks=[look], show_progress=False,
    )  # fmt: skip
    return {"curve": curve, "cpu_s": watch.seconds(), "final": final_figures(learnable, maze)}


def run_cloning(job: dict[str, Any], _: Path) -> dict[str, Any]:
    maze, watch, dataset = job["maze"], Stopwatch(), load(job["maze"])
    run = train_cloning(job, dataset, judged_on(maze))
    return {
        "curve": run.curve,
        "transitions": run.transitions,
        "cpu_s": watch.seconds(),
        "final": final_figures(run.learnable, maze),
    }


def run_references(job: dict[str, Any], _: Path) -> dict[str, Any]:
    """The controller without noise and random play, on the starts of every other evaluation."""
    settings = judged_environment(job["maze"])
    env, returns = make_env(settings), []
    for seed in range(FIRST_SEED, FIRST_SEED + NUM_EPISODES):
        observation, _ = env.reset(seed=seed)
        simulation: Any = env.unwrapped
        steer = WaypointController(simulation.maze, np.random.default_rng(seed))
        total, is_over = 0.0, False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(steer(observation))
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    random = evaluate_random(settings, NUM_EPISODES, FIRST_SEED)
    return {"controller": float(np.mean(returns)), "random": figures(random)["mean_return"]}


def run_data(job: dict[str, Any], _: Path) -> dict[str, Any]:
    """What the data set holds, by rlreg's reading; columns for the peers go into a folder."""
    dataset = load(job["maze"])
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("observations", "actions", "rewards", "next_observations", "terminations"):
        np.save(folder / f"{name}.npy", np.asarray(getattr(dataset, name), np.float32))
    return {
        "id": dataset_id(job["maze"]),
        "transitions": len(dataset),
        "episodes": len(dataset.episodes),
        "sum_of_rewards": float(dataset.rewards.sum()),
        "content_hash": dataset.content_hash(),
        "laws": [str(law) for law in str(dataset.laws).splitlines()],
    }


def run_peer(job: dict[str, Any], out: Path) -> dict[str, Any]:
    """Judges the policies that a peer left as weights, one file for each point of its curve."""
    import subprocess

    weights = out.with_suffix(".weights")
    weights.mkdir(exist_ok=True)
    here = Path(__file__).resolve().parent
    command = [job["python"], str(here / job["script"]), json.dumps(job), str(weights)]
    if not (weights / "report.json").is_file():
        subprocess.run(command, check=True)
    report: dict[str, Any] = json.loads((weights / "report.json").read_text(encoding="utf-8"))
    columns = flatten if report["columns"] == "rlreg" else _columns_of_get_minari
    policies, look = [], judged_on(job["maze"])
    for step in range(job["every"], job["updates"] + 1, job["every"]):
        with np.load(weights / f"{step}.npz") as file:
            count = len(file.files) // 2
            layers = [(file[f"weight{i}"], file[f"bias{i}"]) for i in range(count)]
        policies.append((step, tanh_policy(layers, columns)))
    curve = [{"update": step, **look(policy)} for step, policy in policies]
    return {**report, "curve": curve, "final": final_figures(policies[-1][1], job["maze"])}


def _columns_of_get_minari(observations: dict[str, Any]) -> Any:
    parts = [observations["observation"], observations["desired_goal"]]
    return np.concatenate(parts, axis=1).astype(np.float32)


def main() -> None:
    torch.set_num_threads(1)
    job, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    kinds = {
        "iql": run_iql, "finetuning": run_finetuning, "peer": run_peer, "bc": run_cloning,
        "bc10": run_cloning, "references": run_references, "data": run_data,
    }  # fmt: skip
    found = kinds[job["kind"]](job, out)
    versions = {"rlreg": rlreg.__version__, "torch": torch.__version__, **found.pop("versions", {})}
    kept = {key: value for key, value in job.items() if key not in ("python", "folder")}
    write_json(out, {"job": kept, "versions": versions, **found})


if __name__ == "__main__":
    main()
