"""Fixtures of the run half: a tiny learnable, a small data set, and real processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlreg import registry

SITE = Path(__file__).parent / "site"


def _load_plugin():
    spec = importlib.util.spec_from_file_location("rlreg_tiny_bc", SITE / "rlreg_tiny_bc.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rlreg_tiny_bc"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """These networks are tiny: threads only get into each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_module():
    return _load_plugin()


@pytest.fixture
def tiny(tiny_module):
    """The config class of the tiny learnable, registered by call."""
    registry.register_learnable(tiny_module.TinyBCConfig)
    yield tiny_module.TinyBCConfig
    registry.forget_local(["tiny_bc"])


@pytest.fixture(scope="session")
def minari_root(tmp_path_factory):
    """A Minari root with 2,000 steps under the id of the default data set."""
    root = tmp_path_factory.mktemp("minari")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    from rlreg.runtime.data.generate import generate

    generate("rlreg/pendulum/mixed-v0", n_steps=2000)
    yield root
    if before is None:
        del os.environ["MINARI_DATASETS_PATH"]
    else:
        os.environ["MINARI_DATASETS_PATH"] = before


@pytest.fixture
def pendulum_data(minari_root):
    from rlreg.runtime.data import load_dataset

    return load_dataset("rlreg/pendulum/mixed-v0")


@pytest.fixture(scope="session")
def arrays_data():
    """600 random transitions with the spaces of Pendulum-v1."""
    from rlreg.runtime.data import TransitionDataset

    with gymnasium.make("Pendulum-v1") as env:
        observation_space, action_space = env.observation_space, env.action_space
    rng = np.random.default_rng(0)
    size = 600
    angles = rng.uniform(-np.pi, np.pi, size + 1)
    observations = np.stack(
        [np.cos(angles), np.sin(angles), rng.uniform(-8, 8, size + 1)], axis=1
    ).astype(np.float32)
    ends = np.zeros(size, bool)
    ends[99::100] = True
    return TransitionDataset.from_arrays(
        observations[:-1],
        rng.uniform(-2, 2, (size, 1)).astype(np.float32),
        rng.normal(size=size).astype(np.float32),
        np.zeros(size, bool),
        ends,
        next_observations=observations[1:],
        observation_space=observation_space,
        action_space=action_space,
    )


@pytest.fixture
def make_tiny(tiny, arrays_data):
    """Makes a tiny learnable, trained for some updates."""
    import rlreg

    def make(n_steps: int = 20, seed: int = 0, total: int = 200, **settings):
        learnable = rlreg.create("tiny_bc", device="cpu", seed=seed, **settings)
        learnable.build_with_dataset(arrays_data)
        learnable.set_total_steps(total)
        if n_steps:
            learnable.fit(arrays_data, n_steps, n_steps, show_progress=False)
        return learnable

    return make


@pytest.fixture(scope="session")
def site():
    """The folder in which the tiny learnable is an installed plugin."""
    return SITE


@pytest.fixture
def cli_env(tmp_path, minari_root):
    """Environment of a process in which the tiny learnable is an installed plugin."""
    return {
        **os.environ,
        "PYTHONPATH": str(SITE),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "MINARI_DATASETS_PATH": str(minari_root),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def rlreg_cli(cli_env, tmp_path):
    """Runs the command line in a process of its own."""

    def run(*arguments, cwd=tmp_path, env=None, timeout=120):
        return subprocess.run(
            [sys.executable, "-m", "rlreg", *map(str, arguments)],
            env={**cli_env, **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
