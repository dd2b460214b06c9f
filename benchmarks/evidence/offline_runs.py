"""An offline run of rlreg's with its curve: IQL, or cloning beside it. For the job programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import rlreg
from rlreg.open_union import validate
from rlreg.runtime.baselines import CLONED_SHARES, BestEpisodes, CloningConfig
from rlreg.runtime.evaluation import Evaluation

Judge: TypeAlias = Callable[[Any], Evaluation]
"""Plays a policy's seeded episodes."""


def settings_of_preset(name: str) -> dict[str, Any]:
    """What a preset of IQL sets of its config."""
    record = next(record for record in rlreg.list_presets("iql") if record.preset.id == name)
    prefix = "learnable."
    return {
        field.removeprefix(prefix): value
        for field, value in record.preset.settings.items()
        if field.startswith(prefix)
    }


def point(update: int, result: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation."""
    return {"update": update, "mean_return": result.mean_return, "std_return": result.std_return}


def train_iql(
    job: dict[str, Any], dataset: rlreg.TransitionDataset, judge: Judge
) -> list[dict[str, Any]]:
    """IQL with the job's preset; returns its curve."""
    settings = {"device": "cpu", "seed": job["seed"], "compile": "on"}
    learnable = rlreg.create("iql", **settings, **settings_of_preset(job["preset"]))
    curve = []

    def look(own: Any, _: int, step: int) -> None:
        curve.append(point(step, judge(own)))

    updates, every = job["updates"], job["every"]
    learnable.fit(dataset, updates, every, callbacks=[look], show_progress=False)
    return curve


def train_cloning(
    job: dict[str, Any], dataset: rlreg.TransitionDataset, judge: Judge
) -> list[dict[str, Any]]:
    """Cloning of all episodes or the best tenth, as `job["kind"]` says; returns its curve."""
    learnable: Any = validate(CloningConfig, {"type": "bc"}).create("cpu")
    learnable.prepare(seed=job["seed"], compile="off")
    learnable.build_with_dataset(dataset)
    share = CLONED_SHARES[job["kind"]]
    source: Any = dataset if share == 1 else BestEpisodes(dataset, share)
    curve = []
    for step in range(job["every"], job["updates"] + 1, job["every"]):
        learnable.train_epoch(source, job["every"])
        curve.append(point(step, judge(learnable)))
    return curve
