"""RLlib's IMPALA on CartPole-v1 until it is solved, as one JSON document.

    python benchmarks/evidence/impala_peers_rllib.py SEED TRANSITIONS SECONDS BEGAN

Runs with a Python that has `ray[rllib]` (scripts/make_peers.sh rllib) and knows nothing of rlreg;
`impala_peers.py` calls it. BEGAN is when the process was started, in seconds of the epoch.

Settings are those of RLlib's own example (ray, rllib/examples/algorithms/impala/cartpole_impala.py:
observations normalised, a shared torso, batches of 500, rate 5e-4, value loss 0.05, clip 40, "450
within 2 million"), which runs 4 actors with 16 environments each; RUNNERS says what fits this
machine. Returns of training episodes come by a callback, as RLlib's users would count them.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections import deque

GOAL, WINDOW = 475.0, 100


def report_return(*, episode, metrics_logger, **others):
    """Hands the return of an episode that has ended to `Algorithm.train`.

    Its length, which is the return in CartPole: `get_return` knows only the last fragment of it.
    """
    metrics_logger.log_value("ended", float(episode.t), reduce="item_series")


def make(arguments):
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=arguments.runners,
            num_envs_per_env_runner=arguments.envs,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_learners=arguments.learners)
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
        .training(
            train_batch_size_per_learner=500,
            grad_clip=40.0,
            grad_clip_by="global_norm",
            lr=5e-4,
            vf_loss_coeff=0.05,
            entropy_coeff=0.0,
        )
        .evaluation(  # never by itself: asked for at the end
            evaluation_interval=10**9,
            evaluation_num_env_runners=0,
            evaluation_duration=20,
            evaluation_duration_unit="episodes",
            evaluation_config={"explore": False},
        )
        .callbacks(on_episode_end=report_return)
        .reporting(min_time_s_per_iteration=0.5)
        .debugging(seed=arguments.seed)
    )
    return config.build_algo()


def train(algo, arguments):
    started, began = time.time(), time.perf_counter()
    returns, transitions, is_reached = deque(maxlen=WINDOW), 0, False
    while transitions < arguments.transitions and not is_reached:
        result = algo.train().get("env_runners", {})
        transitions = result.get("num_env_steps_sampled_lifetime", transitions)
        ended = result.get("ended")
        returns.extend(ended if isinstance(ended, list) else [])  # NaN where none has ended
        is_reached = bool(len(returns) == WINDOW and sum(returns) / WINDOW >= GOAL)
        if time.perf_counter() - began > arguments.seconds:
            break
    took = time.perf_counter() - began
    return {
        "reached": is_reached,
        "transitions": int(transitions),
        "wall_s": took,
        "with_start_s": started - arguments.began + took,
        "last_mean": float(sum(returns) / max(1, len(returns))),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("transitions", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("began", type=float)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--learners", type=int, default=0, help="0: in this process")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    import ray

    ray.init(
        address="local",  # never a cluster that runs here already
        num_cpus=arguments.runners + arguments.learners + 1,
        log_to_driver=False,
        logging_level=logging.ERROR,
        include_dashboard=False,
    )
    algo = make(arguments)
    try:
        document = train(algo, arguments)
        judged = algo.evaluate()["env_runners"]
        document["evaluated"] = float(judged["episode_return_mean"])
        document["version"] = f"ray {ray.__version__}"
    finally:
        algo.stop()
        ray.shutdown()
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()
