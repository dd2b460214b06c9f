"""A learnable's own stream of noise: what dropout and sampled actions draw from.

Layers draw from torch's global generators, one for the CPU and one for each GPU. While a learnable
computes, these are lent its own streams, so that what else is drawn in the process changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

NOISE, DEVICE_NOISE = "noise", "device_noise"
"""Names of the streams in a state; the second one is in those of a GPU alone."""


def device_generator(device: torch.device) -> torch.Generator | None:
    """Returns the global generator of a GPU; ``None`` where everything draws from the CPU's."""
    if device.type != "cuda":
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no generators before
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


class PrivateNoise:
    """Where the streams stand while they are not lent.

    Args:
        device: That of the networks.
        seed: Of the streams.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Starts them anew."""
        self._state = torch.Generator().manual_seed(seed).get_state()
        self._device_state = self._seeded_on_device(seed)

    def _seeded_on_device(self, seed: int) -> Tensor | None:
        generator = device_generator(self._device)
        if generator is None:
            return None
        return torch.Generator(device=generator.device).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Lets torch's global generators draw from them in the block."""
        generator = device_generator(self._device)
        outer = torch.get_rng_state()
        device_outer = None if generator is None else generator.get_state()
        torch.set_rng_state(self._state)
        if generator is not None and self._device_state is not None:
            generator.set_state(self._device_state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outer)
            if generator is not None and device_outer is not None:
                self._device_state = generator.get_state()
                generator.set_state(device_outer)

    def states(self) -> dict[str, Tensor]:
        """Returns where they stand."""
        states = {NOISE: self._state.clone()}
        if self._device_state is not None:
            states[DEVICE_NOISE] = self._device_state.clone()
        return states

    def load(self, states: Mapping[str, Tensor]) -> None:
        """Continues from what :meth:`states` gave, on a device of this or of the other kind."""
        # Copies in memory of their own: torch refuses states that are views of a larger buffer.
        self._state = states[NOISE].clone()
        if self._device_state is None:
            return
        if DEVICE_NOISE in states:
            self._device_state = states[DEVICE_NOISE].clone()
            return
        source = torch.Generator()  # saved on a CPU: the GPU's stream follows from the one there is
        source.set_state(self._state)
        seed = int(torch.randint(2**62, (), generator=source))
        self._device_state = self._seeded_on_device(seed)
