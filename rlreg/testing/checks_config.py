"""Checks of config classes, learnables and components: is the contract one?"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlreg.config import KINDS, LearnableConfig
from rlreg.errors import ConfigError, RlregError, format_path
from rlreg.open_union import OpenUnion, validate
from rlreg.testing.kit import (
    Failure,
    NotApplicable,
    Subject,
    check,
    checks_in,
    configs,
    learnables,
    require,
)
from rlreg.testing.sampler import Sampler

_SUMMARY_LENGTH = 160
_NUM_DOCUMENTS = 200


# --- text ---------------------------------------------------------------------------------------


@check(configs)
def summary_is_one_sentence(subject: Subject) -> None:
    """The docstring begins with one sentence that says what it is."""
    from rlreg.registry import summary_of

    cls = subject.config_class()
    summary = summary_of(cls)
    require(bool(summary), f"{cls.__name__} has no docstring; its first line is the summary")
    require(
        summary.endswith(".") and len(summary) <= _SUMMARY_LENGTH,
        f"{cls.__name__}: the docstring should begin with one sentence of at most "
        f"{_SUMMARY_LENGTH} characters and a full stop, got {summary!r}",
    )


@check(configs)
def fields_are_described(subject: Subject) -> None:
    """Every field says what it does."""
    missing = [item.name for item in _fields(subject) if not item.description]
    require(not missing, f"Field(description=...) is missing: {', '.join(missing)}")


@check(configs)
def defaults_have_a_source(subject: Subject) -> None:
    """The description of every field ends with where its default comes from."""
    missing = [item.name for item in _fields(subject) if not item.source]
    require(
        not missing,
        "the last sentence of the description should be `Default: <source>.` (paper and table, a "
        f"library, or ours), but is not: {', '.join(missing)}",
    )


@check(configs)
def numbers_have_a_range(subject: Subject) -> None:
    """Every number has a lower and an upper bound."""
    schema = _schema(subject)
    loose = [
        name
        for name, node in schema.get("properties", {}).items()
        if name not in ("type", "schema_version") and not all(map(_is_bounded, _numbers(node)))
    ]
    require(
        not loose,
        f"state both bounds, Field(ge=..., le=...), of {', '.join(loose)}; those of a tuple stand "
        "on its items: tuple[Annotated[float, Field(ge=0, le=1)], ...]",
    )


def _fields(subject: Subject) -> list[Any]:
    from rlreg.reference.record import record_of

    record = record_of(subject.config_class())
    return [item for item in record.fields if item.name != "schema_version"]


def _numbers(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the number schemas of one field; those of components belong to the components."""
    if isinstance(node, list):
        for item in node:
            yield from _numbers(item)
    elif isinstance(node, dict):
        if node.get("type") in ("number", "integer") and not {"const", "enum"} & node.keys():
            yield node
        for key in ("anyOf", "oneOf", "items", "prefixItems"):
            yield from _numbers(node.get(key))


def _is_bounded(node: Mapping[str, Any]) -> bool:
    has_lower = "minimum" in node or "exclusiveMinimum" in node
    return has_lower and ("maximum" in node or "exclusiveMaximum" in node)


# --- schema -------------------------------------------------------------------------------------


@check(configs)
def schema_is_strict_json(subject: Subject) -> None:
    """The schema is JSON without NaN, callables or warnings, and a valid JSON Schema."""
    schema = _schema(subject)
    text = json.dumps(schema, allow_nan=False)
    require(json.loads(text) == schema, "the schema changes when it is written and read as JSON")
    require(schema.get("$schema", "").endswith("2020-12/schema"), "the schema states no dialect")
    tag = subject.config_class().get_type()
    require(
        schema["properties"]["type"].get("const") == tag and "type" in schema["required"],
        f"the schema does not require `type` to be {tag!r}",
    )
    try:
        import jsonschema_rs
    except ImportError:
        return
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        raise Failure(f"the schema is no valid JSON Schema: {error.message}") from error


@check(configs)
def defaults_are_fixed_and_valid(subject: Subject) -> None:
    """The defaults are valid, the same every time, and those that the schema states."""
    cls = subject.config_class()
    config = cls()
    require(cls() == config, "two configs without settings differ: a default is not a constant")
    schema = _schema(subject)
    require(_schema(subject) == schema, "two exports of the schema differ")
    stated = {
        name: node["default"] for name, node in schema["properties"].items() if "default" in node
    }
    document = {"type": cls.get_type(), **stated}
    require(
        validate(cls, document) == config,
        "the defaults in the schema are not those of a config without settings",
    )
    unstated = [name for name in cls.model_fields if name not in stated and name != "type"]
    require(not unstated, f"the schema states no default of {', '.join(unstated)}")


@check(configs)
def schema_and_validator_agree(subject: Subject) -> None:
    """Schema and validator accept the same documents (fuzzed)."""
    try:
        import jsonschema_rs
    except ImportError:
        raise NotApplicable("needs jsonschema-rs: pip install 'rlreg[testing]'") from None
    cls, schema = subject.config_class(), _schema(subject)
    validator = jsonschema_rs.validator_for(schema)
    for document in _documents(subject, schema):
        by_schema, by_class = validator.is_valid(document), _accepts(cls, document)
        if by_schema != by_class:
            reason = "" if by_class else f" ({_refusal(cls, document)})"
            raise Failure(
                f"the schema {'accepts' if by_schema else 'refuses'} and the class "
                f"{'accepts' if by_class else 'refuses'}{reason} {json.dumps(document)}"
            )


def _schema(subject: Subject) -> dict[str, Any]:
    from rlreg.schema import json_schema

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return json_schema(subject.config_class())


def _documents(subject: Subject, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields fitting documents, then documents with faults, then each field at its edges."""
    yield from Sampler(schema, seed=1).documents(_NUM_DOCUMENTS // 2)
    faulty = Sampler(schema, seed=2, odd_share=0.1)
    yield from faulty.documents(_NUM_DOCUMENTS)
    tag = subject.config_class().get_type()
    for field in schema["properties"]:
        for value in faulty.edge_values(field):
            yield {"type": tag, field: value}


def _accepts(cls: type[OpenUnion], document: Mapping[str, Any]) -> bool:
    return not _refusal(cls, document)


def _refusal(cls: type[OpenUnion], document: Mapping[str, Any]) -> str:
    try:
        validate(cls, document)
    except ConfigError as error:
        return str(error) or "refused"
    return ""


# --- reading and writing ------------------------------------------------------------------------


@check(configs)
def round_trip_through_json(subject: Subject) -> None:
    """A config that is written as JSON and read again is the same config."""
    cls = subject.config_class()
    for config in _valid_configs(subject):
        text = json.dumps(config.model_dump(mode="json"), allow_nan=False)
        again = validate(cls, json.loads(text))
        require(again == config, _changed(config, again))


@check(configs)
def round_trip_through_yaml(subject: Subject) -> None:
    """A config that is written as a YAML file and read again is the same config."""
    from rlreg.documents import read_document
    from rlreg.overrides import plain
    from rlreg.yaml_text import mapping_lines

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        for config in _valid_configs(subject):
            path.write_text("\n".join(mapping_lines(plain(config))) + "\n", encoding="utf-8")
            again = validate(KINDS.get(subject.kind, LearnableConfig), read_document(path).data)
            require(again == config, _changed(config, again))


def _valid_configs(subject: Subject) -> Iterator[OpenUnion]:
    cls = subject.config_class()
    yield cls()
    for document in Sampler(_schema(subject), seed=3).documents(_NUM_DOCUMENTS // 4):
        try:
            yield validate(cls, document)
        except ConfigError:
            continue  # an exclusive bound, or a string that its pattern refuses


def _changed(before: OpenUnion, after: OpenUnion) -> str:
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            return f"{name} = {old!r} came back as {new!r}"
    return f"{before!r} came back as {after!r}"


@check(configs)
def bad_config_is_a_named_error(subject: Subject) -> None:
    """Whatever a file holds, the answer is a config or a ConfigError that names the key."""
    cls, schema = subject.config_class(), _schema(subject)
    for document in _documents(subject, schema):
        try:
            validate(cls, document)
        except ConfigError:
            continue
        except Exception as error:
            raise Failure(
                f"{json.dumps(document)} raised {type(error).__name__}: {error}; expected a config "
                "or a ConfigError"
            ) from error
    tag = cls.get_type()
    for field in schema["properties"]:
        wrong = f"{field}x"
        problems = _problems(cls, {"type": tag, wrong: 0})
        require(wrong in problems, f"the misspelt key {wrong!r} passes")
        problems = _problems(cls, {"type": tag, field: [{}]})
        require(
            any(path.startswith(field) for path in problems),
            f"no error names {field!r} when it is [{{}}]",
        )


def _problems(cls: type[OpenUnion], document: Mapping[str, Any]) -> list[str]:
    try:
        validate(cls, document)
    except ConfigError as error:
        return [format_path(problem.path) for problem in error.problems]
    return []


@check(configs)
def searches_name_what_there_is(subject: Subject) -> None:
    """Every component that a sweep may choose is installed."""
    from rlreg.search_space import search_space

    try:
        space = search_space(subject.config_class())
    except RlregError as error:
        raise Failure(f"{subject.config_class().__name__}: Search(choices=...): {error}") from error
    if not space.parameters:
        raise NotApplicable("it has no Search(...)")


@check(learnables)
def migrations_are_complete(subject: Subject) -> None:
    """Files of every earlier schema version have a way to this one."""
    cls: Any = subject.config_class()
    version = cls.model_fields["schema_version"].default
    if version == 1:
        raise NotApplicable("schema version 1 has no earlier version")
    known = [migration.from_version for migration in cls.migrations]
    missing = [number for number in range(1, version) if number not in known]
    require(
        not missing,
        f"schema_version is {version}, but no migration starts from "
        f"{', '.join(map(str, missing))}; see rlreg.migrations",
    )


CHECKS = checks_in(globals())
