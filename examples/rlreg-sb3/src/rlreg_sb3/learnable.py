"""PPO and SAC themselves: the half that imports torch and Stable-Baselines3.

Networks and optimizers are attributes, and what else ``get_parameters()`` has is extra state, so a
``.rlreg`` file holds all of a model. Stable-Baselines3's own zips hold pickles: they are written
for others, by ``save_sb3``, and never read.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

import rlreg
from rlreg.errors import NonFiniteError

from .environment import FlatEnv, flat_spaces, is_channels_last, is_image

if TYPE_CHECKING:
    from rlreg.runtime.learnable import Spaces

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
BUFFER_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_SEEDS = 2**31


class SB3Learnable(rlreg.OnlineLearnable):
    """What PPO and SAC have in common: a model of Stable-Baselines3, in rlreg's clothes."""

    model: Any
    policy: Any
    _streams: tuple[Any, Any]

    def make_model(self, policy: str, policy_kwargs: dict[str, Any]) -> Any:
        """Returns a model without an environment. Written by each algorithm."""
        raise NotImplementedError(f"{type(self).__name__} does not write make_model")

    def build_networks(self, spaces: Spaces) -> None:
        """Builds the model for flat spaces; the base class finds policy and optimizers."""
        config: Any = self.config
        policy_kwargs = {
            "net_arch": list(config.hidden_units),
            "activation_fn": ACTIVATIONS[config.activation],
        }
        self.model = self.make_model(
            "CnnPolicy" if is_image(spaces) else "MlpPolicy", policy_kwargs
        )
        # As Stable-Baselines3 itself does on load, where there is no environment either.
        self.model.observation_space, self.model.action_space = flat_spaces(spaces)
        self.model.n_envs = config.n_envs
        # SAC asks an environment for its action space, and for nothing else.
        self.model.env = SimpleNamespace(action_space=self.model.action_space)
        self.model._setup_model()
        self.model.env = None
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self.policy = self.model.policy
        plan = spaces.action_plan
        self._first_category = plan.category_starts[0] if plan.is_discrete else None
        # numpy's and Python's global streams, which Stable-Baselines3 draws from, as its own.
        seed = int(torch.randint(_SEEDS, ()))
        self._streams = (np.random.RandomState(seed).get_state(), random.Random(seed).getstate())

    # --- acting ---------------------------------------------------------------------------------

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns actions [B, A] in [-1, 1], or categories [B]."""
        actions: Tensor = self.policy._predict(self._seen(observations), deterministic)
        if self._first_category is not None:
            return actions + self._first_category
        return actions.clamp(-1.0, 1.0)

    def _seen(self, observations: Tensor) -> Tensor:
        """Returns observations [B, ...] as the model takes them."""
        assert self.spaces is not None
        if is_channels_last(self.spaces):
            observations = observations.permute(0, 3, 1, 2)
        return observations.float()

    def _to_env(self, action: Any) -> Any:
        """Maps an action of the model to the units of the environment."""
        assert self.spaces is not None
        plan = self.spaces.action_plan
        if self._first_category is not None:
            return plan.unflatten(np.asarray([action]) + self._first_category)[0]
        rows = torch.from_numpy(np.asarray(action, np.float32)[None]).to(self.device)
        if self.action_scaler is not None:
            rows = self.action_scaler.inverse(rows)
        return plan.unflatten(rows.cpu().numpy())[0]

    # --- training -------------------------------------------------------------------------------

    def train_iterations(self, env: Callable[[], Any]) -> Iterator[dict[str, float]]:
        """Trains for ever; ``env`` makes the environment."""
        assert self.spaces is not None
        config: Any = self.config
        flat: list[FlatEnv] = []
        try:
            for _ in range(config.n_envs):
                flat.append(FlatEnv(env(), self.spaces, self._to_env))
            vector = DummyVecEnv([lambda each=each: each for each in flat])  # type: ignore[misc]
            vector.seed(int(torch.randint(_SEEDS, (), generator=self.generator)))
            self.model.action_space.seed(int(torch.randint(_SEEDS, (), generator=self.generator)))
            self.model.num_timesteps = self.env_steps
            self.model.set_env(vector)
            self.begin()
            while True:
                self.train_mode(True)
                with self.private_rng(), self._own_streams():
                    self.model.learn(config.n_steps, log_interval=None, reset_num_timesteps=False)
                self.env_steps = self.model.num_timesteps
                self.grad_step += 1
                yield self._metrics(flat)
        finally:
            self.model.env = None
            for each in flat:
                each.close()

    def begin(self) -> None:
        """Told before the first transition of a training. Optional for each algorithm."""

    def _metrics(self, envs: Sequence[FlatEnv]) -> dict[str, float]:
        values = self.model.logger.name_to_value
        found = {
            f"loss/{name.rpartition('/')[2]}": float(value)
            for name, value in values.items()
            if name.startswith("train/") and isinstance(value, int | float | np.number)
        }
        values.clear()
        bad = {name: value for name, value in found.items() if not math.isfinite(value)}
        if bad:
            raise NonFiniteError(f"Stable-Baselines3 reports {bad} at transition {self.env_steps}")
        returns = [value for env in envs for value in env.returns]
        if returns:
            found["episode/return_mean"] = float(np.mean(returns))
        return found or {"loss/warming_up": 0.0}

    @contextlib.contextmanager
    def _own_streams(self) -> Iterator[None]:
        outer = (np.random.get_state(), random.getstate())  # noqa: NPY002
        np.random.set_state(self._streams[0])  # noqa: NPY002
        random.setstate(self._streams[1])
        try:
            yield
        finally:
            self._streams = (np.random.get_state(), random.getstate())  # noqa: NPY002
            np.random.set_state(outer[0])  # noqa: NPY002
            random.setstate(outer[1])

    # --- saving ---------------------------------------------------------------------------------

    def extra_state(self) -> Mapping[str, Any]:
        """Returns counters and streams."""
        numpy_state, python_state = self._streams
        return {
            "env_steps": self.env_steps,
            "epoch": self.epoch,
            "num_updates": self.model._n_updates,
            "numpy": [*numpy_state[:1], np.asarray(numpy_state[1]), *numpy_state[2:]],
            "python": [python_state[0], np.asarray(python_state[1]), python_state[2]],
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what extra_state gave."""
        self.env_steps, self.epoch = int(state["env_steps"]), int(state["epoch"])
        self.model._n_updates = int(state["num_updates"])
        name, key, *rest = state["numpy"]
        version, numbers, gauss = state["python"]
        self._streams = (
            (name, np.asarray(key, np.uint32), *rest),
            (version, tuple(int(number) for number in numbers), gauss),
        )

    def save_sb3(self, path: str | os.PathLike[str]) -> None:
        """Writes a zip for Stable-Baselines3's own ``load``; it acts on flat, scaled spaces."""
        self.require_built()
        self.model.save(path)


class PPOLearnable(SB3Learnable):
    """PPO: each update is one rollout and its minibatches."""

    def make_model(self, policy: str, policy_kwargs: dict[str, Any]) -> PPO:
        """Returns a model without an environment."""
        config: Any = self.config
        return PPO(
            policy,
            None,  # type: ignore[arg-type]  # as in its own load()
            learning_rate=config.learning_rate,
            n_steps=config.n_steps,
            batch_size=config.batch_size,
            n_epochs=config.n_epochs,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_range=config.clip_range,
            normalize_advantage=config.normalize_advantage,
            ent_coef=config.ent_coef,
            vf_coef=config.vf_coef,
            max_grad_norm=config.max_grad_norm,
            policy_kwargs=policy_kwargs,
            device=self.device,
            _init_setup_model=False,
        )

    def build_networks(self, spaces: Spaces) -> None:
        """Builds the model and shows its optimizer to the base class."""
        super().build_networks(spaces)
        self.optimizer = self.policy.optimizer


class SACLearnable(SB3Learnable):
    """SAC: each update is ``n_steps`` transitions and the minibatches that belong to them."""

    action_space_kind = rlreg.ActionSpace.CONTINUOUS
    untrained = {  # noqa: RUF012 - the base class says that it is one for all
        "policy.critic_target": "follows the critic; Stable-Baselines3 does not freeze it"
    }

    def make_model(self, policy: str, policy_kwargs: dict[str, Any]) -> SAC:
        """Returns a model without an environment."""
        config: Any = self.config
        return SAC(
            policy,
            None,  # type: ignore[arg-type]  # as in its own load()
            learning_rate=config.learning_rate,
            buffer_size=config.buffer_size,
            learning_starts=config.learning_starts,
            batch_size=config.batch_size,
            tau=config.tau,
            gamma=config.gamma,
            train_freq=config.train_freq,
            gradient_steps=config.gradient_steps,
            ent_coef="auto" if config.ent_coef is None else config.ent_coef,
            target_update_interval=config.target_update_interval,
            policy_kwargs=policy_kwargs,
            device=self.device,
            _init_setup_model=False,
        )

    def build_networks(self, spaces: Spaces) -> None:
        """Builds the model and shows its optimizers to the base class."""
        super().build_networks(spaces)
        self.actor_optimizer = self.model.actor.optimizer
        self.critic_optimizer = self.model.critic.optimizer
        if self.model.ent_coef_optimizer is not None:
            self._adopt_entropy_weight()

    def _adopt_entropy_weight(self) -> None:
        """Puts the learnt weight of the entropy, a tensor of its own, into a module."""
        weight = nn.Parameter(self.model.log_ent_coef.detach())
        self.model.log_ent_coef = weight
        self.entropy_weight = nn.ParameterList([weight])
        self.ent_coef_optimizer = self.model.ent_coef_optimizer
        self.ent_coef_optimizer.param_groups[0]["params"] = [weight]

    def action_value(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the smaller of the critics' values [B]."""
        values: Tensor = torch.cat(self.model.critic(self._seen(observations), actions), dim=1)
        return values.min(dim=1).values

    def begin(self) -> None:
        """Fills a batch first where the buffer is empty: not every checkpoint holds it."""
        config: Any = self.config
        if self.model.replay_buffer.size() == 0 and self.env_steps:
            self.model.learning_starts = self.env_steps + config.batch_size

    def extra_state(self) -> Mapping[str, Any]:
        """Returns counters, streams and the transitions that are kept."""
        config: Any = self.config
        if not config.save_replay_buffer:
            return super().extra_state()
        buffer = self.model.replay_buffer
        rows = {name: getattr(buffer, name)[: buffer.size()] for name in BUFFER_ARRAYS}
        held = {"rows": rows, "pos": buffer.pos, "full": buffer.full}
        return {**super().extra_state(), "replay_buffer": held}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what extra_state gave."""
        super().load_extra_state(state)
        held, buffer = state.get("replay_buffer"), self.model.replay_buffer
        if held is not None:
            for name in BUFFER_ARRAYS:
                rows = held["rows"][name]
                getattr(buffer, name)[: len(rows)] = rows
            buffer.pos, buffer.full = int(held["pos"]), bool(held["full"])
