"""The contract of IMPALA: every setting that decides what it learns.

Field names are Maze's where Maze has the setting. What Maze keeps in the same dataclass but belongs
to the run (lengths, evaluation, actors, queues) is in ``elsewhere`` with its place in a run file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from rlreg.config import (
    EncoderFactory,
    LearnableConfig,
    LRSchedulerFactory,
    OptimizerFactory,
    RolloutEngineFactory,
    make_encoder_field,
    make_lr_scheduler_field,
    make_optimizer_field,
)
from rlreg.open_union import validate
from rlreg.search import Search

if TYPE_CHECKING:
    from rlreg.config import DeviceLike

    from .learnable import IMPALA

Threshold = Annotated[float, Field(ge=0, le=1e6)]
_PROBE = "ours, measured on CartPole-v1"
_ENCODER = {"type": "vector", "hidden_units": (64, 64), "activation": "tanh"}


class IMPALAConfig(LearnableConfig):
    r"""IMPALA: distributed actors, off-policy corrected by V-trace (Espeholt et al. 2018).

    Paper: Espeholt et al.: IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures, 2018, arXiv:1802.01561, section 4

    Actors with an older policy :math:`\mu` hand over fragments of :math:`T` steps; the learner
    regresses its values on the targets

    .. math::

        v_t = V(x_t) + \sum_{k=t}^{T-1} \gamma^{k-t} \left( \prod_{i=t}^{k-1} c_i \right) \rho_k
        \left( r_k + \gamma V(x_{k+1}) - V(x_k) \right)

    with :math:`\rho_k = \min(\bar\rho, \pi(a_k \mid x_k) / \mu(a_k \mid x_k))` and
    :math:`c_i = \lambda \min(1, \pi(a_i \mid x_i) / \mu(a_i \mid x_i))`, and follows the policy
    gradient

    .. math::

        \rho^{pg}_t \left( r_t + \gamma v_{t+1} - V(x_t) \right) \nabla \log \pi(a_t \mid x_t)

    Here :math:`\bar\rho` is ``vtrace_clip_rho_threshold`` (that of :math:`\rho^{pg}` is
    ``vtrace_clip_pg_rho_threshold``) and :math:`\lambda` is ``vtrace_lambda``.

    The defaults are the set ``impala/small``: many small updates, which small problems need. Rate,
    reduction and optimizer only make sense together: take a preset and change little.
    """

    regime: ClassVar[str] = "online"
    elsewhere: ClassVar[Mapping[str, str]] = {
        "n_epochs": "train.n_epochs",
        "epoch_length": "train.epoch_length",
        "n_steps": "train.n_steps",
        "patience": "train.patience",
        "deterministic_eval": "evaluation.deterministic",
        "eval_repeats": "evaluation.n_episodes",
        "eval_concurrency": "nowhere: evaluation runs in the learner's process",
        "rollout_evaluator": "evaluation",
        "num_actors": "engine.num_actors",
        "num_envs": "engine.num_envs",
        "queue_out_of_sync_factor": "engine.queue_out_of_sync_factor",
        "max_lag": "engine.max_lag",
        "max_restarts": "engine.max_restarts",
        "actor_timeout": "engine.actor_timeout",
        "start_method": "engine.start_method",
        "n_training_seeds": "seed (one number; every actor's stream is derived from it)",
    }
    """Names that users of Maze look for here, and the place in a run file that has them."""

    type: Literal["impala"] = "impala"
    schema_version: Literal[1] = 1

    n_rollout_steps: Annotated[int, Search(choices=(8, 16, 32, 64))] = Field(
        16,
        ge=1,
        le=100_000,
        description=f"Steps T of a fragment: what an actor hands over at once. Default: {_PROBE}.",
    )
    actors_batch_size: int = Field(
        1,
        ge=1,
        le=4096,
        description="Fragments in the batch of one update; each holds `engine.num_envs` columns. "
        f"Default: {_PROBE}.",
    )
    gamma: Annotated[float, Search(choices=(0.95, 0.98, 0.99, 0.995))] = Field(
        0.99, ge=0, le=1, description="Discount factor. Default: IMPALA paper."
    )
    lr: Annotated[float, Search(1e-4, 1e-2, log=True)] = Field(
        3e-3, gt=0, le=1, description=f"Learning rate at the start. Default: {_PROBE}."
    )
    policy_loss_coef: float = Field(
        1.0, ge=0, le=1e6, description="Weight of the policy gradient loss. Default: Maze, 1."
    )
    value_loss_coef: Annotated[float, Search(0.1, 2.0, log=True)] = Field(
        0.5,
        ge=0,
        le=1e6,
        description="Weight of half the squared value error. Default: IMPALA paper, 0.5.",
    )
    entropy_coef: Annotated[float, Search(1e-4, 1e-1, log=True)] = Field(
        0.01, ge=0, le=1e6, description="Weight of the entropy bonus. Default: IMPALA paper, Atari."
    )
    entropy_coef_final: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="Weight that the bonus moves to; null keeps it constant. Default: ours."
    )
    entropy_decay_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the run in which the weight moves. Default: ours, the whole run.",
    )
    max_grad_norm: Annotated[float, Search(0.5, 40.0, log=True)] = Field(
        5.0,
        ge=0,
        le=1e9,
        description=f"Largest norm of all gradients together; 0 for none. Default: {_PROBE}.",
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="How the losses of all transitions become one number: the paper sums, and its "
        "rates and clipping only fit sums. Default: Maze, mean.",
    )
    vtrace_clip_rho_threshold: Threshold | None = Field(
        1.0,
        description="Largest importance weight in the value targets; null for none. "
        "Default: IMPALA paper, 1.",
    )
    vtrace_clip_pg_rho_threshold: Threshold | None = Field(
        1.0,
        description="Largest importance weight in the policy gradient; null for none. "
        "Default: IMPALA paper, 1.",
    )
    vtrace_lambda: float = Field(
        1.0, ge=0, le=1, description="Factor of every trace. Default: IMPALA paper, 1."
    )
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric"] = Field(
        "none",
        description="abs_one clips to [-1, 1]; soft_asymmetric is 5 tanh(r / 5), times 0.3 where "
        "negative. Default: Maze 0.1.0 (yaml), none.",
    )
    reward_scale: Annotated[float, Search(0.01, 1.0, log=True)] = Field(
        1.0,
        gt=0,
        le=1e6,
        description="Factor of rewards, applied before they are clipped: values far from 1 take a "
        "critic long to reach. Default: ours, 1.",
    )
    critic_burn_in_epochs: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Epochs at the start that train the critic alone. Default: Maze, 0.",
    )
    observation_normalization: Literal["none", "running"] = Field(
        "none",
        description="running subtracts the mean of all observations seen and divides by their "
        "deviation, component by component of a vector, and all pixels of images alike. "
        "Default: ours, none.",
    )
    actor_encoder_factory: EncoderFactory = make_encoder_field(
        _ENCODER,
        description="Network from observations to the policy's features, without batch "
        f"normalisation and dropout: actors run it in evaluation mode. Default: {_PROBE}.",
    )
    critic_encoder_factory: EncoderFactory | None = make_encoder_field(
        _ENCODER,
        description="Network from observations to the critic's features; null shares the policy's. "
        f"Default: {_PROBE}.",
    )
    initialization: Literal["torch", "orthogonal"] = Field(
        "torch",
        description="Initial weights of the encoders: torch's own, or orthogonal with gain sqrt(2) "
        "and zero biases, as in the published settings of A2C and PPO; the heads' are orthogonal "
        "either way. Default: ours, torch.",
    )
    core: Literal["none", "lstm", "gru"] = Field(
        "none",
        description="Memory between the policy's features and its head; a separate critic sees its "
        "output too. Default: IMPALA paper's shallow Atari model, none.",
    )
    core_size: int = Field(
        256, ge=1, le=8192, description="Width of the memory. Default: IMPALA paper, 256."
    )
    initial_log_std: float = Field(
        0.0,
        ge=-10,
        le=2,
        description="Log of the standard deviation that continuous actions start with, in units of "
        "half the action range; means go through tanh where the range is bounded. "
        "Default: ours, 0.",
    )
    optim_factory: Annotated[OptimizerFactory, Search(choices=("adam", "rmsprop_tf"))] = (
        make_optimizer_field(description="How parameters follow gradients. Default: Maze, Adam.")
    )
    lr_scheduler_factory: LRSchedulerFactory | None = make_lr_scheduler_field(
        {"type": "linear"},
        description="How the learning rate changes over the run; null keeps it. "
        "Default: IMPALA paper, linear to 0.",
    )

    def create(self, device: DeviceLike = "auto") -> IMPALA:
        """Builds the learnable; networks are made when it first sees an environment.

        Raises:
            ConfigError: If an encoder has layers that act differently in training.
        """
        from .learnable import IMPALA
        from .modes import require_plain_encoders

        require_plain_encoders(self)
        return IMPALA(self, device)

    def start_early(self, engine: RolloutEngineFactory | None) -> None:
        """Starts what the run's engine, or the default one, will wait for."""
        super().start_early(engine_or_default(engine))


def engine_or_default(engine: RolloutEngineFactory | None) -> RolloutEngineFactory:
    """Returns a run's engine; where it names none, processes if there are cores for them."""
    import os

    if engine is not None:
        return engine
    name = "process" if (os.cpu_count() or 1) > 1 else "sequential"
    default: RolloutEngineFactory = validate(RolloutEngineFactory, {"type": name})
    return default
