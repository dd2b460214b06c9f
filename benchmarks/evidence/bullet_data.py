"""Makes data sets of pybullet's tasks with the expert weights that pybullet ships.

    python benchmarks/evidence/bullet_data.py [bullet-hopper | bullet-ant]

Needs what rlreg does not: `pip install --no-deps pybullet==3.2.7`; see `bullet_task.py`. The data
sets go where Minari keeps its own (MINARI_DATASETS_PATH). `rlreg/bullet-hopper/mixed-v0` has, by
steps, three tenths of the expert, four of the expert with a little noise on its actions, two with
more, and one tenth of random play.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from bullet_task import TASKS, ShippedExpert
from gymnasium.envs.registration import EnvSpec
from locomotion_data import NUM_SCORED, STEPS, rollouts

import rlreg
from rlreg.runtime.data.generate import write_recipe
from rlreg.runtime.data.recipe import CollectedEpisode, Scores
from rlreg.runtime.evaluation import evaluate, evaluate_random
from rlreg.runtime.spaces import Space

# Name, share of the steps in tenths, standard deviation of the noise on the actions.
_MIXTURE = (("expert", 3, 0.0), ("noisy", 4, 0.3), ("noisier", 2, 0.6), ("random", 1, np.inf))
_FIRST_SEED = 1_000_000


class Noisy:
    """The expert with Gaussian noise, or uniformly random play where the noise is infinite.

    Args:
        act: The expert.
        noise: Standard deviation; the noise comes from torch's generator, as a SAC policy's does.
    """

    def __init__(self, act: ShippedExpert, noise: float) -> None:
        self._act, self._noise = act, noise

    def predict(self, observation: Any, deterministic: bool) -> tuple[Any, None]:
        action = self._act(observation)
        if np.isinf(self._noise):
            return torch.empty(action.shape).uniform_(-1, 1).numpy(), None
        if not deterministic:
            action = action + self._noise * torch.randn(action.shape).numpy()
        return np.clip(action, -1, 1).astype(np.float32), None


@dataclass(frozen=True)
class BulletRecipe:
    """The mixture of one task; a recipe as `rlreg data generate` has them.

    Attributes:
        task: A key of `TASKS`.
    """

    task: str

    @property
    def dataset_id(self) -> str:
        return f"rlreg/{self.task}/mixed-v0"

    @property
    def summary(self) -> str:
        return (
            f"{TASKS[self.task]}: the expert weights that pybullet ships (May 2017), by steps 30 % "
            "without noise, 40 % with noise of 0.3 on the actions, 20 % with 0.6, and 10 % random "
            "play. ref_max_score is what the expert has without noise"
        )

    @property
    def default_steps(self) -> int:
        return STEPS

    @property
    def algorithm(self) -> str:
        return "pybullet's shipped policy, Gaussian noise on it; uniform random"

    @property
    def requirements(self) -> tuple[str, ...]:
        return ("pybullet==3.2.7",)

    def check(self) -> None:
        """Importing `bullet_task` was the check."""

    def spaces(self) -> tuple[Space, Space]:
        with gymnasium.make(TASKS[self.task]) as env:
            return env.observation_space, env.action_space

    def env_specs(self) -> tuple[EnvSpec, EnvSpec | None]:
        return gymnasium.spec(TASKS[self.task]), None

    def episodes(self, n_steps: int, seed: int) -> Iterator[CollectedEpisode]:
        """The parts of the mixture one after the other."""
        expert, done, tenths = ShippedExpert(self.task), 0, 0
        for place, (name, share, noise) in enumerate(_MIXTURE):
            tenths += share
            count, done = n_steps * tenths // 10 - done, n_steps * tenths // 10
            first = _FIRST_SEED * (1 + seed) + 100_000 * place
            yield from rollouts(Noisy(expert, noise), TASKS[self.task], count, first, name)

    def scores(self, seed: int) -> Scores:
        """Random play, and the expert without noise, 20 episodes from the same starts."""
        del seed  # the starts are those of every evaluation
        env_id = TASKS[self.task]
        random = evaluate_random(env_id, NUM_SCORED).mean_return
        expert = evaluate(ShippedExpert(self.task), env_id, NUM_SCORED).mean_return
        return Scores(random, expert, None, NUM_SCORED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", nargs="?", choices=TASKS, help="all if none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in [arguments.task] if arguments.task else TASKS:
        recipe = BulletRecipe(task)
        made_by = f"benchmarks/evidence/bullet_data.py {task}"
        write_recipe(recipe, seed=arguments.seed, overwrite=arguments.overwrite, made_by=made_by)
        dataset = rlreg.load_dataset(recipe.dataset_id, memory_map=False)
        told = {"transitions": len(dataset), "content_hash": dataset.content_hash()}
        print(recipe.dataset_id, json.dumps(told), dataset.laws, sep="\n", flush=True)


if __name__ == "__main__":
    main()
