"""`rlreg export`: a run or a checkpoint becomes a file for deployment."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import rlreg
from rlreg.cli.main import run


def test_a_checkpoint_becomes_a_file_that_predicts_the_same(make_tiny, tmp_path, capsys):
    make_tiny(3).save(tmp_path / "tiny.rlreg")
    output = tmp_path / "tiny.pt2"
    arguments = ["export", str(tmp_path / "tiny.rlreg"), "--format", "torch_export", "--json"]
    assert run([*arguments, "-o", str(output)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"] == [{"name": "observation", "dtype": "float32", "shape": [3]}]
    assert document["max_difference"] <= 1e-5
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = torch.export.load(output).module()(torch.from_numpy(observations))["action"]
    expected = rlreg.load(tmp_path / "tiny.rlreg", device="cpu").predict(observations)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_the_table_names_inputs_and_outputs(make_tiny, tmp_path, capsys):
    make_tiny(3).save(tmp_path / "tiny.rlreg")
    output = tmp_path / "tiny.onnx"
    assert run(["export", str(tmp_path / "tiny.rlreg"), "-o", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "observation" in shown
    assert "float32" in shown
    assert "batch 1 and 7" in shown


@pytest.mark.parametrize("name", ["policy.txt", "policy", "policy.pt2"])
def test_a_name_that_does_not_fit_the_format_is_refused_first(tmp_path, capsys, name):
    assert run(["export", str(tmp_path / "none.rlreg"), "-o", str(tmp_path / name)]) == 2
    shown = capsys.readouterr().err
    assert "expected a name that ends in .onnx, or in .pt2 with --format torch_export" in shown


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_config_is_no_checkpoint(tmp_path, capsys, command):
    (tmp_path / "base.yaml").write_text("type: tiny_bc\n")
    output = ["-o", str(tmp_path / "p.onnx")] if command == "export" else []
    assert run([command, str(tmp_path / "base.yaml"), *output]) == 2
    assert "base.yaml: is neither a .rlreg file nor a run folder" in capsys.readouterr().err


def test_a_distribution_that_nobody_states_is_code_2(make_tiny, tmp_path, capsys):
    make_tiny(3).save(tmp_path / "tiny.rlreg")
    output = tmp_path / "tiny.onnx"
    arguments = ["export", str(tmp_path / "tiny.rlreg"), "--kind", "distribution"]
    assert run([*arguments, "-o", str(output)]) == 2
    assert "tiny_bc" in capsys.readouterr().err
    assert not output.exists()
