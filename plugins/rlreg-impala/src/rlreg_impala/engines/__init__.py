"""The engines. Only the one that a run uses is imported: looking at one never needs Ray."""

from __future__ import annotations

from typing import Any

from rlreg_impala.rollouts import EngineSpec, RolloutEngine


def make_engine(config: Any, *, unroll_length: int, batch_size: int) -> RolloutEngine:
    """Builds the engine that a registered component describes; nothing runs before ``start``.

    Args:
        config: A member of the component kind ``engine``, ours or anyone's.
        unroll_length: Steps T of a fragment.
        batch_size: Fragments in a batch of the learner.

    Raises:
        ConfigError: If the sizes do not fit together.
        MissingExtraError: If the engine needs something that is not installed.
    """
    spec = EngineSpec.of(config, unroll_length=unroll_length, batch_size=batch_size)
    engine: RolloutEngine = config.create(spec)
    return engine
