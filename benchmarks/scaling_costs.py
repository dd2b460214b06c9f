"""The costs that `scaling.py` measures: what is set up, and what one turn at a size does."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

import rlreg
from rlreg import registry

Measure = Callable[[int], tuple[float, dict[str, Any]]]
"""From a size to a figure and notes beside it."""

ACTORS = (1, 2, 3, 4, 8)
WIDTHS = (32, 64, 128, 256, 512)
SEEDS = (1, 2, 4, 8)
PLUGINS = (1, 3, 10, 30, 100, 300)
FIELDS = (10, 30, 100, 300, 1000)
EPISODES = (10, 30, 100, 300, 1000)
_BENCH_S = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """One curve.

    Attributes:
        name: In the results file.
        title: For readers.
        size: What is counted along the axis.
        unit: Of the figure.
        sizes: Rising.
        ready: Sets up in a folder; what it gives does one turn.
    """

    name: str
    title: str
    size: str
    unit: str
    sizes: tuple[int, ...]
    ready: Callable[[Path], AbstractContextManager[Measure]]


# --- IMPALA ---------------------------------------------------------------------------------------

WAIT_S = 0.001


class Waiting(gymnasium.Wrapper):  # type: ignore[type-arg]
    """An environment that waits for something else in each step, as simulators do."""

    def step(self, action: Any) -> Any:
        """Waits, then steps."""
        time.sleep(WAIT_S)
        return super().step(action)


def cartpole() -> Any:
    """Makes CartPole-v1, one by one."""
    return gymnasium.make("CartPole-v1")


def waiting_cartpole() -> Any:
    """Makes CartPole-v1 with a millisecond of waiting in each step."""
    return Waiting(cartpole())


def bench(env: Any, settings: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Measures IMPALA as `rlreg bench impala` does; transitions a second, and who holds it back."""
    run = rlreg.load_config(
        {"learnable": {"type": "impala"}}, preset="impala/throughput",
        overrides=[f"{key}={value}" for key, value in settings.items()],
    )  # fmt: skip
    learnable = rlreg.create(run.learnable, device="cpu")
    [row] = learnable.benchmark(env, run.engine, _BENCH_S)
    shares = ("learner_utilisation", "transport_share", "transport_cpu_share")
    notes = {name: row.figures[name] for name in shares}
    return row.rates["end_to_end"], {**notes, "bottleneck": row.bottleneck}


@contextlib.contextmanager
def actors(_: Path) -> Iterator[Measure]:
    """Environments that compute: cores are what actors compete for."""
    yield lambda size: bench(cartpole, {"engine.num_actors": size})


@contextlib.contextmanager
def waiting_actors(_: Path) -> Iterator[Measure]:
    """Environments that wait: more actors wait at the same time."""
    small = {"engine.num_envs": 4, "learnable.n_rollout_steps": 16}
    yield lambda size: bench(waiting_cartpole, {"engine.num_actors": size, **small})


@contextlib.contextmanager
def model_width(_: Path) -> Iterator[Measure]:
    """One actor, two hidden layers of so many units in policy and critic each."""

    def measure(size: int) -> tuple[float, dict[str, Any]]:
        units = f"[{size}, {size}]"
        parts = ("actor_encoder_factory", "critic_encoder_factory")
        return bench(cartpole, {f"learnable.{part}.hidden_units": units for part in parts})

    yield measure


# --- seeds, plugins, fields -----------------------------------------------------------------------


@contextlib.contextmanager
def seeds(folder: Path) -> Iterator[Measure]:
    """Seconds of `rlreg train iql --seeds N` with 250 updates each, start included."""
    from seeds import train

    with environment(MINARI_DATASETS_PATH=str(folder / "minari")):
        train(folder / "first", 10)  # makes the data

        def measure(size: int) -> tuple[float, dict[str, Any]]:
            out = folder / "run"
            shutil.rmtree(out, ignore_errors=True)
            begun = time.perf_counter()
            train(out, 250, "--seeds", str(size))
            return time.perf_counter() - begun, {}

        yield measure


@contextlib.contextmanager
def plugins(folder: Path) -> Iterator[Measure]:
    """Processor seconds of `rlreg list` with so many plugins beside ours."""
    from many_plugins import check_nothing_is_imported, seconds, write_plugins

    for size in PLUGINS:
        write_plugins(folder / str(size), size)
        check_nothing_is_imported(folder / str(size), size)
    yield lambda size: (seconds(folder / str(size)), {})


def make_config(size: int) -> type[rlreg.LearnableConfig]:
    """Writes the class of a config with so many fields, and what it needs besides."""
    lines = [
        "from typing import Literal, ClassVar",
        "from pydantic import Field",
        "import rlreg",
        "class WideConfig(rlreg.LearnableConfig):",
        '    """A config with many fields."""',
        '    regime: ClassVar[str] = "offline"',
        '    type: Literal["wide"] = "wide"',
        *(
            f"    field_{number}: float = Field(0.5, ge=0, le=1, "
            f'description="Share number {number}. Default: ours, 0.5.")'
            for number in range(size)
        ),
    ]
    namespace: dict[str, Any] = {"__name__": __name__}
    # Without this module's `from __future__ import annotations`, whose names are not there.
    exec(compile("\n".join(lines), "<wide>", "exec", dont_inherit=True), namespace)
    made: type[rlreg.LearnableConfig] = namespace["WideConfig"]
    return made


def processor_ms(function: Callable[[], Any], repeats: int) -> float:
    """Returns the least processor milliseconds of a call."""
    least = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        function()
        least = min(least, time.process_time() - begun)
    return 1e3 * least


@contextlib.contextmanager
def validation(_: Path) -> Iterator[Measure]:
    """Milliseconds to validate a document that gives every field."""
    classes = {size: make_config(size) for size in FIELDS}

    def measure(size: int) -> tuple[float, dict[str, Any]]:
        document = {"type": "wide"} | {f"field_{number}": 0.25 for number in range(size)}
        validate = functools.partial(classes[size].model_validate, document)
        return processor_ms(validate, 20), {}

    yield measure


@contextlib.contextmanager
def schema_export(_: Path) -> Iterator[Measure]:
    """Milliseconds to make the schema of a class that was just written."""

    def measure(size: int) -> tuple[float, dict[str, Any]]:
        cls = rlreg.register_learnable(make_config(size))
        try:
            return processor_ms(lambda: rlreg.json_schema(cls, scope="own"), 1), {}
        finally:
            registry.forget_local()

    yield measure


# --- data -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def minari_sets(folder: Path, task: Callable[[str], Any]) -> Iterator[Measure]:
    """Processor seconds of a task on Minari sets of so many transitions, episodes of 1000."""
    from data import NAME, STEPS, make_file

    def place(size: int) -> dict[str, str]:
        return {"MINARI_DATASETS_PATH": str(folder / str(size)), "RLREG_CACHE": str(folder / "c")}

    for episodes in EPISODES:
        with environment(**place(episodes * STEPS)):
            make_file(folder / str(episodes * STEPS), episodes)

    def measure(size: int) -> tuple[float, dict[str, Any]]:
        shutil.rmtree(folder / "c", ignore_errors=True)
        with environment(**place(size)):
            begun = time.process_time()
            task(NAME)
            return time.process_time() - begun, {}

    yield measure


def load_resident(name: str) -> Any:
    """Loads into memory."""
    return rlreg.load_dataset(name, memory_map=False)


def inspect(name: str) -> Any:
    """Looks for what is odd in a data set."""
    from rlreg.runtime.data.inspect import inspect as look

    return look(name)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Sets variables of the environment inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def of_data(task: Callable[[str], Any]) -> Callable[[Path], AbstractContextManager[Measure]]:
    """Sets up the data sets for a task."""
    torch.set_num_threads(1)
    return functools.partial(minari_sets, task=task)


TRANSITIONS = tuple(1000 * episodes for episodes in EPISODES)
RATE = "transitions/s"
COSTS = (
    Cost("actors", "IMPALA, CartPole-v1", "actors", RATE, ACTORS, actors),
    Cost("waiting actors", "IMPALA, an environment that waits 1 ms a step", "actors", RATE, ACTORS,
         waiting_actors),
    Cost("model width", "IMPALA, one actor, by the width of its networks", "units a layer", RATE,
         WIDTHS, model_width),
    Cost("seeds", "rlreg train iql --seeds N, 250 updates each", "seeds", "s", SEEDS, seeds),
    Cost("plugins", "rlreg list, processor time", "plugins", "s", PLUGINS, plugins),
    Cost("validation", "validating a config, every field given", "fields", "ms", FIELDS,
         validation),
    Cost("schema export", "the JSON Schema of a config", "fields", "ms", FIELDS, schema_export),
    Cost("loading", "a Minari set into memory, processor time", "transitions", "s", TRANSITIONS,
         of_data(load_resident)),
    Cost("inspecting", "rlreg data inspect, processor time", "transitions", "s", TRANSITIONS,
         of_data(inspect)),
)  # fmt: skip
