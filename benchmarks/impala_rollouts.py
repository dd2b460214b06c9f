"""How fast IMPALA's engines collect, as shares of what the environments alone can do.

    python benchmarks/impala_rollouts.py [--seconds 3] [--json]

For CartPole-v1 with `gym.make` environments and with the native vector environment: the rate of
the environments alone (no policy, no bookkeeping), of the policy alone (the forward pass and the
draw), of the sequential engine and of the process engine with a learner that only takes and gives
back. Read the ratios: absolute numbers depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch

from rlreg_impala import components
from rlreg_impala.config import IMPALAConfig
from rlreg_impala.engines import make_engine
from rlreg_impala.model import TorchActorCritic

ENV = "CartPole-v1"


def native(num_envs):
    return functools.partial(
        gym.make_vec, ENV, num_envs=num_envs, vectorization_mode="vector_entry_point"
    )


def policy_spec():
    """The acting half of IMPALA with its default networks."""
    env = gym.make(ENV)
    model = TorchActorCritic.of(IMPALAConfig(), env.observation_space, env.action_space)
    return model.policy_spec()


def rate(step, seconds, per_call):
    """Calls `step` for some seconds; returns transitions per second."""
    step()
    calls, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        step()
        calls += 1
    return calls * per_call / (now - started)


def env_only(kind, num_envs, seconds):
    if kind == "native":
        vector = native(num_envs)()
        vector.reset(seed=0)
        actions = np.tile([0, 1], num_envs)[:num_envs]
        # One row in about twenty is a reset row, which is no transition; not worth counting.
        return rate(lambda: vector.step(actions), seconds, num_envs)
    envs = [gym.make(ENV) for _ in range(num_envs)]
    for env in envs:
        env.reset(seed=0)

    def step():
        for index, env in enumerate(envs):
            _, _, terminated, truncated, _ = env.step(index & 1)
            if terminated or truncated:
                env.reset()

    return rate(step, seconds, num_envs)


def inference_only(spec, num_envs, seconds):
    policy, rng = spec.make(), np.random.default_rng(0)
    observations = np.zeros((num_envs, 4), dtype=np.float32)
    state = policy.initial_state(num_envs)
    return rate(lambda: policy.act(observations, state, rng), seconds, num_envs)


def collected(config, spec, factory, seconds, unroll_length):
    """Rate of an engine, and how many learner milliseconds a fragment costs."""
    engine = make_engine(config, unroll_length=unroll_length, batch_size=1)
    weights = np.zeros(spec.make().num_weights, dtype=np.float32)
    try:
        engine.start(spec, factory, np.random.SeedSequence(0))
        engine.publish(0, weights)
        for version in range(1, 20):
            engine.release(engine.collect(1, 60))
            engine.publish(version, weights)
        count = fragments = 0
        cpu, started = time.process_time(), time.perf_counter()
        while (now := time.perf_counter()) - started < seconds:
            [fragment] = engine.collect(1, 60)
            count += fragment.num_transitions
            fragments += 1
            engine.publish(version + fragments, weights)
            engine.release([fragment])
        cpu = time.process_time() - cpu
    finally:
        engine.stop()
    return count / (now - started), 1e3 * cpu / fragments


def measure(seconds):
    torch.set_num_threads(1)
    spec = policy_spec()
    rows = []
    for kind, num_envs, unroll_length in (
        ("gym.make", 8, 16),
        ("gym.make", 32, 20),
        ("native", 8, 16),
        ("native", 32, 20),
    ):
        factory = native(num_envs) if kind == "native" else ENV
        alone = env_only(kind, num_envs, seconds)
        policy = inference_only(spec, num_envs, seconds)
        possible = 1 / (1 / alone + 1 / policy)
        row = {
            "envs": kind,
            "N": num_envs,
            "T": unroll_length,
            "env_only": alone,
            "inference_only": policy,
            "one_core_bound": possible,
        }
        for tag, config in (
            ("sequential", components.SequentialEngineConfig(num_envs=num_envs)),
            ("process", components.ProcessEngineConfig(num_envs=num_envs)),
            ("process_2", components.ProcessEngineConfig(num_envs=num_envs, num_actors=2)),
        ):
            row[tag], cpu_ms = collected(config, spec, factory, seconds, unroll_length)
            row[f"{tag}_share_of_bound"] = row[tag] / possible
            row[f"{tag}_share_of_env"] = row[tag] / alone
            row[f"{tag}_learner_ms"] = cpu_ms
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.seconds)
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
        return
    for row in rows:
        print(
            f"{row['envs']:>8} N={row['N']:<3} T={row['T']:<3} "
            f"envs {row['env_only'] / 1e3:6.1f}k/s  "
            f"policy {row['inference_only'] / 1e3:6.1f}k/s  "
            f"bound of one core {row['one_core_bound'] / 1e3:6.1f}k/s"
        )
        for tag in ("sequential", "process", "process_2"):
            print(
                f"{tag:>20} {row[tag] / 1e3:6.1f}k/s = {row[f'{tag}_share_of_bound']:4.0%} of the "
                f"bound, {row[f'{tag}_share_of_env']:4.0%} of the envs; learner "
                f"{row[f'{tag}_learner_ms']:.2f} ms a fragment"
            )


if __name__ == "__main__":
    main()
