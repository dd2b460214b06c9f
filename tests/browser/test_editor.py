"""What `rlreg init` and `rlreg schema install` give, in a real YAML language server and hook."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from language_server import LanguageServer

pytestmark = pytest.mark.browser

SERVER = (
    Path(__file__).parents[2] / "builder/node_modules/yaml-language-server/bin/yaml-language-server"
)
MODELINE = "# yaml-language-server: $schema=schemas/run.schema.json\n"
RUN = (
    MODELINE
    + """learnable:
  type: iql
  expectile: 0.9
  actor_encoder_factory:
    type: vector
    hidden_units: [64, 64]
"""
    + "    \n"  # where the cursor stands
)


def rlreg(*arguments, cwd):
    command = [sys.executable, "-m", "rlreg", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a run file, as a user makes one."""
    root = tmp_path_factory.mktemp("project").resolve()
    done = rlreg("init", "iql", "-o", "run.yaml", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "schemas/run.schema.json" in done.stderr
    return root


@pytest.fixture(scope="module")
def server(project):
    assert SERVER.exists(), "run `make test-browser`: it installs yaml-language-server"
    server = LanguageServer(shutil.which("node"), SERVER, project)
    yield server
    server.close()


def test_the_file_that_init_writes_has_no_squiggle(server, project):
    assert server.open("run.yaml", (project / "run.yaml").read_text()) == []


def test_every_preset_and_learnable_of_ours_is_fine_in_the_editor(server, project):
    done = rlreg("init", "impala", "--preset", "paper", "-o", "impala.yaml", cwd=project)
    assert done.returncode == 0, done.stderr
    assert server.open("impala.yaml", (project / "impala.yaml").read_text()) == []


def test_completion_inside_an_encoder_offers_that_encoder_and_nothing_else(server):
    assert server.open("a.yaml", RUN) == []
    offered = server.complete("a.yaml", 7, 4)
    assert {"activation", "use_layer_norm", "dropout_rate"} <= set(offered)
    assert not {"filters", "expectile", "hidden_units", "betas"} & set(offered)
    assert "after each layer" in str(offered["activation"]["documentation"])


def test_completion_offers_the_tags_of_a_union_and_the_words_of_a_choice(server):
    text = RUN.replace("type: vector", "type: ").replace("    hidden_units: [64, 64]\n", "")
    server.open("b.yaml", text)
    offered = {label.strip('"') for label in server.complete("b.yaml", 5, 10)}
    assert {"vector", "pixel", "default", "simba", "impala_resnet"} <= offered
    assert "adam" not in offered
    server.open("c.yaml", RUN.replace("    \n", "    activation: \n"))
    offered = {label.strip('"') for label in server.complete("c.yaml", 7, 16)}
    assert {"relu", "tanh", "gelu"} <= offered


def test_completion_offers_the_keys_of_the_learnable(server):
    server.open("d.yaml", MODELINE + "learnable:\n  type: iql\n  \n")
    offered = server.complete("d.yaml", 3, 2)
    assert {"expectile", "weight_temp", "actor_encoder_factory"} <= set(offered)
    assert "vtrace_lambda" not in offered


def test_hover_shows_description_and_source(server):
    server.open("e.yaml", RUN)
    assert "Expectile of the value function" in server.hover("e.yaml", 3, 5)
    assert "Network of the policy. Default: paper" in server.hover("e.yaml", 4, 5)
    assert "Width" in server.hover("e.yaml", 6, 6) or "layer" in server.hover("e.yaml", 6, 6)


@pytest.mark.parametrize(
    ("good", "bad", "line", "word"),
    [
        ("expectile: 0.9", "expectil: 0.9", 3, "expectil"),
        ("hidden_units", "hiden_units", 6, "hiden_units"),
        ("expectile: 0.9", "expectile: 1.5", 3, "1"),
        ("hidden_units: [64, 64]", "filters: [[32, 8, 4]]", 6, "filters"),
        ("hidden_units: [64, 64]", "hidden_units: [64, 0]", 6, "minimum"),
        ("type: vector", "type: vectr", 5, "vector"),
        ("type: vector", "type: adam", 5, "vector"),
    ],
)
def test_a_fault_gets_a_squiggle_where_it_is(server, good, bad, line, word):
    found = server.open(f"{abs(hash(bad))}.yaml", RUN.replace(good, bad))
    assert {item["range"]["start"]["line"] for item in found} == {line}, found
    assert any(word in item["message"] for item in found), found


# --- pre-commit ---------------------------------------------------------------------------------


def test_the_installed_hook_finds_what_validate_finds(project):
    done = rlreg("schema", "install", cwd=project)
    assert done.returncode == 0, done.stderr
    text = (project / ".pre-commit-config.yaml").read_text()
    entry = next(line for line in text.splitlines() if "entry:" in line).split("entry: ")[1]
    checker = Path(sys.executable).parent / entry.split()[0]
    assert checker.exists(), "run `make test-browser`: it installs check-jsonschema"

    def check(name):
        return subprocess.run([checker, *entry.split()[1:], name], cwd=project, timeout=120,
                              capture_output=True, text=True)  # fmt: skip

    assert check("run.yaml").returncode == 0
    (project / "bad.run.yaml").write_text(RUN.replace("expectile:", "expectil:"))
    done = check("bad.run.yaml")
    assert done.returncode == 1
    assert "expectil" in done.stdout
    assert rlreg("validate", "bad.run.yaml", cwd=project).returncode == 2
