"""Small learnables and batches for the tests of IQL; makes `fast_paths` importable by name."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.runtime.batch import Batch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    """Makes small networks fast and sums reproducible."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiled_graphs(tmp_path_factory):
    """A cache folder for all tests that compile: the second one of a kind finds graphs.

    C++ compilers have trouble with such a name.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one for the workers together
        root = root.parent
    return root / "compiled graphs, ä"


@pytest.fixture
def inductor(compiled_graphs, monkeypatch):
    """Compiles, with a cache of the tests' own."""
    monkeypatch.setenv("RLREG_CACHE", str(compiled_graphs))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return compiled_graphs


@pytest.fixture(scope="session")
def pendulum_root(tmp_path_factory):
    """A Minari root with 400 steps of pendulum."""
    root = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        from rlreg.runtime.data.generate import generate

        generate("rlreg/pendulum/mixed-v0", n_steps=400)
    return root


@pytest.fixture
def dataset(pendulum_root, monkeypatch):
    """Name of that data set, where it is found."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(pendulum_root))
    return "rlreg/pendulum/mixed-v0"


SMALL = {"type": "vector", "hidden_units": [16, 16]}


@pytest.fixture
def make_iql():
    """Builds an IQL with small networks; keywords are fields of its config."""

    def make(observation_space=None, action_space=None, *, seed=0, is_double=False, **settings):
        for name in ("actor", "critic", "value"):
            settings.setdefault(f"{name}_encoder_factory", SMALL)
        learnable = rlreg.create("iql", device="cpu", seed=seed, **settings)
        if observation_space is None:
            observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        if action_space is None:
            action_space = spaces.Box(-1, 1, (2,), np.float32)
        learnable.build(observation_space, action_space)
        if is_double:
            for module in learnable.modules().values():
                module.double()
        return learnable

    return make


@pytest.fixture
def make_batch():
    """Draws a raw batch for the spaces of a learnable, as a user would hand it in."""

    def make(learnable, size=12, *, seed=0, scale=1.0):
        rng = np.random.default_rng(seed)
        learnable.spaces.observation_space.seed(seed)
        learnable.spaces.action_space.seed(seed)
        plan = learnable.spaces.observation_plan
        shape = (size, *plan.shape)
        if plan.is_image:
            observations, following = (rng.integers(0, 256, shape, np.uint8) for _ in range(2))
        else:
            observations = (rng.normal(size=shape) * scale).astype(np.float32)
            following = (rng.normal(size=shape) * scale).astype(np.float32)
        actions = np.stack([learnable.spaces.action_space.sample() for _ in range(size)])
        return {
            "observations": observations,
            "actions": actions,
            "rewards": rng.normal(size=size).astype(np.float32),
            "next_observations": following,
            "terminations": (rng.random(size) < 0.3).astype(np.float32),
            "intervals": rng.integers(1, 4, size).astype(np.float32),
        }

    return make


@pytest.fixture
def as_double():
    """Turns a raw continuous batch into a float64 :class:`Batch`, past the border."""

    def convert(raw):
        parts = {name: torch.from_numpy(np.asarray(value)).double() for name, value in raw.items()}
        return Batch(**parts, truncations=torch.zeros(len(raw["rewards"])).double())

    return convert


def snapshot(learnable):
    """Copies everything an update may change."""
    state = learnable.state_dict()
    return {
        "networks": _clone(state["networks"]),
        "optimizers": _clone(state["optimizers"]),
        "scalers": _clone(state["scalers"]),
        "grad_step": learnable.grad_step,
    }


def _clone(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clone(item) for item in value]
    return value


def assert_same(before, after, path=""):
    """Compares two snapshots bit for bit."""
    assert type(before) is type(after), path
    if isinstance(before, dict):
        assert before.keys() == after.keys(), path
        for key, value in before.items():
            assert_same(value, after[key], f"{path}.{key}")
    elif isinstance(before, list):
        assert len(before) == len(after), path
        for index, value in enumerate(before):
            assert_same(value, after[index], f"{path}[{index}]")
    elif isinstance(before, torch.Tensor):
        assert torch.equal(before, after), path
    else:
        assert before == after, path


@pytest.fixture(name="snapshot")
def snapshot_fixture():
    """Gives :func:`snapshot` and :func:`assert_same`."""
    return snapshot, assert_same
