"""``rlreg/pointmaze/*``: the recipe of Minari's ``D4RL/pointmaze`` data sets, made repeatable.

A point mass is steered through a maze by a planner and a noisy PD controller; whenever it reaches
its goal the environment draws the next one, and the episode is cut there. Unlike the published sets
the noise is seeded, and the first observation of an episode already shows its own goal. MuJoCo and
gymnasium-robotics are imported inside functions: the recipes are listed without them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rlreg.errors import MissingExtraError
from rlreg.runtime.data.recipe import CollectedEpisode, Scores
from rlreg.runtime.spaces import Space

# The reset seed of the published sets: it reproduces their stream of goals.
_PUBLISHED_SEED = 123
_NOISE_STD = 0.5
_MAX_STEPS = 1_000_000
_NUM_SCORED = 100
_MAZES = {"open": "Open", "umaze": "UMaze", "medium": "Medium", "large": "Large"}
_WALL = 1
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class WaypointController:
    """Steers a point mass along the shortest way through the cells of a maze.

    Args:
        maze: The environment's maze: its map and the conversions between cells and positions.
        rng: Jitters the intermediate waypoints, as the published recipe does.
        gain: Force per unit of distance.
        damping: Force per unit of velocity.
        threshold: Distance at which a waypoint counts as reached.
    """

    def __init__(
        self,
        maze: Any,
        rng: np.random.Generator,
        *,
        gain: float = 10.0,
        damping: float = 1.0,
        threshold: float = 0.1,
    ) -> None:
        self._maze = maze
        self._rng = rng
        self._gain, self._damping, self._threshold = gain, damping, threshold
        self._free = np.array([[cell != _WALL for cell in row] for row in maze.maze_map])
        self._goal: NDArray[np.float64] | None = None
        self._waypoints: list[NDArray[np.float64]] = []

    def __call__(self, observation: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Returns the force for one observation, ``[2]`` within [-1, 1]."""
        position, goal = observation["achieved_goal"], observation["desired_goal"]
        if self._goal is None or not np.array_equal(goal, self._goal):
            self._goal = np.array(goal)
            self._waypoints = self._plan(position, self._goal)
        near = float(np.linalg.norm(position - self._waypoints[0])) <= self._threshold
        if near and len(self._waypoints) > 1:
            self._waypoints.pop(0)
        target = self._waypoints[0]
        velocity = observation["observation"][2:4]
        force = self._gain * (target - position) - self._damping * velocity
        return np.asarray(np.clip(force, -1.0, 1.0), dtype=np.float64)

    def _plan(
        self, position: NDArray[np.float64], goal: NDArray[np.float64]
    ) -> list[NDArray[np.float64]]:
        start, end = self._cell(position), self._cell(goal)
        waypoints = []
        for cell in shortest_path(self._free, start, end)[1:-1]:
            centre = self._maze.cell_rowcol_to_xy(np.array(cell))
            waypoints.append(centre - self._rng.uniform(0.0, 0.2, size=2) ** 2)
        return [*waypoints, goal]

    def _cell(self, position: NDArray[np.float64]) -> tuple[int, int]:
        row, column = (int(part) for part in self._maze.cell_xy_to_rowcol(position))
        return row, column


def shortest_path(
    free: NDArray[np.bool_], start: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Finds the cells of a shortest way through a maze, both ends included.

    What tabular Q-iteration with equal step costs converges to, found by breadth-first search from
    the end. Where there is no way, the two ends alone are returned.

    Args:
        free: ``[rows, columns]``, True where a cell is no wall.
        start: Row and column.
        end: Row and column.
    """
    distance = {end: 0}
    frontier = [end]
    for cell in frontier:
        for row_step, column_step in _MOVES:
            row, column = cell[0] + row_step, cell[1] + column_step
            inside = 0 <= row < free.shape[0] and 0 <= column < free.shape[1]
            if inside and free[row, column] and (row, column) not in distance:
                distance[row, column] = distance[cell] + 1
                frontier.append((row, column))
    if start not in distance:
        return [start, end]
    path = [start]
    while path[-1] != end:
        row, column = path[-1]
        neighbors = [(row + row_step, column + column_step) for row_step, column_step in _MOVES]
        path.append(min((cell for cell in neighbors if cell in distance), key=distance.__getitem__))
    return path


@dataclass(frozen=True, slots=True)
class PointMazeRecipe:
    """The recipe of one maze.

    Attributes:
        maze: ``open``, ``umaze``, ``medium`` or ``large``.
        dense: Whether the reward is ``exp(-distance)`` and not 1 at the goal.
    """

    maze: str
    dense: bool

    @property
    def dataset_id(self) -> str:
        """Minari id."""
        return f"rlreg/pointmaze/{self.maze}{'-dense' if self.dense else ''}-v0"

    @property
    def summary(self) -> str:
        """One sentence."""
        reward = "dense" if self.dense else "sparse"
        return f"{self._env_id}: a waypoint controller with noise drives to random goals, {reward}"

    @property
    def default_steps(self) -> int:
        """As many as the published sets have."""
        return _MAX_STEPS

    @property
    def algorithm(self) -> str:
        """What played."""
        return "shortest path in the maze, PD control to its cells, Gaussian noise"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What the environment needs."""
        return ("gymnasium-robotics>=1.4", "mujoco>=3.1")

    @property
    def _env_id(self) -> str:
        return f"PointMaze_{_MAZES[self.maze]}{'Dense' if self.dense else ''}-v3"

    def check(self) -> None:
        """Looks for the packages, without importing them: that takes a second.

        Raises:
            MissingExtraError: gymnasium-robotics or MuJoCo is not installed.
        """
        missing = [name for name in ("gymnasium_robotics", "mujoco") if find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"{self.dataset_id} needs {' and '.join(missing)}: pip install rlreg[pointmaze]"
            )

    def spaces(self) -> tuple[Space, Space]:
        """Returns the Dict of observations as the environment has it, and the forces."""
        env = self._make(**self._data_kwargs(_MAX_STEPS))
        env.close()
        return env.observation_space, env.action_space

    def env_specs(self) -> tuple[EnvSpec, EnvSpec | None]:
        """Returns the environment of the data, which draws new goals, and one episode per goal."""
        specs = []
        for kwargs in (self._data_kwargs(_MAX_STEPS), self._eval_kwargs()):
            env = self._make(**kwargs)
            env.close()
            specs.append(env.spec)
        data, evaluation = specs
        if data is None:
            raise AssertionError("gymnasium.make gives every environment its spec")
        return data, evaluation

    def episodes(self, n_steps: int, seed: int) -> Iterator[CollectedEpisode]:
        """Plays one long run and cuts it wherever a goal is reached."""
        rng = np.random.default_rng(seed)
        env = self._make(**self._data_kwargs(n_steps + 1))
        simulation: Any = env.unwrapped
        controller = WaypointController(simulation.maze, rng)
        # Seed 0 is the published recipe; other seeds give other goals.
        reset_seed = _PUBLISHED_SEED + seed
        observation, info = env.reset(seed=reset_seed)
        recorder = _Recorder(observation, bool(info["success"]), reset_seed)
        for step in range(n_steps):
            force = controller(observation) + rng.normal(0.0, _NOISE_STD, size=2)
            action = np.clip(force, -1.0, 1.0).astype(np.float32)
            observation, reward, terminated, _, info = env.step(action)
            success = bool(info["success"])
            recorder.add(observation, action, float(reward), bool(terminated), success)
            if success or step == n_steps - 1:
                yield recorder.finish()
                # The environment has drawn the next goal, but shows it one step late.
                observation = {**observation, "desired_goal": np.array(simulation.goal)}
                recorder = _Recorder(observation, False, None)
        env.close()

    def scores(self, seed: int) -> Scores:
        """Measures random play, the controller and the noisy one, 100 evaluation episodes each."""
        env = self._make(**self._eval_kwargs())
        rng = np.random.default_rng([seed, 1])
        means = {}
        for kind in ("random", "controller", "noisy"):
            seeds = range(seed * _NUM_SCORED, (seed + 1) * _NUM_SCORED)
            means[kind] = float(np.mean([_score(env, kind, rng, start) for start in seeds]))
        env.close()
        return Scores(means["random"], means["controller"], means["noisy"], _NUM_SCORED)

    def _data_kwargs(self, max_steps: int) -> dict[str, Any]:
        return {"continuing_task": True, "reset_target": True, "max_episode_steps": max_steps}

    def _eval_kwargs(self) -> dict[str, Any]:
        # As published: the goal stays, and being near it pays until the time is up.
        return {"continuing_task": True, "reset_target": False}

    def _make(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        self.check()
        if self._env_id not in gymnasium.registry:
            # Some versions print advice about other environments; stdout belongs to the caller.
            with contextlib.redirect_stdout(sys.stderr):
                import gymnasium_robotics
            gymnasium.register_envs(gymnasium_robotics)
        return gymnasium.make(self._env_id, **kwargs)


def _score(env: gymnasium.Env[Any, Any], kind: str, rng: np.random.Generator, seed: int) -> float:
    """Plays one episode and returns the sum of its rewards."""
    observation, _ = env.reset(seed=seed)
    simulation: Any = env.unwrapped
    controller = WaypointController(simulation.maze, rng)
    total, over = 0.0, False
    while not over:
        if kind == "random":
            action = rng.uniform(-1.0, 1.0, size=2)
        else:
            action = controller(observation)
        if kind == "noisy":
            action = np.clip(action + rng.normal(0.0, _NOISE_STD, size=2), -1.0, 1.0)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


class _Recorder:
    """Collects the steps of one episode."""

    def __init__(self, observation: dict[str, Any], success: bool, seed: int | None) -> None:
        self._observations = [observation]
        self._successes = [success]
        self._actions: list[NDArray[np.float32]] = []
        self._rewards: list[float] = []
        self._terminations: list[bool] = []
        self._seed = seed

    def add(
        self,
        observation: dict[str, Any],
        action: NDArray[np.float32],
        reward: float,
        terminated: bool,
        success: bool,
    ) -> None:
        """Adds a step and what followed it."""
        self._observations.append(observation)
        self._successes.append(success)
        self._actions.append(action)
        self._rewards.append(reward)
        self._terminations.append(terminated)

    def finish(self) -> CollectedEpisode:
        """Returns the episode, truncated at its last step."""
        keys = self._observations[0]
        observations = {key: np.stack([step[key] for step in self._observations]) for key in keys}
        truncations = np.zeros(len(self._rewards), dtype=np.bool_)
        truncations[-1] = True
        return CollectedEpisode(
            observations,
            np.stack(self._actions),
            np.array(self._rewards),
            np.array(self._terminations),
            truncations,
            infos={
                "success": np.array(self._successes),
                "goal": observations["desired_goal"].copy(),
                "qpos": observations["observation"][:, :2].copy(),
                "qvel": observations["observation"][:, 2:].copy(),
            },
            kind="noisy",
            seed=self._seed,
        )


def pointmaze_recipes() -> list[PointMazeRecipe]:
    """The eight mazes: open, umaze, medium and large, sparse and dense."""
    return [PointMazeRecipe(maze, dense) for maze in _MAZES for dense in (False, True)]
