"""The mazes as D4RL evaluates them, and how a policy is judged there; for the scripts beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.runtime.evaluation import Evaluation, evaluate

FIRST_SEED = 10_000
NUM_EPISODES = 100
NUM_CURVE_EPISODES = 20

# D4RL judges with one goal (facts of Minari's generation script): id, map, row and column.
_MAZES = {
    "umaze": ("UMaze", "U_MAZE", (1, 1)),
    "medium": ("Medium", "MEDIUM_MAZE", (6, 6)),
    "large": ("Large", "LARGE_MAZE", (7, 9)),
}


def dataset_id(maze: str) -> str:
    return f"rlreg/pointmaze/{maze}-v0"


def judged_environment(maze: str) -> dict[str, Any]:
    """D4RL's: one goal, starts anywhere, and every step near the goal pays 1."""
    import gymnasium_robotics.envs.maze.maps as maps

    name, plan, (row, column) = _MAZES[maze]
    layout = [list(line) for line in getattr(maps, plan)]
    layout[row][column] = "g"
    kwargs = {"maze_map": layout, "continuing_task": True, "reset_target": False}
    return {"id": f"PointMaze_{name}-v3", "kwargs": kwargs}


def judge(policy: Any, maze: str, episodes: int) -> Evaluation:
    """Plays seeded episodes of D4RL's task: the same starts for every policy."""
    return evaluate(policy, judged_environment(maze), episodes, FIRST_SEED)


def figures(result: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation."""
    return {
        "mean_return": result.mean_return,
        "std_return": result.std_return,
        "n_episodes": result.n_episodes,
        "success_rate": result.success_rate,
    }


def final_figures(policy: Any, maze: str) -> dict[str, Any]:
    """The evaluation at the end of a run, with the return of every episode."""
    result = judge(policy, maze, NUM_EPISODES)
    return {**figures(result), "returns": list(result.returns)}


def flatten(observations: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The columns as rlreg lays out this Dict: achieved goal, desired goal, position and speed."""
    parts = [observations[key] for key in ("achieved_goal", "desired_goal", "observation")]
    return np.concatenate(parts, axis=1).astype(np.float32)


def tanh_policy(
    layers: list[tuple[NDArray[Any], NDArray[Any]]],
    columns: Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]] = flatten,
) -> Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]]:
    """A peer's policy from its weights ``[in, out]`` and biases: ReLU layers, tanh at the end."""

    def act(observations: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        x = columns(observations)
        for weight, bias in layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = layers[-1]
        return np.tanh(x @ weight + bias).astype(np.float32)

    return act


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes at once or not at all: a job that was killed is one that was not done."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


class Stopwatch:
    """Processor seconds of this process, for information: they depend on the machine's load."""

    def __init__(self) -> None:
        self._begun = time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self._begun
