"""Old configs become today's by plain steps, with a report; newer ones are refused."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg.errors import ConfigError, RegistrationError
from rlreg.file_migration import migrate_file
from rlreg.migrations import Drop, Keep, Migration, Move, Rename, Split, migrate

pytestmark = [pytest.mark.light, pytest.mark.usefixtures("local_names")]


class ThirdConfig(rlreg.LearnableConfig):
    """A config in its third version."""

    regime: ClassVar[str] = "offline"
    type: Literal["third"] = "third"
    schema_version: Literal[3] = 3
    migrations: ClassVar[tuple[Migration, ...]] = (
        Migration(1, (Rename("lr", "rate"), Drop("momentum", "it never had an effect"))),
        Migration(2, (Split("betas", ("beta1", "beta2")), Keep("tau", 0.01))),
    )
    rate: float = Field(default=0.1, gt=0, le=1)
    beta1: float = 0.9
    beta2: float = 0.999
    tau: float = 0.005


def test_oldest_version_goes_through_every_step_with_a_report():
    data = {"type": "third", "schema_version": 1, "lr": 0.5, "momentum": 0, "betas": [0.8, 0.9]}
    report = migrate(ThirdConfig, data)
    assert data == {
        "type": "third", "schema_version": 3, "rate": 0.5, "beta1": 0.8, "beta2": 0.9, "tau": 0.01,
    }  # fmt: skip
    assert report == [
        "1 -> 2: renamed lr to rate",
        "1 -> 2: dropped momentum = 0: it never had an effect",
        "2 -> 3: split betas into beta1, beta2",
        "2 -> 3: set tau = 0.01, its default at the time",
    ]
    rlreg.register_learnable(ThirdConfig)
    del data["type"]
    assert rlreg.make_config("third", **data).tau == 0.01


def test_current_version_is_left_alone():
    data = {"type": "third", "schema_version": 3, "lr": 0.5}
    assert migrate(ThirdConfig, data) == []
    assert data["lr"] == 0.5


def test_config_from_the_future_has_its_own_error():
    with pytest.raises(ConfigError, match=r"written by acme 9 for schema version 4 of 'third'"):
        migrate(ThirdConfig, {"schema_version": 4}, written_with="acme 9")


def test_old_and_new_name_together_are_an_error():
    with pytest.raises(ConfigError, match="both 'lr' and its new name 'rate'"):
        migrate(ThirdConfig, {"schema_version": 1, "lr": 0.5, "rate": 0.5})


def test_split_of_something_else_is_an_error():
    with pytest.raises(ConfigError, match="betas"):
        migrate(ThirdConfig, {"schema_version": 2, "betas": [0.5]})


def test_nested_rename_and_move():
    data = {"a": {"b": 1, "c": 2}, "d": 3}
    assert Rename("a.b", "a.x").apply(data) == "renamed a.b to a.x"
    assert list(data["a"]) == ["x", "c"]
    assert Move("d", "a.y").apply(data) == "moved d to a.y"
    assert data == {"a": {"x": 1, "c": 2, "y": 3}}
    assert Move("nowhere.z", "q").apply(data) is None


def test_rename_keeps_comments_and_order_of_yaml():
    ruamel = pytest.importorskip("ruamel.yaml")
    import io

    yaml = ruamel.YAML()
    data = yaml.load("# top\nlr: 0.5  # the rate\nmomentum: 0\nother: 1  # last\n")
    Rename("lr", "rate").apply(data)
    Drop("momentum", "gone").apply(data)
    out = io.StringIO()
    yaml.dump(data, out)
    assert out.getvalue() == "# top\nrate: 0.5 # the rate\nother: 1  # last\n"


@pytest.mark.parametrize("versions", [(1,), (2, 1), (1, 1), (1, 3), (0, 1, 2)])
def test_chain_with_a_gap_is_refused_at_registration(versions):
    class Gap(ThirdConfig):
        """Gap."""

        migrations = tuple(Migration(version, ()) for version in versions)

    with pytest.raises(RegistrationError, match="migrations"):
        rlreg.register_learnable(Gap)


def test_a_key_that_is_gone_says_what_became_of_it():
    rlreg.register_learnable(ThirdConfig)
    for key, said in [
        ("lr", "it is 'rate' now; a file of schema version 1 says so, and is migrated"),
        ("momentum", "it is gone: it never had an effect; a file of schema version 1 says so"),
        ("betas", "it is 'beta1' and 'beta2' now; a file of schema version 2 says so"),
    ]:
        with pytest.raises(ConfigError, match=f"{key}: no such key; {said}"):
            rlreg.make_config("third", **{key: 1})


def test_a_file_that_states_no_version_is_of_the_oldest_that_had_its_keys(tmp_path):
    rlreg.register_learnable(ThirdConfig)
    path = tmp_path / "run.yaml"
    path.write_text("type: third  # ours\nlr: 0.5\nbetas: [0.8, 0.9]\n")
    assert migrate_file(path) == [
        "1 -> 2: renamed lr to rate",
        "2 -> 3: split betas into beta1, beta2",
        "2 -> 3: set tau = 0.01, its default at the time",
    ]
    config = rlreg.load_config(path)
    assert (config.rate, config.beta1, config.tau) == (0.5, 0.8, 0.01)
    assert "# ours" in path.read_text()
    path.write_text("type: third\nrate: 0.5\n")
    assert migrate_file(path) == []


def test_lines_that_no_step_touches_stay_as_they_are(tmp_path):
    rlreg.register_learnable(ThirdConfig)
    path = tmp_path / "run.yaml"
    rest = (
        "env: null\nlogging: [{type: jsonl}]  # one\nevaluation: {baselines: [], env: null}\n"
        "train: {n_steps: 100}\ndataset: 'x'\n"
    )
    path.write_text(f"learnable:\n  type: third\n  schema_version: 2\n  rate: 0.5\n{rest}")
    migrate_file(path)
    assert path.read_text().endswith(rest)


def test_where_no_migration_is_stated_the_file_and_the_way_out_are_named(tmp_path):
    class FifthConfig(ThirdConfig):
        """Left its versions behind."""

        type: Literal["fifth"] = "fifth"
        schema_version: Literal[5] = 5
        migrations: ClassVar[tuple[Migration, ...]] = ()

    rlreg.register_learnable(FifthConfig)
    path = tmp_path / "run.yaml"
    path.write_text("type: fifth\nschema_version: 3\n")
    with pytest.raises(ConfigError) as caught:
        migrate_file(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: schema_version = 3: no migration of 'fifth' starts from")
    assert "install the version that wrote this" in said


@pytest.mark.parametrize("more", ["migrations", "schema_version"])
def test_a_component_has_no_versions(more):
    members = {"migrations": (), "schema_version": 2}
    annotations = {"type": Literal["mine"], "schema_version": Literal[2]}
    kept = {key: annotations[key] for key in ("type", more) if key in annotations}
    body = {"__doc__": "Mine.", "__module__": __name__, "type": "mine", more: members[more]}
    if more == "migrations":
        kept[more] = ClassVar[tuple[Migration, ...]]
    component = type("Mine", (rlreg.EncoderFactory,), {**body, "__annotations__": kept})
    with pytest.raises(RegistrationError, match="Mine: a component has no schema_version and no"):
        rlreg.register_component(component)
