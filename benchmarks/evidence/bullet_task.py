"""pybullet's locomotion tasks under today's gymnasium, and the expert weights pybullet ships.

Needs `pip install --no-deps pybullet==3.2.7`. Its tasks are written for gym before 0.22 and import
`gym` and `pkg_resources`; both get stand-ins here, in this process alone, and the tasks are wrapped
for today's `reset` and `step`. Importing this module registers `BulletHopper-v0` and
`BulletAnt-v0`: the tasks of D4RL's `bullet-hopper` and `bullet-ant`.

The weights of HalfCheetah and Walker2D, as old as the others (May 2017), no longer walk in this
release of pybullet: over five episodes returns of -864 to 1156, and falls within 17 steps.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

TASKS = {"bullet-hopper": "BulletHopper-v0", "bullet-ant": "BulletAnt-v0"}
_CLASSES = {"bullet-hopper": "HopperBulletEnv", "bullet-ant": "AntBulletEnv"}
_MAX_STEPS = 1_000


def _package() -> Path:
    spec = importlib.util.find_spec("pybullet_envs")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pybullet is needed: pip install --no-deps pybullet==3.2.7")
    return Path(next(iter(spec.submodule_search_locations)))


def _tasks() -> ModuleType:
    """Imports pybullet's tasks without what its package does at import.

    That registers over a hundred tasks by an interface that gymnasium no longer has.
    """
    if "pybullet_envs.gym_locomotion_envs" not in sys.modules:
        folder = _package()
        for name in [name for name in sys.modules if name.partition(".")[0] == "gymnasium"]:
            sys.modules.setdefault("gym" + name.removeprefix("gymnasium"), sys.modules[name])
        resources: Any = ModuleType("pkg_resources")
        resources.parse_version = Version
        sys.modules.setdefault("pkg_resources", resources)
        package = ModuleType("pybullet_envs")
        package.__path__ = [str(folder)]
        sys.modules["pybullet_envs"] = package
        # Its modules import one another without naming the package.
        sys.path.append(str(folder))
    return importlib.import_module("pybullet_envs.gym_locomotion_envs")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """pybullet's C code says `argv[0]=` for every simulation."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class BulletTask(gymnasium.Env[Any, Any]):
    """One of pybullet's tasks; every episode has a simulation of its own.

    In one that goes on, an episode depends on those before it: the same seed gave returns of 1915
    and 2377.

    Args:
        task: A key of `TASKS`.
    """

    def __init__(self, task: str) -> None:
        self._class = getattr(_tasks(), _CLASSES[task])
        self._own = self._class()
        size = self._own.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, size, np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, self._own.action_space.shape)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._own.close()
        self._own = self._class()
        self._own.seed(int(self.np_random.integers(2**31)))
        with _silence():
            observation = self._own.reset()
        return np.asarray(observation, np.float32), {}

    def step(self, action: Any) -> Any:
        observation, reward, is_end, _ = self._own.step(np.asarray(action, np.float64))
        return np.asarray(observation, np.float32), float(reward), bool(is_end), False, {}

    def close(self) -> None:
        self._own.close()


class ShippedExpert:
    """The policy of pybullet's `enjoy_TF_*_2017may.py`, clipped to the actions there are."""

    def __init__(self, task: str) -> None:
        _tasks()
        name = f"enjoy_TF_{_CLASSES[task]}_v0_2017may"
        path = _package_folder() / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with contextlib.closing(gymnasium.make(TASKS[task])) as env:
            policy = module.SmallReactivePolicy(env.observation_space, env.action_space)
        self._act = policy.act

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Actions ``[..., A]`` for observations ``[..., O]``."""
        return np.clip(self._act(observations), -1.0, 1.0).astype(np.float32)


def _package_folder() -> Path:
    return Path(sys.modules["pybullet_envs"].__path__[0])


for _task, _env_id in TASKS.items():
    gymnasium.register(
        _env_id, f"{__name__}:BulletTask", max_episode_steps=_MAX_STEPS,
        disable_env_checker=True, kwargs={"task": _task},
    )  # fmt: skip
