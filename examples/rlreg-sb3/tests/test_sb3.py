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


class Picture(gymnasium.Env[Any, Any]):
    """A picture of what to do: all bright or all dark."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draws the first picture."""
        super().reset(seed=seed)
        self.left = 8
        return self._draw(), {}

    def _draw(self) -> Any:
        self.right = int(self.np_random.integers(2))
        return np.full((36, 36, 3), 255 * self.right, np.uint8)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Rewards what the picture says."""
        reward = float(int(action) == self.right)
        self.left -= 1
        return self._draw(), reward, self.left == 0, False, {}


class Parts(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Pendulum with its observation in two parts."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {"angle": box(-1, 1, (2,), np.float32), "speed": box(-8, 8, (1,), np.float32)}
        )

    def observation(self, observation: Any) -> Any:
        """Splits it."""
        return {"angle": observation[:2], "speed": observation[2:]}


def test_images_train_a_cnn_that_sees_them_as_sb3_does(tmp_path: Path) -> None:
    """Predictions equal the model's own on [C, H, W], and after a reload."""
    settings = {"n_steps": 16, "batch_size": 8, "hidden_units": [8]}
    learnable = rlreg.create("sb3-ppo", device="cpu", seed=0, **settings)
    learnable.train(Picture, n_epochs=1, epoch_length=1)
    assert type(learnable.policy).__name__ == "ActorCriticCnnPolicy"
    pictures = np.random.default_rng(0).integers(0, 256, (4, 36, 36, 3)).astype(np.uint8)
    theirs, _ = learnable.model.predict(pictures.transpose(0, 3, 1, 2), deterministic=True)
    np.testing.assert_array_equal(learnable.predict(pictures), theirs)
    learnable.save(tmp_path / "x.rlreg")
    loaded = rlreg.load(tmp_path / "x.rlreg", device="cpu")
    np.testing.assert_array_equal(loaded.predict(pictures), theirs)


def test_small_images_are_refused_with_what_they_need() -> None:
    """Three convolutions need 36 pixels."""
    image = gymnasium.spaces.Box(0, 255, (3, 32, 40), np.uint8)
    with pytest.raises(EnvironmentSpecError, match="at least 36 x 36"):
        rlreg.create("sb3-ppo", device="cpu").build(image, gymnasium.spaces.Discrete(2))


@pytest.mark.parametrize("name", SMALL)
def test_parts_of_a_dict_become_one_vector(name: str) -> None:
    """In the order of the space."""
    learnable = rlreg.create(name, device="cpu", seed=1, **SMALL[name])
    learnable.train(Parts, n_epochs=1, epoch_length=1)
    row = np.array([[0.6, 0.8, -3.0]], np.float32)
    theirs, _ = learnable.model.predict(row, deterministic=True)
    ours = learnable.predict({"angle": row[:, :2], "speed": row[:, 2:]})
    np.testing.assert_allclose(ours, 2.0 * theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "count"), [("sb3-ppo", 3 * 64), ("sb3-sac", 33)])
def test_several_environments_side_by_side(name: str, count: int) -> None:
    """PPO takes n_steps from each of them; SAC n_steps together, in whole rounds."""
    learnable = rlreg.create(name, device="cpu", seed=1, **{**SMALL[name], "n_envs": 3})
    learnable.train("Pendulum-v1", n_epochs=1, epoch_length=1)
    assert learnable.env_steps == count
    assert learnable.model.n_envs == 3


def buffer_of(learnable: Any) -> dict[str, Any]:
    """The transitions that are kept."""
    buffer = learnable.model.replay_buffer
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    rows = {name: getattr(buffer, name)[: buffer.size()] for name in names}
    return {**rows, "pos": buffer.pos, "full": buffer.full}


@pytest.mark.parametrize("size", [1000, 40], ids=["filling", "full"])
def test_the_replay_buffer_is_in_the_checkpoint(size: int, tmp_path: Path) -> None:
    """Row by row, also where it has begun to overwrite the oldest."""
    learnable = trained("sb3-sac", buffer_size=size)
    learnable.save(tmp_path / "x.rlreg")
    loaded = rlreg.load(tmp_path / "x.rlreg", device="cpu")
    assert buffer_of(loaded)["full"] == (size == 40)
    np.testing.assert_equal(buffer_of(loaded), buffer_of(learnable))
    assert len(buffer_of(loaded)["rewards"]) == min(size, 64)


def test_the_replay_buffer_can_be_left_out(tmp_path: Path) -> None:
    """Then it is filled anew before training goes on."""
    learnable = trained("sb3-sac", save_replay_buffer=False)
    learnable.save(tmp_path / "x.rlreg")
    loaded = rlreg.load(tmp_path / "x.rlreg", device="cpu")
    assert loaded.model.replay_buffer.size() == 0
    loaded.train("Pendulum-v1", n_epochs=1, epoch_length=1)
    assert loaded.model.replay_buffer.size() == 32


@pytest.mark.slow
def test_ppo_learns_cartpole() -> None:
    """Twenty thousand transitions are enough to hold the pole for a while."""
    learnable = rlreg.create("sb3-ppo", device="cpu", seed=0)
    learnable.train("CartPole-v1", n_steps=20_000)
    assert learnable.evaluate("CartPole-v1", n_episodes=10).mean_return > 150
