"""The editor flavour of a schema: the same documents, said in draft-07.

YAML language servers know draft-07 well and 2020-12 in parts: `prefixItems` is passed over, and
what stands beside a `$ref` (the description and default of a field) is lost. This flavour says the
same without either. Tests hold both flavours to the same verdict on any document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EDITOR_DIALECT = "http://json-schema.org/draft-07/schema#"
_OLD, _NEW = "#/$defs/", "#/definitions/"
_NAMED = ("properties", "patternProperties", "definitions")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else")
_LISTED = ("anyOf", "oneOf", "allOf")


def editor_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an exported schema in the editor flavour."""
    result: dict[str, Any] = _convert(schema)
    result["$schema"] = EDITOR_DIALECT
    result["$id"] = f"{schema['$id']}:editor"
    _describe_tags(result.get("definitions", {}))
    return result


def is_editor_schema(schema: Any) -> bool:
    """Whether a schema that was read from a file is of the editor flavour."""
    return isinstance(schema, Mapping) and schema.get("$schema") == EDITOR_DIALECT


def standard_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema of the editor flavour as it was exported: the inverse of the above."""
    result: dict[str, Any] = _restore(schema)
    result["$schema"] = DIALECT
    result["$id"] = str(schema.get("$id", "")).removesuffix(":editor")
    return result


def _convert(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node  # `true`, `false`
    result = dict(node)
    if "$defs" in result:
        result["definitions"] = result.pop("$defs")
    if "prefixItems" in result:
        # In draft-07 a list under `items` is what `prefixItems` became.
        rest = result.pop("items", None)
        result["items"] = result.pop("prefixItems")
        if rest is not None:
            result["additionalItems"] = rest
    for key in _NAMED:
        if key in result:
            result[key] = {name: _convert(part) for name, part in result[key].items()}
    for key in (*_SINGLE, *_LISTED):
        if key in result:
            part = result[key]
            is_list = isinstance(part, list)
            result[key] = [_convert(item) for item in part] if is_list else _convert(part)
    return _apart(result)


def _restore(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    result = _together({key: value for key, value in node.items() if key != "enumDescriptions"})
    for key in _NAMED:
        if key in result:
            result[key] = {name: _restore(part) for name, part in result[key].items()}
    for key in (*_SINGLE, *_LISTED):
        if key in result:
            part = result[key]
            is_list = isinstance(part, list)
            result[key] = [_restore(item) for item in part] if is_list else _restore(part)
    if isinstance(result.get("items"), list):
        result["prefixItems"] = result.pop("items")
        if "additionalItems" in result:
            result["items"] = result.pop("additionalItems")
    if "definitions" in result:
        result["$defs"] = result.pop("definitions")
    return result


def _together(node: dict[str, Any]) -> dict[str, Any]:
    """Undoes `_apart`."""
    if set(node) == {"$ref"}:
        return {"$ref": node["$ref"].replace(_NEW, _OLD, 1)}
    parts = node.get("allOf", ())
    if not parts or set(parts[-1]) != {"$ref"}:
        return node
    kept = list(parts[:-1])
    if kept and "description" in node and kept[-1] == {"description": node["description"]}:
        kept.pop()
    result = {key: value for key, value in node.items() if key != "allOf"}
    result |= {"allOf": kept} if kept else {}
    return {**result, "$ref": parts[-1]["$ref"].replace(_NEW, _OLD, 1)}


def _apart(node: dict[str, Any]) -> dict[str, Any]:
    """Puts a `$ref` where nothing stands beside it: draft-07 ignores its neighbours."""
    if "$ref" not in node:
        return node
    reference = {"$ref": node["$ref"].replace(_OLD, _NEW, 1)}
    beside = {key: value for key, value in node.items() if key != "$ref"}
    if not beside:
        return reference
    # A language server shows the first description it meets, inner ones first: that of the field
    # would lose against that of the member chosen for it.
    text = [{"description": beside["description"]}] if "description" in beside else []
    return {**beside, "allOf": [*beside.get("allOf", ()), *text, reference]}


def _describe_tags(definitions: Mapping[str, Any]) -> None:
    """Gives each tag of a union the summary of its member, which editors show beside it."""
    for node in definitions.values():
        tags = node.get("properties", {}).get("type", {})
        if "enum" not in tags or "allOf" not in node:
            continue
        summaries = {
            branch["if"]["properties"]["type"]["const"]: _summary(branch["then"], definitions)
            for branch in node["allOf"]
        }
        tags["enumDescriptions"] = [summaries.get(tag, "") for tag in tags["enum"]]


def _summary(branch: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    member = definitions[branch["$ref"].removeprefix(_NEW)]
    return str(member.get("description", "")).partition("\n")[0]
