"""Sets of settings that only make sense together.

Sum or mean, rate, optimizer, clipping and batch depend on each other: with summed losses a clip of
40 and an eps of 0.01 matter, with means the same clip never fires. So they move as a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlreg import Preset

_TANH_64 = {"type": "vector", "hidden_units": [64, 64], "activation": "tanh"}
# With 0.999 a burst of large gradients after quiet ones is a leap: on LunarLander-v3 one seed of
# two fell into a policy that crashes, and stayed there.
_STEADY_ADAM = {"type": "adam", "betas": [0.9, 0.99], "eps": 1e-5}
_PAPER: Mapping[str, Any] = {
    "learnable.n_rollout_steps": 20,
    "learnable.actors_batch_size": 32,
    "learnable.gamma": 0.99,
    "learnable.lr": 6e-4,
    "learnable.lr_scheduler_factory": {"type": "linear"},
    "learnable.optim_factory": {"type": "rmsprop_tf", "eps": 0.01, "alpha": 0.99},
    "learnable.reduction": "sum",
    "learnable.max_grad_norm": 40.0,
    "learnable.entropy_coef": 0.01,
    "learnable.value_loss_coef": 0.5,
    "learnable.reward_clipping": "abs_one",
    "learnable.critic_encoder_factory": None,
}

PRESETS: tuple[Preset, ...] = (
    Preset(
        "impala/small",
        "Small problems with vector observations: many updates of 128 transitions (the defaults).",
        "ours, measured: CartPole-v1 reaches 450 within 150k transitions on 19 of 20 seeds",
        {
            "learnable.n_rollout_steps": 16,
            "learnable.actors_batch_size": 1,
            "learnable.lr": 3e-3,
            "learnable.lr_scheduler_factory": {"type": "linear"},
            "learnable.optim_factory": {"type": "adam"},
            "learnable.max_grad_norm": 5.0,
            "learnable.entropy_coef": 0.01,
            "learnable.value_loss_coef": 0.5,
            "learnable.gamma": 0.99,
            "learnable.reduction": "mean",
            "learnable.reward_clipping": "none",
            "learnable.actor_encoder_factory": _TANH_64,
            "learnable.critic_encoder_factory": _TANH_64,
        },
    ),
    Preset(
        "impala/throughput",
        "The most transitions a second on one machine: long fragments, large batches.",
        "ours, measured on CartPole-v1: 64 environments to an actor, inference a tenth of stepping",
        {
            "learnable.n_rollout_steps": 32,
            "learnable.actors_batch_size": 1,
            "learnable.lr": 1e-3,
            "learnable.max_grad_norm": 0.5,
            "learnable.entropy_coef": 0.001,
            # A sixteenth of the updates of `small`: an unscaled critic takes too long to reach 100.
            # With a rate of 3e-3, seeds that had solved CartPole-v1 lost it again.
            "learnable.reward_scale": 0.1,
            "learnable.actor_encoder_factory": _TANH_64,
            "learnable.critic_encoder_factory": _TANH_64,
            "engine.type": "process",
            "engine.num_actors": 1,
            "engine.num_envs": 64,
            "engine.queue_out_of_sync_factor": 2.0,
        },
    ),
    Preset(
        "impala/atari",
        "Atari through ale-py: the paper's rates with its deep network, for one machine.",
        "IMPALA paper, appendix G (Atari); actors and environments ours",
        {
            **_PAPER,
            "learnable.actors_batch_size": 2,
            "learnable.actor_encoder_factory": {"type": "impala_resnet"},
            "engine.type": "process",
            "engine.num_actors": 2,
            "engine.num_envs": 16,
        },
    ),
    Preset(
        "impala/atari_small",
        "Atari on a few cores, with frames of 42 x 42: a small network, normalised images.",
        "frames and fragments: A3C (Mnih et al. 2016), in later programs for few cores; the rest "
        "ours, measured on ALE/Pong-v5",
        {
            "learnable.n_rollout_steps": 20,
            "learnable.actors_batch_size": 1,
            "learnable.gamma": 0.99,
            "learnable.vtrace_lambda": 0.95,
            "learnable.lr": 1e-3,
            "learnable.lr_scheduler_factory": {"type": "linear"},
            "learnable.optim_factory": _STEADY_ADAM,
            "learnable.reduction": "mean",
            "learnable.max_grad_norm": 0.5,
            "learnable.entropy_coef": 0.01,
            "learnable.value_loss_coef": 0.5,
            "learnable.reward_clipping": "abs_one",
            "learnable.initialization": "orthogonal",
            # Frames are one colour but for a few pixels: where that colour is not 0, Adam moves all
            # features with it, and relus fall silent within half a million transitions.
            "learnable.observation_normalization": "running",
            "learnable.actor_encoder_factory": {
                "type": "pixel",
                "filters": [[16, 4, 2], [32, 4, 2], [32, 3, 1]],
                "feature_size": 256,
                "activation": "elu",
            },
            "learnable.critic_encoder_factory": None,
            "engine.type": "process",
            "engine.num_actors": 1,
            "engine.num_envs": 8,
        },
    ),
    Preset(
        "impala/paper",
        "The Atari settings of the paper: one environment to an actor, 32 fragments to a batch.",
        "IMPALA paper, appendix G (Atari)",
        {
            **_PAPER,
            "learnable.actor_encoder_factory": {"type": "impala_resnet"},
            "engine.type": "process",
            "engine.num_actors": 32,
            "engine.num_envs": 1,
        },
    ),
    Preset(
        "impala/maze",
        "The settings Maze ships, for a comparison with it.",
        "Maze, conf/algorithm/impala.yaml (latest)",
        {
            "learnable.n_rollout_steps": 100,
            "learnable.actors_batch_size": 8,
            "learnable.gamma": 0.98,
            "learnable.lr": 5e-4,
            "learnable.lr_scheduler_factory": None,
            "learnable.optim_factory": {"type": "adam"},
            "learnable.max_grad_norm": 0.0,
            "learnable.entropy_coef": 0.01,
            "learnable.value_loss_coef": 0.5,
            "learnable.reduction": "mean",
            "learnable.reward_clipping": "none",
            "train.epoch_length": 25,
            "train.patience": 15,
            "evaluation.n_episodes": 8,
            "engine.type": "process",
            "engine.num_actors": 8,
            "engine.num_envs": 1,
            "engine.queue_out_of_sync_factor": 1.0,
        },
    ),
    Preset(
        "impala/minatar",
        "MinAtar's symbolic 10x10 grids: a small convolution, unclipped rewards, a falling bonus.",
        "network: Young and Tian 2019 (MinAtar); the rest ours, measured",
        {
            "learnable.n_rollout_steps": 10,
            "learnable.actors_batch_size": 1,
            "learnable.gamma": 0.99,
            "learnable.lr": 1e-3,
            "learnable.lr_scheduler_factory": {"type": "linear"},
            "learnable.optim_factory": {"type": "adam"},
            "learnable.max_grad_norm": 5.0,
            # With 0.01 the policy is sure of itself too early: on Breakout it stays in the middle
            # for good.
            "learnable.entropy_coef": 0.1,
            "learnable.entropy_coef_final": 0.01,
            "learnable.reduction": "mean",
            "learnable.actor_encoder_factory": {"type": "minatar_conv"},
            "learnable.critic_encoder_factory": None,
            "engine.type": "process",
            "engine.num_envs": 32,
        },
    ),
    Preset(
        "impala/long_episodes",
        "Hundreds of steps judged at their end: long fragments, a discount near 1, small rewards.",
        "discount, lambda and initialization: RL Zoo, PPO for LunarLander; the rest ours, "
        "measured on LunarLander-v3",
        {
            # With 5 to 32 steps a policy that lands forgets it again: nobody dares to come down,
            # and the critic that fragments end in has seen nothing else for a while.
            "learnable.n_rollout_steps": 256,
            "learnable.actors_batch_size": 1,
            "learnable.gamma": 0.999,
            "learnable.vtrace_lambda": 0.98,
            "learnable.lr": 2e-3,
            "learnable.lr_scheduler_factory": {"type": "linear"},
            "learnable.optim_factory": _STEADY_ADAM,
            "learnable.max_grad_norm": 0.5,
            "learnable.entropy_coef": 0.002,
            "learnable.entropy_coef_final": 0.0,
            "learnable.reward_scale": 0.05,  # returns of hundreds: values of 10
            "learnable.initialization": "orthogonal",
            "learnable.actor_encoder_factory": _TANH_64,
            "learnable.critic_encoder_factory": _TANH_64,
            "engine.type": "process",
            "engine.num_envs": 4,
        },
    ),
    Preset(
        "impala/continuous",
        "Continuous actions: normalised observations, short fragments, steady exploration.",
        "fragments, lambda, clipping and normalisation: RL Zoo, A2C for Pendulum-v1; rate, "
        "discount, entropy bonus and reward scale: ours, measured",
        {
            "learnable.n_rollout_steps": 8,
            "learnable.actors_batch_size": 1,
            "learnable.gamma": 0.95,
            "learnable.entropy_coef": 0.003,
            "learnable.lr": 3e-3,
            "learnable.lr_scheduler_factory": {"type": "linear"},
            "learnable.max_grad_norm": 0.5,
            "learnable.vtrace_lambda": 0.9,
            "learnable.reward_scale": 0.1,
            "learnable.observation_normalization": "running",
            "engine.type": "process",
            "engine.num_envs": 8,
        },
    ),
)
