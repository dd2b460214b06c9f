# ruff: noqa: E501 - tables of inputs and messages read better on one line
"""Config files: what is read, what is refused and where, what wins, what is written."""

from __future__ import annotations

import contextlib
import math
import random
import zipfile
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import archive, files, registry
from rlreg.documents import parse_document
from rlreg.errors import CheckpointError, ConfigError, FileFormatError, UnknownNameError
from rlreg.registry import PresetRecord
from rlreg.yaml_reader import plain_scalar

pytestmark = pytest.mark.light


class Probe(rlreg.LearnableConfig):
    """A learnable for tests of files."""

    regime: ClassVar[str] = "offline"
    type: Literal["probe"] = "probe"
    gamma: float = Field(0.99, gt=0, le=1, description="Discount. Default: ours.")
    units: Annotated[
        tuple[Annotated[int, Field(ge=1, le=512)], ...], Field(min_length=1, max_length=8)
    ] = Field((64, 64), description="Widths. Default: ours.")
    label: str = Field("x", max_length=50, description="A word. Default: ours.")
    use_it: bool = Field(False, description="A switch. Default: ours.")
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()
    critic: rlreg.EncoderFactory = rlreg.make_encoder_field()
    optimizer: rlreg.OptimizerFactory = rlreg.make_optimizer_field()


@pytest.fixture(autouse=True)
def _probe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rlreg.register_learnable(Probe)
    yield
    registry.forget_local(["probe"])


@pytest.fixture
def preset():
    """Installs a preset of the probe."""
    registry.list_presets()  # discovery first, so that it does not clear what is added here
    settings = {
        "learnable.gamma": 0.5,
        "learnable.encoder": {"type": "vector", "hidden_units": [8], "activation": "tanh"},
        "learnable.optimizer.weight_decay": 0.25,
        "train.n_steps": 77,
    }
    held = registry._registry.presets
    held["probe/quick"] = PresetRecord(
        rlreg.Preset("probe/quick", "Quick.", "ours", settings), "local", ""
    )
    yield
    del held["probe/quick"]


def write(text, name="run.yaml"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return name


def problems_of(text, name="run.yaml", **options):
    with pytest.raises(ConfigError) as caught:
        files.load_config(write(text, name), **options)
    return [str(problem) for problem in caught.value.problems]


# --- one meaning in every format (registry row 43) ----------------------------------------------


@pytest.mark.parametrize("number", ["1e-4", "3e-4", "0.5", "1", "5E-1", "1.0"])
def test_a_number_means_the_same_in_every_format(number):
    toml = number if "." in number or "e" in number.lower() else f"{number}.0"
    read = [
        files.load_config(write(f"type: probe\ngamma: {number}\n")),
        files.load_config(write(f'type = "probe"\ngamma = {toml}\n', "x.toml")),
        files.load_config(write(f'{{"type": "probe", "gamma": {number}}}', "x.json")),
        files.load_config({"type": "probe"}, overrides=[f"gamma={number}"]),
    ]
    assert {config.gamma for config in read} == {float(number)}
    assert all(type(config.gamma) is float for config in read)


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e400"])
def test_what_is_not_finite_is_refused_in_yaml_and_on_the_command_line(text):
    (problem,) = problems_of(f"type: probe\ngamma: {text}\n")
    assert problem.startswith("run.yaml:2:8: gamma = ")
    assert problem.endswith("expected a finite number")
    with pytest.raises(ConfigError, match="expected a finite number"):
        files.load_config({"type": "probe"}, overrides=[f"gamma={text}"])


def test_what_is_not_finite_is_refused_in_toml_and_json():
    assert "finite" in problems_of('type = "probe"\ngamma = inf\n', "x.toml")[0]
    assert "finite" in problems_of('{"type": "probe", "gamma": 1e400}', "x.json")[0]
    with pytest.raises(FileFormatError, match=r"x.json:2:10: NaN is not JSON"):
        files.load_config(write('{"type": "probe",\n"gamma": NaN}', "x.json"))


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "n", "Y", "1:30", "1_000", "0b11"])
def test_words_of_yaml_1_1_are_strings(word):
    config = files.load_config(write(f"type: probe\nlabel: {word}\n"))
    assert config.label == word
    assert files.load_config({"type": "probe"}, overrides=[f"label={word}"]).label == word
    assert "expected true or false" in problems_of(f"type: probe\nuse_it: {word}\n")[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("0o10", 8), ("0x1F", 31), ("-7", -7), ("+1.5e3", 1500.0), (".5", 0.5),
        ("", None), ("~", None), ("NULL", None), ("True", True), ("FALSE", False), ("tRue", "tRue"),
        ("1.2.3", "1.2.3"), ("e5", "e5"), ("-.INF", -math.inf),
    ],
)  # fmt: skip
def test_plain_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "type: probe\ngamma: 0.5\ngamma: 0.6\n", "a.yaml:3:1: the key 'gamma' is already set in line 2"),
        ("a.yaml", "type: probe\nencoder: {type: vector, type: pixel}\n", "a.yaml:2:25: the key 'type' is already"),
        ("a.json", '{"type": "probe",\n "gamma": 0.5, "gamma": 0.6}', "a.json:2:16: the key 'gamma' is already"),
        ("a.toml", 'type = "probe"\ngamma = 0.5\ngamma = 0.6\n', "a.toml:3:12: not TOML: Cannot overwrite a value"),
    ],
)  # fmt: skip
def test_duplicate_keys_are_refused_at_their_place(name, text, message):
    with pytest.raises(FileFormatError) as caught:
        files.load_config(write(text, name))
    assert str(caught.value).startswith(message)


def test_duplicate_keys_in_an_override_are_refused():
    with pytest.raises(ConfigError, match=r"--set encoder=.*already set"):
        files.load_config({"type": "probe"}, overrides=["encoder={type: vector, type: pixel}"])


# --- what YAML has and a config has not ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: !!str probe\n", ":1:7: tags such as tag:yaml.org,2002:str"),
        ("type: !mine probe\n", ":1:7: tags such as !mine"),
        ("base: &a {gamma: 1}\n<<: *a\n", ":2:1: merge keys"),
        ("1: x\n", ":1:1: a key must be a string; write '1' in quotes"),
        ("true: x\n", ":1:1: a key must be a string"),
        ("? [a]\n: x\n", ":1:3: a key must be a plain string"),
        ("when: 2024-01-31\n", ":1:7: '2024-01-31' is a date"),
        ("when: 2024-01-31T10:00:00Z\n", ":1:7: '2024-01-31T10:00:00Z' is a date"),
        ("a: &a [*a]\n", ":1:8: *a stands inside the value it refers to"),
        ("a: *b\n", ":1:4: *b refers to an anchor that is not defined"),
        ("a: 1\n---\nb: 2\n", ":2:1: a second document starts here"),
        ("%YAML 1.1\n---\na: 1\n", ":2:1: rlreg reads YAML 1.2"),
        ("a: [1\nb: 2\n", ":2:2: expected ',' or ']'"),
        ("a: b: c\n", ":1:5: mapping values are not allowed here"),
        ("\ta: 1\n", ":1:1: found character '\\t' that cannot start any token"),
        ("a: " + "[" * 3000 + "\n", ":1:204: nested more than 200 deep"),
        ("a: " + "9" * 5000 + "\n", ":1:4: number too large"),
        ("- 1\n", ":1:1: expected a mapping with `learnable` or `type` at the top, got a list"),
        ("just words\n", ":1:1: expected a mapping"),
        ("null\n", ":1:1: expected a mapping"),
        ("", ": the file is empty"),
        ("# only a comment\n", ": the file is empty"),
    ],
)
def test_yaml_is_refused_with_line_and_column(text, message):
    with pytest.raises(FileFormatError) as caught:
        files.load_config(write(text))
    assert str(caught.value).startswith("run.yaml" + message)


def test_an_alias_is_a_copy_and_an_alias_bomb_is_refused():
    text = "type: probe\nencoder: &e {type: vector, hidden_units: [7]}\ncritic: *e\n"
    assert files.load_config(write(text)).critic.hidden_units == (7,)
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(FileFormatError, match=r"run.yaml:\d+:\d+: its aliases expand to more than"):
        files.load_config(write("\n".join(rows)))


def test_any_text_is_read_or_refused_as_a_file():
    alphabet = "ab:-[]{}&*!%#'\"\\ \n\t0.,|>?x\x00é\ufeffU<"
    source = random.Random(7)
    for _ in range(1500):
        text = "".join(source.choices(alphabet, k=source.randrange(40)))
        for suffix in (".yaml", ".json", ".toml"):
            with contextlib.suppress(FileFormatError):  # any other exception fails the test
                assert isinstance(parse_document(text, suffix, "f").data, dict)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "gamma: {}", "a.yaml:1:8: number too large"),
        ("a.yaml", "gamma: 0x{}", "a.yaml:1:8: number too large"),
        ("a.json", '{{"gamma": {}}}', "a.json:1:11: number too large"),
        ("a.toml", "gamma = {}", "a.toml: number too large"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused(name, text, message):
    with pytest.raises(FileFormatError) as caught:
        files.load_config(write(text.format("9" * 5000), name))
    assert str(caught.value) == message


# --- files that are not there or not what they say ----------------------------------------------


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(FileFormatError, match="expected a file, a run folder or a mapping, got 5"):
        files.load_config(5)
    with pytest.raises(FileFormatError, match=r"gone.yaml: there is no such file"):
        files.load_config("gone.yaml")
    with pytest.raises(FileFormatError, match="expected a file that ends in"):
        files.load_config(write("type: probe\n", "config.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileFormatError, match=r"folder: this folder has no run.yaml"):
        files.load_config("folder")
    (tmp_path / "latin.yaml").write_bytes("type: probe\nlabel: é\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"latin.yaml:2:8: not UTF-8 \(byte 0xe9\)"):
        files.load_config("latin.yaml")
    (tmp_path / "wide.yaml").write_bytes("type: probe\n".encode("utf-16"))
    with pytest.raises(FileFormatError, match=r"wide.yaml:1:1: not UTF-8"):
        files.load_config("wide.yaml")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbftype: probe\n")
    assert files.load_config("bom.yaml") == Probe()
    (tmp_path / "bom.json").write_bytes(b'\xef\xbb\xbf{"type": "probe"}')
    assert files.load_config("bom.json") == Probe()
    (tmp_path / "bom.toml").write_bytes(b'\xef\xbb\xbftype = "probe"')
    assert files.load_config("bom.toml") == Probe()


def test_a_run_folder_means_its_run_file(tmp_path):
    (tmp_path / "r").mkdir()
    write("learnable: {type: probe, gamma: 3}\n", "r/run.yaml")
    assert files.is_file_reference("r")
    with pytest.raises(ConfigError, match=r"r/run.yaml:1:33: learnable.gamma = 3"):
        files.load_config("r")
    assert not files.is_file_reference("rlreg-iql/iql")


def write_checkpoint(path, config):
    """With a config and nothing else in it."""
    members = dict.fromkeys(archive.MEMBERS, b"{}")
    archive.write_archive(path, {**members, "config.json": archive.to_json(config)})


def test_the_config_of_a_checkpoint_is_used_only_if_its_hash_is_right(tmp_path):
    write_checkpoint(tmp_path / "m.rlreg", {"type": "probe", "gamma": 0.25})
    content = (tmp_path / "m.rlreg").read_bytes()
    assert content.count(b"0.25") == 1
    (tmp_path / "m.rlreg").write_bytes(content.replace(b"0.25", b"0.75"))
    with pytest.raises(CheckpointError, match=r"m.rlreg: corrupt or truncated"):
        files.load_config("m.rlreg")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_checkpoint_is_refused_whole_or_broken(method, tmp_path):
    write_checkpoint(tmp_path / "m.rlreg", {"type": "probe"})
    with zipfile.ZipFile("m.rlreg") as stored, zipfile.ZipFile("c.rlreg", "w") as other:
        for name in stored.namelist():
            other.writestr(name, stored.read(name), method)
    with pytest.raises(CheckpointError, match="is compressed, which rlreg never does"):
        files.load_config("c.rlreg")
    content = bytearray((tmp_path / "c.rlreg").read_bytes())
    content[60:120] = bytes(60)
    (tmp_path / "c.rlreg").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"c.rlreg: "):
        files.load_config("c.rlreg")


def test_the_config_of_a_checkpoint_is_read_without_its_weights(tmp_path):
    write_checkpoint(tmp_path / "m.rlreg", {"type": "probe", "gamma": 0.25})
    assert files.load_config("m.rlreg") == Probe(gamma=0.25)
    (tmp_path / "bad.rlreg").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(CheckpointError, match=r"bad.rlreg: corrupt or truncated"):
        files.load_config("bad.rlreg")
    with zipfile.ZipFile("none.rlreg", "w") as other:
        other.writestr("other", "")
    with pytest.raises(CheckpointError, match=r"none.rlreg: no rlreg checkpoint"):
        files.load_config("none.rlreg")


# --- every fault at its place -------------------------------------------------------------------


def test_all_faults_are_reported_in_the_order_of_the_document():
    text = """learnable:
  type: probe
  gama: 0.9
  encoder: {type: vector, hidden_units: [1, 'a']}
  gamma: 3
seeds: 1
seed: yes
"""
    assert problems_of(text, overrides=["use_it=3"]) == [
        "run.yaml:3:3: learnable.gama: no such key; did you mean 'gamma'?",
        "run.yaml:4:45: learnable.encoder.hidden_units[1] = 'a': expected a number",
        "run.yaml:5:10: learnable.gamma = 3: must be <= 1.0",
        "run.yaml:6:1: seeds: no such key; did you mean 'seed'?",
        "run.yaml:7:7: seed = 'yes': expected a number",
        "--set use_it=3: learnable.use_it = 3: expected true or false",
    ]


def test_two_typos_are_both_reported_with_a_suggestion():  # registry row 22
    assert problems_of("type: probe\ngama: 0.9\nunit: [1]\n") == [
        "run.yaml:2:1: gama: no such key; did you mean 'gamma'?",
        "run.yaml:3:1: unit: no such key; did you mean 'units' or 'use_it'?",
    ]


def test_an_unknown_key_at_depth_three_is_found():  # registry row 23
    text = "learnable:\n  type: probe\n  critic:\n    type: pixel\n    chunk_rows: 3\n"
    (problem,) = problems_of(text)
    assert problem.startswith("run.yaml:5:5: learnable.critic.chunk_rows: no such key")


def test_a_wrong_value_under_one_tag_gives_one_error_about_that_branch():  # registry row 37
    (problem,) = problems_of("type: probe\nencoder: {type: pixel, feature_size: -1}\n")
    assert problem == "run.yaml:2:38: encoder.feature_size = -1: must be >= 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpye: probe\n", "run.yaml:1:1: tpye: no such key; did you mean 'type'?"),
        ("learnabel: {type: probe}\n", "run.yaml:1:1: learnabel: no such key; did you mean 'learnable'?"),
        ("learnable: {tpye: probe}\n", "run.yaml:1:12: learnable: needs a `type`"),
        ("type: proeb\n", "run.yaml:1:7: type = 'proeb': unknown learnable 'proeb'; did you mean 'probe'?"),
        ("extends: base.yaml\n", "run.yaml:1:1: expected `learnable` (a run) or `type`"),
        ("learnable: {type: probe, extends: base}\n", "run.yaml:1:26: learnable.extends: no such key"),
        ("learnable: probe\n", "run.yaml:1:12: learnable = 'probe': expected a mapping with a `type`"),
        ("learnable: {type: [probe]}\n", "run.yaml:1:19: learnable.type = ['probe']: expected a string"),
    ],
)  # fmt: skip
def test_typos_in_reserved_keys_are_errors(text, message):  # registry row 38
    assert problems_of(text)[0].startswith(message)


def test_a_missing_tag_says_what_was_meant():
    (problem,) = problems_of("type: probe\nencoder: {tpye: vector}\n")
    assert problem.endswith("; write `type` instead of 'tpye'")


def test_toml_faults_have_their_line():
    text = """seed = -1
[learnable]
type = "probe"
[learnable.encoder]
type = "vector"
hidden_unit = [1]
[[logging]]
type = "jsonl"
[[logging]]
type = "jsnl"
"""
    found = problems_of(text, "run.toml")
    assert found[0].startswith("run.toml:1:8: seed = -1")
    assert found[1].startswith("run.toml:6:1: learnable.encoder.hidden_unit: no such key")
    assert found[2].startswith("run.toml:10:8: logging[1].type = 'jsnl'")
    with pytest.raises(FileFormatError, match=r"run.toml:2:8: when is a date or time"):
        files.load_config(write('type = "probe"\nwhen = 2024-01-31\n', "run.toml"))


def test_a_config_of_a_newer_schema_version_has_its_own_error():
    (problem,) = problems_of("type: probe\nschema_version: 3\nnew_key: 1\n")
    assert problem.startswith(
        "run.yaml:2:17: schema_version: written for schema version 3 of probe"
    )
    assert "this is version 1" in problem


def test_a_mapping_from_memory_has_problems_without_a_place():
    with pytest.raises(ConfigError) as caught:
        files.load_config({"type": "probe", "gama": 1})
    assert str(caught.value) == "gama: no such key; did you mean 'gamma'?"


# --- overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("gamma=3e-4", ("gamma",), 3e-4),
        ("a.b[0].c=[1, x]", ("a", "b", 0, "c"), [1, "x"]),
        ("env=CartPole-v1", ("env",), "CartPole-v1"),
        ("x={type: vector}", ("x",), {"type": "vector"}),
        ("x=null", ("x",), None),
        ("x=~", ("x",), None),
        ("x=''", ("x",), ""),
        ("x=a=b", ("x",), "a=b"),
        ("x=C:\\data", ("x",), "C:\\data"),
    ],
)
def test_an_override_is_a_path_and_a_yaml_value(text, path, value):
    override = files.parse_override(text)
    assert (override.path, override.value, override.text) == (path, value, f"--set {text}")


@pytest.mark.parametrize(
    "text",
    ["gamma", "=1", "a..b=1", ".a=1", "a.=1", "[0]=1", "a[x]=1", "a.[0]=1", "x=", "x=a: b",
     "x=- a", "x=[1", "x=*a", "x=2024-01-31", "a b=1", "x= ", "x=---", "x=#1", "x=..."],
)  # fmt: skip
def test_an_override_that_cannot_be_parsed_is_refused_with_its_text(text):
    with pytest.raises(ConfigError) as caught:
        files.parse_override(text)
    assert str(caught.value).startswith(f"--set {text}: ")


def test_learnable_may_be_left_out_of_a_path():
    run = files.load_run("probe", overrides=["gamma=0.5", "learnable.label=y", "seed=3"])
    assert (run.learnable.gamma, run.learnable.label, run.seed) == (0.5, "y", 3)
    learnable = files.load_config({"type": "probe"}, overrides=["learnable.gamma=0.5"])
    assert learnable.gamma == 0.5


def test_an_override_below_a_default_starts_from_that_default():
    run = files.load_run(
        "probe",
        overrides=["optimizer.weight_decay=0.5", "units[1]=9", "logging[0].type=tensorboard"],
    )
    assert run.learnable.optimizer.type == "adam"
    assert run.learnable.optimizer.weight_decay == 0.5
    assert run.learnable.units == (64, 9)
    assert run.logging[0].get_type() == "tensorboard"


def test_a_new_type_does_not_inherit_the_settings_of_the_default():
    config = files.load_config({"type": "probe"}, overrides=["optimizer.type=sgd"])
    assert config.optimizer == rlreg.make_config("probe", optimizer={"type": "sgd"}).optimizer


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bogus=1", "--set bogus=1: bogus: no such key"),
        ("gama=1", "--set gama=1: gama: no such key; did you mean 'gamma'?"),
        ("units[7]=1", "--set units[7]=1: learnable.units[7]: there are 2 items"),
        ("gamma.x=1", "--set gamma.x=1: learnable.gamma.x: learnable.gamma is no mapping"),
        ("gamma[0]=1", "--set gamma[0]=1: learnable.gamma[0]: its parent is no list"),
        (
            "units.0=1",
            "--set units.0=1: learnable.units.0: learnable.units is no mapping; an item of a list "
            "is written [0]",
        ),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(override, message):
    with pytest.raises(ConfigError) as caught:
        files.load_run("probe", overrides=[override])
    assert str(caught.value).startswith(message)


def test_an_empty_type_is_not_called_misspelt():
    with pytest.raises(ConfigError, match="needs a `type`, one of") as caught:
        files.load_config({"type": None})
    assert "instead of 'type'" not in str(caught.value)


def test_settings_of_the_run_are_refused_for_the_file_of_a_learnable():
    with pytest.raises(ConfigError, match=r"--set seed=1: seed: belongs to a run file"):
        files.load_config({"type": "probe"}, overrides=["seed=1"])


def test_overrides_leave_their_input_alone():
    data = {"type": "probe", "units": [1, 2], "encoder": {"type": "vector"}}
    changed = files.apply_overrides(data, ["units[0]=5", "encoder.hidden_units=[3]"])
    assert changed["units"] == [5, 2]
    assert data == {"type": "probe", "units": [1, 2], "encoder": {"type": "vector"}}


# --- precedence ---------------------------------------------------------------------------------


def test_default_then_preset_then_file_then_flag(preset):
    name = write("learnable:\n  type: probe\n  encoder: {type: vector, hidden_units: [16]}\n")
    run = files.load_run(name, preset="quick", overrides=["train.n_steps=5"])
    assert run.learnable.gamma == 0.5
    assert run.learnable.encoder.hidden_units == (16,)
    assert run.learnable.encoder.activation == "tanh"
    assert run.learnable.optimizer.weight_decay == 0.25
    assert run.train.n_steps == 5
    settings = files.collect(name, preset="probe/quick", overrides=["train.n_steps=5"])
    origin = {path: item.text for path, item in settings.origins.items()}
    assert origin["learnable", "gamma"] == "preset probe/quick"
    assert origin["learnable", "encoder", "hidden_units"] == "run.yaml:3:41"
    assert origin["learnable", "encoder", "activation"] == "preset probe/quick"
    assert origin["train", "n_steps"] == "--set train.n_steps=5"
    assert settings.origin_of(("learnable", "label")).layer == "default"


def test_another_type_in_the_file_drops_the_settings_of_the_preset(preset):
    run = files.load_run(
        write("learnable:\n  type: probe\n  encoder: {type: pixel}\n"), preset="quick"
    )
    assert run.learnable.encoder.get_type() == "pixel"
    assert run.learnable.encoder.activation == "relu"


def test_an_unknown_preset_is_named():
    with pytest.raises(UnknownNameError, match="unknown preset 'probe/slow'"):
        files.load_run("probe", preset="slow")


def test_an_id_that_is_unknown_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'probe'"):
        files.load_run("prob")


# --- writing ------------------------------------------------------------------------------------

AWKWARD = ["no", "null", "1e5", "2024-01-01", "a: b", "#x", "", " x ", "é\n", "~", "'", "0x1", "y"]


@pytest.mark.parametrize("label", AWKWARD)
def test_what_is_written_reads_back_to_the_same_config(label):
    run = files.load_run(
        {"type": "probe", "label": label, "gamma": 1e-9, "encoder": {"type": "vector"}},
        overrides=["env={id: x, kwargs: {no: {'1': [1, {}, 'on']}, e: {}}, register: 'a:b'}"],
    )
    for text in (files.dump_yaml(run), files.commented_yaml(run)):
        assert files.load_config(write(text)) == run
    assert files.load_config(write(files.dump_yaml(run.learnable))) == run.learnable


def test_a_commented_file_explains_every_field_and_names_its_schema():
    text = files.commented_yaml(files.load_run("probe"), schema="s/run.schema.json")
    assert text.startswith("# yaml-language-server: $schema=s/run.schema.json\n")
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            assert lines[number - 1].lstrip().startswith("#"), line
    assert "# Discount. Default: ours. [number: 0 < x <= 1]" in text


def test_numbers_are_written_so_that_yaml_1_1_reads_them_too():
    text = files.dump_yaml(Probe(gamma=1e-9, label="no"))
    assert "gamma: 1.0e-09\n" in text
    assert 'label: "no"\n' in text
