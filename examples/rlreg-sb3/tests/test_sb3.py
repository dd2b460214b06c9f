"""Against the real library: what every plugin promises, and what is particular to SB3."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rlreg
from rlreg.errors import EnvironmentSpecError
from rlreg.testing import conformance_tests

TINY = {"n_steps": 16, "batch_size": 8, "hidden_units": [8]}
test_conformance_of_ppo = conformance_tests("sb3-ppo", settings=TINY)
test_conformance_of_sac = conformance_tests("sb3-sac", settings={**TINY, "learning_starts": 4})

SMALL = {
    "sb3-ppo": {"n_steps": 64, "batch_size": 32, "hidden_units": [16]},
    "sb3-sac": {"n_steps": 32, "batch_size": 16, "hidden_units": [16], "learning_starts": 20},
}


def trained(name: str, env: str = "Pendulum-v1", **settings: Any) -> Any:
    """A learnable after two updates."""
    learnable = rlreg.create(name, device="cpu", seed=1, **{**SMALL[name], **settings})
    learnable.train(env, n_epochs=1, epoch_length=2)
    return learnable


@pytest.mark.parametrize("name", SMALL)
def test_a_checkpoint_holds_all_parameters_and_no_pickle(name: str, tmp_path: Path) -> None:
    """``get_parameters()`` is equal before and after."""
    learnable = trained(name)
    learnable.save(tmp_path / "x.rlreg")
    loaded = rlreg.load(tmp_path / "x.rlreg", device="cpu")
    before, after = learnable.model.get_parameters(), loaded.model.get_parameters()
    assert before.keys() == after.keys()
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    with zipfile.ZipFile(tmp_path / "x.rlreg") as archive:
        assert not [item for item in archive.namelist() if item.endswith((".pkl", ".pth", ".pt"))]
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(observations), learnable.predict(observations))
    loaded.train("Pendulum-v1", n_epochs=1, epoch_length=1)
    assert loaded.env_steps > learnable.env_steps


@pytest.mark.parametrize("name", SMALL)
def test_predictions_equal_those_of_the_model(name: str) -> None:
    """Apart from the units of the actions."""
    learnable = trained(name)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    theirs, _ = learnable.model.predict(observations, deterministic=True)
    np.testing.assert_allclose(learnable.predict(observations), 2.0 * theirs, rtol=1e-5, atol=1e-6)


def test_its_own_zip_is_written_and_never_read(tmp_path: Path) -> None:
    """The zip acts like the learnable; rlreg.load refuses it."""
    from stable_baselines3 import PPO

    learnable = trained("sb3-ppo", "CartPole-v1")
    learnable.save_sb3(tmp_path / "model.zip")
    theirs = PPO.load(tmp_path / "model.zip", device="cpu")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        theirs.predict(observations, deterministic=True)[0], learnable.predict(observations)
    )
    with pytest.raises(rlreg.RlregError):
        rlreg.load(tmp_path / "model.zip")


def test_a_run_trains_evaluates_and_goes_on(tmp_path: Path) -> None:
    """The whole way: run folder, evaluation, checkpoint, resume."""
    run = {
        "learnable": {"type": "sb3-ppo", **SMALL["sb3-ppo"]},
        "env": "CartPole-v1",
        "device": "cpu",
        "train": {"n_epochs": 3, "epoch_length": 1},
        "evaluation": {"n_episodes": 1, "baselines": []},
    }
    calls = iter(range(1000))
    out = tmp_path / "run"
    rlreg.train(run, out=out, show_progress=False, should_stop=lambda: next(calls) > 2)
    result = rlreg.resume(out, show_progress=False)
    assert result.status == "finished"
    assert result.summary["steps"] == 3 * 64
    assert result.learnable.evaluate("CartPole-v1", n_episodes=1).n_episodes == 1


def test_images_are_refused_by_name() -> None:
    """An MlpPolicy has no use for them."""
    image = gymnasium.spaces.Box(0, 255, (3, 36, 36), np.uint8)
    with pytest.raises(EnvironmentSpecError, match="vector observations"):
        rlreg.create("sb3-ppo", device="cpu").build(image, gymnasium.spaces.Discrete(2))


@pytest.mark.slow
def test_ppo_learns_cartpole() -> None:
    """Twenty thousand transitions are enough to hold the pole for a while."""
    learnable = rlreg.create("sb3-ppo", device="cpu", seed=0)
    learnable.train("CartPole-v1", n_steps=20_000)
    assert learnable.evaluate("CartPole-v1", n_episodes=10).mean_return > 150
