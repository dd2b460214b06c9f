"""The one class that Ray runs: an actor, and a way to ask how it is. Imports no Ray."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg_impala.acting import Actor
from rlreg_impala.buffers import FragmentBuffers, FragmentLayout
from rlreg_impala.progress import new_progress
from rlreg_impala.rollouts import EngineSpec, EngineState
from rlreg_impala.streams import Streams

from .failures import Failure, describe
from .payload import unpack


class RayWorker:
    """Lives in a Ray actor.

    What goes wrong is returned, not raised: Ray would wrap it in exceptions of its own.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._progress = new_progress()
        self._actor: Actor | None = None
        self._slot: FragmentBuffers | None = None
        self._loaded = -1

    def prepare(
        self, life: int, spec: EngineSpec, layout: FragmentLayout, payload: bytes
    ) -> Failure | None:
        """Makes policy and environments."""
        try:
            import torch

            torch.set_num_threads(1)
            policy_spec, env_factory, seeds = unpack(payload)
            streams = Streams(seeds, self._index, life)
            self._slot = FragmentBuffers.slot(layout.allocate(1), 0)
            self._actor = Actor(spec, policy_spec, env_factory, streams, progress=self._progress)
        except BaseException as error:  # noqa: BLE001 - told to the learner, whatever it was
            return describe(self._index, error, traceback.format_exc())
        return None

    def fill(
        self, weights: NDArray[np.float32], version: int, sequence: int
    ) -> dict[str, NDArray[Any]] | Failure:
        """Makes a fragment; its arrays carry nothing that is not part of it."""
        assert self._actor is not None
        assert self._slot is not None
        try:
            if version != self._loaded:
                self._actor.load_flat(weights)
                self._loaded = version
            self._actor.fill(self._slot, version, sequence)
        except BaseException as error:  # noqa: BLE001 - told to the learner, whatever it was
            return describe(self._index, error, traceback.format_exc())
        # Ray copies when the call returns; the slot is not written before the next one.
        slot = self._slot
        return {"header": slot.header, "seconds": slot.seconds, **slot.trimmed()}

    def state(self) -> EngineState:
        """Returns the actor's state."""
        assert self._actor is not None
        return self._actor.state()

    def load_state(self, state: EngineState) -> Failure | None:
        """Takes an actor's state."""
        assert self._actor is not None
        try:
            self._actor.load_state(state)
        except BaseException as error:  # noqa: BLE001 - told to the learner, whatever it was
            return describe(self._index, error, traceback.format_exc())
        return None

    def progress(self) -> list[int]:
        """Returns the row of progress; answered by another thread while ``fill`` runs."""
        return list(self._progress)
