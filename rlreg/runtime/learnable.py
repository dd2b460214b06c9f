"""What ``create`` returns: things that train, predict, save and load.

An author subclasses ``OfflineLearnable`` or ``OnlineLearnable`` and writes three methods; the
rest (building, devices, scalers, checkpoints, evaluation, the training loop) is here and in
`rlreg.runtime.offline` and `rlreg.runtime.online`. Modules, optimizers and scalers are plain
attributes: the base finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlreg.config import ActionSpace, LearnableConfig
from rlreg.device import DeviceSpec
from rlreg.errors import ConfigError, EnvironmentSpecError, not_written
from rlreg.runtime.predicting import choose_actions, estimate_values
from rlreg.runtime.private_noise import PrivateNoise
from rlreg.runtime.scalers import Scaler, make_scalers
from rlreg.runtime.space_plans import NotBuiltError as NotBuiltError
from rlreg.runtime.space_plans import Spaces as Spaces
from rlreg.runtime.spaces import Space, space_difference

if TYPE_CHECKING:
    import os

    from rlreg.config import DeviceLike
    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.evaluation import Evaluation
    from rlreg.runtime.export import Exported, Format
    from rlreg.runtime.policy_module import Kind

COMPILE_MODES = ("auto", "on", "off")


class Learnable:
    """Base of everything that ``rlreg.create`` returns for our algorithms.

    Attributes:
        config: The settings; never changed.
        device: Where the networks are.
        device_report: Why this device, in one sentence.
        grad_step: Updates done so far.
        seed: Seed of initialisation, sampling and exploration.
        spaces: What it was built for; ``None`` before.
        action_space_kind: Which actions it deals with: ``CONTINUOUS``, ``DISCRETE`` or ``BOTH``.
        untrained: Networks, or parts (``"policy.embedding"``), that require gradients and are in no
            optimizer on purpose, each with the reason. The conformance kit reports others.
    """

    action_space_kind = ActionSpace.BOTH
    untrained: ClassVar[Mapping[str, str]] = {}

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
        is_whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if not is_whole or not 0 <= seed < 2**32:
            raise ConfigError(f"seed = {seed!r}: expected a whole number from 0 to 4294967295")
        self.seed = int(seed)
        self.compile = compile
        streams = np.random.SeedSequence(self.seed).generate_state(3, np.uint64)
        self._initial_seed, sampling, noise = (int(word) >> 1 for word in streams)
        self.generator = torch.Generator().manual_seed(sampling)
        self._noise = PrivateNoise(self.device, noise)

    # --- what an author writes ------------------------------------------------------------------

    def build_networks(self, spaces: Spaces) -> None:
        """Makes modules and optimizers as attributes. Written by the author.

        Runs with torch's generator seeded from ``seed``; modules are moved to the device
        afterwards.
        """
        raise not_written(self.config.get_type(), self, "build_networks")

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Chooses actions. Written by the author.

        Args:
            observations: Flat and scaled, ``[B, *O]``.
            deterministic: Whether to take the mode instead of a sample.

        Returns:
            Scaled actions ``[B, A]``, the best ones within [-1, 1]; or categories ``[B]``.
        """
        raise not_written(self.config.get_type(), self, "act")

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
        for name, scaler in make_scalers(self.config, spaces).items():
            setattr(self, name, None if scaler is None else scaler.to(self.device))
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
        kind = torch.optim.Optimizer
        return {name: value for name, value in vars(self).items() if isinstance(value, kind)}

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

    def private_rng(self) -> AbstractContextManager[None]:
        """Lends torch's global generators this learnable's own streams, for dropout and samples."""
        return self._noise.lend()

    def rng_state(self) -> dict[str, Tensor]:
        """Returns where the streams of sampling and noise stand."""
        return {"sampling": self.generator.get_state(), **self._noise.states()}

    def load_rng_state(self, state: Mapping[str, Tensor]) -> None:
        """Continues the streams from what :meth:`rng_state` gave."""
        self.generator.set_state(state["sampling"])
        self._noise.load(state)

    def seed_noise(self, seed: int) -> None:
        """Starts the streams that sampled actions draw from at a seed."""
        self._noise.seed(seed)

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
        return choose_actions(self, observations, deterministic=True)

    def sample_action(self, observations: Any) -> Any:
        """Returns actions drawn from the policy; otherwise like :meth:`predict`."""
        return choose_actions(self, observations, deterministic=False)

    def predict_value(self, observations: Any, actions: Any) -> Any:
        """Returns the estimated return of taking ``actions`` in ``observations``.

        Returns:
            ``[B]``, or a scalar for one observation, in scaled reward units.

        Raises:
            LearnerError: If ``action_value`` gives another shape than ``[B]``.
        """
        return estimate_values(self, observations, actions)

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
