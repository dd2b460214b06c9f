"""What older releases wrote still loads: configs, run files and checkpoints of every version."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from pathlib import Path

import pytest

import rlreg
from rlreg.errors import VersionWarning
from rlreg.file_migration import migrate_file

np = pytest.importorskip("numpy", reason="the light job has core alone")
pytest.importorskip("torch", reason="the light job has core alone")
pytest.importorskip("rlreg_iql", reason="the golden files are of IQL")

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if (path / "expected.json").is_file())


@pytest.fixture(params=VERSIONS)
def golden(request, tmp_path):
    """A copy of the files of one version."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def test_there_is_a_version():
    assert "v1" in VERSIONS


def test_config_and_run_file_load_and_mean_the_same(golden):
    for path in (golden / "iql.yaml", golden / "run.yaml"):
        migrate_file(path)
    config, run = rlreg.load_config(golden / "iql.yaml"), rlreg.load_config(golden / "run.yaml")
    assert run.learnable == config
    assert config.expectile == 0.8
    assert config.actor_encoder_factory.hidden_units == (4,)
    assert run.train.n_steps == 20
    assert [logger.type for logger in run.logging] == ["jsonl", "tensorboard"]


def test_checkpoint_predicts_as_it_did_and_trains_on(golden):
    expected = json.loads((golden / "expected.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionWarning)
        learnable = rlreg.load(golden / "iql.rlreg", device="cpu")
        config = rlreg.load_config(golden / "iql.rlreg")
    assert learnable.config == config
    assert learnable.grad_step == expected["grad_step"]
    observations = np.asarray(expected["observations"], np.float32)
    np.testing.assert_allclose(
        learnable.predict(observations), np.asarray(expected["actions"]), rtol=1e-4, atol=1e-5
    )
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    make_golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_golden)
    learnable.update(make_golden.pendulum_arrays().sample(16, learnable.generator))
    assert learnable.grad_step == expected["grad_step"] + 1
