"""The acting half: what an engine sends to its actors and what they call there.

An engine knows nothing of networks. It pickles a :class:`PolicySpec` once (with cloudpickle),
calls ``make()`` inside each actor, hands flat weights to ``load_flat`` and calls ``act``. Weights
travel as one float32 vector of parameters and buffers (batch normalisation, statistics).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlreg.errors import NonFiniteError, ShapeError
from rlreg.runtime.spaces import FlatteningPlan, Space

from .actions import ActionCodec, Floats, mode, sample
from .networks import PolicyNetwork
from .numpy_mirror import mirror

__all__ = ["ActingPolicy", "ActionCodec", "FlatWeights", "PolicySpec"]


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Everything an actor needs to act; picklable with cloudpickle.

    Attributes:
        network: A copy of the policy network on the CPU, with whatever weights it had.
        observation_space: Of one environment.
        action_space: Of one environment.
    """

    network: PolicyNetwork
    observation_space: Space
    action_space: Space

    @classmethod
    def of(
        cls, network: PolicyNetwork, observation_space: Space, action_space: Space
    ) -> PolicySpec:
        """Copies the network of a learner, on whatever device it is."""
        return cls(copy.deepcopy(network).cpu(), observation_space, action_space)

    @property
    def observation_plan(self) -> FlatteningPlan:
        """How observations become the flat ones that ``act`` takes."""
        return FlatteningPlan.of(self.observation_space)

    @property
    def codec(self) -> ActionCodec:
        """How actions are stored."""
        return ActionCodec.of(self.action_space)

    @property
    def state_size(self) -> int:
        """``S``: columns of the memory's state; 0 without memory."""
        return self.network.state_size

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        return FlatWeights(self.network).size

    def make(self) -> ActingPolicy:
        """Builds the policy of an actor, with weights of its own."""
        # Images arrive as bytes and are scaled by the encoder; numpy would not know.
        is_image = self.observation_plan.is_image
        return ActingPolicy(copy.deepcopy(self.network), self.codec, use_numpy=not is_image)


class FlatWeights:
    """Parameters and buffers of a network as one float32 vector, in the order of its state dict."""

    def __init__(self, network: nn.Module) -> None:
        # state_dict() gives detached tensors that share the memory of the network.
        self._tensors: list[Tensor] = list(network.state_dict().values())
        # Of one type: joined with halves, a large integer would be one.
        is_plain = len({tensor.dtype for tensor in self._tensors}) == 1 and all(
            tensor.is_contiguous() for tensor in self._tensors
        )
        self._views = [tensor.view(-1) for tensor in self._tensors] if is_plain else None
        self.size = sum(tensor.numel() for tensor in self._tensors)

    def pack(self) -> Floats:
        """Copies the weights into a new vector ``[num_weights]`` on the CPU."""
        if not self._tensors:
            return np.empty(0, dtype=np.float32)
        parts = self._views or [tensor.reshape(-1).float() for tensor in self._tensors]
        vector: Floats = torch.cat(parts).float().cpu().numpy()
        return vector

    def unpack(self, vector: NDArray[np.float32]) -> None:
        """Copies a vector ``[num_weights]`` into the network."""
        if vector.shape != (self.size,):
            raise ShapeError.of("weights", f"[{self.size}]", vector.shape)
        source, start = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float32)), 0
        for tensor in self._tensors:
            stop = start + tensor.numel()
            tensor.copy_(source[start:stop].view(tensor.shape))
            start = stop


class ActingPolicy:
    """A policy inside an actor: no gradients, numpy in and numpy out.

    A plain network of fully connected layers is run by numpy, which has a third of torch's
    overhead on a few rows; everything else by torch in inference mode. The number of threads is the
    process's and left alone: an actor process should call ``torch.set_num_threads(1)``.
    """

    def __init__(
        self, network: PolicyNetwork, codec: ActionCodec, *, use_numpy: bool = True
    ) -> None:
        self._network = network.eval()
        for parameter in network.parameters():
            parameter.requires_grad = False
        self.codec = codec
        self._weights = FlatWeights(network)
        self._mirror: Callable[[Floats], Floats] | None = mirror(network) if use_numpy else None

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        return self._weights.size

    @property
    def state_size(self) -> int:
        """``S``: columns of the memory's state; 0 without memory."""
        return self._network.state_size

    @property
    def uses_numpy(self) -> bool:
        """Whether numpy runs the network."""
        return self._mirror is not None

    def load_flat(self, weights: NDArray[np.float32]) -> None:
        """Takes over flat weights ``[num_weights]``; they are copied."""
        self._weights.unpack(weights)

    def initial_state(self, n: int) -> Floats:
        """Returns the memory at the start of ``n`` episodes, ``[n, S]`` zeros."""
        return np.zeros((n, self.state_size), dtype=np.float32)

    def parameters(self, observations: NDArray[Any], state: Floats) -> tuple[Floats, Floats]:
        """Runs the network.

        Args:
            observations: Flat, ``[N, *O]``.
            state: ``[N, S]``; zero the rows whose observation starts an episode beforehand.

        Returns:
            Parameters of the action distribution ``[N, P]`` and the next state ``[N, S]``.
        """
        if self._mirror is not None:
            return self._mirror(observations), state
        with torch.inference_mode():
            params, following = self._network.step(
                torch.from_numpy(observations), torch.from_numpy(state)
            )
        return params.numpy(), following.numpy()

    def act(
        self, observations: NDArray[Any], state: Floats, rng: np.random.Generator
    ) -> tuple[Floats, Floats, Floats]:
        """Draws actions.

        Args:
            observations: Flat, ``[N, *O]``.
            state: ``[N, S]``; zero the rows whose observation starts an episode beforehand.
            rng: Where randomness comes from.

        Returns:
            Stored actions ``[N, W]`` (see :class:`ActionCodec`), log-probabilities ``[N]`` and the
            next state ``[N, S]``.

        Raises:
            NonFiniteError: If the network gave NaN or inf: a bad observation, or diverged weights.
        """
        params, following = self.parameters(observations, state)
        if not np.isfinite(params.sum()):
            raise _not_finite(observations)
        actions, log_probs = sample(self.codec, params, rng)
        return actions, log_probs, following

    def best(self, observations: NDArray[Any], state: Floats) -> tuple[Floats, Floats]:
        """Returns the most probable stored actions ``[N, W]`` and the next state ``[N, S]``."""
        params, following = self.parameters(observations, state)
        return mode(self.codec, params), following


def _not_finite(observations: NDArray[Any]) -> NonFiniteError:
    flat = observations.reshape(len(observations), -1)
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if bad.size:
        return NonFiniteError(f"observations of environments {bad.tolist()} hold NaN or inf")
    return NonFiniteError("the policy network gave NaN or inf: its weights have diverged")
