"""The contracts of PPO and SAC: their settings, by Stable-Baselines3's names, and no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlreg import LearnableConfig

if TYPE_CHECKING:
    from rlreg.config import DeviceLike

    from .learnable import PPOLearnable, SACLearnable

Units = Annotated[int, Field(ge=1, le=65_536)]
Activation = Literal["tanh", "relu", "elu"]
Environments = Annotated[int, Field(ge=1, le=4096)]
_N_ENVS: Any = Field(1, description="Environments side by side. Default: SB3, 1.")


class PPOConfig(LearnableConfig):
    """Proximal policy optimisation (Schulman et al. 2017), as Stable-Baselines3 implements it."""

    regime: ClassVar[str] = "online"

    type: Literal["sb3-ppo"] = "sb3-ppo"
    schema_version: Literal[1] = 1
    learning_rate: float = Field(3e-4, gt=0, le=1, description="Step size. Default: SB3, 3e-4.")
    n_steps: int = Field(
        2048,
        ge=2,
        le=1_000_000,
        description="Transitions of an update from each environment. Default: SB3, 2048.",
    )
    n_envs: Environments = _N_ENVS
    batch_size: int = Field(64, ge=2, le=1_000_000, description="Minibatch. Default: SB3, 64.")
    n_epochs: int = Field(
        10, ge=1, le=1000, description="Passes over the transitions of an update. Default: SB3, 10."
    )
    gamma: float = Field(0.99, ge=0, le=1, description="Discount. Default: SB3, 0.99.")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="Decay of advantages over time. Default: SB3, 0.95."
    )
    clip_range: float = Field(
        0.2, gt=0, le=100, description="How far a ratio may leave 1. Default: SB3, 0.2."
    )
    normalize_advantage: bool = Field(
        True, description="Whether advantages are normalised in a minibatch. Default: SB3, true."
    )
    ent_coef: float = Field(
        0.0, ge=0, le=100, description="Weight of the entropy. Default: SB3, 0."
    )
    vf_coef: float = Field(
        0.5, ge=0, le=100, description="Weight of the value loss. Default: SB3, 0.5."
    )
    max_grad_norm: float = Field(
        0.5, gt=0, le=1e6, description="Largest norm of the gradient. Default: SB3, 0.5."
    )
    hidden_units: tuple[Units, ...] = Field(
        (64, 64), max_length=16, description="Layers of policy and value. Default: SB3, [64, 64]."
    )
    activation: Activation = Field(
        "tanh", description="Activation between the layers. Default: SB3, tanh."
    )

    def create(self, device: DeviceLike = "auto") -> PPOLearnable:
        """Makes the learnable on a device; weights come with build, train or load."""
        from .learnable import PPOLearnable

        return PPOLearnable(self, device)


class SACConfig(LearnableConfig):
    """Soft actor-critic (Haarnoja et al. 2018), as Stable-Baselines3 implements it."""

    regime: ClassVar[str] = "online"

    type: Literal["sb3-sac"] = "sb3-sac"
    schema_version: Literal[1] = 1
    learning_rate: float = Field(3e-4, gt=0, le=1, description="Step size. Default: SB3, 3e-4.")
    buffer_size: int = Field(
        1_000_000, ge=1, le=10**9, description="Transitions kept. Default: SB3, 1,000,000."
    )
    save_replay_buffer: bool = Field(
        True, description="Whether checkpoints hold the transitions kept. Default: ours, true."
    )
    learning_starts: int = Field(
        100, ge=0, le=10**9, description="Random transitions at first. Default: SB3, 100."
    )
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Minibatch. Default: SB3, 256.")
    tau: float = Field(0.005, gt=0, le=1, description="Pace of the targets. Default: SB3, 0.005.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount. Default: SB3, 0.99.")
    train_freq: int = Field(
        1, ge=1, le=1_000_000, description="Transitions between trainings. Default: SB3, 1."
    )
    gradient_steps: int = Field(
        1, ge=1, le=100_000, description="Minibatches of a training. Default: SB3, 1."
    )
    ent_coef: float | None = Field(
        None, gt=0, le=100, description="Weight of the entropy; null learns it. Default: SB3, null."
    )
    target_update_interval: int = Field(
        1, ge=1, le=1_000_000, description="Minibatches between target steps. Default: SB3, 1."
    )
    n_steps: int = Field(
        64,
        ge=1,
        le=1_000_000,
        description="Transitions of what rlreg calls an update. Default: ours, 64.",
    )
    n_envs: Environments = _N_ENVS
    hidden_units: tuple[Units, ...] = Field(
        (256, 256),
        max_length=16,
        description="Layers of policy and critics. Default: SB3, [256, 256].",
    )
    activation: Activation = Field(
        "relu", description="Activation between the layers. Default: SB3, relu."
    )

    def create(self, device: DeviceLike = "auto") -> SACLearnable:
        """Makes the learnable on a device; weights come with build, train or load."""
        from .learnable import SACLearnable

        return SACLearnable(self, device)
