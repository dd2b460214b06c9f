"""IQL in a run: interrupted anywhere, it ends with the bits of the undisturbed one."""

from __future__ import annotations

import zipfile

import pytest

import rlreg


def run_of(dataset, **learnable):
    encoder = {"type": "vector", "hidden_units": [16], "dropout_rate": 0.1}
    return {
        "learnable": {
            "type": "iql", "batch_size": 16,
            "actor_encoder_factory": encoder, "critic_encoder_factory": encoder,
            "value_encoder_factory": encoder, **learnable,
        },
        "dataset": dataset,
        "device": "cpu",
        "train": {"n_steps": 240, "n_steps_per_epoch": 120},
        "evaluation": {"n_episodes": 1, "baselines": []},
    }  # fmt: skip


def members_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize(
    "learnable",
    [
        {},
        {"reward_scaler": {"type": "return"}, "observation_scaler": {"type": "standard"}},
        {"update_rule": "paper"},
    ],
)
def test_an_interrupted_run_ends_like_the_undisturbed_one(dataset, tmp_path, learnable):
    run = run_of(dataset, **learnable)
    rlreg.train(run, out=tmp_path / "whole", show_progress=False)
    asked = iter(range(10**6))
    result = rlreg.train(
        run, out=tmp_path / "r", show_progress=False, should_stop=lambda: next(asked) == 1
    )
    assert result.status == "interrupted"
    assert result.learnable.grad_step == 100
    assert rlreg.resume(tmp_path / "r", show_progress=False).status == "finished"
    whole, resumed = (members_of(tmp_path / name / "last.rlreg") for name in ("whole", "r"))
    assert whole == resumed
