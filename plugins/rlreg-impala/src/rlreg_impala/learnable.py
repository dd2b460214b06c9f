"""What ``rlreg.create("impala")`` gives: IMPALA as an :class:`rlreg.OnlineLearnable`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlreg.config import RolloutEngineFactory
from rlreg.errors import ConfigError
from rlreg.runtime.learnable import Spaces
from rlreg.runtime.online import BenchmarkRow, Metrics, OnlineLearnable
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan, Space

from . import heads
from .actions import ActionCodec
from .config import IMPALAConfig, engine_or_default
from .exporting import named_outputs
from .learner import Learner, make_learner
from .metrics import with_aliases
from .model import TorchActorCritic
from .player import Player
from .trainer import MultiStepIMPALA

if TYPE_CHECKING:
    from rlreg.config import DeviceLike


class IMPALA(OnlineLearnable):
    """IMPALA: actors collect, the learner corrects by V-trace.

    Attributes:
        model: Policy and critic.
        optimizer: Over both.
        learner: Does the updates; holds the schedules.
        session: The trainer while training goes on, and the last one afterwards.
    """

    live_metrics: ClassVar[Mapping[str, str]] = {
        **OnlineLearnable.live_metrics,
        "policy lag": "queue/policy_lag",
        "fragments waiting": "queue/waiting",
        "actors replaced": "actors/restarts",
        "policy loss": "loss/policy",
        "value loss": "loss/value",
        "entropy": "loss/entropy",
    }
    config: IMPALAConfig
    model: TorchActorCritic
    optimizer: torch.optim.Optimizer
    learner: Learner

    def __init__(self, config: IMPALAConfig, device: DeviceLike = "auto") -> None:
        self.session: MultiStepIMPALA | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._memory: Tensor | None = None
        super().__init__(config, device)

    # --- building -------------------------------------------------------------------------------

    def make_spaces(self, observation_space: Space, action_space: Space) -> Spaces:
        """Makes the plans; IMPALA also takes structured actions."""
        plan = CodecPlan.of(action_space)
        return Spaces(observation_space, action_space, FlatteningPlan.of(observation_space), plan)

    def build_networks(self, spaces: Spaces) -> None:
        """Makes model, optimizer and learner."""
        self.model = TorchActorCritic.of(
            self.config, spaces.observation_space, spaces.action_space
        ).to(self.device)
        self.learner = make_learner(self.model, self.config, self.private_rng)
        self.optimizer = self.learner.optimizer

    # --- training -------------------------------------------------------------------------------

    def plan_run(self, unit: str, amount: int) -> None:
        """Tells the schedules how long the run is."""
        self.learner.progress.plan(unit, amount)

    def train_iterations(self, env: Callable[[], Any]) -> Iterator[Metrics]:
        """Trains for ever, one update each ``next()``."""
        session = MultiStepIMPALA(
            self.model,
            engine_or_default(self.engine),
            None,
            self.config,
            env_factory=env,
            learner=self.learner,
            seed=self.seed,
            on_wait=self.still_waiting,
        )
        if self._resumed is not None:
            session.load_counters(self._resumed)
        self.session = session
        updates = session.updates()
        try:
            for metrics in updates:
                self.grad_step += 1
                self.env_steps += int(metrics["update/transitions"])
                yield metrics
        finally:
            updates.close()  # type: ignore[attr-defined]  # it is a generator
            # Its model and optimizer are ours; the counters are all that must outlive it.
            self._resumed = session.counters()

    def benchmark(
        self, env: Any, engine: RolloutEngineFactory | None, seconds: float
    ) -> list[BenchmarkRow]:
        """Measures environments, policy, learner and all together; nothing of ``self`` changes."""
        from .benchmark import measure_all

        def make(observation_space: Any, action_space: Any) -> Learner:
            model = TorchActorCritic.of(self.config, observation_space, action_space)
            return make_learner(model.to(self.device), self.config)

        return measure_all(env, engine_or_default(engine), make, self.config, seconds)

    def epoch_metrics(self, means: Metrics) -> Metrics:
        """Checks the accounting; adds episode returns, queues, actors, and Maze's names."""
        self.learner.progress.epochs = self.epoch
        assert self.session is not None
        return with_aliases(means | self.session.epoch_metrics())

    @property
    def num_restarts(self) -> int:
        """How often actors were replaced in the last session."""
        return 0 if self.session is None else self.session.num_restarts

    # --- acting ---------------------------------------------------------------------------------

    def player(self, *, deterministic: bool = True, seed: int = 0) -> Player:
        """Returns the policy with a memory of its own, to play whole episodes."""
        self.require_built()
        return Player(self.model, deterministic=deterministic, seed=seed)

    def begin_episodes(self, n: int) -> None:
        """Makes predictions remember: the next ``n`` observations are first of ``n`` episodes."""
        self.require_built()
        self._memory = torch.zeros(n, self.model.state_size, device=self.device)

    def end_episodes(self) -> None:
        """Makes predictions forget again: each observation counts as the first of its episode."""
        self._memory = None

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Stored actions ``[B, W]`` for flat observations ``[B, *O]``."""
        size = len(observations)
        state = self._memory
        if state is None or len(state) != size:
            state = torch.zeros(size, self.model.state_size, device=self.device)
        params, following = self.model.policy.step(observations, state)
        if self._memory is not None and len(self._memory) == size:
            self._memory = following
        if deterministic:
            return heads.mode(self.model.codec, params)
        return heads.sample(self.model.codec, params)

    def exported_modules(self) -> Mapping[str, nn.Module]:
        """Gives what the exported policy consists of: no critic."""
        return {"policy": self.model.policy}

    def exported_outputs(
        self, observations: Tensor, kind: Literal["action", "distribution"]
    ) -> Mapping[str, Tensor]:
        """Gives the outputs of the exported policy for flat observations ``[B, *O]``.

        Raises:
            NotImplementedError: If the policy has a memory: the file would forget it at each call.
        """
        if self.model.state_size:
            raise NotImplementedError(
                f"'impala' with core: {self.config.core} cannot be exported: a file keeps no "
                "memory from one observation to the next; train with core: none, or play whole "
                "episodes with rlreg.load(...).player()"
            )
        state = observations.new_zeros((observations.shape[0], 0))
        params, _ = self.model.policy.step(observations, state)
        return named_outputs(self.model.codec, params, kind)

    def predict(self, observations: Any) -> Any:
        """Returns the most probable actions; see :meth:`rlreg.Learnable.predict`.

        With a memory, each observation counts as the first of its episode: use :meth:`player` to
        play whole ones. Structured actions come as one dict or tuple, or as a list of them.
        """
        return self._actions(observations, deterministic=True)

    def sample_action(self, observations: Any) -> Any:
        """Returns actions drawn from the policy; otherwise like :meth:`predict`."""
        return self._actions(observations, deterministic=False)

    def _actions(self, observations: Any, *, deterministic: bool) -> Any:
        self.require_built()
        array, is_single = self.model.plan.as_finite_batch(observations)
        self.model.eval()
        with torch.no_grad(), self.private_rng():
            stored = self.act(torch.from_numpy(array).to(self.device), deterministic).cpu().numpy()
        codec = self.model.codec
        if is_single:
            return codec.to_single_env(stored[0])
        actions = codec.to_env(stored)
        if not isinstance(actions, np.ndarray):
            return [codec.to_single_env(row) for row in stored]
        return torch.from_numpy(actions) if isinstance(observations, Tensor) else actions

    def predict_value(self, observations: Any, actions: Any = None) -> Any:
        """Returns the critic's values ``[B]``: expected discounted returns of the policy.

        Args:
            observations: One or many, as the environment gives them.
            actions: Not taken: IMPALA estimates values of observations.

        Raises:
            ConfigError: If actions are given.
        """
        if actions is not None:
            raise ConfigError("IMPALA estimates values of observations: leave out the actions")
        self.require_built()
        array, is_single = self.model.plan.as_finite_batch(observations)
        self.model.eval()
        with torch.no_grad():
            flat = torch.from_numpy(array).to(self.device)
            state = torch.zeros(len(flat), self.model.state_size, device=self.device)
            values = self.model.step(flat, state)[1].cpu()
        result = values if isinstance(observations, Tensor) else values.numpy()
        return result[0] if is_single else result

    # --- state ----------------------------------------------------------------------------------

    def extra_state(self) -> Mapping[str, Any]:
        """Returns counters, accounting, episode window and where the actors are."""
        counters = self._resumed
        if self.session is not None and self.session.is_started:
            counters = self.session.counters()
        return {
            "env_steps": self.env_steps,
            "epoch": self.epoch,
            "epoch_updates": self.epoch_updates,
            "progress": self.learner.progress.state(),
            "trainer": None if counters is None else dict(counters),
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`extra_state` gave."""
        self.env_steps, self.epoch = int(state["env_steps"]), int(state["epoch"])
        self.epoch_updates = int(state.get("epoch_updates", 0))
        self.learner.progress.load(state["progress"])
        self._resumed = state["trainer"]


class CodecPlan(ActionPlan):
    """The action plan of any space that a codec lays out, structured ones too.

    It counts as discrete for the base, whose continuous actions are all in [-1, 1].
    """

    @classmethod
    def of(cls, space: Space) -> CodecPlan:
        """Makes the plan of an action space; see :class:`ActionCodec`."""
        return cls(space, (ActionCodec.of(space).width,), True)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of stored actions."""
        return np.dtype(np.float32)

    @property
    def takes_scaler(self) -> bool:
        """The codec has a unit of its own, also for dimensions without bounds."""
        return False

    @property
    def size(self) -> int:
        """Number of columns of one action."""
        return math.prod(self.shape)

    def unflatten(self, actions: NDArray[Any]) -> Any:
        """Gives stored actions ``[B, W]`` the form of the space."""
        return ActionCodec.of(self.space).to_env(actions)
