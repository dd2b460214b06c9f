"""What ``create`` returns: things that train, predict, save and load.

An author subclasses ``OfflineLearnable`` or ``OnlineLearnable`` and writes three methods; the
rest (building, devices, scalers, checkpoints, evaluation, the training loop) is here and in
`rlreg.runtime.offline` and `rlreg.runtime.online`. Modules, optimizers and scalers are plain
attributes: the base finds them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rlreg.config import ActionSpace, LearnableConfig
from rlreg.device import DeviceSpec
from rlreg.errors import ConfigError, EnvironmentSpecError, RlregError
from rlreg.runtime.scalers import Scaler, bounds_scaler
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space, space_difference, to_numpy

if TYPE_CHECKING:
    import os

    from rlreg.config import DeviceLike
    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.evaluation import Evaluation
    from rlreg.runtime.export import Exported, Format
    from rlreg.runtime.policy_module import Kind

COMPILE_MODES = ("auto", "on", "off")


class NotBuiltError(RlregError):
    """The learnable has no networks yet: build it with spaces, a data set or an environment."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """What a learnable is built for.

    Attributes:
        observation_space: As the environment declares it.
        action_space: As the environment declares it.
        observation_plan: How observations become one array.
        action_plan: How actions become one array.
    """

    observation_space: Space
    action_space: Space
    observation_plan: FlatteningPlan
    action_plan: ActionPlan

    @classmethod
    def of(cls, observation_space: Space, action_space: Space) -> Spaces:
        """Makes the plans of two gymnasium spaces.

        Raises:
            EnvironmentSpecError: If one of them cannot be flattened.
        """
        plan, action_plan = FlatteningPlan.of(observation_space), ActionPlan.of(action_space)
        return cls(observation_space, action_space, plan, action_plan)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one flat observation: ``[O]`` or ``[C, H, W]``."""
        return self.observation_plan.shape

    @property
    def action_size(self) -> int:
        """Columns of a continuous action, or categories of a Discrete one."""
        if self.action_plan.is_discrete and not self.action_plan.shape:
            return int(getattr(self.action_space, "n", 0))
        return self.action_plan.size

    @property
    def is_discrete(self) -> bool:
        """Whether actions are categories."""
        return self.action_plan.is_discrete


class Learnable:
    """Base of everything that ``rlreg.create`` returns for our algorithms.

    Attributes:
        config: The settings; never changed.
        device: Where the networks are.
        device_report: Why this device, in one sentence.
        grad_step: Updates done so far.
        seed: Seed of initialisation, sampling and exploration.
        spaces: What it was built for; ``None`` before.
    """

    action_space_kind = ActionSpace.BOTH

    def __init__(self, config: LearnableConfig, device: DeviceLike = "auto") -> None:
        resolved = DeviceSpec.parse(device).resolve()
        self.config = config
        self.device = resolved.torch
        self.device_report = resolved.report
        self.grad_step = 0
        self.spaces: Spaces | None = None
        self.observation_scaler: Scaler | None = None
        self.action_scaler: Scaler | None = None
        self.reward_scaler: Scaler | None = None
        self.total_steps: int | None = None
        self._is_training = True
        self.prepare()

    def prepare(self, *, seed: int = 0, compile: str = "auto") -> None:
        """Sets what belongs to the run, before anything is built.

        Raises:
            ConfigError: If the learnable is built already or a value is not allowed.
        """
        if self.is_built:
            raise ConfigError("seed and compile are set before a learnable is built")
        if compile not in COMPILE_MODES:
            raise ConfigError(f"compile = {compile!r}: expected one of {', '.join(COMPILE_MODES)}")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise ConfigError(f"seed = {seed!r}: expected a whole number from 0 to 4294967295")
        self.seed = seed
        self.compile = compile
        streams = np.random.SeedSequence(seed).generate_state(3, np.uint64)
        self._initial_seed, sampling, noise = (int(word) >> 1 for word in streams)
        self.generator = torch.Generator().manual_seed(sampling)
        self._noise_state = torch.Generator().manual_seed(noise).get_state()

    # --- what an author writes ------------------------------------------------------------------

    def build_networks(self, spaces: Spaces) -> None:
        """Makes modules and optimizers as attributes. Written by the author.

        Runs with torch's generator seeded from ``seed``; modules are moved to the device
        afterwards.
        """
        raise NotImplementedError(f"{type(self).__name__} does not write build_networks")

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Chooses actions. Written by the author.

        Args:
            observations: Flat and scaled, ``[B, *O]``.
            deterministic: Whether to take the mode instead of a sample.

        Returns:
            Actions in the scaled space ``[B, A]`` (continuous, within [-1, 1]) or categories.
        """
        raise NotImplementedError(f"{type(self).__name__} does not write act")

    def action_value(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Values ``[B]`` of flat, scaled observations and actions. Optional for the author."""
        raise NotImplementedError(f"{self.config.get_type()!r} estimates no action values")

    def action_distribution(self, observations: Tensor) -> Mapping[str, Tensor]:
        """Returns what the policy draws actions from, for export. Optional for the author.

        Args:
            observations: Flat and scaled, ``[B, *O]``.

        Returns:
            ``mean`` and ``std`` ``[B, A]`` of scaled continuous actions, before any clipping; or
            ``logits`` ``[B, K]`` of categories, ``logits_0``, ``logits_1``, ... where an action has
            several.
        """
        raise NotImplementedError(f"{self.config.get_type()!r} states no distribution of actions")

    def extra_state(self) -> Mapping[str, Any]:
        """Returns what changes in training besides networks, scalers and optimizers.

        Optional for the author: tensors, arrays, numbers, strings, and mappings and lists of these.
        """
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`extra_state` gave. Optional for the author.

        Called last in every restore, so that what was derived from weights can be made anew.

        Raises:
            ValueError: If the state does not fit; everything restored so far is then undone.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no place for {', '.join(sorted(state))}")

    # --- building -------------------------------------------------------------------------------

    @property
    def is_built(self) -> bool:
        """Whether there are networks."""
        return getattr(self, "spaces", None) is not None

    def build(self, observation_space: Space, action_space: Space) -> None:
        """Makes the networks for two gymnasium spaces; does nothing if that is done already.

        Raises:
            EnvironmentSpecError: If the learnable cannot take these spaces, or is built for others.
        """
        if self.spaces is not None:
            self.check_spaces(observation_space, action_space)
            return
        spaces = self.make_spaces(observation_space, action_space)
        self._check_action_space(spaces)
        self._make_scalers(spaces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._initial_seed)
            self.build_networks(spaces)
        for module in self.modules().values():
            module.to(self.device)
        self.spaces = spaces

    def make_spaces(self, observation_space: Space, action_space: Space) -> Spaces:
        """Makes the plans of two spaces; overridden where a learnable takes more than the base."""
        return Spaces.of(observation_space, action_space)

    def build_with_dataset(self, dataset: TransitionDataset) -> None:
        """Builds for the spaces of a data set and fits the scalers on it."""
        self.build(dataset.observation_space, dataset.action_space)
        for scaler in self.scalers().values():
            if not scaler.is_fitted:
                scaler.fit(dataset)

    def build_with_env(self, env: Any) -> None:
        """Builds for the spaces of a gymnasium environment, single or vector."""
        observation_space = getattr(env, "single_observation_space", env.observation_space)
        self.build(observation_space, getattr(env, "single_action_space", env.action_space))

    def check_spaces(self, observation_space: Space, action_space: Space) -> None:
        """Raises unless the learnable is built for these spaces.

        Raises:
            EnvironmentSpecError: With the first difference.
        """
        spaces = self._built()
        difference = space_difference(
            spaces.observation_space, observation_space
        ) or space_difference(spaces.action_space, action_space, "action")
        if difference:
            raise EnvironmentSpecError(f"the learnable is built for other spaces: {difference}")

    def require_built(self) -> None:
        """Raises unless there are networks.

        Raises:
            NotBuiltError: If nothing is built yet; the message says how to.
        """
        self._built()

    def _built(self) -> Spaces:
        if self.spaces is None:
            raise NotBuiltError(
                f"{self.config.get_type()!r} is not built yet; call fit, build_with_dataset, "
                "build_with_env or build first, or rlreg.load a checkpoint"
            )
        return self.spaces

    def _check_action_space(self, spaces: Spaces) -> None:
        kind = self.get_action_type()
        wanted = ActionSpace.DISCRETE if spaces.is_discrete else ActionSpace.CONTINUOUS
        if kind not in (ActionSpace.BOTH, wanted):
            raise EnvironmentSpecError(
                f"{self.config.get_type()!r} takes {kind.name.lower()} actions, "
                f"not {spaces.action_space}"
            )

    def _make_scalers(self, spaces: Spaces) -> None:
        for name in ("observation_scaler", "action_scaler", "reward_scaler"):
            chosen = getattr(self.config, name, None)
            setattr(self, name, None if chosen is None else chosen.create())
        if self.observation_scaler is not None:
            self.observation_scaler.set_shape(spaces.observation_shape)
        if self.action_scaler is None:
            self.action_scaler = bounds_scaler(spaces.action_space)
        elif spaces.is_discrete:
            raise ConfigError(f"action_scaler: {spaces.action_space} is not continuous")
        else:
            self.action_scaler.fit_space(spaces.action_space)
        for scaler in self.scalers().values():
            scaler.to(self.device)

    def get_action_type(self) -> ActionSpace:
        """Returns which actions this learnable deals with."""
        return self.action_space_kind

    # --- parts ----------------------------------------------------------------------------------

    def modules(self) -> dict[str, nn.Module]:
        """Returns the networks by attribute name, without the scalers."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, nn.Module) and not isinstance(value, Scaler)
        }

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Returns the optimizers by attribute name."""
        held = vars(self).items()
        return {name: value for name, value in held if isinstance(value, torch.optim.Optimizer)}

    def schedulers(self) -> dict[str, torch.optim.lr_scheduler.LRScheduler]:
        """Returns the schedules that are attributes; those inside an optimizer are its own."""
        kind = torch.optim.lr_scheduler.LRScheduler
        return {name: value for name, value in vars(self).items() if isinstance(value, kind)}

    def scalers(self) -> dict[str, Scaler]:
        """Returns the scalers that are in use, by attribute name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Scaler)}

    def set_total_steps(self, total_steps: int) -> None:
        """Tells learning-rate schedules how many updates the whole run has."""
        self.total_steps = total_steps
        for optimizer in self.optimizers().values():
            announce = getattr(optimizer, "set_total_steps", None)
            if announce is not None:
                announce(total_steps)

    def train_mode(self, is_training: bool) -> None:
        """Switches dropout and batch normalisation of all networks."""
        if is_training != self._is_training:
            for module in self.modules().values():
                module.train(is_training)
            self._is_training = is_training

    @contextlib.contextmanager
    def private_rng(self) -> Iterator[None]:
        """Lends torch's global generator this learnable's own stream (dropout draws from it)."""
        outer = torch.get_rng_state()
        torch.set_rng_state(self._noise_state)
        try:
            yield
        finally:
            self._noise_state = torch.get_rng_state()
            torch.set_rng_state(outer)

    def rng_state(self) -> dict[str, Tensor]:
        """Returns where the streams of sampling and noise stand."""
        return {"sampling": self.generator.get_state(), "noise": self._noise_state.clone()}

    def load_rng_state(self, state: Mapping[str, Tensor]) -> None:
        """Continues the streams from what :meth:`rng_state` gave."""
        self.generator.set_state(state["sampling"])
        # A copy in memory of its own: torch refuses states that are views of a larger buffer.
        self._noise_state = state["noise"].clone()

    def seed_noise(self, seed: int) -> None:
        """Starts the stream that sampled actions draw from at a seed."""
        self._noise_state = torch.Generator().manual_seed(seed).get_state()

    # --- predicting -----------------------------------------------------------------------------

    def begin_episodes(self, n: int) -> None:
        """Told before whole episodes are played: the next ``n`` observations start ``n`` of them.

        Optional for an author whose policy has a memory; until :meth:`end_episodes`, predictions of
        ``n`` rows are then steps of these episodes.
        """

    def end_episodes(self) -> None:
        """Told when they are over: predictions stand alone again."""

    def predict(self, observations: Any) -> Any:
        """Returns the best actions.

        Args:
            observations: One observation or a batch, as the environment gives them (numpy or
            torch).

        Returns:
            One action or a batch, in the environment's units; torch if torch was given.
        """
        return self._choose(observations, deterministic=True)

    def sample_action(self, observations: Any) -> Any:
        """Returns actions drawn from the policy; otherwise like :meth:`predict`."""
        return self._choose(observations, deterministic=False)

    def _choose(self, observations: Any, *, deterministic: bool) -> Any:
        spaces = self._built()
        flat, is_single = self._flat(observations)
        self.train_mode(False)
        with torch.no_grad(), self.private_rng():
            actions = self.act(flat, deterministic)
            if self.action_scaler is not None:
                actions = self.action_scaler.inverse(actions)
        if _is_torch(observations):
            shaped = actions.reshape(len(actions), *(spaces.action_space.shape or ()))
            return shaped[0] if is_single else shaped
        array = spaces.action_plan.unflatten(actions.cpu().numpy())
        return array[0] if is_single else array

    def predict_value(self, observations: Any, actions: Any) -> Any:
        """Returns the estimated return of taking ``actions`` in ``observations``.

        Returns:
            ``[B]``, or a scalar for one observation, in scaled reward units.
        """
        spaces = self._built()
        flat, is_single = self._flat(observations)
        given = to_numpy(actions)[None] if is_single else to_numpy(actions)
        rows = torch.from_numpy(spaces.action_plan.flatten(given)).to(self.device)
        if len(rows) != len(flat):
            raise ConfigError(f"{len(flat)} observations, but {len(rows)} actions")
        self.train_mode(False)
        with torch.no_grad():
            if self.action_scaler is not None:
                rows = self.action_scaler.transform(rows)
            values = self.action_value(flat, rows)
        result = values if _is_torch(observations) else values.cpu().numpy()
        return result[0] if is_single else result

    def _flat(self, observations: Any) -> tuple[Tensor, bool]:
        array, is_single = self._built().observation_plan.as_finite_batch(observations)
        flat = torch.from_numpy(array).to(self.device)
        return (self.scale_observations(flat), is_single)

    def scale_observations(self, flat: Tensor) -> Tensor:
        """Applies the observation scaler to a flat batch ``[B, *O]``.

        Raises:
            ConfigError: If the scaler has not seen data yet.
        """
        if self.observation_scaler is None:
            return flat
        return self.observation_scaler.transform(flat)

    # --- evaluating, saving ---------------------------------------------------------------------

    def evaluate(self, env: Any, n_episodes: int = 10, seed: int = 10_000) -> Evaluation:
        """Runs seeded episodes with the best actions; see `rlreg.runtime.evaluation`."""
        from rlreg.runtime.evaluation import evaluate

        return evaluate(self.predict, env, n_episodes=n_episodes, seed=seed)

    def export(
        self,
        path: str | os.PathLike[str],
        format: Format = "onnx",
        kind: Kind = "action",
    ) -> Exported:
        """Writes the policy for deployment, checked; see `rlreg.runtime.export`."""
        from rlreg.runtime.export import export

        return export(self, path, format=format, kind=kind)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that changes in training, as nested dicts of tensors and numbers."""
        from rlreg.runtime.state import learnable_state

        return learnable_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave.

        Raises:
            CheckpointError: If the state belongs to other networks; nothing is changed then.
        """
        from rlreg.runtime.state import restore_learnable

        restore_learnable(self, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``.rlreg`` checkpoint: config, spaces, weights and the state of training."""
        from rlreg.runtime.checkpoint import save

        save(self, path)

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Writes the weights alone, as safetensors."""
        from rlreg.runtime.checkpoint import save_weights

        save_weights(self, path)

    def load_model(self, path: str | os.PathLike[str]) -> None:
        """Reads weights from a file of :meth:`save_model` or :meth:`save`.

        Raises:
            CheckpointError: If the file is damaged or belongs to other networks.
        """
        from rlreg.runtime.checkpoint import load_weights

        load_weights(self, path)


def _is_torch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_torch(part) for part in value.values())
    if isinstance(value, tuple):
        return any(_is_torch(part) for part in value)
    return isinstance(value, Tensor)
