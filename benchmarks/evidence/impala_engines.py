"""One algorithm in three engines: sequential, process and Ray, on the same number of transitions.

    python benchmarks/evidence/impala_engines.py [--only TASK]... [--seeds 5] [--list]

All have the same preset, one actor, as many environments, and two fragments in existence, so that a
fragment is at most one update old. In deterministic mode the three give the same bits (a test of
its own); here the process engine and Ray run as their users run them, so that fragments have the
age that the race between actor and learner gives them, and only what is learnt can be compared.

The curves are evaluations on the same seeded episodes; the rows go to
`benchmarks/results/evidence_impala_engines.json`. What is there is not run again. Wall time is not
recorded: the runs may share the machine with others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402  # the line above is for those below
from record import RESULTS, versions, write  # noqa: E402

import rlreg  # noqa: E402
from rlreg.runtime.environments import env_factory  # noqa: E402
from rlreg_impala.config import IMPALAConfig  # noqa: E402
from rlreg_impala.engines.process import ProcessEngine  # noqa: E402
from rlreg_impala.engines.ray import RayEngine  # noqa: E402
from rlreg_impala.engines.sequential import SequentialEngine  # noqa: E402
from rlreg_impala.model import TorchActorCritic  # noqa: E402
from rlreg_impala.rollouts import EngineSpec, RolloutEngine  # noqa: E402
from rlreg_impala.trainer import MultiStepIMPALA  # noqa: E402

ENGINES: dict[str, type[RolloutEngine]] = {
    "sequential": SequentialEngine,
    "process": ProcessEngine,
    "ray": RayEngine,
}


@dataclass(frozen=True)
class Task:
    """Where the engines are compared; a run has `points` evaluations after the first."""

    env: str
    preset: str
    n_steps: int
    points: int = 5
    n_episodes: int = 20
    num_envs: int = 8


TASKS = {
    "cartpole": Task("CartPole-v1", "small", 150_000),
    "pendulum": Task("Pendulum-v1", "continuous", 100_000),
}


def options_of(preset: str) -> IMPALAConfig:
    """The settings of a preset that belong to the learnable."""
    record = next(r for r in rlreg.list_presets("impala") if r.preset.id == f"impala/{preset}")
    own = {
        name.removeprefix("learnable."): value
        for name, value in record.preset.settings.items()
        if name.startswith("learnable.")
    }
    options = rlreg.make_config("impala", **own)
    assert isinstance(options, IMPALAConfig)
    return options


def run(task: Task, engine: type[RolloutEngine], seed: int) -> dict[str, Any]:
    """Trains once; the curve is ``[transitions, mean return]`` for each evaluation."""
    options, make = options_of(task.preset), env_factory(task.env)
    made = make()
    torch.manual_seed(seed)
    model = TorchActorCritic.of(options, made.observation_space, made.action_space)
    spec = EngineSpec(
        num_envs=task.num_envs,
        unroll_length=options.n_rollout_steps,
        num_slots=2,
        actor_timeout=1e5,  # such a run may be stopped for minutes, and gone on with
    )
    trainer = MultiStepIMPALA(model, engine(spec), task.env, options, env_factory=make, seed=seed)
    curve: list[list[float]] = []
    trainer.on_epoch = lambda _, metrics: curve.append(
        [trainer.learner.progress.transitions, metrics["evaluation/mean_return"]]
    )
    updates = task.n_steps // (options.n_rollout_steps * task.num_envs * task.points)
    trainer.train(task.points, updates, True, task.n_episodes, None)
    lags = [metrics["queue/policy_lag"] for metrics in trainer.history]
    return {"seed": seed, "lag": statistics.fmean(lags), "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the results file")
    parser.add_argument("--list", action="store_true", help="print the tasks and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{n}: {t.n_steps:,} transitions of {t.env}" for n, t in TASKS.items()))
        return
    torch.set_num_threads(1)
    target = arguments.out or RESULTS / "evidence_impala_engines.json"
    for name in arguments.only or list(TASKS):
        task = TASKS[name]
        for seed in range(arguments.seeds):
            for kind, engine in ENGINES.items():
                document = json.loads(target.read_text("utf-8")) if target.exists() else {}
                document.pop("benchmark", None)
                row = document.setdefault("tasks", {}).setdefault(name, {})
                row |= {"env": task.env, "preset": f"impala/{task.preset}", "n_steps": task.n_steps,
                        "n_episodes": task.n_episodes}  # fmt: skip
                runs = row.setdefault("engines", {}).setdefault(kind, [])
                if any(one["seed"] == seed for one in runs):
                    continue
                runs.append(run(task, engine, seed))
                document |= {
                    "title": "IMPALA in three engines",
                    "versions": versions("rlreg-impala", "torch", "gymnasium", "ray"),
                }
                print(f"{name}, {kind}, seed {seed}: {runs[-1]}", flush=True)
                write("evidence_impala_engines", document, target)


if __name__ == "__main__":
    main()
