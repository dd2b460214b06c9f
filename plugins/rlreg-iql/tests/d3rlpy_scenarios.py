"""Plays fifty IQL updates in d3rlpy itself, for many settings; run by d3rlpy's own Python.

``python d3rlpy_scenarios.py OUT`` writes ``OUT/<scenario>/{before.d3,after.d3,run.npz}``: the model
before and after, the batches, what every update returned, and predictions on both sides.
"""

import sys
from pathlib import Path

import d3rlpy
import numpy as np
import torch
from d3rlpy.dataset import TransitionMiniBatch
from d3rlpy.models import encoders
from d3rlpy.optimizers import lr_schedulers, optimizers
from d3rlpy.preprocessing import action_scalers, observation_scalers, reward_scalers

UPDATES, BATCH = 50, 16


def vector(**settings):
    return encoders.VectorEncoderFactory(**{"hidden_units": [32, 32], **settings})


def pixel(**settings):
    return encoders.PixelEncoderFactory(
        **{"filters": [[8, 4, 2], [8, 3, 1]], "feature_size": 16, **settings}
    )


def iql(encoder=None, **settings):
    parts = dict.fromkeys(
        ["actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory"],
        encoder or vector(),
    )
    return d3rlpy.algos.IQLConfig(**{"batch_size": BATCH, **parts, **settings})


def optimized(factory, actor=None, critic=None, **settings):
    return iql(
        actor_optim_factory=factory(**(actor or {})),
        critic_optim_factory=factory(**(critic or {})),
        **settings,
    )


def array(*values):
    return np.array(values, dtype=np.float32)


def encoder_scenarios():
    """Yields name and config: what an encoder can be."""
    for activation in ("swish", "tanh", "gelu"):
        yield activation, iql(vector(activation=activation))
    yield "layer_norm", iql(vector(use_layer_norm=True))
    yield "batch_norm", iql(vector(use_batch_norm=True))
    yield "both_norms", iql(vector(use_layer_norm=True, use_batch_norm=True))
    yield "last_activation", iql(vector(last_activation="tanh"))
    yield "no_last_activation", iql(vector(exclude_last_activation=True))
    yield "one_layer", iql(vector(hidden_units=[16]))
    yield "three_layers", iql(vector(hidden_units=[16, 24, 8]))
    yield (
        "three_kinds",
        iql(
            vector(hidden_units=[16]),
            critic_encoder_factory=vector(hidden_units=[24, 24], activation="tanh"),
            value_encoder_factory=vector(hidden_units=[8, 8, 8]),
        ),
    )
    yield (
        "simba",
        iql(encoders.SimBaEncoderFactory(feature_size=16, hidden_size=32, n_blocks=2)),
    )
    yield "default_encoder", iql(encoders.DefaultEncoderFactory())
    scaler = observation_scalers.PixelObservationScaler()
    yield "pixel", iql(pixel(), observation_scaler=scaler)
    yield (
        "pixel_batch_norm",
        iql(pixel(use_batch_norm=True, last_activation="tanh"), observation_scaler=scaler),
    )


def optimizer_scenarios():
    """Yields name and config: what an optimizer and its schedule can be."""
    adam = optimizers.AdamFactory
    yield "clip", optimized(adam, {"clip_grad_norm": 0.5}, {"clip_grad_norm": 0.1})
    cosine = lr_schedulers.CosineAnnealingLRFactory(T_max=40)
    yield "cosine", optimized(adam, {"lr_scheduler_factory": cosine})
    warmups = [
        {"lr_scheduler_factory": lr_schedulers.WarmupSchedulerFactory(warmup_steps=steps)}
        for steps in (20, 7)
    ]
    yield "warmup", optimized(adam, *warmups)
    decay = {"weight_decay": 1e-2}
    yield "weight_decay", optimized(adam, decay, {**decay, "betas": (0.8, 0.99), "eps": 1e-5})
    yield "adam_w", optimized(optimizers.AdamWFactory, decay, {**decay, "amsgrad": True})
    nesterov = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    yield (
        "sgd",
        optimized(optimizers.SGDFactory, {"momentum": 0.9}, nesterov, critic_learning_rate=1e-2),
    )
    plain = {"centered": False, "momentum": 0.5}
    yield "rmsprop", optimized(optimizers.RMSpropFactory, critic=plain)
    yield "learning_rates", iql(actor_learning_rate=1e-2, critic_learning_rate=3e-3)


def setting_scenarios():
    """Yields name and config: numbers of the algorithm, and scalers."""
    yield "one_critic", iql(n_critics=1)
    yield "four_critics", iql(n_critics=4)
    numbers = {"gamma": 0.9, "tau": 0.05, "expectile": 0.5, "weight_temp": 0.5, "max_weight": 1.5}
    yield "numbers", iql(**numbers)
    yield "edges", iql(tau=1.0, weight_temp=0.0, expectile=0.99)
    yield (
        "standard_scalers",
        iql(
            observation_scaler=observation_scalers.StandardObservationScaler(
                mean=array(0.1, -0.2, 0.3, 0, 1), std=array(1, 2, 0.5, 1, 3)
            ),
            reward_scaler=reward_scalers.StandardRewardScaler(mean=0.3, std=2.0, multiplier=3.0),
        ),
    )
    yield (
        "min_max_scalers",
        iql(
            observation_scaler=observation_scalers.MinMaxObservationScaler(
                minimum=array(-3, -3, -3, -3, -3), maximum=array(3, 4, 5, 6, 7)
            ),
            action_scaler=action_scalers.MinMaxActionScaler(
                minimum=array(-2, -1), maximum=array(2, 3)
            ),
            reward_scaler=reward_scalers.MinMaxRewardScaler(
                minimum=-2.0, maximum=5.0, multiplier=2.0
            ),
        ),
    )
    by_return = reward_scalers.ReturnBasedRewardScaler(40.0, -20.0, multiplier=1000.0)
    yield "return_scaler", iql(reward_scaler=by_return)
    yield "clipped_rewards", iql(reward_scaler=reward_scalers.ClipRewardScaler(-0.5, 0.4, 2.0))
    yield "multiplied_rewards", iql(reward_scaler=reward_scalers.MultiplyRewardScaler(0.1))
    yield "one_action", iql()
    yield "eight_actions", iql()


def batches(rng, shape, action_size, terminal_share):
    """Draws all batches of a run, intervals 1 to 3."""

    def observations():
        size = (UPDATES, BATCH, *shape)
        if len(shape) == 3:
            return rng.integers(0, 256, size).astype(np.float32)
        return rng.normal(size=size).astype(np.float32)

    column = (UPDATES, BATCH, 1)
    return {
        "observations": observations(),
        "next_observations": observations(),
        "actions": rng.uniform(-1, 1, (UPDATES, BATCH, action_size)).astype(np.float32),
        "rewards": rng.uniform(-1, 1, column).astype(np.float32),
        "terminals": (rng.random(column) < terminal_share).astype(np.float32),
        "intervals": rng.integers(1, 4, column).astype(np.float32),
    }


def play(folder, config, seed, shape, action_size):
    """Runs the updates and writes what happened."""
    d3rlpy.seed(seed)
    algo = config.create(device="cpu:0")
    algo.create_impl(shape, action_size)
    folder.mkdir(parents=True)
    algo.save(str(folder / "before.d3"))
    # Where batches are normalised, d3rlpy lets terminated next states into the statistics and rlreg
    # does not.
    terminal_share = 0.0 if "batch_norm" in folder.name or folder.name == "both_norms" else 0.2
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = batches(rng, shape, action_size, terminal_share)
    probe = drawn["observations"][0, :4], drawn["actions"][0, :4]
    record = {f"batch/{name}": values for name, values in drawn.items()}
    record["before/action"] = algo.predict(probe[0])
    record["before/value"] = algo.predict_value(*probe)
    metrics = []
    for index in range(UPDATES):
        rows = {name: values[index] for name, values in drawn.items()}
        batch = TransitionMiniBatch(**rows, next_actions=rows["actions"], transitions=[])
        metrics.append(algo.update(batch))
    for name in metrics[0]:
        record[f"metrics/{name}"] = np.array([row[name] for row in metrics])
    record["after/action"] = algo.predict(probe[0])
    record["after/value"] = algo.predict_value(*probe)
    algo.save(str(folder / "after.d3"))
    np.savez(folder / "run.npz", **record)


def main(out):
    torch.set_num_threads(1)
    scenarios = [*encoder_scenarios(), *optimizer_scenarios(), *setting_scenarios()]
    sizes = {"one_action": 1, "eight_actions": 8}
    for number, (name, config) in enumerate(scenarios):
        shape = (3, 20, 20) if name.startswith("pixel") else (5,)
        play(Path(out) / name, config, 100 + number, shape, sizes.get(name, 2))


if __name__ == "__main__":
    main(sys.argv[1])
