"""What V-trace's correction is worth, on a state whose value is known for every policy.

One state, two actions, one of which pays 1: a policy that takes it with probability p has the value
p / (1 - discount). The policy is set by hand and the critic learns, so that learnt and true values
can be compared. `impala_ablations.py` runs what is here.

- `value_under`: actors stay at one policy, the learner's is another one. V-trace then has the value
  of the policy whose probabilities are in proportion to min(bar * mu, pi) (paper, section 4.1).
- `following`: the learner's policy swings from one action to the other and back, and the actors'
  follows so many updates behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from impala_envs import Lever
from numpy.typing import NDArray

import rlreg
from rlreg_impala.config import IMPALAConfig
from rlreg_impala.engines.sequential import SequentialEngine
from rlreg_impala.learner import Learner
from rlreg_impala.model import TorchActorCritic
from rlreg_impala.rollouts import EngineSpec
from rlreg_impala.trainer import MultiStepIMPALA

DISCOUNT = 0.9
ACTING, LEARNING = 0.2, 0.8
"""Probabilities of the action that pays, of the policies of `value_under`."""

PERIOD, SWING = 200, 2.0
"""Updates from one end to the other and back, and the largest logit, of `following`."""

SMALL = {"type": "vector", "hidden_units": [16], "activation": "tanh"}


class TakesAllForFresh(Learner):
    """Takes every importance weight for 1, as an actor-critic without correction does."""

    def _targets(self, batch: Any, seen: Any, log_rhos: torch.Tensor) -> Any:
        return super()._targets(batch, seen, torch.zeros_like(log_rhos))


class KeepsFirstWeights(SequentialEngine):
    """Actors that never hear of new weights."""

    first: NDArray[np.float32] | None = None

    def publish(self, version: int, flat_weights: NDArray[np.float32]) -> None:
        """Gives the first weights again."""
        self.first = flat_weights.copy() if self.first is None else self.first
        super().publish(version, self.first)


def set_logit(model: TorchActorCritic, logit: float) -> None:
    """Makes the policy take action 1 with probability sigmoid(logit), whatever it sees."""
    head = model.policy.head.linear
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, logit]))


def learnt_value(model: TorchActorCritic) -> float:
    """What the critic says of the state."""
    with torch.no_grad():
        return float(model.step(torch.ones(1, 1), torch.zeros(1, 0))[1])


def true_value(bar: float | None) -> float:
    """The value that `value_under` should find: of the paper's policy between the two."""
    weights = [
        pi if bar is None else min(bar * mu, pi)
        for mu, pi in ((1 - ACTING, 1 - LEARNING), (ACTING, LEARNING))
    ]
    return weights[1] / sum(weights) / (1 - DISCOUNT)


def of_acting_policy() -> float:
    """The value of the policy that acts: what is found without any correction."""
    return ACTING / (1 - DISCOUNT)


def _options(bar: float | None, **others: Any) -> IMPALAConfig:
    options = rlreg.make_config(
        "impala", gamma=DISCOUNT, policy_loss_coef=0.0, entropy_coef=0.0, max_grad_norm=0.0,
        vtrace_clip_rho_threshold=bar, vtrace_clip_pg_rho_threshold=bar,
        actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, **others,
    )  # fmt: skip
    assert isinstance(options, IMPALAConfig)
    return options


def _make(
    options: IMPALAConfig, seed: int, learner: type[Learner], engine: Callable[[EngineSpec], Any],
    **spec: int,
) -> MultiStepIMPALA:  # fmt: skip
    made = Lever(limit=1000)
    torch.manual_seed(seed)
    model = TorchActorCritic.of(options, made.observation_space, made.action_space)
    optimizer = options.optim_factory.create(
        [("policy", model.policy), ("critic", model.critic)], options.lr
    )
    sizes = EngineSpec(unroll_length=options.n_rollout_steps, **spec)
    return MultiStepIMPALA(
        model, engine(sizes), None, options, env_factory=lambda: Lever(limit=1000),
        learner=learner(model, optimizer, options), seed=seed,
    )  # fmt: skip


def value_under(bar: float | None, seed: int, learner: type[Learner] = Learner) -> dict[str, Any]:
    """Learns the value of one policy from the actions of another one."""
    options = _options(bar, n_rollout_steps=5, lr=0.03)
    trainer = _make(options, seed, learner, KeepsFirstWeights, num_envs=32, num_slots=1)
    set_logit(trainer.model, math.log(ACTING / (1 - ACTING)))
    trainer.learner.progress.plan("updates", 1000)
    trainer.start()
    set_logit(trainer.model, math.log(LEARNING / (1 - LEARNING)))
    trainer.run_epoch(1000)
    trainer.stop()
    true = of_acting_policy() if learner is TakesAllForFresh else true_value(bar)
    return {"seed": seed, "value": learnt_value(trainer.model), "true": true}


def following(
    lag: int, bar: float | None, seed: int, learner: type[Learner] = Learner
) -> dict[str, Any]:
    """Follows a swinging policy; the error is the root of the mean square over two periods."""
    options = _options(bar, n_rollout_steps=16, lr=0.03, lr_scheduler_factory=None)
    trainer = _make(options, seed, learner, SequentialEngine, num_envs=32, num_slots=lag + 1)
    set_logit(trainer.model, 0.0)
    errors = []
    trainer.start()
    for update in range(3 * PERIOD):
        logit = SWING * math.sin(2 * math.pi * update / PERIOD)
        true = 1 / (1 + math.exp(-logit)) / (1 - DISCOUNT)
        trainer.model.train()
        errors.append(learnt_value(trainer.model) - true)
        _update(trainer, SWING * math.sin(2 * math.pi * (update + 1) / PERIOD))
    trainer.stop()
    late = errors[PERIOD:]
    return {
        "seed": seed,
        "error": math.sqrt(sum(error**2 for error in late) / len(late)),
    }


def _update(trainer: MultiStepIMPALA, logit: float) -> None:
    """One update, after which the policy is the next one, before actors hear of it."""
    learn = trainer.learner.update

    def learn_and_swing(batch: Any) -> dict[str, float]:
        metrics = learn(batch)
        set_logit(trainer.model, logit)
        return metrics

    trainer.learner.update = learn_and_swing  # type: ignore[method-assign]  # for this update
    try:
        trainer.update()
    finally:
        trainer.learner.update = learn  # type: ignore[method-assign]
