"""What a session checks and settles about its machine before anything starts."""

from __future__ import annotations

import numbers
import os

from rlreg.config import RolloutEngineFactory
from rlreg.errors import ConfigError

from .config import IMPALAConfig
from .model import TorchActorCritic
from .rollouts import EngineSpec, RolloutEngine

_SMALL_MODEL = 200_000
"""Parameters below which one thread does an update as fast as two."""


def num_threads(model: TorchActorCritic, spec: EngineSpec) -> int:
    """Returns the threads of the learner: the cores that actors leave, or one if more do not pay.

    More threads than cores make everything slower, and a small network is slower on two than one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    is_small = sum(parameter.numel() for parameter in model.parameters()) < _SMALL_MODEL
    return 1 if is_small else max(1, (cores or 1) - spec.num_actors)


def require_fit(model: TorchActorCritic, spec: EngineSpec) -> None:
    """Raises if the fragments of an engine would not fit into the memory of this machine.

    Raises:
        ConfigError: With what they need and what there is.
    """
    memory = _total_memory()
    row = model.plan.size * model.plan.dtype.itemsize + 4 * model.codec.width + 16
    needed = spec.num_slots * (spec.unroll_length + 1) * spec.num_envs * row
    if memory is not None and needed > memory:
        raise ConfigError(
            f"{spec.num_slots} fragments of {spec.unroll_length} steps in {spec.num_envs} "
            f"environments need {needed / 2**30:.1f} GiB, this machine has "
            f"{memory / 2**30:.1f} GiB: lower n_rollout_steps, actors_batch_size, engine.num_envs "
            "or engine.num_actors"
        )


def _total_memory() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_lengths(
    n_epochs: int, epoch_length: int, eval_repeats: int, patience: int | None
) -> None:
    """Raises if a length is no whole number or out of range; the message names it."""
    wanted: tuple[tuple[str, object, int], ...] = (
        ("n_epochs", n_epochs, 0),
        ("epoch_length", epoch_length, 1),
        ("eval_repeats", eval_repeats, 0),
        ("patience", 1 if patience is None else patience, 1),
    )
    for name, value, least in wanted:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ConfigError(f"{name} = {value!r}: expected a whole number, at least {least}")
        if int(value) < least:
            raise ConfigError(f"{name} = {value}: must be at least {least}")


def check_parts(model: object, options: object) -> None:
    """Raises unless a trainer was given a model and the settings of IMPALA."""
    if not isinstance(model, TorchActorCritic):
        raise unexpected("model", "a TorchActorCritic (TorchActorCritic.of(...))", model)
    if not isinstance(options, IMPALAConfig):
        raise unexpected("options", 'an IMPALAConfig (rlreg.make_config("impala"))', options)


def unexpected(name: str, wanted: str, given: object) -> ConfigError:
    """What to raise where an argument is of another type."""
    what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return ConfigError(f"{name}: expected {wanted}, got {what}")


def engine_of(
    given: RolloutEngine | RolloutEngineFactory, options: IMPALAConfig
) -> tuple[RolloutEngine, int | None]:
    """Returns the engine, and the largest lag where the component states one."""
    if isinstance(given, RolloutEngine):
        return given, None
    if not isinstance(given, RolloutEngineFactory):
        raise ConfigError(
            f"rollout_actors: expected a rollout engine or an engine component such as "
            f"{{type: process}}, got {type(given).__name__}"
        )
    spec = EngineSpec.of(
        given, unroll_length=options.n_rollout_steps, batch_size=options.actors_batch_size
    )
    engine: RolloutEngine = given.create(spec)
    max_lag: int | None = getattr(given, "max_lag", None)
    return engine, max_lag
