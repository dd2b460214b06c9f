"""A policy as one torch module, from what the environment gives to what it takes.

It does in torch what `rlreg.runtime.spaces` does in numpy, so that torch can trace it for
`rlreg.runtime.export`. Nothing in it may depend on the size of the batch or on values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rlreg.runtime.learnable import Learnable
from rlreg.runtime.spaces import Leaf, walk_leaves

Kind: TypeAlias = Literal["action", "distribution"]
Arrays: TypeAlias = dict[str, NDArray[Any]]


@runtime_checkable
class NamesOutputs(Protocol):
    """A learnable whose actions are laid out in its own way, structured ones for example."""

    def exported_modules(self) -> Mapping[str, nn.Module]:
        """Gives the modules that the outputs depend on, scalers left out, by name."""
        ...

    def exported_outputs(self, observations: Tensor, kind: Kind) -> Mapping[str, Tensor]:
        """Gives outputs by name, in the environment's units, for flat observations ``[B, *O]``.

        Actions are named ``action``, or ``action.arm`` and ``action[0]`` where the space is
        structured; other outputs as in ``Learnable.action_distribution``, with the same endings.

        Raises:
            NotImplementedError: If this policy cannot be exported; the message says why.
        """
        ...


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an exported policy.

    Attributes:
        name: ``observation``, ``observation.goal``, ``action``, ``mean``, ...
        dtype: ``float32``, ``int64``, ``uint8``; outputs also have other types of the space.
        shape: Of one item; the batch comes first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class PolicyModule(nn.Module):
    """From the environment's observations to the environment's actions, in torch alone."""

    def __init__(self, learnable: Learnable, kind: Kind) -> None:
        super().__init__()
        assert learnable.spaces is not None
        self.learnable, self.kind, self.spaces = learnable, kind, learnable.spaces
        self.leaves = self.spaces.observation_plan.leaves
        self.ports = tuple(Port(leaf.name, _dtype(leaf), _shape(leaf)) for leaf in self.leaves)
        self.names_outputs = isinstance(learnable, NamesOutputs)
        modules: Mapping[str, nn.Module] = learnable.modules()
        if isinstance(learnable, NamesOutputs):
            modules = learnable.exported_modules()
        # Registered, so that the exporter finds the parameters under their names.
        self.parts = nn.ModuleDict({**modules, **learnable.scalers()})

    def forward(self, *parts: Tensor) -> dict[str, Tensor]:
        """Maps one tensor for each leaf of the observation to the outputs by name."""
        observations = self.learnable.scale_observations(self._flatten(parts))
        if self.names_outputs:
            return dict(
                cast("NamesOutputs", self.learnable).exported_outputs(observations, self.kind)
            )
        if self.kind == "distribution":
            return self._distribution(observations)
        actions = self.learnable.act(observations, True)
        if self.learnable.action_scaler is not None:
            actions = self.learnable.action_scaler.inverse(actions)
        return {"action": self._shaped(actions)}

    def _distribution(self, observations: Tensor) -> dict[str, Tensor]:
        found = dict(self.learnable.action_distribution(observations))
        scaler = self.learnable.action_scaler
        for name, value in found.items():
            if scaler is not None and name == "mean":
                found[name] = scaler.inverse(value)
            elif scaler is not None and name == "std":
                found[name] = scaler.inverse_distance(value)
            if name in ("mean", "std"):
                found[name] = self._shaped(found[name])
        return found

    def _shaped(self, actions: Tensor) -> Tensor:
        return actions.reshape(actions.shape[0], *(self.spaces.action_space.shape or ()))

    def _flatten(self, parts: Sequence[Tensor]) -> Tensor:
        plan = self.spaces.observation_plan
        columns = [_encoded(leaf, part) for leaf, part in zip(self.leaves, parts, strict=True)]
        if len(columns) == 1:
            return columns[0].reshape(parts[0].shape[0], *plan.shape)
        return torch.cat([column.float().flatten(start_dim=1) for column in columns], dim=1)


def _encoded(leaf: Leaf, values: Tensor) -> Tensor:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return functional.one_hot(values - int(space.start), int(space.n)).float()
    if isinstance(space, spaces.MultiDiscrete):
        rows = values.flatten(start_dim=1)
        counts, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        hot = [
            functional.one_hot(rows[:, index] - start, count)
            for index, (start, count) in enumerate(zip(starts, counts, strict=True))
        ]
        return torch.cat(hot, dim=1).float()
    return values


def _dtype(leaf: Leaf) -> str:
    if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
        return "int64"
    is_bytes = isinstance(leaf.space, spaces.Box) and leaf.space.dtype == np.uint8
    return "uint8" if is_bytes else "float32"


def _shape(leaf: Leaf) -> tuple[int, ...]:
    return tuple(int(side) for side in leaf.space.shape or ())


def structured(policy: PolicyModule, inputs: Arrays) -> Any:
    """Puts named inputs back into the structure of the observation space."""

    def build(space: spaces.Space[Any], keys: tuple[str | int, ...]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: build(part, (*keys, key)) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(build(part, (*keys, i)) for i, part in enumerate(space.spaces))
        return inputs[Leaf(keys, space, 0, 0).name]

    return build(policy.spaces.observation_space, ())


def named_actions(policy: PolicyModule, actions: Any) -> Arrays:
    """Gives the actions of a batch the names of outputs; structured ones come as a list of them."""
    space = policy.spaces.action_space
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {"action": actions}
    return {
        "action" + _suffix(keys): np.stack([_at(action, keys) for action in actions])
        for keys, _ in walk_leaves(space, ())
    }


def spans(policy: PolicyModule, port: Port) -> NDArray[np.float64]:
    """Returns how far the numbers of an output reach, at least 1: what rounding is relative to."""
    role = port.name.replace("[", ".").split(".")[0]
    found = np.ones(port.shape)
    for keys, space in walk_leaves(policy.spaces.action_space, ()):
        is_named = role in ("action", "mean", "std") and port.name == role + _suffix(keys)
        if is_named and isinstance(space, spaces.Box):
            wide = space.high.astype(np.float64) - space.low
            found = np.maximum(found, np.where(np.isfinite(wide), wide, 1.0))
    return found


def _suffix(keys: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def _at(value: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def draw(policy: PolicyModule, size: int, seed: int) -> Arrays:
    """Draws a batch of observations for each input; unbounded components are normal."""
    found: Arrays = {}
    for leaf, port in zip(policy.leaves, policy.ports, strict=True):
        space = copy.deepcopy(leaf.space)  # the learnable's own keeps its stream
        space.seed(seed)
        rows = [np.asarray(space.sample()) for _ in range(size)]
        found[port.name] = np.stack(rows).astype(port.dtype)
    return found


def tensors(arrays: Arrays) -> Mapping[str, Tensor]:
    """Views arrays as tensors."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
