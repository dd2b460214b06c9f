"""RLlib's IMPALA on CartPole-v1: transitions per second after a warm-up, as one JSON document.

    python benchmarks/impala_rllib.py [--seconds 30] [--runners 2] [--envs 64] [--fragment 32]

Runs with a Python that has `ray[rllib]` (scripts/make_peers.sh rllib) and knows nothing of rlreg.
`benchmarks/impala.py` calls it. Networks are those of `impala/throughput`: two separate torsos of
64-64 tanh; a batch has as many transitions.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings


def make(arguments):
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=arguments.runners,
            num_envs_per_env_runner=arguments.envs,
            rollout_fragment_length=arguments.fragment,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=arguments.batch or arguments.envs * arguments.fragment,
            lr=3e-3,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            grad_clip=5.0,
        )
        .reporting(min_time_s_per_iteration=2)
    )
    return config.build_algo()


def measure(arguments):
    import ray

    ray.init(
        address="local",  # never a cluster that runs here already
        num_cpus=arguments.runners + 1,
        log_to_driver=False,
        logging_level=logging.ERROR,
        include_dashboard=False,
    )
    algo = make(arguments)
    try:
        first = 0
        while not first:  # the first reports come before the first episodes have ended
            first = sampled(algo.train())
        began = time.perf_counter()
        while time.perf_counter() - began < arguments.seconds:
            last = sampled(algo.train())
        return (last - first) / (time.perf_counter() - began)
    finally:
        algo.stop()
        ray.shutdown()


def sampled(result):
    return result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--envs", type=int, default=64, help="environments of a runner")
    parser.add_argument("--fragment", type=int, default=32, help="steps of a fragment")
    parser.add_argument("--batch", type=int, help="transitions of a batch; one fragment if not")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    rate = measure(arguments)
    import ray

    json.dump({"transitions_per_s": rate, "ray": ray.__version__, **vars(arguments)}, sys.stdout)


if __name__ == "__main__":
    main()
