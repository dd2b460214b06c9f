"""IQL in the order of the authors' code, in JAX: shares no line and no framework with rlreg.

    .peers/jax/bin/python same_algorithm_jax.py '{"seed": 0, ...}' FOLDER

Value first, then the actor with the new value, then the critics with targets of the new value, then
the moving targets; an Adam for each. Orthogonal weights with gain sqrt(2), zero biases. Leaves
policies as weights.
"""

from __future__ import annotations

import json
import math
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH, RATE, GAMMA, TAU, MAX_WEIGHT = 256, 3e-4, 0.99, 0.005, 100.0
LIMIT = 1 - 1e-5
_ROW = 1_000


def network(key, in_size, out_size):
    sizes = [(in_size, WIDTH), (WIDTH, WIDTH), (WIDTH, out_size)]
    orthogonal = jax.nn.initializers.orthogonal(math.sqrt(2))
    keys = jax.random.split(key, 3)
    return [(orthogonal(k, size), jnp.zeros(size[1])) for k, size in zip(keys, sizes, strict=True)]


def apply(layers, x):
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def adam(parameters, gradients, state):
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, state["square"], gradients)

    def move(p, m, v):
        return p - RATE * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    moved = jax.tree.map(move, parameters, mean, square)
    return moved, {"mean": mean, "square": square, "count": count}


def fresh(parameters):
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return {"mean": zeros(parameters), "square": zeros(parameters), "count": jnp.zeros(())}


def least(critics, s, a):
    sa = jnp.concatenate([s, a], axis=1)
    return jnp.minimum(*[apply(q, sa)[:, 0] for q in critics])


def value_loss(value, s, targets, expectile):
    u = targets - apply(value, s)[:, 0]
    return jnp.mean(jnp.where(u > 0, expectile, 1 - expectile) * u**2)


def actor_loss(actor, s, a, weights):
    mean, log_std = jnp.tanh(apply(actor["mean"], s)), jnp.clip(actor["log_std"], -5, 2)
    density = -0.5 * ((a - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    return -jnp.mean(weights * density.sum(axis=1))


def critic_loss(critics, s, a, targets):
    sa = jnp.concatenate([s, a], axis=1)
    return sum(jnp.mean((apply(q, sa)[:, 0] - targets) ** 2) for q in critics)


def make_update(job):
    expectile, temperature, size = job["expectile"], job["weight_temp"], job["batch_size"]

    def update(state, data, key):
        chosen = jax.random.randint(key, (size,), 0, len(data[0]))
        s, a, r, following, is_terminal = (column[chosen] for column in data)
        a = jnp.clip(a, -LIMIT, LIMIT)
        held = least(state["target"], s, a)
        v_loss, gradients = jax.value_and_grad(value_loss)(state["value"], s, held, expectile)
        value, value_adam = adam(state["value"], gradients, state["value_adam"])
        weights = jnp.exp(temperature * (held - apply(value, s)[:, 0]))
        weights = jnp.minimum(weights, MAX_WEIGHT)
        a_loss, gradients = jax.value_and_grad(actor_loss)(state["actor"], s, a, weights)
        actor, actor_adam = adam(state["actor"], gradients, state["actor_adam"])
        targets = r + GAMMA * (1 - is_terminal) * apply(value, following)[:, 0]
        q_loss, gradients = jax.value_and_grad(critic_loss)(state["critics"], s, a, targets)
        critics, critics_adam = adam(state["critics"], gradients, state["critics_adam"])
        target = jax.tree.map(lambda t, q: t + TAU * (q - t), state["target"], critics)
        following_state = {
            "value": value, "actor": actor, "critics": critics, "target": target,
            "value_adam": value_adam, "actor_adam": actor_adam, "critics_adam": critics_adam,
        }  # fmt: skip
        return following_state, jnp.stack([q_loss, v_loss, a_loss])

    return update


def initial_state(key, in_size, action_size):
    keys = jax.random.split(key, 4)
    value = network(keys[0], in_size, 1)
    critics = [network(k, in_size + action_size, 1) for k in keys[1:3]]
    actor = {"mean": network(keys[3], in_size, action_size), "log_std": jnp.zeros(action_size)}
    return {
        "value": value, "actor": actor, "critics": critics,
        "target": jax.tree.map(jnp.array, critics), "value_adam": fresh(value),
        "actor_adam": fresh(actor), "critics_adam": fresh(critics),
    }  # fmt: skip


def save_policy(actor, path):
    layers = {}
    for index, (weight, bias) in enumerate(actor["mean"]):
        layers[f"weight{index}"], layers[f"bias{index}"] = np.asarray(weight), np.asarray(bias)
    np.savez(path, **layers)


def main() -> None:
    job, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    begun = time.process_time()
    names = ("observations", "actions", "rewards", "next_observations", "terminations")
    data = tuple(jnp.asarray(np.load(Path(job["folder"]) / f"{name}.npy")) for name in names)
    key, first = jax.random.split(jax.random.PRNGKey(job["seed"]))
    state = initial_state(first, data[0].shape[1], data[1].shape[1])
    update = make_update(job)

    @jax.jit
    def row(state, data, key):
        def step(carried, own):
            return update(carried, data, own)

        state, losses = lax.scan(step, state, jax.random.split(key, _ROW))
        return state, losses.mean(axis=0)

    losses = []
    for done in range(_ROW, job["updates"] + 1, _ROW):
        key, own = jax.random.split(key)
        state, means = row(state, data, own)
        losses.append([float(x) for x in means])
        if done % job["every"] == 0:
            save_policy(state["actor"], folder / f"{done}.npz")
    columns = dict(zip(("q_loss", "v_loss", "actor_loss"), zip(*losses, strict=True), strict=True))
    report = {
        "columns": "rlreg",
        "transitions": len(data[0]),
        "rewards_seen": float(np.asarray(data[2]).sum(dtype=np.float64)),
        "losses": {"every": _ROW, **columns},
        "cpu_s": time.process_time() - begun,
        "versions": {"jax": jax.__version__},
    }
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
