"""Search spaces: declared beside the field, neutral, conditional, and never wrong."""

from __future__ import annotations

import json
import random
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.errors import RegistrationError
from rlreg.files import dump_yaml, load_run
from rlreg.search_space import Parameter, apply_sample, draw, search_space

pytestmark = pytest.mark.light

LEARNABLES = ["searched", *(record.id for record in registry.records("learnable"))]


class SearchedConfig(rlreg.LearnableConfig):
    """A learnable with every form of search."""

    regime: ClassVar[str] = "offline"
    type: Literal["searched"] = "searched"
    rate: Annotated[float, rlreg.Search(1e-5, 1e-2, log=True)] = Field(3e-4, gt=0, le=1)
    width: Annotated[int, rlreg.Search(16, 64, step=16)] = Field(32, ge=1, le=4096)
    factor: Annotated[int, rlreg.Search(1, 1000, log=True)] = Field(1, ge=1, le=4096)
    limit: Annotated[float | None, rlreg.Search(choices=(None, 0.1))] = Field(None)
    is_wide: Annotated[bool, rlreg.Search(choices=(False, True))] = Field(False)
    fixed: float = Field(1.0, ge=0, le=1)
    encoder: Annotated[rlreg.EncoderFactory, rlreg.Search(choices=("vector", "pixel"))] = (
        rlreg.make_encoder_field({"type": "vector", "activation": "tanh"})
    )
    optimizer: Annotated[
        rlreg.OptimizerFactory | None, rlreg.Search(choices=("sgd", "adam_w", None))
    ] = rlreg.make_optimizer_field()


@pytest.fixture(autouse=True)
def searched(local_names):
    rlreg.register_learnable(SearchedConfig)


def samples(name, count, seed=0):
    space, generator = search_space(name), random.Random(seed)
    return [space.sample(lambda parameter: draw(parameter, generator)) for _ in range(count)]


@pytest.mark.parametrize("name", LEARNABLES)
def test_a_thousand_samples_are_valid_and_survive_a_file(name, tmp_path):
    run = load_run(name)
    paths = {parameter.path for parameter in search_space(name).parameters}
    for number, values in enumerate(samples(name, 1000)):
        sampled = apply_sample(run, values)
        assert set(values) <= paths
        if number < 20:
            file = tmp_path / "best.yaml"
            file.write_text(dump_yaml(sampled))
            assert load_run(file) == sampled


@pytest.mark.parametrize("name", LEARNABLES)
def test_every_path_is_a_key_that_set_knows(name):
    for values in samples(name, 30):
        for path, value in values.items():
            if not (path.endswith(".type") and value is None):
                flag = f"{path}={json.dumps(value)}"
                sets = [f"{p}={v}" for p, v in values.items() if p.endswith(".type") and v]
                load_run(name, overrides=[*sets, flag])


def test_a_parameter_of_a_component_exists_only_with_it():
    found = samples("searched", 300)
    momentum, decay = "learnable.optimizer.momentum", "learnable.optimizer.weight_decay"
    for values in found:
        tag = values["learnable.optimizer.type"]
        assert (momentum in values) == (tag == "sgd")
        assert (decay in values) == (tag == "adam_w")
        assert ("learnable.encoder.hidden_units" in values) == (
            values["learnable.encoder.type"] == "vector"
        )
    assert {values["learnable.optimizer.type"] for values in found} == {"sgd", "adam_w", None}


def test_a_component_that_stays_keeps_its_other_settings():
    run = load_run("searched")
    assert run.learnable.encoder.activation == "tanh"
    stays = apply_sample(run, {"learnable.encoder.type": "vector"})
    changed = apply_sample(run, {"learnable.encoder.type": "pixel"})
    assert stays.learnable.encoder.activation == "tanh"
    assert changed.learnable.encoder.activation == "relu"
    assert apply_sample(run, {"learnable.optimizer.type": None}).learnable.optimizer is None


def test_ranges_are_kept_and_covered():
    found = samples("searched", 500)
    widths = {values["learnable.width"] for values in found}
    rates = [values["learnable.rate"] for values in found]
    assert widths == {16, 32, 48, 64}
    assert 1e-5 <= min(rates) < 2e-5
    assert 5e-3 < max(rates) <= 1e-2
    assert sum(rate < 3.2e-4 for rate in rates) in range(200, 300)  # half of them, in factors


def test_the_neutral_space_is_plain_data_with_conditions():
    document = json.loads(json.dumps(search_space("searched").as_json()))
    rows = {row["path"]: row for row in document["parameters"]}
    assert document["learnable"] == "local/searched"
    assert rows["learnable.rate"] == {
        "path": "learnable.rate",
        "kind": "float",
        "low": 1e-5,
        "high": 1e-2,
        "log": True,
        "step": None,
        "default": 3e-4,
    }
    assert rows["learnable.optimizer.momentum"]["when"] == {
        "path": "learnable.optimizer.type",
        "equals": "sgd",
    }
    assert rows["learnable.encoder.hidden_units"]["choices"][0] == [64, 64]
    assert "learnable.fixed" not in rows


@pytest.mark.parametrize(
    ("fixed", "gone"),
    [
        ("rate", "learnable.rate"),
        ("learnable.rate", "learnable.rate"),
        ("optimizer.type", "learnable.optimizer.momentum"),
        ("optimizer", "learnable.optimizer.type"),
    ],
)
def test_what_is_fixed_is_not_searched(fixed, gone):
    space = search_space("searched")
    left = {parameter.path for parameter in space.without([fixed]).parameters}
    assert gone in {parameter.path for parameter in space.parameters}
    assert gone not in left
    assert "learnable.width" in left


def test_the_search_is_no_part_of_the_schema():
    schema = json.dumps(rlreg.json_schema("searched"))
    assert "earch(" not in schema
    assert '"search"' not in schema


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"low": 1.0},
        {"low": 2.0, "high": 1.0},
        {"low": 0.0, "high": 1.0, "log": True},
        {"low": 0.0, "high": 1.0, "step": 0.0},
        {"low": 0.0, "high": float("inf")},
        {"low": 0.0, "high": 1.0, "choices": (1,)},
    ],
)
def test_a_search_without_sense_is_refused(arguments):
    with pytest.raises(RegistrationError, match="Search"):
        rlreg.Search(**arguments)


@pytest.mark.parametrize("search", [rlreg.Search(0.0, 0.5), rlreg.Search(choices=("fast",))])
def test_a_search_beyond_the_range_of_its_field_is_refused(search):
    class Beyond(rlreg.LearnableConfig):
        """Beyond."""

        regime: ClassVar[str] = "offline"
        type: Literal["beyond"] = "beyond"
        rate: Annotated[float, search] = Field(0.1, gt=0, le=1)

    with pytest.raises(RegistrationError, match=r"Beyond\.rate: Search"):
        rlreg.register_learnable(Beyond)


def test_draw_stays_inside_at_the_ends():
    class Edge(random.Random):
        def uniform(self, a, b):
            return b + 1e-12

    assert draw(Parameter("x", "float", 1e-5, 1e-2, log=True), Edge()) == 1e-2
