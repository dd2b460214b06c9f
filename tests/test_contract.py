"""Registration refuses a class that breaks the contract, and names the field."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)

import rlreg
from rlreg.components import VectorEncoder
from rlreg.errors import LearnerError, RegistrationError

pytestmark = [pytest.mark.light, pytest.mark.usefixtures("local_names")]


def learnable(namespace: dict[str, Any], **annotations: Any) -> type:
    """Makes a learnable class with some fields; every one is legal except what the test adds."""
    body = {
        "__doc__": "A learnable.",
        "__annotations__": {
            "regime": ClassVar[str],
            "type": Literal["probe"],
            **annotations,
        },
        "regime": "offline",
        "type": "probe",
        "__module__": __name__,
        **namespace,
    }
    return type(rlreg.LearnableConfig)("Probe", (rlreg.LearnableConfig,), body)


class Colour(enum.IntEnum):
    RED = 1


REFUSED_TYPES = {
    "unbounded int": (int, 3),
    "int without upper bound": (Annotated[int, Field(ge=0)], 3),
    "int without lower bound": (Annotated[int, Field(le=9)], 3),
    "unbounded int in a tuple": (tuple[int, ...], (1,)),
    "unbounded int in an inner tuple": (tuple[tuple[float, int], ...], ()),
    "list": (list[float], [1.0]),
    "dict": (dict[str, float], {}),
    "set": (frozenset[str], frozenset()),
    "any": (Any, None),
    "callable": (Callable[[], int], int),
    "path": (Path, Path()),
    "date": (datetime.date, datetime.date(2026, 1, 1)),
    "complex": (complex, 1j),
    "enum": (Colour, Colour.RED),
    "bytes": (bytes, b""),
    "union of scalars": (float | str, 1.0),
    "union of kinds": (rlreg.EncoderFactory | rlreg.OptimizerFactory, {"type": "vector"}),
    "kind or number": (rlreg.EncoderFactory | float, 1.0),
    "before validator": (Annotated[float, BeforeValidator(float)], 1.0),
    "infinity allowed": (Annotated[float, Field(allow_inf_nan=True)], 1.0),
    "strict": (Annotated[float, Field(strict=True)], 1.0),
    "multiple of a float": (Annotated[float, Field(multiple_of=0.1)], 0.3),
    "literal of None": (Literal["a", None], "a"),
}


@pytest.mark.parametrize("case", REFUSED_TYPES)
def test_field_type_outside_the_closed_list_is_refused(case):
    annotation, default = REFUSED_TYPES[case]
    with pytest.raises(RegistrationError, match=r"Probe\.(field|type)"):
        rlreg.register_learnable(learnable({"field": default}, field=annotation))
    assert "probe" not in [each.name for each in rlreg.list_learnables()]


ALLOWED_TYPES = {
    "bool": (bool, True),
    "bounded int": (Annotated[int, Field(ge=0, lt=9)], 3),
    "optional bounded int": (Annotated[int, Field(ge=0, le=9)] | None, None),
    "float": (float, 1.0),
    "string with a pattern": (Annotated[str, Field(pattern="^a+$")], "aa"),
    "literals": (Literal["a", 1, True], "a"),
    "tuple of tuples": (tuple[tuple[str, float], ...], ()),
    "optional kind": (rlreg.EncoderFactory | None, None),
    "tuple of kinds": (tuple[rlreg.EncoderFactory, ...], ()),
    "named kinds": (tuple[tuple[str, rlreg.EncoderFactory], ...], ()),
    "even int": (Annotated[int, Field(ge=0, le=8, multiple_of=2)], 4),
}


@pytest.mark.parametrize("case", ALLOWED_TYPES)
def test_field_type_of_the_closed_list_is_accepted(case):
    annotation, default = ALLOWED_TYPES[case]
    rlreg.register_learnable(learnable({"field": default}, field=annotation))
    assert rlreg.make_config("probe").field == default
    rlreg.json_schema("probe")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("extra", "allow"), ("extra", "ignore"), ("frozen", False), ("allow_inf_nan", True),
        ("validate_default", False), ("strict", True), ("revalidate_instances", "never"),
        ("populate_by_name", True), ("arbitrary_types_allowed", True),
    ],
)  # fmt: skip
def test_weakened_model_config_is_refused(setting, value):
    with pytest.raises(RegistrationError, match=setting):
        rlreg.register_learnable(learnable({"model_config": ConfigDict(**{setting: value})}))


def test_title_may_be_set():
    rlreg.register_learnable(learnable({"model_config": ConfigDict(title="Nice")}))


@pytest.mark.parametrize(
    "member",
    [
        {"check": model_validator(mode="after")(lambda self: self)},
        {"check": model_validator(mode="before")(lambda data: data)},
        {"rate": 1.0, "check": field_validator("rate", mode="before")(lambda value: float(value))},
        {"rate": 1.0, "check": field_serializer("rate")(lambda value: str(value))},
        {"double": computed_field(return_type=float)(lambda self: 2.0)},
    ],
    ids=["model after", "model before", "field before", "serializer", "computed"],
)
@pytest.mark.filterwarnings("ignore::Warning")  # pydantic warns about lambdas, which serve here
def test_validators_and_serializers_are_refused(member):
    annotations = {"rate": float} if "rate" in member else {}
    with pytest.raises(RegistrationError, match="Probe"):
        rlreg.register_learnable(learnable(member, **annotations))


@pytest.mark.parametrize("name", ["device", "seed", "compile", "train", "engine", "env"])
def test_words_of_the_run_file_are_refused_as_fields(name):
    with pytest.raises(RegistrationError, match=rf"Probe\.{name}: .*run file"):
        rlreg.register_learnable(learnable({name: 1.0}, **{name: float}))


@pytest.mark.parametrize("name", ["copy", "json", "create", "get_type", "migrations"])
@pytest.mark.filterwarnings("ignore:Field name")  # pydantic's, which says less
def test_fields_that_would_hide_a_method_are_refused(name):
    with pytest.raises(RegistrationError, match=rf"Probe\.{name}: this name belongs to"):
        rlreg.register_learnable(learnable({name: 1.0}, **{name: float}))


@pytest.mark.parametrize("annotation", [tuple[float, float], tuple[float, ...] | None])
@pytest.mark.parametrize("bound", ["ge", "lt", "multiple_of"])
def test_bounds_of_a_whole_tuple_are_refused_where_the_class_is_written(annotation, bound):
    field = Field((0.0, 1.0), **{bound: 1})
    with pytest.raises(
        RegistrationError, match=rf"Probe\.betas: a tuple has no {bound}; bounds st"
    ):
        learnable({"betas": field}, betas=annotation)


def test_a_create_that_gives_none_says_so():
    rlreg.register_learnable(learnable({"create": lambda self, device="auto": None}))
    with pytest.raises(LearnerError, match=r"Probe\.create gave None; is `return` missing"):
        rlreg.create("probe")


def test_a_config_without_create_says_so():
    rlreg.register_learnable(learnable({}))
    with pytest.raises(LearnerError, match=r"'probe' is not complete: Probe does not write create"):
        rlreg.create("probe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"regime": "sideways"}, "regime"),
        ({"regime": ""}, "regime"),
        ({"__doc__": None}, "docstring"),
        ({"__doc__": "  "}, "docstring"),
        ({"type": "other"}, "tag|type"),
    ],
)
def test_missing_regime_docstring_or_tag_is_refused(change, message):
    with pytest.raises(RegistrationError, match=message):
        rlreg.register_learnable(learnable(change))


@pytest.mark.parametrize("tag", ["Probe", "1probe", "a/b", "a b", "", "ä"])
def test_tag_that_is_no_name_is_refused(tag):
    with pytest.raises(RegistrationError, match="tag"):
        rlreg.register_learnable(learnable({"type": tag}, type=Literal[tag]))


def test_several_tags_are_refused():
    with pytest.raises(RegistrationError, match="one tag"):
        rlreg.register_learnable(learnable({"type": "probe"}, type=Literal["probe", "other"]))


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (Annotated[float, Field(gt=0)], -1.0),
        (float, float("inf")),
        (float, float("nan")),
        (float, "1"),
        (rlreg.EncoderFactory, {"type": "no-such"}),
    ],
)
def test_invalid_default_is_refused_with_the_field(annotation, default):
    with pytest.raises(RegistrationError, match="field"):
        rlreg.register_learnable(learnable({"field": default}, field=annotation))


def test_field_without_default_is_refused():
    with pytest.raises(RegistrationError, match=r"Probe\.field: every field needs a default"):
        rlreg.register_learnable(learnable({}, field=float))


def test_alias_is_refused():
    with pytest.raises(RegistrationError, match="alias"):
        rlreg.register_learnable(learnable({"field": Field(1.0, alias="f")}, field=float))


def test_unresolved_annotation_is_refused():
    with pytest.raises(RegistrationError, match="NoSuchName"):
        rlreg.register_learnable(learnable({"field": None}, field="NoSuchName"))


def test_only_config_classes_can_be_registered():
    for wrong in (int, "iql", rlreg.EncoderFactory, object()):
        with pytest.raises(RegistrationError):
            rlreg.register_learnable(wrong)
    with pytest.raises(RegistrationError):
        rlreg.register_component(rlreg.LearnableConfig)


def test_component_without_a_kind_is_refused():
    class Loose(rlreg.ComponentConfig):
        """Loose."""

        type: Literal["loose"] = "loose"

    with pytest.raises(RegistrationError, match="derive from a kind"):
        rlreg.register_component(Loose)


def test_an_order_of_fields_that_are_not_there_is_refused():
    namespace = {"ordered_fields": (("low", "hihg"),), "low": 0.0, "high": 1.0}
    fields = {"low": float, "high": float}
    with pytest.raises(RegistrationError, match=r"Probe.ordered_fields: there is no field 'hihg'"):
        rlreg.register_learnable(learnable(namespace, ordered_fields=ClassVar[Any], **fields))


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(str, "1"), (Literal[0], 0), (Literal[1, 2], 1), (Literal[True], True), (float, 1.0)],
    ids=repr,
)
def test_a_schema_version_that_is_none_is_refused(annotation, default):
    cls = learnable({"schema_version": default}, schema_version=annotation)
    with pytest.raises(RegistrationError, match=r"Probe\.schema_version: state it as"):
        rlreg.register_learnable(cls)


def test_migrations_of_another_form_are_refused():
    with pytest.raises(RegistrationError, match=r"Probe\.migrations: expected Migration\(.*'a'"):
        rlreg.register_learnable(learnable({"migrations": (("a", "b"),)}))


def test_a_create_that_takes_no_device_is_refused():
    with pytest.raises(RegistrationError, match=r"Probe\.create: write it as `def create\(self, "):
        rlreg.register_learnable(learnable({"create": lambda self: None}))


def test_a_field_of_one_component_is_refused():
    fields = {"field": VectorEncoder()}
    with pytest.raises(RegistrationError, match=r"Probe\.field: VectorEncoder is one component; a"):
        rlreg.register_learnable(learnable(fields, field=VectorEncoder))


@pytest.mark.parametrize(
    "pattern", [r"^(?P<n>a)b$", r"(?i)ab", r"\Aab\z", r"\p{L}+", r"[[:alpha:]]"]
)
def test_patterns_that_no_browser_knows_are_refused(pattern):
    field = Annotated[str, Field(pattern=pattern)]
    with pytest.raises(RegistrationError, match=r"Probe\.field: pattern .*: JSON Schema has no"):
        rlreg.register_learnable(learnable({"field": "ab"}, field=field))


def test_patterns_that_everybody_knows_are_taken():
    field = Annotated[str, Field(pattern=r"^(?:[a-z]+[\w.-]*|\d{1,3}\\A?)$")]
    rlreg.register_learnable(learnable({"field": "ab"}, field=field))
