"""JSON Schema of configs: draft 2020-12, tags as constants, open unions closed over a named scope.

What a union may hold depends on what is installed, so a schema is exported in one of two scopes:
``all`` closes it over every registered member, ``own`` over the members of the config's
distribution and of rlreg. Files that are committed or hashed use ``own``.

The standard flavour is draft 2020-12; `rlreg.schema_editor` rewrites it for editors.

Unions are exported as ``if``/``then`` on the tag instead of ``oneOf``: it means the same, and a
validator or an editor then reports what is wrong inside the chosen branch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from rlreg import registry
from rlreg.blocking import normalize
from rlreg.config import KINDS, LearnableConfig
from rlreg.errors import UnknownNameError
from rlreg.open_union import OpenUnion
from rlreg.schema_editor import DIALECT, editor_schema

Scope = Literal["all", "own"]
Flavour = Literal["standard", "editor"]
ID_ROOT = "urn:rlreg:schema:"
_MARK = "x-open-union"


class _Generator(GenerateJsonSchema):
    """pydantic's generator with the defaults it leaves out and without the warnings it swallows."""

    schema_dialect = DIALECT

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        factory = schema.get("default_factory")
        if factory is not None and not schema.get("default_factory_takes_data"):
            return factory()  # type: ignore[call-arg]  # the flag above says it takes none
        return super().get_default_value(schema)

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json")
        return super().encode_default(dft)

    def emit_warning(self, kind: Any, detail: str) -> None:
        raise ValueError(f"this config has no JSON Schema ({kind}): {detail}")


def json_schema(
    name: str | type[BaseModel],
    *,
    scope: Scope = "all",
    distributions: Iterable[str] = (),
    flavour: Flavour = "standard",
) -> dict[str, Any]:
    """Returns the JSON Schema of a learnable or of a model.

    Args:
        name: Id of a learnable, ``"run"``, or a model class.
        scope: ``all`` closes open unions over everything installed; ``own`` over the members of the
            learnable's distribution and of rlreg.
        distributions: More distributions whose members the scope ``own`` takes in, e.g. those of
            the learnables that a committed schema of the run file is for.
        flavour: ``standard`` is draft 2020-12; ``editor`` says the same in what YAML language
            servers understand (draft-07).

    Raises:
        UnknownNameError: If there is no such learnable.
    """
    schema = _standard_schema(name, scope, distributions)
    if flavour == "editor":
        return editor_schema(schema)
    return schema


def _standard_schema(
    name: str | type[BaseModel], scope: Scope, distributions: Iterable[str]
) -> dict[str, Any]:
    more = {normalize(distribution) for distribution in distributions}
    if name == "run":
        from rlreg.run_config import RunConfig

        return _export(RunConfig, "run", scope, owners={"rlreg", *more})
    if isinstance(name, str):
        record = registry.resolve("learnable", name)
        owners = {"rlreg", normalize(record.distribution), *more}
        return _export(record.cls, record.id, scope, owners)
    if not isinstance(name, type) or not issubclass(name, BaseModel):
        raise UnknownNameError(f"expected the id of a learnable or a config class, got {name!r}")
    owners = {"rlreg", *more}
    if issubclass(name, OpenUnion) and not name.is_abstract():
        owners.add(normalize(registry.provenance(name).distribution))
    return _export(name, name.__name__, scope, owners)


def schema_hash(schema: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a schema in canonical JSON."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _export(root: type[BaseModel], title: str, scope: Scope, owners: set[str]) -> dict[str, Any]:
    own, collected = _schema_of(root)
    unions: dict[str, dict[str, type[OpenUnion]]] = {}
    while missing := {mark for mark in _marks([own, collected]) if mark[1] not in unions}:
        for kind, path in sorted(missing):
            unions[path] = _members(kind, path, scope, owners)
            for cls in unions[path].values():
                if _member_name(cls) not in collected:
                    member, parts = _schema_of(cls)
                    collected.update({**parts, _member_name(cls): member})
    definitions = {**collected}
    for path, members in unions.items():
        definitions[_union_name(path)] = union_schema(
            {tag: _member_name(cls) for tag, cls in members.items()}
        )
    schema = _replace_marks(own)
    if definitions:
        schema["$defs"] = {key: _replace_marks(definitions[key]) for key in sorted(definitions)}
    head = {"$schema": DIALECT, "$id": f"{ID_ROOT}{title}:{scope}"}
    result: dict[str, Any] = {**head, **schema}
    json.dumps(result, allow_nan=False)
    return result


def _schema_of(cls: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exports one class: its own schema, and the plain models it holds by name."""
    mapping, schema = models_json_schema(
        [(cls, "validation")], schema_generator=_Generator, ref_template="#/$defs/{model}"
    )
    parts: dict[str, Any] = _tidy(schema["$defs"])
    own = parts.pop(mapping[cls, "validation"]["$ref"].removeprefix("#/$defs/"))
    return own, parts


def _member_name(cls: type[OpenUnion]) -> str:
    return f"{cls.kind}.{registry.reference(cls).replace('/', '.')}"


def _tidy(node: Any) -> Any:
    """Drops pydantic's generated titles, which repeat the key in another spelling."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: ({name: _untitled(_tidy(value)) for name, value in item.items()})
        if key == "properties"
        else _tidy(item)
        for key, item in node.items()
    }


def _untitled(node: Any) -> Any:
    return {key: value for key, value in node.items() if key != "title"}


# --- open unions --------------------------------------------------------------------------------


def _marks(node: Any) -> list[tuple[str, str]]:
    if isinstance(node, list):
        return [mark for item in node for mark in _marks(item)]
    if not isinstance(node, dict):
        return []
    own = [(node[_MARK][0], node[_MARK][1])] if _MARK in node else []
    return own + [mark for value in node.values() for mark in _marks(value)]


def _members(kind: str, path: str, scope: Scope, owners: set[str]) -> dict[str, type[OpenUnion]]:
    union = _union_class(kind, path)
    return {
        registry.reference(record.cls): record.cls
        for record in registry.records(kind)
        if issubclass(record.cls, union)
        and (scope == "all" or normalize(record.distribution) in owners)
    }


def _union_class(kind: str, path: str) -> type[OpenUnion]:
    base: type[OpenUnion] = LearnableConfig if kind == "learnable" else KINDS[kind]
    pending = [base]
    while pending:
        cls = pending.pop()
        if f"{cls.__module__}:{cls.__qualname__}" == path:
            return cls
        pending += cls.__subclasses__()
    return base


def _union_name(path: str) -> str:
    return path.partition(":")[2]


def union_schema(members: Mapping[str, str]) -> dict[str, Any]:
    """Returns a mapping chosen by its tag: errors and completions come from that branch alone.

    Args:
        members: Names of definitions by tag.
    """
    if not members:
        return {"not": {}}
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": sorted(members)}},
        "allOf": [
            {
                "if": {"properties": {"type": {"const": tag}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/{name}"},
            }
            for tag, name in sorted(members.items())
        ],
    }


def _replace_marks(node: Any) -> Any:
    if isinstance(node, list):
        return [_replace_marks(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {key: _replace_marks(value) for key, value in node.items() if key != _MARK}
    if _MARK in node:
        result["$ref"] = f"#/$defs/{_union_name(node[_MARK][1])}"
    return result


def dump_schema(schema: Mapping[str, Any]) -> str:
    """Returns a schema as the text of a committed file."""
    return json.dumps(schema, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
