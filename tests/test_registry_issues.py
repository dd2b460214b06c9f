"""What users of other registries complained about, where no other test of ours shows it.

`docs/registry-issues.md` lists every row with the test that proves it; this file also sees to it
that the list is true.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlreg
from rlreg.components import VectorEncoder
from rlreg.errors import DeviceUnavailableError
from rlreg.registry import Record, Registry

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "registry-issues.md"
ROWS = [
    *(1, 3, 4, 6, 8, 9, 11, 12, *range(14, 21), 22, 23, *range(25, 29), *range(30, 39)),
    *(*range(40, 45), 46),
]

HEAVY = '''
import torch
from typing import ClassVar, Literal
import rlreg

class HeavyConfig(rlreg.LearnableConfig):
    """Heavy."""
    regime: ClassVar[str] = "offline"
    type: Literal["heavy"] = "heavy"

@rlreg.hookimpl
def rlreg_learnables():
    return [HeavyConfig]
'''
PART = '''
from typing import Annotated, Literal
from pydantic import Field
import rlreg

class PartEncoder(rlreg.EncoderFactory):
    """A part of somebody else."""
    type: Literal["part"] = "part"
    width: int = Field(4, ge=1, le=64, description="Width. Default: ours, 4.")

class PartOptimizer(rlreg.OptimizerFactory):
    """Another part of somebody else."""
    type: Literal["part"] = "part"

@rlreg.hookimpl
def rlreg_components():
    return [PartEncoder, PartOptimizer]
'''
INVOKE = """
import json, sys
from click.testing import CliRunner
from rlreg.cli.main import cli
for arguments in json.loads(sys.argv[1] if len(sys.argv) > 1 else COMMANDS):
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, (arguments, done.output)
    print(json.dumps([arguments, done.stdout]))
"""


@pytest.mark.light
def test_row_4_a_plugin_that_imports_torch_at_the_top_does_not_slow_listing(
    run_python, make_plugin
):
    site = make_plugin("heavy-dist", "", value="heavy_dist.plugin")
    (site / "heavy_dist").mkdir()
    (site / "heavy_dist" / "__init__.py").write_text("")
    (site / "heavy_dist" / "plugin.py").write_text(HEAVY)
    (site / "torch.py").write_text("")  # it only has to be seen
    run_python(
        "from rlreg.manifest import make_manifest, write_manifest\n"
        "write_manifest(*make_manifest('heavy-dist'))",
        path=[site],
    )
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom rlreg.cli.main import cli\n"
        "for arguments in (['--help'], ['list'], ['list', '--json'], ['plugins', 'list']):\n"
        "    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)\n"
        "    assert done.exit_code == 0\n"
        "    assert arguments != ['list'] or 'heavy' in done.stdout\n"
        "print('torch' in sys.modules)"
    )
    env = {"RLREG_BLOCK_PLUGINS": "rlreg-iql,rlreg-impala"}
    assert run_python(code, path=[site], env=env).strip() == "False"


def test_row_12_every_command_knows_the_parts_of_plugins(run_python, make_plugin, tmp_path):
    pytest.importorskip("rlreg_iql")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "learnable:\n  type: iql\n  actor_encoder_factory: {type: part, width: 8}\n"
        "  actor_optim_factory: {type: part}\n"
    )
    commands = [
        ["validate", str(file)], ["explain", str(file)], ["diff", str(file), str(file)],
        ["migrate", str(file)], ["show", "encoder.part"], ["show", "iql"], ["schema", "iql"],
        ["list", "--components"], ["init", "iql", "--set", "actor_encoder_factory.type=part"],
        ["docs", "build", str(tmp_path / "site")],
        ["schema", "export", str(tmp_path / "schemas"), "--installed"],
    ]  # fmt: skip
    code = f"COMMANDS = {json.dumps(commands)!r}\n{INVOKE}"
    out = run_python(code, path=[make_plugin("part-dist", PART)])
    said = {tuple(a[:2]): text for a, text in map(json.loads, out.splitlines())}
    assert "part" in said["show", "iql"]
    assert "width" in said["show", "encoder.part"]
    assert '"width"' in said["schema", "iql"]
    assert "part-dist" in said["list", "--components"]
    assert "type: part" in said["init", "iql"]
    assert any("part" in path.name for path in (tmp_path / "site").rglob("*"))
    assert '"width"' in (tmp_path / "schemas" / "run.schema.json").read_text()


def test_rows_28_and_30_a_checkpoint_knows_no_device(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("rlreg_iql")
    path = ROOT / "tests" / "golden" / "v1" / "iql.rlreg"
    assert "device" not in type(rlreg.load_config(path)).model_fields
    with pytest.raises(DeviceUnavailableError, match="cuda:99"):
        rlreg.load(path, device="cuda:99")
    assert str(rlreg.load(path, device=["cuda:99", "cpu"]).device) == "cpu"


@pytest.mark.light
def test_row_42_a_name_that_core_takes_later_stays_reachable_in_the_plugin():
    registry, kind = Registry(), "encoder"
    registry.add(Record(kind, "foo", VectorEncoder, "acme", "1.0"))
    assert registry.resolve(kind, "foo").distribution == "acme"
    registry.add(Record(kind, "foo", VectorEncoder, "rlreg", "9.0"))
    assert registry.resolve(kind, "foo").distribution == "rlreg"
    assert registry.resolve(kind, "acme/foo").distribution == "acme"


# --- the list -----------------------------------------------------------------------------------


@pytest.mark.light
def test_every_row_has_a_test_that_exists_or_a_reason():
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line.split("|")[1]) for line in lines] == ROWS
    for line in lines:
        named = re.findall(r"`((?:tests|plugins|benchmarks)/[\w./-]+)(?:::(\w+))?`", line)
        assert named, line
        for path, function in named:
            assert (ROOT / path).is_file(), path
            assert not function or f"def {function}(" in (ROOT / path).read_text(), (path, function)
