"""``rlreg data`` and ``rlreg bench``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlreg.cli.main import run
from rlreg.errors import ConfigError
from rlreg.files import load_run
from rlreg.identity import config_hash
from rlreg.run_config import DatasetSettings


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs a command in this process, with a Minari root of its own."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def call(*arguments):
        code = run([*map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_data_set_is_generated_once_and_listed(call):
    name = "rlreg/pendulum/mixed-v0"
    code, out, _ = call("data", "list", "--json")
    listed = json.loads(out)
    assert code == 0
    assert listed["local"] == []
    assert name in [item["dataset_id"] for item in listed["generators"]]
    code, out, err = call("data", "generate", name, "--steps", "400", "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] == 400
    assert json.loads(out)["laws"]["holds"]
    code, out, err = call("data", "generate", name, "--steps", "400")
    assert code == 0
    assert "already at" in err
    assert "400 steps, 2 episodes" in out
    _, out, _ = call("data", "list")
    assert name in out
    assert "here" in out
    code, _, err = call("data", "generate", name, "--steps", "600")
    assert code == 2
    assert "already" in err
    assert call("data", "generate", name, "--steps", "600", "--force")[0] == 0


def test_an_unknown_data_set_cannot_be_generated(call):
    code, out, err = call("data", "generate", "rlreg/pendulum/mixd-v0")
    assert (code, out) == (2, "")
    assert "did you mean 'rlreg/pendulum/mixed-v0'" in err


@pytest.fixture
def hdf5(tmp_path):
    def write(rewards):
        import h5py

        path = tmp_path / "data.hdf5"
        size = len(rewards)
        ends = np.zeros(size, bool)
        ends[-1] = True
        with h5py.File(path, "w") as file:
            rng = np.random.default_rng(0)
            file["observations"] = rng.normal(size=(size, 3)).astype(np.float32)
            file["actions"] = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
            file["rewards"] = np.asarray(rewards, np.float32)
            file["terminals"], file["timeouts"] = np.zeros(size, bool), ends
        return path

    return write


def test_inspect_ends_with_3_for_problems_and_0_without(call, hdf5):
    code, out, _ = call("data", "inspect", hdf5([1.0] * 20))
    assert code == 0, out
    path = hdf5([1.0] * 5 + [float("nan")] + [1.0] * 14)
    code, out, _ = call("data", "inspect", path)
    assert code == 3
    assert "nan" in out.lower()
    code, out, _ = call("data", "inspect", path, "--json")
    assert code == 3
    nan = next(item for item in json.loads(out)["findings"] if item["kind"] == "nan")
    assert (nan["episode"], nan["index"]) == (0, 5)


@pytest.mark.parametrize(
    "option", ["dataset.allow_non_finite=true", "dataset={{id: {path}, allow_non_finite: true}}"]
)
def test_what_inspect_advises_works_on_the_command_line(call, hdf5, tiny, tmp_path, option):
    path, out = hdf5([1.0] * 5 + [float("nan")] + [1.0] * 14), tmp_path / "run"
    command = ["train", "tiny_bc", "-d", path, "--steps", "5", "--set", "evaluation.env=null"]
    command += ["--device", "cpu", "--out", out]
    code, _, err = call(*command)
    assert code == 2
    assert "--set dataset.allow_non_finite=true" in err
    code, _, err = call(*command, "--set", option.format(path=path))
    assert code == 0, err
    run_file = load_run(out)
    assert run_file.dataset == DatasetSettings(id=str(path), allow_non_finite=True)
    assert config_hash(run_file) == config_hash(out / "run.yaml")


def test_a_data_set_with_nothing_but_an_id_is_the_id(tiny):
    short, long = (
        load_run({"learnable": {"type": "tiny_bc"}, "dataset": value})
        for value in ("some/set-v0", {"id": "some/set-v0"})
    )
    other = load_run(short, overrides=["dataset.clip_actions=true"])
    assert config_hash(short) == config_hash(long) != config_hash(other)
    with pytest.raises(ConfigError, match=r"dataset.clip_action: no such key.*clip_actions"):
        load_run(short, overrides=["dataset.clip_action=true"])


def test_inspect_of_nothing_is_code_2(call):
    code, _, err = call("data", "inspect", "D4RL/none-v0")
    assert code == 2
    assert "looked in" in err


def test_bench_measures_with_and_without_sampling(call, tiny):
    code, out, err = call("bench", "tiny_bc", "--seconds", "0.1", "--transitions", "5000",
                          "--device", "cpu", "--json")  # fmt: skip
    assert code == 0, err
    document = json.loads(out)
    assert document["rounds"] >= 3
    assert 0 < document["sampling_share"] < 1
    assert document["updates_per_s"] > 0
    assert document["batch_size"] == 32
