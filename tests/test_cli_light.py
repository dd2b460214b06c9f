# ruff: noqa: E501 - tables of commands and messages read better on one line
"""The light half of the command line: no torch, exit codes, one JSON document, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.cli.main import COMMANDS, run
from rlreg.cli.output import counted
from rlreg.schema_diff import compare_schemas

pytestmark = pytest.mark.light

ROOT = Path(__file__).parent.parent

GOOD = '''
from typing import ClassVar, Literal
from pydantic import Field
import rlreg

class GoodConfig(rlreg.LearnableConfig):
    """A good one.

    More words.
    """
    regime: ClassVar[str] = "offline"
    type: Literal["{tag}"] = "{tag}"
    rate: float = Field(0.5, gt=0, le=1, description="A rate. Default: ours.")
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()

@rlreg.hookimpl
def rlreg_learnables():
    return [GoodConfig]

@rlreg.hookimpl
def rlreg_presets():
    return [rlreg.Preset("{tag}/fast", "Fast.", "ours", {{"learnable.rate": 0.25}})]
'''


class Probe(rlreg.LearnableConfig):
    """A learnable for tests of commands."""

    regime: ClassVar[str] = "online"
    type: Literal["probe"] = "probe"
    gamma: float = Field(0.99, gt=0, le=1, description="Discount. Default: paper, table 3.")
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs a command in this process, in an empty folder; gives code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rlreg.register_learnable(Probe)

    def call(*arguments):
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield call
    registry.forget_local(["probe"])


@pytest.fixture
def command(tmp_path):
    """Runs the command in a process of its own, with only the plugins in the given folders."""

    def command(*arguments, path=(), only="", **env):
        names = only or ",".join(folder.name.removeprefix("site-") for folder in path) or "none"
        return subprocess.run(
            [sys.executable, "-m", "rlreg", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)]),
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "RLREG_ONLY_PLUGINS": names,
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )

    return command


# --- start-up -----------------------------------------------------------------------------------


def modules_after(run_python, *arguments):
    code = (
        "import sys, json, contextlib, io\n"
        "from rlreg.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    code = run({list(arguments)!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]))\n"
    )
    code, names = json.loads(run_python(code, path=[ROOT]))
    return code, set(names)


def test_help_imports_neither_pydantic_nor_a_command(run_python):
    code, names = modules_after(run_python, "--help")
    assert code == 0
    assert not names & {"pydantic", "pluggy", "torch", "rlreg.config"}
    assert {name for name in names if name.startswith("rlreg.cli.")} == {"rlreg.cli.main"}


def test_help_of_a_command_imports_its_module_alone(run_python):
    code, names = modules_after(run_python, "validate", "--help")
    assert code == 0
    assert "rlreg.cli.configs" in names
    assert not names & {"pydantic", "rlreg.cli.listing", "rlreg.cli.plugins"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"], ["list", "--components"], ["info"], ["doctor"], ["schema", "run"],
        ["show", "encoder.vector"], ["show", "run"], ["plugins", "list"],
        ["validate", "run.yaml"], ["docs", "build", "ref"],
    ],
)  # fmt: skip
def test_light_commands_leave_the_heavy_modules_alone(arguments, run_python, tmp_path):
    if arguments[0] == "docs":
        arguments = [*arguments[:2], str(tmp_path / "ref")]
    _, names = modules_after(run_python, *arguments)
    assert not names & {"torch", "numpy", "gymnasium", "minari"}


def test_the_commands_that_repair_import_no_plugin(make_plugin, command, tmp_path):
    site = make_plugin(
        "bomb", "import pathlib\npathlib.Path('imported').touch()\nraise SystemExit(9)\n"
    )
    for arguments in (
        ["plugins", "list"],
        ["plugins", "block", "bomb"],
        ["plugins", "unblock", "bomb"],
    ):
        done = command(*arguments, path=[site])
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()
    assert command("list", path=[site]).returncode == 0
    assert (tmp_path / "imported").exists()


def test_every_command_in_the_table_that_is_installed_has_help(call):
    code, out, _ = call("--help")
    assert code == 0
    for name, entry in COMMANDS.items():
        if not (ROOT / "rlreg" / "cli" / f"{entry.module}.py").exists():
            continue
        assert f"  {name} " in out
        assert call(name, "--help")[0] == 0


# --- the frame: exit codes, errors, JSON --------------------------------------------------------


def test_version(call):
    assert call("--version") == (0, f"rlreg {rlreg.__version__}\n", "")


def test_an_unknown_command_names_the_nearest(call):
    code, out, err = call("lst")
    assert (code, out) == (2, "")
    assert "there is no command 'lst'; did you mean 'list'?" in err


def test_a_missing_argument_and_an_unknown_option_are_usage_errors(call):
    assert call("validate")[0] == 2
    code, out, err = call("validate", "x.yaml", "--nope")
    assert (code, out) == (2, "")
    assert "No such option '--nope'" in err


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["validate", "gone.yaml", "--json"], "FileFormatError"),
        (["show", "nothing", "--json"], "UnknownNameError"),
        (["validate", "--json"], "UsageError"),
        (["nothing", "--json"], "UsageError"),
        (["plugins", "block", "nobody", "--json"], "UnknownNameError"),
        (["init", "probe", "--set", "gamma=7", "--json"], "ConfigError"),
    ],
)
def test_with_json_an_error_is_one_document_too(call, arguments, kind):
    code, out, err = call(*arguments)
    assert code == 2
    document = json.loads(out)
    assert document["error"]["kind"] == kind
    assert document["error"]["message"] in err
    assert "Traceback" not in err


def test_problems_are_in_the_json_error(call):
    Path("a.yaml").write_text("type: probe\ngama: 1\ngamma: 2\n")
    _, out, _ = call("validate", "a.yaml", "--json")
    first, second = json.loads(out)["error"]["problems"]
    assert first == {
        "path": ["gama"], "message": "no such key", "given": "", "origin": "a.yaml:2:1",
        "hint": "did you mean 'gamma'?",
    }  # fmt: skip
    assert second["path"] == ["gamma"]
    assert second["origin"] == "a.yaml:3:8"


def test_any_other_exception_is_called_a_bug(call, monkeypatch):
    monkeypatch.setattr("rlreg.files.collect", lambda *_, **__: 1 / 0)
    code, out, err = call("validate", "a.yaml", "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "Bug"
    assert "This is a bug in rlreg" in err
    assert "ZeroDivisionError" in err


def test_an_interrupt_is_130(call, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlreg.files.collect", interrupt)
    assert call("validate", "a.yaml")[0] == 130


def test_a_closed_pipe_is_no_error_message(tmp_path):
    text = subprocess.run(
        f"{sys.executable} -m rlreg schema run | head -c 1",
        shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert text.stdout == "{"
    assert "Traceback" not in text.stderr
    assert "bug" not in text.stderr


# --- list, show, info, doctor -------------------------------------------------------------------


def test_list_json_has_the_documented_keys(make_plugin, command):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    bad = make_plugin("case-bad", "import no_such_module_anywhere\n")
    done = command("list", "--json", path=[good, bad])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["rlreg", "plugin_api", "learnables", "plugins"]
    (learnable,) = document["learnables"]
    assert learnable == {
        "name": "good", "id": "case-good/good", "summary": "A good one.", "regime": "offline",
        "distribution": "case-good", "version": "1.0", "status": "ok",
    }  # fmt: skip
    plugins = {
        item["distribution"]: item for item in document["plugins"] if item["status"] != "blocked"
    }
    assert set(plugins) == {"case-good", "case-bad"}
    for plugin in document["plugins"]:
        assert list(plugin) == [
            "distribution", "version", "entry_point", "value", "status", "error", "remedy", "traceback",
        ]  # fmt: skip
    assert plugins["case-good"]["status"] == "ok"
    assert plugins["case-bad"]["status"] == "broken"
    assert "no_such_module_anywhere" in plugins["case-bad"]["error"]


def test_list_shows_a_broken_plugin_on_stderr_and_the_good_one_on_stdout(make_plugin, command):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    bad = make_plugin("case-bad", "raise RuntimeError('boom')\n")
    done = command("list", path=[bad, good])
    assert done.returncode == 0
    assert "good" in done.stdout
    assert "boom" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_doctor_is_3_for_a_broken_plugin_and_0_for_a_blocked_one(make_plugin, command):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    bad = make_plugin("case-bad", "raise RuntimeError('boom')\n")
    done = command("doctor", "--json", path=[good, bad])
    assert done.returncode == 3
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["kind"] == "broken plugin"
    assert "boom" in finding["message"]
    human = command("doctor", path=[good, bad])
    assert human.returncode == 3
    assert "rlreg plugins block case-bad" in human.stdout
    assert command("plugins", "block", "case-bad", path=[good, bad]).returncode == 0
    assert command("doctor", path=[good, bad]).returncode == 0
    assert command("plugins", "unblock", "case_bad", path=[good, bad]).returncode == 0
    assert command("doctor", path=[good, bad]).returncode == 3


def test_doctor_finds_a_name_that_two_distributions_claim(make_plugin, command):
    first = make_plugin("case-a", GOOD.format(tag="twin"))
    second = make_plugin("case-b", GOOD.format(tag="twin").replace("0.25", "0.25"))
    done = command("doctor", "--json", path=[first, second])
    assert done.returncode == 3
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["subject"] == "learnable twin"
    assert "case-a/twin" in finding["remedy"]
    listed = command("list", path=[second, first])
    assert "case-a/twin" in listed.stdout
    assert "case-b/twin" in listed.stdout
    assert command("show", "twin", path=[first, second]).returncode == 2
    assert command("show", "case-b/twin", path=[first, second]).returncode == 0


def test_show_gives_range_default_source_unions_and_presets(make_plugin, command):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    done = command("show", "good", path=[good], COLUMNS="160")
    assert done.returncode == 0
    for text in (
        "case-good/good",
        "number, 0 < x <= 1",
        "0.5",
        "A rate. Default: ours.",
        "good/fast",
        "vector",
        "More words.",
    ):
        assert text in done.stdout
    document = json.loads(command("show", "good", "--json", path=[good]).stdout)
    rate = next(item for item in document["fields"] if item["name"] == "rate")
    assert (rate["range"], rate["default"], rate["source"]) == ("0 < x <= 1", 0.5, "ours")
    assert "vector" in document["unions"]["encoder"]
    assert document["presets"][0]["settings"] == {"learnable.rate": 0.25}


def test_info_gives_versions(call):
    code, out, _ = call("info", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["rlreg"] == rlreg.__version__
    assert document["packages"]["pydantic"].count(".") == 2
    assert "devices" not in document


def test_block_and_unblock_refuse_names_nobody_has(call):
    code, _, err = call("plugins", "block", "nobody-has-this")
    assert code == 2
    assert "no installed plugin 'nobody-has-this'" in err
    code, _, err = call("plugins", "unblock", "nobody-has-this")
    assert code == 2
    assert "no blocked plugin" in err


def test_unblock_says_when_the_environment_still_blocks(make_plugin, command):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    command("plugins", "block", "case-good", path=[good])
    done = command("plugins", "unblock", "case-good", path=[good], RLREG_BLOCK_PLUGINS="case-good")
    assert done.returncode == 0
    assert "still off: named in RLREG_BLOCK_PLUGINS" in done.stderr


# --- schemas ------------------------------------------------------------------------------------


def test_schema_prints_what_the_library_gives(call):
    code, out, _ = call("schema", "probe")
    assert code == 0
    assert json.loads(out) == rlreg.json_schema("probe")
    assert json.loads(call("schema", "--scope", "own", "probe")[1]) == rlreg.json_schema(
        "probe", scope="own"
    )


def test_schema_export_renews_what_the_folder_has_and_check_finds_drift(call):
    assert call("schema", "export", "s")[0] == 0
    assert [path.name for path in Path("s").iterdir()] == ["run.schema.json"]
    assert call("schema", "export", "s", "--learnable", "probe")[0] == 0
    assert {path.name for path in Path("s").iterdir()} == {"run.schema.json", "probe.schema.json"}
    assert call("schema", "export", "s", "--check")[0] == 0
    run_schema = json.loads(Path("s/run.schema.json").read_text())
    assert run_schema["$defs"]["LearnableConfig"]["properties"]["type"]["enum"] == ["probe"]
    Path("s/probe.schema.json").write_text("{}")
    before = Path("s/probe.schema.json").read_text()
    code, out, err = call("schema", "export", "s", "--check", "--json")
    assert code == 3
    assert json.loads(out)["differing"] == ["probe.schema.json"]
    assert "s/probe.schema.json" in err
    assert Path("s/probe.schema.json").read_text() == before
    assert call("schema", "export", "s")[0] == 0
    assert call("schema", "export", "s", "--check")[0] == 0


def test_schema_export_keeps_flavour_and_scope_of_what_is_there(call):
    assert call("schema", "export", "s", "--installed", "--flavour", "editor")[0] == 0
    assert json.loads(Path("s/run.schema.json").read_text()) == rlreg.json_schema(
        "run", flavour="editor"
    )
    before = {path.name: path.read_text() for path in Path("s").iterdir()}
    assert call("schema", "export", "s", "--check")[0] == 0
    assert call("schema", "export", "s")[0] == 0
    assert {path.name: path.read_text() for path in Path("s").iterdir()} == before
    assert call("schema", "export", "s", "--flavour", "standard")[0] == 0
    assert json.loads(Path("s/run.schema.json").read_text()) == rlreg.json_schema("run")
    printed = json.loads(call("schema", "probe", "--flavour", "editor")[1])
    assert printed == rlreg.json_schema("probe", flavour="editor")


def test_schema_install_registers_run_files_once(call):
    code, out, _ = call("schema", "install", "--json")
    assert code == 0
    assert json.loads(out)["written"] == [
        "schemas/run.schema.json", ".vscode/settings.json", ".pre-commit-config.yaml"
    ]  # fmt: skip
    settings = json.loads(Path(".vscode/settings.json").read_text())
    assert settings == {"yaml.schemas": {"./schemas/run.schema.json": ["run.yaml", "*.run.yaml"]}}
    assert json.loads(call("schema", "install", "--json")[1])["written"] == []
    assert call("schema", "install", "p", "--no-vscode", "--files", "c/*.yaml")[0] == 0
    assert not Path("p/.vscode").exists()
    assert 'files: "^c/.*\\\\.yaml$"' in Path("p/.pre-commit-config.yaml").read_text()


JSONC = """// mine, with "quotes" and a , ]
{
    /* block
       , } */
    "editor.rulers": [80, 100,], // trailing
    "files.exclude": {"**/*.pyc": true, "a//b": "/* no comment */"},%s
}
"""


@pytest.mark.parametrize(
    "known",
    ["", '\n    "yaml.schemas": {},', '\n    "yaml.schemas": {"x.json": ["x.yaml"]}, // theirs'],
)
def test_schema_install_keeps_the_comments_of_settings(call, known):
    Path(".vscode").mkdir()
    text = JSONC % known
    Path(".vscode/settings.json").write_text(text)
    assert call("schema", "install", "--no-pre-commit")[0] == 0
    after = Path(".vscode/settings.json").read_text()
    assert '"./schemas/run.schema.json": ["run.yaml", "*.run.yaml"]' in after
    kept = after.replace('"./schemas/run.schema.json": ["run.yaml", "*.run.yaml"]', "")
    for line in text.splitlines():
        assert line.strip().removeprefix('"yaml.schemas": {').removesuffix("},") in kept
    assert call("schema", "install", "--no-pre-commit")[1] == "all is there already\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected a mapping"),
        ('{"a": ', "settings.json"),
        ('{"yaml.schemas": 3}', "insert this yourself"),
        ('{"yaml.schemas": {"./schemas/run.schema.json": "*.yml"}}', "has ./schemas/run.schema"),
    ],
)
def test_schema_install_refuses_settings_that_it_cannot_add_to(call, text, message):
    Path(".vscode").mkdir()
    Path(".vscode/settings.json").write_text(text)
    code, _, err = call("schema", "install")
    assert code == 2
    assert message in err
    assert Path(".vscode/settings.json").read_text() == text
    assert not Path("schemas").exists()
    assert not Path(".pre-commit-config.yaml").exists()


@pytest.mark.parametrize(
    "text",
    [
        "repos:\n- repo: local # c\n  hooks: []\n",
        "# c\nrepos:\n  - repo: local\n    hooks:\n      - {id: x, language: system}",
        "fail_fast: true\nrepos:\n    - repo: meta\n      hooks: [{id: identity}]\n\n\n",
    ],
)
def test_schema_install_adds_its_hook_behind_the_others(call, text):
    from rlreg.documents import parse_document

    Path(".pre-commit-config.yaml").write_text(text)
    assert call("schema", "install", "--no-vscode")[0] == 0
    after = Path(".pre-commit-config.yaml").read_text()
    assert after.startswith(text.rstrip("\n"))
    data = parse_document(after, ".yaml", "x").data
    assert data["repos"][-1]["hooks"][0]["id"] == "rlreg-run-files"
    assert len(data["repos"]) == 2
    assert call("schema", "install", "--no-vscode")[1] == "all is there already\n"


@pytest.mark.parametrize(
    "text", ["repos: []\n", "repos: [{repo: local, hooks: []}]\n", "a: 1\n",
             "repos:\n- repo: local\n  hooks: []\nfail_fast: true\n"]
)  # fmt: skip
def test_schema_install_shows_the_hook_where_it_cannot_add_it(call, text):
    Path(".pre-commit-config.yaml").write_text(text)
    code, _, err = call("schema", "install", "--no-vscode")
    assert code == 2
    assert "insert this yourself" in err
    assert "check-jsonschema --schemafile schemas/run.schema.json" in err
    assert Path(".pre-commit-config.yaml").read_text() == text


def test_schema_export_of_all_that_is_installed(call):
    assert call("schema", "export", "s", "--installed")[0] == 0
    names = {info.name for info in rlreg.list_learnables()}
    assert {path.name for path in Path("s").iterdir()} == {
        f"{name}.schema.json" for name in names | {"run"}
    }


def test_schema_export_names_a_file_whose_learnable_is_gone(call):
    Path("s").mkdir()
    Path("s/gone.schema.json").write_text("{}")
    code, _, err = call("schema", "export", "s", "--check")
    assert code == 2
    assert "unknown learnable 'gone'" in err


BASE = {
    "properties": {
        "a": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
        "b": {"enum": ["x", "y"], "default": "x", "description": "old"},
        "c": {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "null"}], "default": None},
        "d": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    }
}


@pytest.mark.parametrize(
    ("path", "value", "breaking"),
    [
        (["a", "maximum"], 2, [False]),
        (["a", "maximum"], 0.9, [True]),
        (["a", "minimum"], -1, [False]),
        (["a", "exclusiveMinimum"], 0, [True]),
        (["a", "default"], 0.6, [False]),
        (["a", "type"], "integer", [True]),
        (["b", "enum"], ["x", "y", "z"], [False]),
        (["b", "enum"], ["x"], [True]),
        (["b", "description"], "new", []),
        (["c", "anyOf"], [{"type": "integer", "maximum": 6}, {"type": "null"}], [False]),
        (["c", "anyOf"], [{"type": "integer", "maximum": 5}], [True]),
        (["d", "items"], {"type": "integer", "minimum": 2}, [True]),
        (["d", "items"], {"type": "number", "minimum": 1}, [False]),
        (["d", "minItems"], 2, [True]),
        (["d"], None, [True]),
        (["e"], {"type": "string", "default": ""}, [False]),
    ],
)
def test_a_change_is_breaking_when_valid_files_may_be_refused(path, value, breaking):
    new = json.loads(json.dumps(BASE))
    node = new["properties"]
    for key in path[:-1]:
        node = node[key]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    assert [change.is_breaking for change in compare_schemas(BASE, new)] == breaking
    assert compare_schemas(BASE, BASE) == []


def test_schema_diff_exits_with_3_for_a_breaking_change(call):
    call("schema", "export", "s", "--learnable", "probe")
    code, out, _ = call("schema", "diff", "s/probe.schema.json", "probe", "--json")
    assert (code, json.loads(out)["changes"]) == (0, [])
    schema = json.loads(Path("s/probe.schema.json").read_text())
    schema["properties"]["gamma"]["maximum"] = 2
    Path("old.json").write_text(json.dumps(schema))
    code, out, _ = call("schema", "diff", "old.json", "probe")
    assert code == 3
    assert "breaking gamma: maximum changed from 2 to 1" in out
    assert call("schema", "diff", "probe", "old.json")[0] == 0


def test_schema_diff_takes_both_flavours(call):
    """What the file of the editor says of a field, `$ref` and all, is what the other one says."""
    call("schema", "export", "s", "--learnable", "probe", "--flavour", "editor")
    code, out, _ = call("schema", "diff", "s/probe.schema.json", "probe", "--json")
    assert (code, json.loads(out)["changes"]) == (0, [])
    schema = json.loads(Path("s/probe.schema.json").read_text())
    schema["properties"]["gamma"]["maximum"] = 2
    vector = schema["definitions"]["encoder.vector"]["properties"]
    del vector["hidden_units"]["minItems"], vector["hidden_units"]["description"]
    Path("old.json").write_text(json.dumps(schema))
    for new in ("probe", "s/probe.schema.json"):
        code, out, _ = call("schema", "diff", "old.json", new, "--json")
        assert code == 3
        changes = json.loads(out)["changes"]
        assert [(change["path"], change["breaking"]) for change in changes] == [
            ("gamma", True),
            ("encoder.vector/hidden_units", True),
        ]


def test_schema_diff_of_a_foreign_schema_says_what_is_expected(call):
    Path("other.json").write_text('{"$schema": "http://json-schema.org/draft-04/schema#"}')
    code, _, err = call("schema", "diff", "other.json", "iql")
    assert code == 2
    assert "other.json: $schema is 'http://json-schema.org/draft-04/schema#'; expected" in err


def test_schema_diff_of_json_that_is_nested_too_deep_is_refused(call):
    Path("deep.json").write_text("[" * 10_000 + "]" * 10_000)
    code, _, err = call("schema", "diff", "deep.json", "iql")
    assert code == 2
    assert err.startswith("error: deep.json: not JSON: ")


def test_schema_diff_of_a_config_file_says_what_is_expected(call):
    Path("run.yaml").write_text("learnable: {type: probe}\n")
    code, _, err = call("schema", "diff", "run.yaml", "probe")
    assert code == 2
    assert "run.yaml: expected a schema file (.json) or the id of a learnable" in err


# --- init, validate, explain, diff, migrate -----------------------------------------------------


def test_init_writes_a_file_that_validates_and_never_replaces_one_unasked(call):
    code, out, _ = call("init", "probe", "--set", "gamma=0.5", "-o", "a.yaml")
    assert code == 0
    assert "a.yaml: written" in out
    assert call("validate", "a.yaml") == (0, "a.yaml: valid, a run of probe\n", "")
    before = Path("a.yaml").read_text()
    code, _, err = call("init", "probe", "-o", "a.yaml")
    assert code == 2
    assert "exists already" in err
    assert Path("a.yaml").read_text() == before
    assert call("init", "probe", "-o", "a.yaml", "--force")[0] == 0
    assert Path("a.yaml").read_text() != before
    assert call("init", "probe")[1] == Path("a.yaml").read_text()
    assert call("init", "probe", "-o", "a.txt")[0] == 2
    assert call("init", "probe", "-o", "no/such/folder/a.yaml")[0] == 2
    assert not Path("no").exists()


def test_init_names_a_schema_that_is_there(call, tmp_path_factory):
    _, _, err = call("init", "probe", "-o", "a.yaml")
    assert "schemas/run.schema.json: written" in err
    assert json.loads(Path("schemas/run.schema.json").read_text()) == rlreg.json_schema(
        "run", flavour="editor"
    )
    Path("deep/er").mkdir(parents=True)
    outside = tmp_path_factory.mktemp("outside")
    for file in ("a.yaml", "deep/er/b.yaml", str(outside / "c.yaml")):
        if file != "a.yaml":
            assert call("init", "probe", "-o", file)[0] == 0
        line = Path(file).read_text().splitlines()[0]
        assert (Path(file).parent / line.partition("$schema=")[2]).is_file(), line
    Path("schemas/run.schema.json").write_text("mine")
    assert call("init", "probe", "-o", "d.yaml") == (
        0, "d.yaml: written; train it with: rlreg train d.yaml\n", ""
    )  # fmt: skip
    assert Path("schemas/run.schema.json").read_text() == "mine"
    call("init", "probe", "-o", "e.yaml", "--schema", "https://example.org/x.json")
    assert (
        Path("e.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=https://example.org/x.json\n")
    )


def test_validate_reports_every_fault_once_with_its_place(call):
    Path("a.yaml").write_text("learnable: {type: probe, gama: 1}\nseed: -1\n")
    code, out, err = call("validate", "a.yaml", "--set", "learnable.gamma=9")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: 3 problems",
        "  a.yaml:1:26: learnable.gama: no such key; did you mean 'gamma'?",
        "  a.yaml:2:7: seed = -1: must be >= 0",
        "  --set learnable.gamma=9: learnable.gamma = 9: must be <= 1.0",
    ]


class OfflineProbe(rlreg.LearnableConfig):
    """Learns from a data set."""

    regime: ClassVar[str] = "offline"
    type: Literal["offline-probe"] = "offline-probe"


def test_validate_reports_what_belongs_to_the_other_regime(call):
    rlreg.register_learnable(OfflineProbe)
    try:
        Path("a.yaml").write_text(
            "train:\n  n_epochs: 3\nlearnable: {type: offline-probe}\nenv: CartPole-v1\n"
        )
        code, out, err = call("validate", "a.yaml")
        given = "env={id: x, kwargs: {a: [1, 2, 3, 4, 5, 6]}, register: 'a:b'}"
        _, _, other = call("validate", "a.yaml", "--set", "train.n_epochs=null", "--set", given)
    finally:
        registry.forget_local(["offline-probe"])
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: 2 problems",
        "  a.yaml:2:13: train.n_epochs: is for online learnables; use train.n_steps and "
        "train.n_steps_per_epoch",
        "  a.yaml:4:6: env = 'CartPole-v1': 'offline-probe' learns from a data set; the "
        "environment to evaluate in is evaluation.env",
    ]
    # As a file has it, and short.
    shown = (
        "env = {'id': 'x', 'kwargs': {'a': [1, 2, 3, 4, ...]}, 'register': 'a:b'}: 'offline-probe'"
    )
    assert shown in other


def test_validate_lets_an_online_run_wait_for_its_environment(call):
    Path("a.yaml").write_text("learnable: {type: probe}\n")
    assert call("validate", "a.yaml")[0] == 0
    code, _, err = call("validate", "a.yaml", "--set", "dataset=x/y-v0")
    assert code == 2
    assert err == (
        "error: --set dataset=x/y-v0: dataset = 'x/y-v0': 'probe' learns from an environment\n"
    )


def test_explain_names_the_origin_of_every_value(call):
    Path("a.yaml").write_text("learnable:\n  type: probe\n  gamma: 0.5\n")
    code, out, _ = call(
        "explain", "a.yaml", "--set", "encoder.activation=tanh", "--set", "seed=3", "--json"
    )
    assert code == 0
    rows = {row["path"]: row for row in json.loads(out)["values"]}
    assert rows["learnable.gamma"]["origin"] == "a.yaml:3:10"
    assert rows["learnable.gamma"]["allowed"] == "number: 0 < x <= 1"
    assert rows["learnable.gamma"]["source"] == "paper, table 3"
    assert rows["learnable.encoder.activation"]["origin"] == "--set encoder.activation=tanh"
    assert (
        rows["learnable.encoder.use_batch_norm"]["origin"]
        == f"default of rlreg {rlreg.__version__}"
    )
    assert rows["seed"]["value"] == 3
    assert rows["logging[0].type"]["value"] == "jsonl"
    assert rows["train.n_steps"]["layer"] == "default"
    assert rows["train.n_steps"]["value"] == 100_000  # what training takes where a file says null
    _, out, _ = call("explain", "a.yaml", "--changed")
    assert "learnable.gamma" in out
    assert "n_steps" not in out


def test_explain_names_the_preset(make_plugin, command, tmp_path):
    good = make_plugin("case-good", GOOD.format(tag="good"))
    (tmp_path / "a.yaml").write_text("type: good\n")
    done = command("explain", "a.yaml", "--preset", "fast", "--changed", "--json", path=[good])
    rows = {row["path"]: row["origin"] for row in json.loads(done.stdout)["values"]}
    assert rows == {"type": "a.yaml:1:7", "rate": "preset good/fast"}


def test_diff_compares_meaning_across_formats(call):
    Path("a.yaml").write_text("seed: 1\nlearnable: {type: probe, gamma: 0.5} # words\n")
    Path("b.toml").write_text(
        'seed = 1\n[learnable]\ngamma = 0.5\ntype = "probe"\nencoder = {type = "default"}\n'
    )
    Path("c.json").write_text('{"type": "probe", "gamma": 0.6}')
    assert call("diff", "a.yaml", "b.toml") == (0, "no difference\n", "")
    _, out, _ = call("diff", "a.yaml", "c.json", "--json")
    assert json.loads(out)["changes"] == [{"path": "gamma", "a": 0.5, "b": 0.6}]
    assert "gamma" in call("diff", "probe", "c.json")[1]


def test_migrate_says_that_there_is_nothing_to_do(call):
    Path("a.yaml").write_text("type: probe\n")
    code, out, _ = call("migrate", "a.yaml")
    assert code == 0
    assert "is of the latest schema version; nothing to do" in out


@pytest.mark.parametrize("content", [b"a: [1,\nb: }\n", b"\xff\x00", b"", None])
def test_migrate_refuses_a_file_in_the_words_of_validate(call, content):
    if content is not None:
        Path("a.yaml").write_bytes(content)
    code, _, err = call("migrate", "a.yaml")
    assert code == 2
    assert err == call("validate", "a.yaml")[2]
    assert len(err.splitlines()) == 1


def test_migrate_reads_a_byte_order_mark_and_json(call):
    Path("a.yaml").write_bytes(b"\xef\xbb\xbftype: probe\n")
    Path("a.json").write_bytes(b'\xef\xbb\xbf{"type": "probe"}\n')
    assert call("migrate", "a.yaml")[0] == 0
    assert call("migrate", "a.json")[0] == 0


def test_validate_blames_the_flag_for_what_it_added(call):
    Path("a.yaml").write_text("learnable: {type: probe, encoder: {type: default}}\n")
    code, _, err = call("validate", "a.yaml", "--set", "encoder.hidden_units.0=3")
    assert code == 2
    assert "a.yaml:" not in err
    assert "--set encoder.hidden_units.0=3: learnable.encoder.hidden_units: no such key" in err
    assert "an item of a list is written [0]" in err


def test_docs_build_writes_the_reference(call):
    code, out, _ = call("docs", "build", "ref", "--json")
    assert code == 0
    assert "ref/learnables/probe.html" in json.loads(out)["files"]
    assert Path("ref/learnables/probe.md").exists()


@pytest.mark.parametrize("command", ["validate", "explain", "hash"])
def test_an_empty_argument_is_not_the_working_directory(call, command):
    Path("run.yaml").write_text("learnable: {type: probe}\n")
    code, _, err = call(command, "")
    assert code == 2
    assert "expected" in err


def test_a_blocking_variable_that_names_nothing_is_remarked(call, monkeypatch):
    monkeypatch.setenv("RLREG_BLOCK_PLUGINS", "no-such-plugin")
    code, _, err = call("list")
    assert code == 0
    assert "RLREG_BLOCK_PLUGINS names 'no-such-plugin'" in err


# --- closed streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_with_closed_streams_and_writes_into_no_file(closed, tmp_path):
    script = f'"{sys.executable}" -m rlreg schema export "{tmp_path}" {closed}; echo "code $?"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "code 0", done.stderr
    assert "Traceback" not in done.stderr
    json.loads((tmp_path / "run.schema.json").read_text())
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".json")]


def test_an_end_of_file_is_not_an_interrupt(run_python):
    code, message = json.loads(
        run_python(
            "import contextlib, io, json\n"
            "import click\n"
            "from rlreg.cli import main\n"
            "@click.command()\n"
            "def broken():\n"
            "    raise EOFError('the file ended')\n"
            "main.cli.main = broken.main\n"
            "said = io.StringIO()\n"
            "with contextlib.redirect_stderr(said):\n"
            "    code = main.run([])\n"
            "print(json.dumps([code, said.getvalue()]))\n",
            path=[ROOT],
        )
    )
    assert code == 1
    assert "the file ended" in message
    assert "interrupted" not in message


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (12_345, "12,345 steps")]
)
def test_one_thing_is_not_several(number, text):
    assert counted(number, "step") == text
