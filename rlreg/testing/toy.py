"""The toy tasks that learnables are built for in checks, and how their states are compared.

Everything here needs torch and is imported inside checks; the functions import it themselves.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.testing.kit import Failure, NotApplicable, Subject

if TYPE_CHECKING:
    from torch import Tensor

    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.learnable import Learnable

NUM_TRANSITIONS = 48
EPISODE_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Toy:
    """A task small enough to train on in milliseconds.

    Attributes:
        name: ``continuous`` or ``discrete``, after its actions.
        is_image: Whether observations are pictures instead of vectors.
    """

    name: str
    is_image: bool = False

    @property
    def observation_space(self) -> Any:
        """A box of three numbers, or a small picture."""
        import numpy as np
        from gymnasium.spaces import Box

        if self.is_image:
            return Box(0, 255, (1, 84, 84), np.uint8)
        return Box(-2.0, 2.0, (3,), np.float32)

    @property
    def action_space(self) -> Any:
        """Two numbers with uneven bounds, or one of three categories."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        if self.name == "discrete":
            return Discrete(3)
        return Box(np.array([-1.0, -3.0], np.float32), np.array([2.0, 1.0], np.float32))

    def observations(self, count: int = 7, seed: int = 0) -> Any:
        """Returns ``[count, ...]`` observations."""
        space = self.observation_space
        space.seed(seed)
        return _stacked(space, count)

    def batch(self, count: int = 16, seed: int = 0) -> dict[str, Any]:
        """Returns ``count`` transitions as a user would hand them to ``update``."""
        import numpy as np

        action_space = self.action_space
        action_space.seed(seed)
        rng = np.random.default_rng(seed)
        observations = self.observations(count + 1, seed)
        return {
            "observations": observations[:-1],
            "actions": _stacked(action_space, count),
            "rewards": rng.normal(size=count).astype(np.float32),
            "next_observations": observations[1:],
            "terminations": np.arange(count) % 4 == 3,
        }

    def dataset(self) -> TransitionDataset:
        """Returns episodes that end by termination and by truncation."""
        import numpy as np

        from rlreg.runtime.data import TransitionDataset

        batch = self.batch(NUM_TRANSITIONS)
        is_last = np.arange(NUM_TRANSITIONS) % EPISODE_LENGTH == EPISODE_LENGTH - 1
        is_even = np.arange(NUM_TRANSITIONS) // EPISODE_LENGTH % 2 == 0
        return TransitionDataset.from_arrays(
            **{**batch, "terminations": is_last & is_even},
            truncations=is_last & ~is_even,
            observation_space=self.observation_space,
            action_space=self.action_space,
        )

    def environment(self) -> Callable[[], Any]:
        """Returns a factory of environments with these spaces and random rewards."""
        return functools.partial(_make_environment, self)


def _stacked(space: Any, count: int) -> Any:
    import numpy as np

    return np.stack([space.sample() for _ in range(count)])


def _make_environment(toy: Toy) -> Any:
    import gymnasium
    import numpy as np

    class ToyEnvironment(gymnasium.Env[Any, Any]):
        """Gives random observations and ends by termination or truncation in turn."""

        observation_space = toy.observation_space
        action_space = toy.action_space
        steps = episodes = 0

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            if seed is not None:
                self.observation_space.seed(seed)
            self.steps, self.episodes = 0, self.episodes + 1
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if not self.action_space.contains(np.asarray(action, self.action_space.dtype)):
                raise Failure(f"it acted with {action!r}, which is not in {self.action_space}")
            self.steps += 1
            is_last, is_even = self.steps == EPISODE_LENGTH, self.episodes % 2 == 0
            reward = float(self.np_random.normal())
            observation = self.observation_space.sample()
            return observation, reward, is_last and is_even, is_last and not is_even, {}

    return ToyEnvironment()


# --- building -----------------------------------------------------------------------------------


def make(subject: Subject, *, seed: int = 0, device: Any = "cpu") -> Learnable:
    """Creates the learnable of a subject, not built yet.

    Raises:
        NotApplicable: If it creates something of its own, which promises nothing the kit knows.
    """
    from rlreg.creation import create
    from rlreg.open_union import validate
    from rlreg.runtime.learnable import Learnable

    cls = subject.config_class()
    config = validate(cls, {"type": cls.get_type(), **subject.settings})
    made = config.create("cpu")
    if not isinstance(made, Learnable):
        raise NotApplicable(f"it creates a {type(made).__name__}, which is no rlreg.Learnable")
    learnable: Learnable = create(config, device=device, seed=seed, compile="off")
    return learnable


def build(subject: Subject, toy: Toy, *, seed: int = 0) -> Learnable:
    """Creates a learnable and builds it for a toy task."""
    learnable = make(subject, seed=seed)
    if subject.regime == "offline":
        learnable.build_with_dataset(toy.dataset())
    else:
        learnable.build(toy.observation_space, toy.action_space)
    return learnable


def toys(subject: Subject) -> Iterator[Toy]:
    """Yields a toy task for each kind of action that a learnable deals with.

    A learnable that refuses vectors is given pictures.
    """
    from rlreg.config import ActionSpace

    kind = make(subject).get_action_type()
    wanted = {
        ActionSpace.CONTINUOUS: ("continuous",),
        ActionSpace.DISCRETE: ("discrete",),
    }.get(kind, ("continuous", "discrete"))
    for name in wanted:
        toy = Toy(name)
        try:
            build(subject, toy)
        except (ConfigError, EnvironmentSpecError) as refusal:
            toy = replace(toy, is_image=True)
            try:
                build(subject, toy)
            except (ConfigError, EnvironmentSpecError):
                raise refusal from None
        yield toy


def learn(subject: Subject, learnable: Learnable, toy: Toy, *, start: int, stop: int) -> None:
    """Trains a little: updates on the batches number ``start`` to ``stop - 1``, or one short epoch.

    Offline, so many updates can be split at any place. Online, an epoch is the smallest unit.
    """
    trained: Any = learnable
    if subject.regime == "offline":
        for index in range(start, stop):
            trained.update(toy.batch(seed=index + 1))
    else:
        trained.train(
            toy.environment(), n_epochs=1, epoch_length=stop - start, engine=engine_of(subject)
        )


def engine_of(subject: Subject) -> dict[str, str] | None:
    """Returns the engine ``sequential`` of a distribution that brings one: it alone is exact."""
    from rlreg import registry

    for record in registry.records("engine"):
        if record.distribution == subject.distribution and record.name == "sequential":
            return {"type": registry.reference(record.cls)}
    return None


# --- comparing ----------------------------------------------------------------------------------

Snapshot = tuple[str, dict[str, "Tensor"]]
"""A state as JSON text and tensors."""


def snapshot(learnable: Learnable, *parts: str) -> Snapshot:
    """Copies the state of a learnable, or some parts of it (``networks``, ``optimizers``, ...)."""
    from rlreg.runtime.state import flatten_state

    state = learnable.state_dict()
    document, tensors = flatten_state({name: state[name] for name in parts or state})
    return json.dumps(document, sort_keys=True), tensors


def difference(first: Snapshot, second: Snapshot) -> str:
    """Returns the names of the tensors that differ in any bit, or what else does; else nothing."""
    names = sorted(first[1].keys() | second[1].keys())
    differing = [
        name
        for name in names
        if name not in first[1]
        or name not in second[1]
        or not _equal(first[1][name], second[1][name])
    ]
    if differing:
        shown = ", ".join(
            name + _nan_remark(first[1].get(name), second[1].get(name)) for name in differing[:4]
        )
        return shown + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
    return "" if first[0] == second[0] else "counters, or the form of the state"


def _equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals NaN here, as the question is what was restored."""
    import torch

    if torch.equal(first, second):
        return True
    if not first.is_floating_point() or first.shape != second.shape or first.dtype != second.dtype:
        return False
    is_nan = first.isnan()
    return torch.equal(is_nan, second.isnan()) and torch.equal(first[~is_nan], second[~is_nan])


def _nan_remark(*values: Tensor | None) -> str:
    has_nan = [v is not None and v.is_floating_point() and bool(v.isnan().any()) for v in values]
    return " (which is NaN: call check_step before step())" if any(has_nan) else ""


# --- other processes ----------------------------------------------------------------------------


def run_fresh(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Runs code in a fresh interpreter that finds what this one finds; returns what it prints.

    Raises:
        Failure: If it fails, with the last line of its error.
    """
    torch = sys.modules.get("torch")
    # Sums over another number of threads differ in their last bits.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())} if torch is not None else {}
    inherited = [os.path.abspath(entry) for entry in sys.path]
    own = (sys.prefix, sys.base_prefix)
    path = os.pathsep.join(entry for entry in inherited if not entry.startswith(own))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env={
            **os.environ,
            **threads,
            "PYTHONPATH": path,
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failure(f"a fresh process ended with code {done.returncode}: {last}")
    return done.stdout
