"""The same update rule in JAX: data on the device, all updates of a turn in one scan.

Critics and value take one step together, then the actor with the new value, then the targets. Every
network has its own parameters; XLA decides what it joins.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import serve

OBSERVATION_SIZE, ACTION_SIZE, WIDTH, BATCH_SIZE = 17, 6, 256, 256
GAMMA, TAU, EXPECTILE, TEMPERATURE, MAX_WEIGHT, RATE = 0.99, 0.005, 0.7, 3.0, 100.0, 3e-4
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def make_network(key, out_size, in_size):
    sizes = [(in_size, WIDTH), (WIDTH, WIDTH), (WIDTH, out_size)]
    return [
        {
            "weight": jax.random.uniform(own, shape, minval=-1, maxval=1) / math.sqrt(shape[0]),
            "bias": jnp.zeros(shape[1]),
        }
        for own, shape in zip(jax.random.split(key, len(sizes)), sizes, strict=True)
    ]


def apply(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
    return x @ layers[-1]["weight"] + layers[-1]["bias"]


def adam(parameters, gradients, state, step):
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], gradients)
    first, second = 1 - 0.9**step, 1 - 0.999**step

    def move(p, m, v):
        return p - RATE * (m / first) / (jnp.sqrt(v / second) + 1e-8)

    return jax.tree.map(move, parameters, mean, square), {"mean": mean, "square": square}


def critic_loss(critic, batch, target_values):
    s, a, r, following, is_terminal = batch
    sa = jnp.concatenate([s, a], axis=1)
    bootstrap = lax.stop_gradient(apply(critic["value"], following)[:, 0])
    target = r + GAMMA * (1 - is_terminal) * bootstrap
    difference = target_values - apply(critic["value"], s)[:, 0]
    value_loss = (jnp.abs(EXPECTILE - (difference < 0)) * difference**2).mean()
    return value_loss + sum(((apply(q, sa)[:, 0] - target) ** 2).mean() for q in critic["q"])


def actor_loss(actor, batch, weights):
    s, a = batch[:2]
    mean = jnp.tanh(apply(actor["mean"], s))
    log_std = -5 + 7 * jax.nn.sigmoid(actor["log_std"])
    log_prob = -(0.5 * ((a - mean) / jnp.exp(log_std)) ** 2 + log_std + HALF_LOG_TWO_PI).sum(1)
    return -(weights * log_prob).mean()


def make_update(data):
    size = len(data[0])

    def update(state, key):
        step = state["step"] + 1
        batch = [part[jax.random.randint(key, (BATCH_SIZE,), 0, size)] for part in data]
        sa = jnp.concatenate(batch[:2], axis=1)
        target_values = jnp.minimum(*[apply(q, sa)[:, 0] for q in state["target"]])
        gradients = jax.grad(critic_loss)(state["critic"], batch, target_values)
        critic, critic_adam = adam(state["critic"], gradients, state["critic_adam"], step)
        advantages = target_values - apply(critic["value"], batch[0])[:, 0]
        weights = jnp.minimum(jnp.exp(TEMPERATURE * advantages), MAX_WEIGHT)
        gradients = jax.grad(actor_loss)(state["actor"], batch, weights)
        actor, actor_adam = adam(state["actor"], gradients, state["actor_adam"], step)
        target = jax.tree.map(lambda t, q: t + TAU * (q - t), state["target"], critic["q"])
        return {
            "critic": critic, "actor": actor, "target": target,
            "critic_adam": critic_adam, "actor_adam": actor_adam, "step": step,
        }, None  # fmt: skip

    return update


def main() -> None:
    transitions, updates = int(sys.argv[1]), int(sys.argv[2])
    keys = jax.random.split(jax.random.PRNGKey(0), 8)
    both = OBSERVATION_SIZE + ACTION_SIZE
    critic = {
        "value": make_network(keys[0], 1, OBSERVATION_SIZE),
        "q": [make_network(keys[1], 1, both), make_network(keys[2], 1, both)],
    }
    actor = {
        "mean": make_network(keys[3], ACTION_SIZE, OBSERVATION_SIZE),
        "log_std": jnp.zeros(ACTION_SIZE),
    }
    data = [
        jax.random.normal(keys[4], (transitions, OBSERVATION_SIZE)),
        jax.random.uniform(keys[5], (transitions, ACTION_SIZE), minval=-1, maxval=1),
        jax.random.normal(keys[6], (transitions,)),
        jax.random.normal(keys[7], (transitions, OBSERVATION_SIZE)),
        jnp.zeros(transitions),
    ]

    def zeros(tree):
        return {name: jax.tree.map(jnp.zeros_like, tree) for name in ("mean", "square")}

    state = {
        "critic": critic, "actor": actor, "target": jax.tree.map(jnp.array, critic["q"]),
        "critic_adam": zeros(critic), "actor_adam": zeros(actor), "step": jnp.zeros(()),
    }  # fmt: skip
    update = make_update(data)
    scan = jax.jit(lambda s, key: lax.scan(update, s, jax.random.split(key, updates))[0])
    held = {"state": jax.block_until_ready(scan(state, keys[0])), "key": keys[1]}

    def turn() -> float:
        begun = time.perf_counter()
        held["key"], key = jax.random.split(held["key"])
        held["state"] = jax.block_until_ready(scan(held["state"], key))
        return time.perf_counter() - begun

    serve({"versions": {"jax": jax.__version__}}, turn)


if __name__ == "__main__":
    main()
