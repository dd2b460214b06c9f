"""How fast an offline learnable updates, and how much of that is sampling."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from rlreg.config import LearnableConfig
from rlreg.creation import create
from rlreg.errors import ConfigError
from rlreg.runtime.data.dataset import TransitionDataset
from rlreg.runtime.offline import CHUNK, OfflineLearnable

if TYPE_CHECKING:
    from rlreg.config import DeviceLike

_ASSUMED_RUN = 1_000_000
_EPISODE_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """Random data of a size; the default is D4RL's halfcheetah.

    Attributes:
        transitions: How many.
        observation_size: Components of an observation.
        action_size: Components of an action.
    """

    transitions: int = 1_000_000
    observation_size: int = 17
    action_size: int = 6

    def dataset(self) -> TransitionDataset:
        """Makes the data, in memory."""
        rng = np.random.default_rng(0)
        size = self.transitions
        ends = np.zeros(size, dtype=bool)
        ends[_EPISODE_STEPS - 1 :: _EPISODE_STEPS] = True
        observations = rng.standard_normal((size, self.observation_size), dtype=np.float32)
        following = np.roll(observations, -1, axis=0)
        return TransitionDataset.from_arrays(
            observations,
            rng.uniform(-1, 1, (size, self.action_size)).astype(np.float32),
            rng.standard_normal(size, dtype=np.float32),
            np.zeros(size, dtype=bool),
            ends,
            next_observations=following,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (self.observation_size,)),
            action_space=gymnasium.spaces.Box(-1, 1, (self.action_size,)),
        )


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured: medians over rounds.

    Attributes:
        updates_per_s: Of the training loop, sampling included.
        batch_updates_per_s: Of the training loop on one batch.
        sample_s: Seconds to draw a batch.
        device: Where.
        threads: Of torch on the CPU.
        is_compiled: Whether updates were compiled.
        rounds: How often each variant had its turn.
        batch_size: Of a minibatch.
    """

    updates_per_s: float
    batch_updates_per_s: float
    sample_s: float
    device: str
    threads: int
    is_compiled: bool
    rounds: int
    batch_size: int

    @property
    def sampling_share(self) -> float:
        """Time of drawing a batch over the time of an update."""
        return self.sample_s * self.updates_per_s

    def to_json(self) -> dict[str, Any]:
        """Gives the figures as values for JSON."""
        return {**asdict(self), "sampling_share": self.sampling_share}


class _OneBatch:
    """A data set that always gives the same batch."""

    def __init__(self, dataset: TransitionDataset, size: int) -> None:
        self._batch = dataset.sample(size, torch.Generator().manual_seed(0))

    def sample(self, batch_size: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        del batch_size, generator
        return self._batch


def measure(
    config: LearnableConfig,
    workload: Workload,
    *,
    device: DeviceLike = "auto",
    threads: int | None = None,
    compile: str = "auto",
    seconds: float = 10.0,
) -> Speed:
    """Measures the speed of updates.

    Args:
        config: An offline learnable.
        workload: The data.
        device: Where.
        threads: Threads of torch; as they are if ``None``.
        compile: ``auto``, ``on`` or ``off``.
        seconds: How long to measure, after a warm-up.

    Raises:
        ConfigError: If the learnable is not trained on data.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    learnable = create(config, device=device, compile=compile)
    if not isinstance(learnable, OfflineLearnable):
        raise ConfigError(f"{config.get_type()!r} is not trained on data; bench measures updates")
    dataset = workload.dataset()
    learnable.build_with_dataset(dataset)
    learnable.set_total_steps(_ASSUMED_RUN)
    resident = dataset.to(learnable.device)
    learnable.settle_compile(resident, _ASSUMED_RUN)
    size: int = config.batch_size  # type: ignore[attr-defined]  # an offline config has it
    one: Any = _OneBatch(resident, size)  # all that training asks of a data set
    variants: dict[str, Callable[[], Any]] = {
        "all": lambda: learnable.train_epoch(resident, CHUNK),
        "batch": lambda: learnable.train_epoch(one, CHUNK),
        "sample": lambda: _draw(resident, size, learnable.generator),
    }
    times, rounds = _in_turns(variants, learnable.device, seconds)
    return Speed(
        updates_per_s=CHUNK / times["all"],
        batch_updates_per_s=CHUNK / times["batch"],
        sample_s=times["sample"] / CHUNK,
        device=str(learnable.device),
        threads=torch.get_num_threads(),
        is_compiled=learnable.is_compiled,
        rounds=rounds,
        batch_size=size,
    )


def _draw(dataset: TransitionDataset, size: int, generator: torch.Generator) -> None:
    for _ in range(CHUNK):
        dataset.sample(size, generator)


def _in_turns(
    variants: dict[str, Callable[[], Any]], device: torch.device, seconds: float
) -> tuple[dict[str, float], int]:
    """Runs the variants one after the other until the time is up; returns medians."""
    for run in variants.values():
        run()  # compilation and caches
    measured: dict[str, list[float]] = {name: [] for name in variants}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(measured["all"]) < 3:
        for name, run in variants.items():
            begun = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            measured[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    return medians, len(measured["all"])
