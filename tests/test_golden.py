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


def load(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionWarning)
        return rlreg.load(path, device="cpu"), rlreg.load_config(path)


def check_predictions(learnable, expected):
    assert learnable.grad_step == expected["grad_step"]
    observations = np.asarray(expected["observations"], np.float32)
    np.testing.assert_allclose(
        learnable.predict(observations), np.asarray(expected["actions"]), rtol=1e-4, atol=1e-5
    )


def test_checkpoint_predicts_as_it_did_and_trains_on(golden):
    expected = json.loads((golden / "expected.json").read_text())
    learnable, config = load(golden / "iql.rlreg")
    assert learnable.config == config
    check_predictions(learnable, expected)
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    make_golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_golden)
    learnable.update(make_golden.pendulum_arrays().sample(16, learnable.generator))
    assert learnable.grad_step == expected["grad_step"] + 1


def test_online_config_and_run_file_load_and_mean_the_same(golden):
    pytest.importorskip("rlreg_impala")
    for name in ("impala.yaml", "impala-run.yaml"):
        migrate_file(golden / name)
    config, run = (rlreg.load_config(golden / name) for name in ("impala.yaml", "impala-run.yaml"))
    assert run.learnable == config
    assert config.entropy_coef == 0.02
    assert config.optim_factory.type == "rmsprop_tf"
    assert (run.engine.type, run.engine.num_actors) == ("sequential", 2)
    assert (run.train.n_epochs, run.train.epoch_length) == (2, 3)


def test_online_checkpoint_predicts_as_it_did_and_trains_on(golden):
    pytest.importorskip("rlreg_impala")
    expected = json.loads((golden / "impala-expected.json").read_text())
    learnable, config = load(golden / "impala.rlreg")
    assert learnable.config == config
    check_predictions(learnable, expected)
    engine = rlreg.load_config(golden / "impala-run.yaml").engine
    learnable.train("Pendulum-v1", engine=engine, n_epochs=1, epoch_length=1)
    assert learnable.grad_step == expected["grad_step"] + 1
