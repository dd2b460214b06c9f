"""What an actor elsewhere is sent once: policy, environments and the root of its streams."""

from __future__ import annotations

import cloudpickle
import gymnasium
import numpy as np

from rlreg.errors import EnvironmentSpecError
from rlreg.runtime import environments
from rlreg_impala.rollouts import EnvFactory, PolicySpec


def pack(policy_spec: PolicySpec, env_factory: EnvFactory, seeds: np.random.SeedSequence) -> bytes:
    """Pickles with cloudpickle, which takes lambdas, closures and classes of the main program.

    An id goes with its registration, which the other process has not made.

    Raises:
        EnvironmentSpecError: If something in it belongs to this process, such as a lock.
    """
    if isinstance(env_factory, str) and env_factory in gymnasium.registry:
        env_factory = environments.env_factory(env_factory)
    try:
        payload: bytes = cloudpickle.dumps((policy_spec, env_factory, seeds))
    except Exception as cause:
        raise EnvironmentSpecError(
            f"the environment factory cannot be sent to another process: {cause}. Make the "
            "environment inside the factory, or use the sequential engine"
        ) from cause
    return payload


def unpack(payload: bytes) -> tuple[PolicySpec, EnvFactory, np.random.SeedSequence]:
    """Undoes ``pack``.

    Raises:
        EnvironmentSpecError: If a module that it needs is not there.
    """
    try:
        opened: tuple[PolicySpec, EnvFactory, np.random.SeedSequence] = cloudpickle.loads(payload)
    except Exception as cause:
        raise EnvironmentSpecError(
            f"the environment factory cannot be opened in the actor's process: {cause!r}. What it "
            "imports must be installed there"
        ) from cause
    return opened
