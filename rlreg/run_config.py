"""The run file: what is trained, on what, for how long, and where it is written.

Everything that is not part of the algorithm's identity lives here: device, seed, compile mode,
lengths, evaluation, engine, checkpoints. Numbers whose right value depends on the regime are null
by default and settled by `rlreg.runtime.train`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from rlreg.config import LearnableConfig, LoggerFactory, RolloutEngineFactory
from rlreg.device import DEVICE_PATTERN
from rlreg.strictness import StrictModel

Json = str | int | float | bool | None
Count = Annotated[int, Field(ge=1, le=10**12)]
DeviceName = Annotated[str, Field(pattern=DEVICE_PATTERN)]
DeviceIndex = Annotated[int, Field(ge=0, le=1023)]
LARGEST_SEED = 2**32 - 1
"""What numpy and gymnasium take."""


def _require_finite(value: Any, path: str = "") -> Any:
    """Refuses NaN and infinity anywhere inside: no JSON, and so no hash and no schema, has them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path.lstrip('.')} = {value}: expected a finite number")
    if isinstance(value, dict):
        for key, part in value.items():
            _require_finite(part, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            _require_finite(part, f"{path}[{index}]")
    return value


Arguments = Annotated[dict[str, Any], AfterValidator(_require_finite)]


def _form(value: Any) -> str:
    """Names the written form of a value that may be a string, a number, a list or a mapping."""
    if isinstance(value, str):
        return "<string>"
    if isinstance(value, int) and not isinstance(value, bool):
        return "<index>"
    if isinstance(value, list | tuple):
        return "<list>"
    return "<mapping>" if isinstance(value, Mapping | BaseModel) else "<other>"


def _as_written(value: Any) -> Any:
    return value.model_dump() if isinstance(value, StrictModel) else value


class WrapperSettings(StrictModel):
    """A wrapper around an environment."""

    id: str = Field(min_length=1, max_length=500, description="`module:Class` of the wrapper.")
    kwargs: Arguments = Field(default={}, description="Keyword arguments of the wrapper.")


class EnvironmentSettings(StrictModel):
    """An environment with arguments, wrappers or a registration call."""

    id: str = Field(
        min_length=1, max_length=500, description="Id for `gymnasium.make`, or `module:id`."
    )
    kwargs: Arguments = Field(default={}, description="Keyword arguments of `gymnasium.make`.")
    wrappers: tuple[WrapperSettings, ...] = Field(
        default=(), max_length=64, description="Wrappers, applied in this order."
    )
    register_with: str | None = Field(
        default=None,
        alias="register",
        max_length=500,
        description="`module:function` called first, for packages that need a registration call.",
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Reads an instance as it was written: pydantic revalidates it by its attributes' names."""
        schema = super().__get_pydantic_core_schema__(source, handler)
        return core_schema.no_info_before_validator_function(_as_written, schema)


Environment = Annotated[
    Annotated[Annotated[str, Field(min_length=1, max_length=500)], Tag("<string>")]
    | Annotated[EnvironmentSettings, Tag("<mapping>")],
    Discriminator(_form),
]


class DatasetSettings(StrictModel):
    """A data set, and what is done about its oddities when it is loaded."""

    id: str = Field(min_length=1, max_length=4000, description="Minari id, `rlreg/...` id or path.")
    allow_non_finite: bool = Field(
        default=False, description="Let NaN, infinite numbers and numbers beyond 1e18 in."
    )
    clip_actions: bool = Field(
        default=False, description="Clip continuous actions to the bounds of their space."
    )
    cut_after_success: bool = Field(
        default=False, description="End each episode with its first success, as truncated."
    )
    split_at_breaks: bool = Field(
        default=False,
        description="End an episode of a D4RL file where its next observations do not continue.",
    )

    def __str__(self) -> str:
        return self.id


DatasetSource = Annotated[
    Annotated[Annotated[str, Field(min_length=1, max_length=4000)], Tag("<string>")]
    | Annotated[DatasetSettings, Tag("<mapping>")],
    Discriminator(_form),
]

DeviceChoice = Annotated[
    Annotated[DeviceName, Tag("<string>")] | Annotated[DeviceIndex, Tag("<index>")],
    Discriminator(_form),
]

DeviceSetting = Annotated[
    Annotated[DeviceName, Tag("<string>")]
    | Annotated[DeviceIndex, Tag("<index>")]
    | Annotated[
        Annotated[tuple[DeviceChoice, ...], Field(min_length=1, max_length=16)], Tag("<list>")
    ],
    Discriminator(_form),
]


class TrainSettings(StrictModel):
    """How long to train."""

    n_steps: Count | None = Field(
        default=None,
        description="Updates (offline) or transitions (online); null takes 10,000 updates or "
        "100,000 transitions.",
    )
    n_steps_per_epoch: Count = Field(
        default=1000, description="Updates in an epoch of an offline run."
    )
    n_epochs: Count | None = Field(
        default=None, description="Epochs of an online run, with `epoch_length`; not with n_steps."
    )
    epoch_length: Count | None = Field(
        default=None, description="Updates in an epoch of an online run; null takes 25."
    )
    patience: Count | None = Field(
        default=None,
        description="Stop after this many evaluations without improvement; null never stops early.",
    )


class EvaluationSettings(StrictModel):
    """How a policy is judged."""

    env: Environment | None = Field(
        default="auto",
        description="Environment to evaluate in; `auto` takes that of the data set or of training, "
        "null does not evaluate.",
    )
    n_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=20, description="Seeded episodes of each evaluation."
    )
    every: Count | None = Field(
        default=None,
        description="Evaluate each time this many steps have passed; null only at the end "
        "(offline) or at start and end (online).",
    )
    at_start: bool | None = Field(
        default=None, description="Evaluate before training; null: online yes, offline no."
    )
    deterministic: bool = Field(
        default=True, description="Act with the policy's mode instead of a sample."
    )
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = Field(
        default=10_000, description="Seed of the first evaluation episode."
    )
    baselines: tuple[Literal["random", "behaviour", "bc", "bc10"], ...] = Field(
        default=("random", "behaviour"),
        max_length=4,
        description="What the result is compared with at the end: random actions, the policies "
        "that made the data, and cloning of all or of the best tenth of its episodes, trained for "
        "as many updates as the run.",
    )
    evaluators: tuple[
        Literal[
            "td_error",
            "advantage_sum",
            "average_value",
            "initial_value",
            "soft_opc",
            "action_difference",
        ],
        ...,
    ] = Field(
        default=(),
        max_length=6,
        description="Figures of an offline learnable on its data set, at each evaluation.",
    )


class CheckpointSettings(StrictModel):
    """When a run is saved."""

    every_epochs: Count = Field(default=1, description="Save after this many epochs.")
    keep: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=3, description="How many checkpoints stay in `checkpoints/`."
    )


def _default_loggers() -> Any:
    return [{"type": "jsonl"}]


class RunConfig(StrictModel):
    """A run: a learnable, its data or environment, and how it is trained.

    The file form of every run; ``rlreg.train`` takes one and ``run.yaml`` in a run folder is one.
    """

    learnable: LearnableConfig = Field(description="The algorithm and its settings.")
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Name of the run's folder; null takes the learnable's name.",
    )
    dataset: DatasetSource | None = Field(
        default=None,
        description="Minari id, `rlreg/...` id or path, or a mapping of its id and of how it is "
        "loaded; null takes rlreg/pendulum/mixed-v0.",
    )
    env: Environment | None = Field(
        default=None, description="Environment to train in, for an online learnable."
    )
    device: DeviceSetting = Field(
        default="auto", description="auto, cpu, cuda, cuda:1, an index, or a list of fallbacks."
    )
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = Field(
        default=0, description="Seed of everything random in the run."
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto", description="Compile the update; auto where the run is long enough to pay."
    )
    train: TrainSettings = Field(default=TrainSettings(), description="How long to train.")
    evaluation: EvaluationSettings = Field(
        default=EvaluationSettings(), description="How the policy is judged."
    )
    logging: tuple[LoggerFactory, ...] = Field(
        default_factory=_default_loggers, max_length=16, description="Where metrics go."
    )
    engine: RolloutEngineFactory | None = Field(
        default=None,
        description="How an online learnable collects transitions; null lets it choose.",
    )
    checkpoint: CheckpointSettings = Field(
        default=CheckpointSettings(), description="When the run is saved."
    )
