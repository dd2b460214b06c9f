"""Why IMPALA does what it does: the same tiny runs with one thing taken away.

    python benchmarks/evidence/impala_ablations.py [--only NAME]... [--seeds N] [--steps N]

`time-limit` and `reset-rows` learn the value of a state whose true value is 10: with the time limit
taken for an end, or with the rows on which a vector environment resets taken for transitions, it is
another one. `last-row` leaves out the last transition of every fragment, as Maze does: where
episodes are as long as fragments, the reward at their end is never seen. `thresholds` learns a
value from the actions of another policy; `swing` follows a policy that moves, with fragments that
are exactly so many updates old (`impala_offpolicy.py` says how). `lag` trains CartPole-v1 on such
fragments, with V-trace's thresholds, without thresholds, and as if the fragments were fresh;
`lag-fast` the same at three times the rate, without a schedule.

Everything runs in one process, so a seed fixes every bit. What is taken away is taken away by the
subclasses below; the product has no switch for it, except for lags and thresholds. The rows go into
`benchmarks/results/evidence_impala.json`, beside those of `impala_learning.py`; a variant that has
its seeds there already is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import gymnasium as gym  # noqa: E402  # the line above is for those below
import torch  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from impala_envs import EndsAtLimit, LateReward, OneState  # noqa: E402
from impala_offpolicy import TakesAllForFresh, following, value_under  # noqa: E402
from record import RESULTS, versions, write  # noqa: E402

import rlreg  # noqa: E402
from rlreg_impala.config import IMPALAConfig  # noqa: E402
from rlreg_impala.engines.sequential import SequentialEngine  # noqa: E402
from rlreg_impala.learner import Learner  # noqa: E402
from rlreg_impala.model import TorchActorCritic  # noqa: E402
from rlreg_impala.rollouts import EngineSpec  # noqa: E402
from rlreg_impala.trainer import MultiStepIMPALA  # noqa: E402

Result = dict[str, Any]

# Of `swing`: name, threshold, learner.
CORRECTIONS: tuple[tuple[str, float | None, type[Learner]], ...] = (
    ("clipped", 1.0, Learner),
    ("unclipped", None, Learner),
    ("none", 1.0, TakesAllForFresh),
)


class TrainsOnResets(Learner):
    """Takes the rows on which an environment was only reset for transitions."""

    def _step(self, batch: Any) -> dict[str, float]:
        every_row = torch.ones_like(batch.is_transition)
        metrics = super()._step(dataclasses.replace(batch, is_transition=every_row))
        # The account of rows is right all the same; only the loss saw them.
        metrics["update/transitions"] = float(batch.is_transition.sum())
        return metrics


class DropsLastRow(Learner):
    """Uses the last row of a fragment for its observation's value only, as Maze does."""

    def _step(self, batch: Any) -> dict[str, float]:
        is_kept = batch.final_rows[:, 0] < len(batch.rewards) - 1
        names = ("observations", "actions", "log_probs", "rewards", "terminations",
                 "is_transition", "starts")  # fmt: skip
        shorter = {name: getattr(batch, name)[:-1] for name in names}
        shorter["final_observations"] = batch.final_observations[is_kept]
        shorter["final_rows"] = batch.final_rows[is_kept]
        metrics = super()._step(dataclasses.replace(batch, **shorter))
        metrics["update/transitions"] = float(batch.is_transition.sum())
        return metrics


def train(
    env: Any,
    options: IMPALAConfig,
    seed: int,
    updates: int,
    *,
    learner: type[Learner] = Learner,
    num_envs: int = 8,
    lag: int = 0,
) -> MultiStepIMPALA:
    """Trains in this process; every fragment is `lag` updates old once that many are done."""
    made = env()
    spaces = [
        getattr(made, f"single_{kind}", None) or getattr(made, kind)
        for kind in ("observation_space", "action_space")
    ]
    made.close()
    torch.manual_seed(seed)
    model = TorchActorCritic.of(options, *spaces)
    optimizer = options.optim_factory.create(
        [("policy", model.policy), ("critic", model.critic)], options.lr
    )
    spec = EngineSpec(num_envs=num_envs, unroll_length=options.n_rollout_steps, num_slots=lag + 1)
    trainer = MultiStepIMPALA(
        model, SequentialEngine(spec), None, options, env_factory=env,
        learner=learner(model, optimizer, options), seed=seed,
    )  # fmt: skip
    trainer.train(max(1, updates // 25), 25, True, 0, None)
    return trainer


# --- the value of one state -----------------------------------------------------------------------


def value_of_the_state(
    env: Any, seed: int, learner: type[Learner] = Learner, observation: tuple[float, ...] = (1.0,)
) -> Result:
    small = {"type": "vector", "hidden_units": [16], "activation": "tanh"}
    options = rlreg.make_config(
        "impala", n_rollout_steps=5, gamma=0.9, lr=0.03, entropy_coef=0.0, max_grad_norm=0.0,
        actor_encoder_factory=small, critic_encoder_factory=small,
    )  # fmt: skip
    assert isinstance(options, IMPALAConfig)
    trainer = train(env, options, seed, 400, learner=learner, num_envs=4)
    with torch.no_grad():
        value = trainer.model.step(torch.tensor([observation]), torch.zeros(1, 0))[1]
    return {"seed": seed, "value": float(value)}


def late_reward(length: int, seed: int, learner: type[Learner] = Learner) -> Result:
    """The value of the first step; fragments have 5 of them."""
    first = (1.0,) + (0.0,) * (length - 1)
    found = value_of_the_state(lambda: LateReward(length), seed, learner, first)
    return {**found, "true": 0.9 ** (length - 1)}


def with_reset_rows() -> SyncVectorEnv:
    return SyncVectorEnv([OneState] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)


# --- lag ------------------------------------------------------------------------------------------


def cartpole(lag: int, correction: str, seed: int, steps: int, **changes: Any) -> Result:
    thresholds = {
        f"vtrace_clip_{name}_threshold": None if correction == "unclipped" else 1.0
        for name in ("rho", "pg_rho")
    }
    options = rlreg.make_config("impala", **thresholds, **changes)
    assert isinstance(options, IMPALAConfig)
    learner = TakesAllForFresh if correction == "none" else Learner
    trainer = train(
        lambda: gym.make("CartPole-v1"), options, seed, steps // 128, learner=learner, lag=lag
    )
    curve = [
        [row["update/transitions"] * 25 * (index + 1), row["episode/return_mean"]]
        for index, row in enumerate(trainer.history)
        if "episode/return_mean" in row
    ]
    returns = [mean for _, mean in curve]
    return {
        "seed": seed,
        "lag": statistics.fmean(row["queue/policy_lag"] for row in trainer.history),
        "effective_sample_size": statistics.fmean(
            row["rho/effective_sample_size"] for row in trainer.history
        ),
        "last": returns[-1],
        "mean": statistics.fmean(returns),
        "curve": curve[:: max(1, len(curve) // 20)],
    }


# --- the list -------------------------------------------------------------------------------------


def variants(steps: int) -> dict[str, dict[str, Callable[[int], Result]]]:
    """What is run for each seed, by ablation and variant."""
    swings: dict[str, Callable[[int], Result]] = {}
    for lag in (0, 1, 4, 16):
        for name, bar, learner in CORRECTIONS if lag else CORRECTIONS[:1]:
            swings[f"lag {lag}, {name}"] = lambda seed, lag=lag, bar=bar, learner=learner: (
                following(lag, bar, seed, learner)
            )
    lags: dict[str, Callable[[int], Result]] = {}
    for lag in (0, 1, 4, 16):
        for correction in ("clipped", "unclipped", "none") if lag else ("clipped",):
            lags[f"lag {lag}, {correction}"] = lambda seed, lag=lag, correction=correction: (
                cartpole(lag, correction, seed, steps)
            )
    fast: dict[str, Callable[[int], Result]] = {}
    for lag in (0, 8, 32):
        for correction in ("clipped", "unclipped", "none") if lag else ("clipped",):
            fast[f"lag {lag}, {correction}"] = lambda seed, lag=lag, correction=correction: (
                cartpole(lag, correction, seed, steps, lr=0.01, lr_scheduler_factory=None)
            )
    return {
        "time-limit": {
            "bootstrapped": lambda seed: value_of_the_state(OneState, seed),
            "taken for an end": lambda seed: value_of_the_state(
                lambda: EndsAtLimit(OneState()), seed
            ),
        },
        "reset-rows": {
            "masked": lambda seed: value_of_the_state(with_reset_rows, seed),
            "trained on": lambda seed: value_of_the_state(with_reset_rows, seed, TrainsOnResets),
        },
        "last-row": {
            f"{word}, episodes of {length}": lambda seed, length=length, learner=learner: (
                late_reward(length, seed, learner)
            )
            for length in (5, 7)
            for word, learner in (("kept", Learner), ("dropped", DropsLastRow))
        },
        "thresholds": {
            "1": lambda seed: value_under(1.0, seed),
            "2": lambda seed: value_under(2.0, seed),
            "none": lambda seed: value_under(None, seed),
            "no correction": lambda seed: value_under(1.0, seed, TakesAllForFresh),
        },
        "swing": swings,
        "lag": lags,
        "lag-fast": fast,
    }


def read(target: Path) -> dict[str, Any]:
    """What the results file says so far."""
    document: dict[str, Any] = json.loads(target.read_text("utf-8")) if target.exists() else {}
    document.pop("benchmark", None)
    return document


def _rows(document: dict[str, Any], name: str, variant: str) -> list[Result]:
    """The seeds of a variant, in the document itself."""
    ablation = document.setdefault("ablations", {}).setdefault(name, {})
    rows: list[Result] = ablation.setdefault(variant, [])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(variants(1)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60_000, help="transitions of a lag run")
    parser.add_argument("--out", type=Path, help="the results file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = arguments.out or RESULTS / "evidence_impala.json"
    table = variants(arguments.steps)
    for name in arguments.only or list(table):
        for variant, run in table[name].items():
            for seed in range(arguments.seeds):
                if any(row["seed"] == seed for row in _rows(read(target), name, variant)):
                    continue
                began = time.perf_counter()
                result = run(seed)
                result["wall_s"] = time.perf_counter() - began
                document = read(target)  # anew: the other script writes here as well
                _rows(document, name, variant).append(result)
                document["ablation_versions"] = versions("rlreg-impala", "torch", "gymnasium")
                figures = {k: v for k, v in result.items() if isinstance(v, float)}
                print(f"{name}, {variant}, seed {seed}: {figures}", flush=True)
                write("evidence_impala", document, target)


if __name__ == "__main__":
    main()
