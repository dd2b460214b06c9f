"""The hash of a config is that of its meaning, and differences are differences of meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import archive
from rlreg.cli.main import run as run_command
from rlreg.files import load_config
from rlreg.identity import config_hash, differences, is_missing

pytestmark = pytest.mark.light

YAML = """\
# a comment
learnable: {type: hashed, rate: 0.5, encoder: {type: vector, hidden_units: [8, 8]}}
seed: 3
device: cpu
"""
TOML = """\
seed = 3
device = "cuda:1"
[learnable]
encoder = {hidden_units = [8, 8], type = "vector", activation = "relu"}
schema_version = 1
rate = 5e-1
type = "hashed"
"""


class HashedConfig(rlreg.LearnableConfig):
    """Hashed."""

    regime: ClassVar[str] = "offline"
    type: Literal["hashed"] = "hashed"
    rate: float = Field(0.1, ge=-1, le=1)
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()


@pytest.fixture(autouse=True)
def files(local_names, tmp_path, monkeypatch):
    rlreg.register_learnable(HashedConfig)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "b.toml").write_text(TOML)


def test_order_comments_format_defaults_and_device_make_no_difference():
    assert config_hash("a.yaml") == config_hash("b.toml") == config_hash(load_config("a.yaml"))
    assert rlreg.config_hash is config_hash
    assert len(config_hash("a.yaml")) == 64


@pytest.mark.parametrize(
    "override", ["seed=4", "rate=0.25", "encoder.hidden_units=[8]", "evaluation.n_episodes=3"]
)
def test_every_other_setting_counts(override):
    changed = load_config("a.yaml", overrides=[override])
    assert config_hash(changed) != config_hash("a.yaml")


def test_what_to_ignore_can_be_chosen():
    other = load_config("a.yaml", overrides=["seed=4"])
    ignore = ("device", "seed")
    assert config_hash(other, ignore=ignore) == config_hash("a.yaml", ignore=ignore)
    assert config_hash("a.yaml", ignore=()) != config_hash("b.toml", ignore=())


LEFT_OPEN = {
    "name": "hashed", "dataset": "rlreg/pendulum/mixed-v0", "train.n_steps": 10_000,
    "evaluation.at_start": False, "compile": "on",
}  # fmt: skip


def test_what_a_run_leaves_open_is_what_training_fills_in():
    stated = load_config("a.yaml", overrides=[f"{key}={v}" for key, v in LEFT_OPEN.items()])
    assert config_hash(stated) == config_hash("a.yaml")
    assert differences(load_config("a.yaml"), stated) == {}
    for other in ("train.n_steps=9999", "evaluation.at_start=true", "dataset=a/b-v0"):
        changed = load_config("a.yaml", overrides=[other])
        assert config_hash(changed) != config_hash("a.yaml"), other
        assert list(differences(changed, stated)) == [other.partition("=")[0]]


@pytest.mark.parametrize(
    ("given", "same"),
    [("{}", "{n_steps: 100000}"), ("{n_epochs: 2}", "{n_epochs: 2, epoch_length: 25}")],
)
def test_an_online_run_is_filled_in_by_its_own_regime(given, same):
    class OnlineConfig(HashedConfig):
        """Online."""

        regime: ClassVar[str] = "online"
        type: Literal["online"] = "online"

    rlreg.register_learnable(OnlineConfig)
    runs = [
        load_config({"learnable": {"type": "online"}}, overrides=[f"train={train}", f"env={env}"])
        for train, env in [(given, "CartPole-v1"), (same, "{id: CartPole-v1}")]
    ]
    assert config_hash(runs[0]) == config_hash(runs[1])
    assert differences(*runs) == {}
    other = load_config(runs[1], overrides=["env={id: CartPole-v1, kwargs: {a: 1}}"])
    assert config_hash(other) != config_hash(runs[1])


def test_compile_differs_where_both_say_what():
    on, off, auto = (
        load_config("a.yaml", overrides=[f"compile={c}"]) for c in ("on", "off", "auto")
    )
    assert differences(on, off) == {"compile": ["on", "off"]}
    assert differences(on, auto, off)["compile"] == ["on", "auto", "off"]
    assert differences(auto, on) == differences(on, auto) == {}


def test_zero_has_no_sign():
    assert config_hash(HashedConfig(rate=0.0)) == config_hash(HashedConfig(rate=-0.0))
    assert config_hash(HashedConfig(rate=0)) == config_hash(HashedConfig(rate=0.0))


def test_a_checkpoint_has_the_hash_of_the_learnable(capsys):
    config = load_config("a.yaml").learnable
    members = dict.fromkeys(archive.MEMBERS, b"{}")
    members["config.json"] = archive.to_json(config.model_dump(mode="json"))
    archive.write_archive(Path("model.rlreg"), members)
    assert run_command(["hash", "a.yaml", "model.rlreg", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["hashes"]
    assert [(row["file"], row["kind"]) for row in rows] == [
        ("a.yaml", "run"),
        ("a.yaml", "learnable"),
        ("model.rlreg", "learnable"),
    ]
    assert rows[1]["hash"] == rows[2]["hash"] == config_hash(config)
    assert run_command(["diff", "a.yaml", "model.rlreg"]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert run_command(["hash", "a.yaml"]) == 0
    assert capsys.readouterr().out.split()[:3] == [config_hash("a.yaml"), "run", "a.yaml"]


def test_a_folder_and_a_checkpoint_are_compared_by_meaning(tmp_path, capsys):
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(YAML.replace("0.5", "0.7"))
    assert run_command(["diff", "runs/one", "b.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"] == [
        {"path": "learnable.rate", "a": 0.7, "b": 0.5},
        {"path": "device", "a": "cpu", "b": "cuda:1"},
    ]


def test_differences_of_three_name_what_is_missing():
    configs = [
        load_config("a.yaml", overrides=[f"encoder={{type: {tag}}}"]).learnable
        for tag in ("vector", "default", "vector")
    ]
    found = differences(*configs)
    assert found["encoder.type"] == ["vector", "default", "vector"]
    assert [is_missing(value) for value in found["encoder.hidden_units"]] == [False, True, False]
    assert "rate" not in found
