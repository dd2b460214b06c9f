"""The config core: learnables, components and the open unions between them.

A *kind* (:class:`EncoderFactory`, :class:`OptimizerFactory`, ...) is at once the base class of its
members and the annotation of a field that takes any of them (`rlreg.open_union` has the mechanism).
This file imports no torch and may be imported by every plugin's config module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from rlreg.errors import LearnerError, RegistrationError, did_you_mean, not_written
from rlreg.migrations import Migration
from rlreg.open_union import OpenUnion

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    DeviceLike = str | int | bool | tuple[str, int] | list[str] | None

RUN_WORDS = frozenset(
    {"device", "seed", "compile", "learnable", "dataset", "env", "train", "evaluation", "logging"}
    | {"engine", "checkpoint"}
)
"""Keys of a run file; a field of a learnable cannot have such a name."""

TAG = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


class ActionSpace(Enum):
    """What kind of actions a learnable deals with."""

    CONTINUOUS = 1
    DISCRETE = 2
    BOTH = 3


# --- components ---------------------------------------------------------------------------------


class ComponentConfig(OpenUnion):
    """A part of an algorithm, chosen by its tag: an encoder, an optimizer, a scaler, ..."""

    def create(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the component; each kind documents its own signature."""
        raise not_written(self.get_type(), self, "create")


class EncoderFactory(ComponentConfig):
    """Kind: the network from observations to features."""

    kind: ClassVar[str] = "encoder"

    def create(self, observation_shape: tuple[int, ...]) -> nn.Module:
        """Builds an encoder.

        Args:
            observation_shape: Shape of one observation: ``[O]`` or ``[C, H, W]``.

        Returns:
            A module from ``[B, *observation_shape]`` to ``[B, output_size]`` with an int attribute
            ``output_size``.
        """
        raise not_written(self.get_type(), self, "create")

    def create_with_action(self, observation_shape: tuple[int, ...], action_size: int) -> nn.Module:
        """Builds an encoder of observation and action.

        Returns:
            A module from ``([B, *observation_shape], [B, action_size])`` to ``[B, output_size]``.
        """
        raise LearnerError(f"encoder {self.type!r} does not take actions")


class OptimizerFactory(ComponentConfig):
    """Kind: how parameters follow gradients."""

    kind: ClassVar[str] = "optimizer"
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("lr", "learning_rate"), "the learnable, whose learning rates `rlreg show` lists"
    )

    def create(self, named_modules: Any, lr: float) -> Optimizer:
        """Builds an optimizer over the parameters of ``named_modules``.

        Args:
            named_modules: Pairs ``(name, module)``, as ``module.named_modules()`` gives; their
                order is the order of parameters in the checkpoint.
            lr: Learning rate, > 0.
        """
        raise not_written(self.get_type(), self, "create")


class LRSchedulerFactory(ComponentConfig):
    """Kind: how a learning rate changes over the updates."""

    kind: ClassVar[str] = "lr_scheduler"

    def create(self, optimizer: Optimizer, total_steps: int | None) -> Any:
        """Builds a schedule; ``total_steps`` is the number of updates of the whole run."""
        raise not_written(self.get_type(), self, "create")


class ObservationScaler(ComponentConfig):
    """Kind: preprocessing of observations (fit, transform, inverse, state_dict)."""

    kind: ClassVar[str] = "observation_scaler"


class ActionScaler(ComponentConfig):
    """Kind: preprocessing of actions (fit, transform, inverse, state_dict)."""

    kind: ClassVar[str] = "action_scaler"


class RewardScaler(ComponentConfig):
    """Kind: preprocessing of rewards (fit, transform, inverse, state_dict)."""

    kind: ClassVar[str] = "reward_scaler"


class RolloutEngineFactory(ComponentConfig):
    """Kind: where and how an online learnable collects its transitions."""

    kind: ClassVar[str] = "engine"

    def start_early(self) -> None:
        """Starts, without waiting, what a run will wait for later. Optional for the author.

        ``rlreg train`` calls it when the settings are known to be right, before torch is imported.
        """


class LoggerFactory(ComponentConfig):
    """Kind: where metrics go; ``create()`` gives start, metrics, checkpoint, end."""

    kind: ClassVar[str] = "logger"


KINDS: dict[str, type[OpenUnion]] = {
    kind.kind: kind
    for kind in (
        EncoderFactory,
        OptimizerFactory,
        LRSchedulerFactory,
        ObservationScaler,
        ActionScaler,
        RewardScaler,
        RolloutEngineFactory,
        LoggerFactory,
    )
}
"""Every component kind by its name."""


def _component_field(tag: str | None, default: Any, description: str) -> Any:
    if default is not None:
        return Field(default=default, description=description)
    if tag is None:
        return Field(default=None, description=description)
    return Field(default_factory=lambda: {"type": tag}, description=description)


def make_encoder_field(default: Any = None, description: str | None = None) -> Any:
    """Field of an encoder; without a default it is ``{type: default}``.

    Args:
        default: An :class:`EncoderFactory` or its mapping.
        description: One sentence, and the source of the default.
    """
    text = description or "Network from observations to features. Default: d3rlpy, [256, 256] ReLU."
    return _component_field("default", default, text)


def make_optimizer_field(default: Any = None, description: str | None = None) -> Any:
    """Field of an optimizer; without a default it is ``{type: adam}``."""
    text = description or "How parameters follow gradients. Default: d3rlpy, Adam."
    return _component_field("adam", default, text)


def make_lr_scheduler_field(default: Any = None, description: str | None = None) -> Any:
    """Field of a learning-rate schedule; annotate it ``LRSchedulerFactory | None``."""
    text = description or "How the learning rate changes; null keeps it. Default: d3rlpy, null."
    return _component_field(None, default, text)


def make_observation_scaler_field(default: Any = None, description: str | None = None) -> Any:
    """Field of an observation scaler; annotate it ``ObservationScaler | None``."""
    text = description or "Preprocessing of observations; null for none. Default: d3rlpy, null."
    return _component_field(None, default, text)


def make_action_scaler_field(default: Any = None, description: str | None = None) -> Any:
    """Field of an action scaler; annotate it ``ActionScaler | None``."""
    text = description or "Preprocessing of actions; null for none. Default: d3rlpy, null."
    return _component_field(None, default, text)


def make_reward_scaler_field(default: Any = None, description: str | None = None) -> Any:
    """Field of a reward scaler; annotate it ``RewardScaler | None``."""
    text = description or "Preprocessing of rewards; null for none. Default: d3rlpy, null."
    return _component_field(None, default, text)


# --- learnables ---------------------------------------------------------------------------------


class LearnableConfig(OpenUnion):
    """The contract of one algorithm: every setting that decides what it learns.

    A subclass states its tag, its regime and its fields::

        class TinyConfig(LearnableConfig):
            \"\"\"A tiny algorithm.\"\"\"

            regime: ClassVar[str] = "offline"
            type: Literal["tiny"] = "tiny"
            learning_rate: float = Field(3e-4, gt=0, le=1, description="Step size. Default: ours.")

            def create(self, device="auto"):
                from .learnable import Tiny

                return Tiny(self, device)

    Device, seeds, compile mode, paths and lengths belong to the run (:class:`rlreg.RunConfig`).
    """

    kind: ClassVar[str] = "learnable"
    regime: ClassVar[str] = ""
    """``offline`` (learns from a data set) or ``online`` (learns from an environment)."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that users look for here, and the path in a run file that has them."""

    field_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Which fields stand together in the reference, by title; the rest is grouped by its kind."""

    migrations: ClassVar[tuple[Migration, ...]] = ()
    """How files of older schema versions become this one's; see `rlreg.migrations`."""

    importers: ClassVar[Mapping[str, str]] = {}
    """Which libraries' models it reads: name to ``module:function``, called ``(path, device)``.

    The function runs nothing in the file, and returns the learnable, or its config where the file
    has no weights; it raises ``ConfigError`` for models of other algorithms.
    """

    schema_version: int = Field(
        default=1, ge=1, le=1_000_000, description="Version of this config's schema."
    )

    def create(self, device: DeviceLike = "auto") -> Any:
        """Builds the learnable on a device; no weights are made yet."""
        raise not_written(self.get_type(), self, "create")

    def start_early(self, engine: RolloutEngineFactory | None) -> None:
        """Starts, without waiting, what training will wait for later. Optional for the author.

        Args:
            engine: Of the run; ``None`` leaves the choice to the learnable.
        """
        if engine is not None:
            engine.start_early()


# --- presets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of settings that move together.

    Attributes:
        id: ``learnable/name``, e.g. ``iql/antmaze``.
        summary: One sentence.
        source: Where the values come from: paper and table, or "ours".
        settings: Dotted paths of the run file to values, e.g. ``{"learnable.expectile": 0.9}``.
    """

    id: str
    summary: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        learnable, _, name = self.id.partition("/")
        if not (TAG.match(learnable) and TAG.match(name)):
            raise RegistrationError(f"preset {self.id!r}: the id must look like 'iql/antmaze'")
        for path in self.settings:
            root = path.partition(".")[0]
            if root not in RUN_WORDS:
                hint = did_you_mean(root, RUN_WORDS) or f"did you mean 'learnable.{path}'?"
                raise RegistrationError(f"preset {self.id!r}: no such setting {path!r}; {hint}")

    @property
    def learnable(self) -> str:
        """The learnable this preset is for."""
        return self.id.partition("/")[0]
