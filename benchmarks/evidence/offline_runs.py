"""An offline run of rlreg's with its curve: IQL, or cloning beside it. For the job programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import rlreg
from rlreg.open_union import validate
from rlreg.runtime.baselines import CLONED_SHARES, BestEpisodes, CloningConfig

Judge: TypeAlias = Callable[[Any], dict[str, Any]]
"""Plays a policy's seeded episodes; returns what is kept of them."""

LOSSES = ("q_loss", "v_loss", "actor_loss")
ROW = 1_000
"""Updates of a row of losses."""


@dataclass
class OfflineRun:
    """What a run leaves.

    Attributes:
        learnable: As trained.
        transitions: How many it was shown.
        curve: What was judged, every `job["every"]` updates.
        losses: Means over `ROW` updates, by name; IQL's alone.
    """

    learnable: Any
    transitions: int
    curve: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LOSSES})


def settings_of_preset(name: str) -> dict[str, Any]:
    """What a preset of IQL sets of its config."""
    record = next(record for record in rlreg.list_presets("iql") if record.preset.id == name)
    prefix = "learnable."
    return {
        field.removeprefix(prefix): value
        for field, value in record.preset.settings.items()
        if field.startswith(prefix)
    }


def train_iql(
    job: Mapping[str, Any],
    dataset: rlreg.TransitionDataset,
    settings: Mapping[str, Any],
    judge: Judge,
) -> OfflineRun:
    """IQL with some settings, for as many updates as the job says."""
    learnable = rlreg.create("iql", device="cpu", seed=job["seed"], compile="on", **settings)
    run = OfflineRun(learnable, len(dataset))

    def look(own: Any, _: int, step: int) -> None:
        if step % job["every"] == 0:
            run.curve.append({"update": step, **judge(own)})

    rows = learnable.fit(dataset, job["updates"], ROW, callbacks=[look], show_progress=False)
    for _, metrics in rows:
        for name, values in run.losses.items():
            values.append(metrics[name])
    return run


def train_cloning(
    job: Mapping[str, Any], dataset: rlreg.TransitionDataset, judge: Judge
) -> OfflineRun:
    """Cloning of all episodes or the best tenth, as `job["kind"]` says."""
    learnable: Any = validate(CloningConfig, {"type": "bc"}).create("cpu")
    learnable.prepare(seed=job["seed"], compile="off")
    learnable.build_with_dataset(dataset)
    share = CLONED_SHARES[job["kind"]]
    source: Any = dataset if share == 1 else BestEpisodes(dataset, share)
    run = OfflineRun(learnable, len(source))
    for step in range(job["every"], job["updates"] + 1, job["every"]):
        learnable.train_epoch(source, job["every"])
        run.curve.append({"update": step, **judge(learnable)})
    return run
