"""What an author reads about mistakes in the light half: hooks, configs, presets, names."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rlreg import registry
from rlreg.cli.main import run

CONFIG, PLUGIN, LEARNABLE = "config.py", "plugin.py", "learnable.py"
FUTURE = "from __future__ import annotations\n"
RETURNED = "    return [FaultyConfig]\n"


def preset(settings: str) -> tuple[str, str, str]:
    hook = (
        "\n\n@rlreg.hookimpl\ndef rlreg_presets():\n"
        f"    return [rlreg.Preset('faulty/small', 'Small.', 'ours', {settings})]\n"
    )
    return PLUGIN, RETURNED, RETURNED + hook


@pytest.fixture
def call(capsys):
    """Runs a command; gives its exit code, stdout and stderr."""

    def call(*arguments):
        code = run(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def the_plugin():
    return next(p for p in registry.list_plugins() if p.distribution == "rlreg-faulty")


def installed_editable(tmp_path):
    """Marks what `edited` installed as an editable installation, as pip does."""
    info = tmp_path / "site" / "rlreg_faulty-0.1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}}))
    registry.rediscover()


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        ((PLUGIN, RETURNED, "    raise RuntimeError('boom')\n"), "RuntimeError: boom"),
        ((CONFIG, FUTURE, FUTURE + "1 / 0\n"), "ZeroDivisionError: division by zero"),
        (
            (CONFIG, "rlreg.make_encoder_field()", "rlreg.make_encoder_field(name='x')"),
            "make_encoder_field() got an unexpected keyword",
        ),
        ((CONFIG, FUTURE, FUTURE + "import rlreg\nrlreg.Search(-1, 1, log=True)\n"), "log needs"),
    ],
    ids=["hook", "import", "keyword", "search"],
)
def test_a_broken_plugin_says_the_line(edit, error, edited, call, tmp_path):
    edited(edit)
    plugin = the_plugin()
    assert error in plugin.error
    assert f"(rlreg_faulty/{edit[0]}:" in plugin.error
    assert "report it to the authors of rlreg-faulty" in plugin.remedy
    code, out, _ = call("check", "rlreg-faulty", "--json")
    (failed,) = [each for each in json.loads(out)["results"] if each["status"] == "failed"]
    assert code == 3
    assert plugin.error in failed["message"]
    assert "report it" not in failed["message"]
    assert "Traceback" in failed["traceback"]
    installed_editable(tmp_path)
    assert "report it" not in the_plugin().remedy
    assert "rlreg plugins block rlreg-faulty" in the_plugin().remedy


def test_a_hook_without_its_mark_is_named(edited):
    _, old, new = preset("{}")
    edited((PLUGIN, old, new.replace("@rlreg.hookimpl\ndef rlreg_presets", "def rlreg_presets")))
    assert "rlreg_presets is not marked @rlreg.hookimpl" in the_plugin().error


def test_one_import_error_is_one_row_of_the_check(edited, call):
    edited((LEARNABLE, "import torch\n", "import torch\nimport no_such_module\n"))
    code, out, err = call("check", "rlreg-faulty")
    assert code == 3
    assert "".join(out.split()).count("Nomodulenamed'no_such_module'") == 1
    assert "(rlreg_faulty/learnable.py:9)" in "".join(out.split())  # the table may break it
    assert "".join(out.split()).count("(sodo2") == 1
    assert err.count("Traceback") == 1


def test_a_setting_of_a_preset_without_its_prefix_is_suggested(edited):
    edited(preset("{'batch_size': 8}"))
    assert (
        "no such setting 'batch_size'; did you mean 'learnable.batch_size'?" in the_plugin().error
    )
    assert ";;" not in the_plugin().error


def test_doctor_finds_a_preset_that_does_not_fit(edited, call):
    edited(preset("{'learnable.batchsize': 8}"))
    code, out, _ = call("doctor", "--json")
    (finding,) = json.loads(out)["findings"]
    assert code == 3
    assert finding["subject"] == "faulty/small of rlreg-faulty 0.1.0"
    assert "did you mean 'batch_size'" in finding["message"]


def test_doctor_finds_a_name_that_belongs_to_somebody_else(edited, call):
    edited((CONFIG, '"faulty"', '"iql"'))
    code, out, _ = call("doctor", "--json")
    (finding,) = json.loads(out)["findings"]
    assert code == 3
    assert finding["kind"] == "name claimed twice"
    assert "'iql' means rlreg-iql/iql; rlreg-faulty/iql also has this name" in finding["message"]


def test_a_name_that_belongs_to_somebody_else_survives_a_file(edited, call):
    edited((CONFIG, '"faulty"', '"iql"'))
    code, out, _ = call("check", "rlreg-faulty", "--only", "round-trip-through-yaml", "--json")
    assert (code, json.loads(out)["counts"]["passed"]) == (0, 1)


def test_a_type_set_over_a_preset_is_named_as_the_cause(edited, call):
    factory = "{'learnable.encoder_factory': {'type': 'vector', 'hidden_units': [8]}}"
    edited(preset(factory))
    change = "learnable.encoder_factory.type=pixel"
    code, _, err = call("train", "faulty", "--preset", "small", "--set", change)
    assert code == 2
    assert f"--set {change} changed the part it was for; write all of it" in err
    assert "learnable.encoder_factory={type: ...}" in err


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_what_a_plugin_prints_is_in_no_json_document(command, edited, tmp_path):
    edited((CONFIG, FUTURE, FUTURE + "print('hello')\n"))
    done = subprocess.run(
        [sys.executable, "-m", "rlreg", command, "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "faulty" in [each["name"] for each in json.loads(done.stdout)["learnables"]]
    assert done.stderr == "hello\n"


def test_show_leaves_the_open_settings_of_a_default_out(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call("show", "iql")
    rows = [line for line in out.splitlines() if "{type: " in line]
    assert rows
    assert not [row for row in rows if "null" in row]


def test_a_breach_of_the_contract_is_said_without_our_own_lines(edited, call):
    edited((CONFIG, "batch_size: int", "batch_size: list"))
    code, out, _ = call("check", "rlreg-faulty", "--json")
    failed = [each for each in json.loads(out)["results"] if each["check"] == "hooks-are-found"]
    assert code == 3
    assert "FaultyConfig.batch_size: type list is not allowed" in failed[0]["message"]
    assert failed[0]["traceback"] == ""


def test_one_check_of_a_plugin_that_does_not_load_fails(edited, call):
    edited((CONFIG, "batch_size: int", "batch_size: list"))
    code, out, _ = call("check", "rlreg-faulty", "--only", "fields-are-described", "--json")
    document = json.loads(out)
    assert code == 3
    assert [each["check"] for each in document["results"]] == ["hooks-are-found"]


def test_one_check_of_a_plugin_that_loads_is_that_check_alone(edited, call):
    edited()
    code, out, _ = call("check", "rlreg-faulty", "--only", "fields-are-described", "--json")
    assert code == 0
    assert {each["check"] for each in json.loads(out)["results"]} == {"fields-are-described"}
