"""IMPALA's own components: data only; the bodies of ``create`` reach the heavy modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rlreg.config import (
    ComponentConfig,
    EncoderFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    RolloutEngineFactory,
    make_lr_scheduler_field,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .rollouts import EngineSpec, RolloutEngine

Width = Annotated[int, Field(ge=1, le=65_536)]
Channels = Literal["auto", "first", "last"]

_CHANNEL_AXIS: Any = Field(
    "auto",
    description="Which axis of an image holds the channels; auto takes the shorter of first and "
    "last. Default: ours.",
)


# --- encoders -----------------------------------------------------------------------------------


class IMPALAResNetEncoder(EncoderFactory):
    """The deep residual network of the IMPALA paper (figure 3, right), without its LSTM."""

    type: Literal["impala_resnet"] = "impala_resnet"
    filters: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = Field(
        (16, 32, 32),
        description="Channels of each section; a section halves height and width and has two "
        "residual blocks. Default: IMPALA paper, figure 3.",
    )
    feature_size: Width = Field(
        256, description="Width of the last layer. Default: IMPALA paper, figure 3."
    )
    channel_axis: Channels = _CHANNEL_AXIS

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder; see :class:`rlreg.EncoderFactory`."""
        from .encoders import IMPALAResNet

        return IMPALAResNet(self, observation_shape)


class MinAtarEncoder(EncoderFactory):
    """One convolution and one linear layer, for symbolic grids such as MinAtar's 10x10."""

    type: Literal["minatar_conv"] = "minatar_conv"
    filters: Width = Field(
        16, description="Channels of the convolution. Default: MinAtar's own agents, 16."
    )
    kernel_size: int = Field(
        3, ge=1, le=15, description="Side of the kernel. Default: MinAtar's own agents, 3."
    )
    feature_size: Width = Field(
        128, description="Width of the last layer. Default: MinAtar's own agents, 128."
    )
    channel_axis: Channels = _CHANNEL_AXIS

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds the encoder; see :class:`rlreg.EncoderFactory`."""
        from .encoders import MinAtarConv

        return MinAtarConv(self, observation_shape)


# --- optimizers ---------------------------------------------------------------------------------


class RMSpropTF(OptimizerFactory):
    """RMSprop as TensorFlow has it: eps inside the root and the mean square starts at one.

    With the paper's eps of 0.01 the place matters: inside, no step is larger than 10 times the rate
    times the gradient; torch's divides by at least 0.01 and takes steps ten times as large.
    """

    type: Literal["rmsprop_tf"] = "rmsprop_tf"
    alpha: float = Field(
        0.99, ge=0, lt=1, description="Smoothing of the mean square. Default: IMPALA paper, 0.99."
    )
    eps: float = Field(
        0.01, gt=0, le=10, description="Added inside the root. Default: IMPALA paper, 0.01."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum. Default: IMPALA paper, 0.")
    clip_grad_norm: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="Largest norm of all gradients together; null for none. Default: d3rlpy, null.",
    )
    lr_scheduler_factory: LRSchedulerFactory | None = make_lr_scheduler_field()

    def create(self, named_modules: Any, lr: float) -> Optimizer:
        """Builds the optimizer; see :class:`rlreg.OptimizerFactory`."""
        from .optimizers import make_rmsprop_tf

        return make_rmsprop_tf(self, named_modules, lr)


# --- rollout engines ----------------------------------------------------------------------------

_NUM_ENVS: Any = Field(
    8,
    ge=1,
    le=65_536,
    description="Environments of one actor, stepped together. Default: ours, measured on "
    "CartPole-v1.",
)
_NUM_ACTORS: Any = Field(
    1,
    ge=1,
    le=4096,
    description="Actors. More of them only help while the environments are the bottleneck. "
    "Default: ours, measured on two cores.",
)
_MAX_LAG: Any = Field(
    None,
    description="Largest age of a fragment's policy in updates of the learner; older fragments are "
    "discarded and counted. Null keeps all: the queue bounds the age then. Default: ours.",
)
_QUEUE: Any = Field(
    1.0,
    ge=0.01,
    le=1000,
    description="Batches that may wait for the learner. The queue holds the batch size times this, "
    "rounded up, so it is never empty and never unbounded. Default: Maze, 1.",
)
_MAX_RESTARTS: Any = Field(
    3,
    ge=0,
    le=1_000_000,
    description="How often each actor is restarted after it dies. Default: ours.",
)
_ACTOR_TIMEOUT: Any = Field(
    300.0,
    gt=0,
    le=1e6,
    description="Seconds without a step after which an actor counts as hung; an environment that "
    "needs longer for a step needs more. Default: ours.",
)
_DETERMINISTIC: Any = Field(
    False,
    description="Take the fragments in the order of the actors and hand the slots back after the "
    "update, so that a seed fixes every bit. Slower. Default: ours.",
)
Lag = Annotated[int, Field(ge=0, le=1_000_000)]


class SequentialEngineConfig(RolloutEngineFactory):
    """Collects in the learner's own process; deterministic, and the easiest to debug."""

    type: Literal["sequential"] = "sequential"
    num_actors: int = _NUM_ACTORS
    num_envs: int = _NUM_ENVS
    max_lag: Lag | None = _MAX_LAG

    def create(self, spec: EngineSpec) -> RolloutEngine:
        """Builds the engine; nothing runs before its ``start``."""
        from .engines.sequential import SequentialEngine

        return SequentialEngine(spec)


class ConcurrentEngineConfig(RolloutEngineFactory):
    """What the engines have in common whose actors go on while the learner works."""

    num_actors: int = _NUM_ACTORS
    num_envs: int = _NUM_ENVS
    queue_out_of_sync_factor: float = _QUEUE
    max_lag: Lag | None = _MAX_LAG
    max_restarts: int = _MAX_RESTARTS
    actor_timeout: float = _ACTOR_TIMEOUT
    deterministic: bool = _DETERMINISTIC


class ProcessEngineConfig(ConcurrentEngineConfig):
    """Collects in processes on this machine, which write into shared memory."""

    type: Literal["process"] = "process"
    start_method: Literal["forkserver", "spawn"] = Field(
        "forkserver",
        description="How processes start; fork is not offered, it hangs after torch has run. "
        "Default: Maze, forkserver.",
    )

    def start_early(self) -> None:
        """Starts the server of the actors' processes, which imports torch in the meantime."""
        from .fork_server import start_early

        start_early(self.start_method)

    def create(self, spec: EngineSpec) -> RolloutEngine:
        """Builds the engine; no process runs before its ``start``."""
        from .engines.process import ProcessEngine

        return ProcessEngine(spec)


class RayEngineConfig(ConcurrentEngineConfig):
    """Collects in actors of a Ray cluster, for runs that outgrow one machine."""

    type: Literal["ray"] = "ray"
    address: str | None = Field(
        None,
        max_length=500,
        description="Address of the cluster, e.g. `auto`; null starts Ray on this machine. "
        "Default: Ray.",
    )
    num_cpus_per_actor: float = Field(
        1.0, ge=0, le=1024, description="CPUs that Ray reserves for an actor. Default: Ray, 1."
    )

    def create(self, spec: EngineSpec) -> RolloutEngine:
        """Builds the engine; Ray is imported here and not started before ``start``.

        Raises:
            MissingExtraError: If Ray is not installed; the message gives the command.
        """
        from .engines.ray import RayEngine

        return RayEngine(spec)


COMPONENTS: tuple[type[ComponentConfig], ...] = (
    IMPALAResNetEncoder,
    MinAtarEncoder,
    RMSpropTF,
    SequentialEngineConfig,
    ProcessEngineConfig,
    RayEngineConfig,
)
