"""The config of IQL: its whole contract, and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from rlreg.config import (
    ActionScaler,
    EncoderFactory,
    LearnableConfig,
    ObservationScaler,
    OptimizerFactory,
    RewardScaler,
    make_action_scaler_field,
    make_encoder_field,
    make_observation_scaler_field,
    make_optimizer_field,
    make_reward_scaler_field,
)
from rlreg.search import Search

if TYPE_CHECKING:
    from rlreg.config import DeviceLike
    from rlreg_iql.learnable import IQL

LearningRate = Annotated[float, Field(gt=0, le=10)]
SearchedRate = Annotated[LearningRate, Search(3e-5, 3e-3, log=True)]


class IQLConfig(LearnableConfig):
    r"""Implicit Q-Learning (Kostrikov et al. 2021): offline, never asks for unseen actions.

    Paper: Kostrikov, Nair, Levine: Offline Reinforcement Learning with Implicit Q-Learning, 2021,
    arXiv:2110.06169, equations 5 to 7

    A value function is fitted to an upper expectile of the target critics, the critics to one-step
    targets of that value, and the policy by regression weighted with the exponential advantage.
    With :math:`u = \bar Q(s, a) - V(s)`, :math:`\kappa` the ``expectile``, :math:`\beta` the
    ``weight_temp`` and :math:`w` the ``max_weight``:

    .. math::

        L_V = \mathbb{E} \left[ \left| \kappa - \mathbf{1}(u < 0) \right| \, u^2 \right]

    .. math::

        L_Q = \mathbb{E} \left[ \left( r + \gamma V(s') - Q(s, a) \right)^2 \right]

    .. math::

        L_\pi = - \mathbb{E} \left[ \min \left( e^{\beta u}, w \right) \log \pi(a \mid s) \right]
    """

    regime: ClassVar[str] = "offline"

    importers: ClassVar[Mapping[str, str]] = {"d3rlpy": "rlreg_iql.d3rlpy_import:import_file"}

    type: Literal["iql"] = "iql"
    schema_version: Literal[1] = 1

    update_rule: Literal["d3rlpy", "paper"] = Field(
        "d3rlpy",
        description="Which published algorithm is followed, to the order of steps: `d3rlpy` trains "
        "critics and value in one step, `paper` (the authors' code) one after the other. "
        "Default: d3rlpy.",
    )
    batch_size: Annotated[int, Search(choices=(128, 256, 512, 1024))] = Field(
        256, ge=1, le=1_000_000, description="Transitions in a minibatch. Default: paper, 256."
    )
    gamma: Annotated[float, Search(choices=(0.95, 0.98, 0.99, 0.995))] = Field(
        0.99, ge=0, le=1, description="Discount of the next step. Default: paper, 0.99."
    )
    observation_scaler: ObservationScaler | None = make_observation_scaler_field()
    action_scaler: ActionScaler | None = make_action_scaler_field(
        description="Preprocessing of continuous actions; null maps the bounds of the action space "
        "to [-1, 1]. Default: ours (d3rlpy scales nothing)."
    )
    reward_scaler: RewardScaler | None = make_reward_scaler_field()
    actor_learning_rate: SearchedRate = Field(
        3e-4, description="Step size of the policy. Default: paper, 3e-4."
    )
    critic_learning_rate: SearchedRate = Field(
        3e-4, description="Step size of the critics. Default: paper, 3e-4."
    )
    value_learning_rate: LearningRate | None = Field(
        None,
        description="Step size of the value function; null takes that of the critics. "
        "Default: d3rlpy, null.",
    )
    actor_optim_factory: Annotated[OptimizerFactory, Search(choices=("adam", "adam_w"))] = (
        make_optimizer_field(description="Optimizer of the policy. Default: d3rlpy, Adam.")
    )
    critic_optim_factory: OptimizerFactory = make_optimizer_field(
        description="Optimizer of the critics; with `update_rule: d3rlpy` of the value function "
        "too. Default: d3rlpy, Adam."
    )
    value_optim_factory: OptimizerFactory | None = Field(
        None,
        description="Optimizer of the value function where the update rule has one for it "
        "(`paper`); null takes that of the critics. Default: d3rlpy, null.",
    )
    actor_encoder_factory: Annotated[EncoderFactory, Search(choices=("vector", "simba"))] = (
        make_encoder_field(description="Network of the policy. Default: paper, [256, 256] ReLU.")
    )
    critic_encoder_factory: EncoderFactory = make_encoder_field(
        description="Network of each critic. Default: paper, [256, 256] ReLU."
    )
    value_encoder_factory: EncoderFactory = make_encoder_field(
        description="Network of the value function. Default: paper, [256, 256] ReLU."
    )
    actor_kind: Literal["normal", "normal_state_dependent", "deterministic"] = Field(
        "normal",
        description="Continuous policy: a Gaussian with one learnt deviation for each action "
        "dimension, with one that depends on the observation, or a point. Discrete actions always "
        "have a categorical policy. Default: paper, normal.",
    )
    initialization: Literal["torch", "orthogonal"] = Field(
        "torch",
        description="Initial weights of all networks: torch's own, or orthogonal with gain sqrt(2) "
        "and zero biases as in the paper's code. Default: d3rlpy, torch.",
    )
    tau: Annotated[float, Search(1e-3, 2e-2, log=True)] = Field(
        0.005,
        gt=0,
        le=1,
        description="Share of the critics that the target critics take over at each update. "
        "Default: paper, 0.005.",
    )
    n_critics: int = Field(
        2,
        ge=1,
        le=100,
        description="Critics; the least of their targets counts. Default: paper, 2.",
    )
    expectile: Annotated[float, Search(0.5, 0.95)] = Field(
        0.7,
        gt=0,
        lt=1,
        description="Expectile of the value function; the nearer to 1, the nearer to the best "
        "action in the data. Default: paper, locomotion, 0.7.",
    )
    weight_temp: Annotated[float, Search(0.3, 30.0, log=True)] = Field(
        3.0,
        ge=0,
        le=1e4,
        description="Inverse temperature of the advantage weights; 0 clones the behaviour. "
        "Default: paper, locomotion, 3.",
    )
    max_weight: float = Field(
        100.0, gt=0, le=1e9, description="Largest advantage weight. Default: paper's code, 100."
    )

    def create(self, device: DeviceLike = "auto") -> IQL:
        """Makes the learnable on a device; weights come with build, fit or load."""
        from rlreg_iql.learnable import IQL

        return IQL(self, device)
