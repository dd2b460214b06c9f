"""`rlreg import d3rlpy`: what the command writes predicts what d3rlpy predicts."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import rlreg
from rlreg.cli.main import run

CASES = Path(__file__).parent / "data" / "iql_parity"
MODEL = CASES / "default" / "model.d3"


@pytest.mark.parametrize("case", ["default", "terminals_intervals", "expectile09_temp10"])
def test_a_d3_file_becomes_a_checkpoint_with_the_predictions_of_d3rlpy(case, tmp_path, capsys):
    output = tmp_path / "model.rlreg"
    assert run(["import", "d3rlpy", str(CASES / case / "model.d3"), "-o", str(output)]) == 0
    assert "'iql'" in capsys.readouterr().out
    learnable = rlreg.load(output, device="cpu")
    fixture = np.load(CASES / case / "fixture.npz", allow_pickle=False)
    actions = learnable.predict(fixture["probe/observations"])
    np.testing.assert_allclose(actions, fixture["before/action"], atol=1e-6)


def test_settings_without_weights_become_a_config(tmp_path, capsys):
    output = tmp_path / "iql.yaml"
    arguments = ["import", "d3rlpy", str(CASES / "default" / "params.json"), "--json"]
    assert run([*arguments, "-o", str(output)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "config"
    assert rlreg.load_config(output) == rlreg.load(_checkpoint(tmp_path), device="cpu").config


def _checkpoint(folder):
    run(["import", "d3rlpy", str(MODEL), "-o", str(folder / "model.rlreg")])
    return folder / "model.rlreg"


class Trap:
    """Makes a folder when it is unpickled the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_malicious_file_runs_nothing_and_writes_nothing(tmp_path, capsys):
    trap, path = tmp_path / "sprung", tmp_path / "model.d3"
    path.write_bytes(pickle.dumps(Trap(trap)))
    assert run(["import", "d3rlpy", str(path), "-o", str(tmp_path / "model.rlreg")]) == 2
    assert "nothing was run" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.d3"]
    pickle.loads(path.read_bytes())
    assert trap.exists()  # the trap works


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["d3rlpi", str(MODEL), "-o", "x.rlreg"], "d3rlpy"),
        (["d3rlpy", str(MODEL), "-o", "x.yaml"], "must end in .rlreg"),
        (["d3rlpy", str(MODEL.with_name("params.json")), "-o", "x.rlreg"], "no weights"),
        (["d3rlpy", "nowhere.d3", "-o", "x.rlreg"], "nowhere.d3"),
        (["d3rlpy", str(MODEL), "--learnable", "iqll", "-o", "x.rlreg"], "iql"),
    ],
)
def test_bad_input_is_one_message(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["import", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_algorithm_is_named(tmp_path, capsys):
    text = json.loads(MODEL.with_name("params.json").read_text())
    text["config"]["type"] = "cql"
    (tmp_path / "params.json").write_text(json.dumps(text))
    path = str(tmp_path / "params.json")
    assert run(["import", "d3rlpy", path, "-o", str(tmp_path / "x.yaml")]) == 2
    assert "cql" in capsys.readouterr().err


def test_a_file_that_is_there_is_replaced_on_demand_alone(tmp_path, capsys):
    output = tmp_path / "model.rlreg"
    output.write_text("mine")
    command = ["import", "d3rlpy", str(MODEL), "-o", str(output)]
    assert run(command) == 2
    assert "exists already; choose another name or give --force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert run([*command, "--force"]) == 0
    assert rlreg.load(output, device="cpu").spaces is not None
