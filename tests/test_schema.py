"""The exported JSON Schema and the validator accept exactly the same documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.errors import ConfigError
from rlreg.open_union import validate
from rlreg.run_config import RunConfig
from rlreg.schema import dump_schema, json_schema, schema_hash
from rlreg.schema_editor import editor_schema, standard_form

pytestmark = [pytest.mark.light]

Width = Annotated[int, Field(ge=1, le=4096)]


class FuzzEncoder(rlreg.EncoderFactory):
    """Nests."""

    type: Literal["fuzz"] = "fuzz"
    inner: rlreg.EncoderFactory | None = None
    several: tuple[rlreg.EncoderFactory, ...] = Field(default=(), max_length=2)


class FuzzConfig(rlreg.LearnableConfig):
    """Every allowed type of field."""

    regime: ClassVar[str] = "online"
    type: Literal["fuzz-learnable"] = "fuzz-learnable"
    rate: float = Field(default=0.5, gt=0, lt=1)
    count: int = Field(default=3, ge=1, le=10)
    even: int = Field(default=4, ge=0, le=10, multiple_of=2)
    flag: bool = False
    text: str = Field(default="ab", min_length=1, max_length=4)
    pattern: str = Field(default="a", pattern="^a+$")
    mode: Literal["a", 1, True] = "a"
    maybe: Annotated[int, Field(ge=0, le=3)] | None = None
    pair: tuple[float, Width] = (0.5, 1)
    units: Annotated[tuple[Width, ...], Field(min_length=1, max_length=3)] = (3,)
    named: tuple[tuple[str, rlreg.EncoderFactory], ...] = ()
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()
    optimizer: rlreg.OptimizerFactory = rlreg.make_optimizer_field()
    scaler: rlreg.ObservationScaler | None = rlreg.make_observation_scaler_field()


@pytest.fixture(autouse=True)
def fuzz_classes(local_names):
    rlreg.register_component(FuzzEncoder)
    rlreg.register_learnable(FuzzConfig)


ODD = [
    None, True, False, 0, 1, -1, 3, 11, 2**31, 2**63, 1e20, 0.5, 1.0, 3.0, 3.5, -0.0, 1e-9, "", "a",
    "aa", "abcde", "3", "true", [], [1], [0.5, 1], [1, 0.5], [0.5, 1, 1], ["a"], [[]], {},
    {"type": "vector"}, {"type": "vectr"}, {"type": None}, {"type": ["vector"]},
    {"hidden_units": [1]},
    {"type": "vector", "hidden_units": [0]}, {"type": "vector", "x": 1}, {"type": "adam"},
    {"type": "fuzz", "inner": {"type": "fuzz", "several": [{"type": "pixel"}]}},
    {"type": "fuzz", "inner": {}}, {"type": "adam", "betas": [0.9, 1]},
    {"type": "standard", "mean": []},
    [["x", {"type": "vector"}]], [["x", {"type": "adam"}]], [["x"]],
    {"type": "sgd", "lr_scheduler_factory": {"type": "warmup", "warmup_steps": 1.0}},
]  # fmt: skip

values = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 12),
    st.floats(-2, 5, allow_nan=False),
    st.lists(st.sampled_from(ODD), max_size=3),
    st.text("ab3", max_size=5),
)
documents = st.dictionaries(
    st.sampled_from([*FuzzConfig.model_fields, "extra", "Rate", ""]), values, max_size=4
).flatmap(
    lambda body: st.sampled_from(
        [
            {"type": "fuzz-learnable", **body},
            {"type": "fuzz-learnable", **body},
            {"type": "fuzz-learnable", **body},
            body,
        ]
    )
)


def accepts(cls, document) -> bool:
    try:
        validate(cls, document)
    except ConfigError:
        return False
    return True


@settings(
    max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(document=documents)
def test_schema_and_validator_agree_on_any_document(document):
    document = json.loads(json.dumps(document))
    accepted = accepts(FuzzConfig, document)
    for flavour in ("standard", "editor"):
        validator = validator_of("fuzz-learnable", registry.generation(), flavour)
        assert validator.is_valid(document) == accepted, flavour


_validators: dict[tuple[str, int, str], jsonschema_rs.Validator] = {}


def validator_of(name: str, generation: int, flavour: str):
    key = (name, generation, flavour)
    if key not in _validators:
        _validators[key] = jsonschema_rs.validator_for(json_schema(name, flavour=flavour))
    return _validators[key]


@pytest.mark.parametrize("field", FuzzConfig.model_fields)
@pytest.mark.parametrize("value", ODD, ids=[str(index) for index in range(len(ODD))])
def test_schema_and_validator_agree_on_each_field(field, value):
    document = {"type": "fuzz-learnable", field: value}
    accepted = accepts(FuzzConfig, document)
    for flavour in ("standard", "editor"):
        validator = validator_of("fuzz-learnable", registry.generation(), flavour)
        assert validator.is_valid(document) == accepted, flavour


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"train": {"n_steps": 5}},
        {"train": {"n_steps": 0}},
        {"train": {"n_step": 5}},
        {"device": "cuda:1"},
        {"device": "cuda:01"},
        {"device": ["cuda", "cpu", 0]},
        {"device": []},
        {"device": True},
        {"device": 0},
        {"device": -1},
        {"env": "CartPole-v1"},
        {"env": ""},
        {"env": 3},
        {"env": {"id": "X-v0", "wrappers": [{"id": "a:b", "kwargs": {"n": 1}}], "register": "a:b"}},
        {"env": {"id": "X-v0", "register_with": "a:b"}},
        {"seed": 2**32},
        {"seed": 7},
        {"logging": [{"type": "jsonl"}, {"type": "tensorboard"}]},
        {"logging": [{"type": "jsonll"}]},
        {"engine": {}},
        {"evaluation": {"env": None, "baselines": ["random"]}},
        {"evaluation": {"baselines": ["rnd"]}},
        {"name": "a b"},
    ],
)
def test_run_schema_and_validator_agree(document):
    full = {"learnable": {"type": "fuzz-learnable"}, **document}
    for flavour in ("standard", "editor"):
        validator = jsonschema_rs.validator_for(json_schema("run", flavour=flavour))
        assert validator.is_valid(full) == accepts(RunConfig, full), flavour
        assert not validator.is_valid(document)


def test_schema_is_draft_2020_12_with_id_and_constant_required_tag():
    schema = json_schema("fuzz-learnable")
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:rlreg:")
    assert schema["properties"]["type"]["const"] == "fuzz-learnable"
    assert schema["required"] == ["type"]
    jsonschema_rs.meta.validate(schema)


def schemas_in(node, path=()):
    """Yields every subschema; what stands under `default`, `enum` and `const` is data."""
    if isinstance(node, list):
        for item in node:
            yield from schemas_in(item, path)
    elif isinstance(node, dict):
        yield path, node
        for key, part in node.items():
            if key in ("properties", "definitions"):
                for name, item in part.items():
                    yield from schemas_in(item, (*path, name))
            elif key not in ("default", "enum", "const", "required"):
                yield from schemas_in(part, (*path, key))


@pytest.mark.parametrize("name", ["fuzz-learnable", "run"])
def test_the_editor_flavour_says_nothing_that_draft_07_does_not_know(name):
    schema = json_schema(name, flavour="editor")
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema_rs.meta.validate(schema)
    for path, node in schemas_in(schema):
        assert not node.keys() & {"prefixItems", "$defs", "dependentRequired", "$anchor"}, path
        assert "$ref" not in node or len(node) == 1, path
    assert json_schema(name)["$id"] + ":editor" == schema["$id"]


def test_the_editor_flavour_keeps_what_a_field_says_and_describes_the_tags():
    schema = json_schema("fuzz-learnable", flavour="editor")
    encoder = schema["properties"]["encoder"]
    assert encoder["allOf"][-1] == {"$ref": "#/definitions/EncoderFactory"}
    assert encoder["default"] == {"type": "default"}
    assert encoder["description"].startswith("Network from observations")
    tags = schema["definitions"]["EncoderFactory"]["properties"]["type"]
    assert dict(zip(tags["enum"], tags["enumDescriptions"], strict=True))["fuzz"] == "Nests."


COMMITTED = Path(__file__).parents[1] / "schemas"  # there without the plugins, too


@pytest.mark.parametrize("name", ["fuzz-learnable", "run", "iql", "impala"])
def test_the_editor_flavour_can_be_undone(name):
    path = COMMITTED / f"{name}.schema.json"
    schema = json.loads(path.read_text()) if path.is_file() else json_schema(name)
    assert standard_form(editor_schema(schema)) == schema


def test_every_default_is_in_the_schema_and_valid():
    schema = json_schema("fuzz-learnable")
    defaults = {
        key: part["default"] for key, part in schema["properties"].items() if "default" in part
    }
    assert set(defaults) == set(FuzzConfig.model_fields) - {"type"}
    assert validate(FuzzConfig, {"type": "fuzz-learnable", **defaults}) == FuzzConfig()


def test_error_of_a_union_names_the_branch():
    validator = jsonschema_rs.validator_for(json_schema("fuzz-learnable"))
    bad = {"type": "fuzz-learnable", "encoder": {"type": "vector", "hidden_units": [0]}}
    errors = list(validator.iter_errors(bad))
    assert [error.instance_path for error in errors] == [["encoder", "hidden_units", 0]]


def test_own_scope_leaves_out_other_distributions():
    encoders = json_schema("fuzz-learnable", scope="own")["$defs"]["EncoderFactory"]
    assert "fuzz" in encoders["properties"]["type"]["enum"]  # local, like the learnable itself
    run = json_schema("run", scope="own")
    assert "fuzz" not in json.dumps(run)
    assert "fuzz-learnable" in json.dumps(json_schema("run", scope="all"))


def test_hash_ignores_key_order():
    schema = json_schema("fuzz-learnable")
    shuffled = dict(reversed(schema.items()))
    assert schema_hash(schema) == schema_hash(shuffled)
    assert schema_hash(schema) != schema_hash({**schema, "title": "other"})


def test_dumped_schema_is_strict_json():
    for name in ("run", *[each.id for each in rlreg.list_learnables()]):
        json.loads(dump_schema(json_schema(name)), parse_constant=pytest.fail)
