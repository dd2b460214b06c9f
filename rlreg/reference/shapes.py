"""From a JSON Schema to words: the type and range of a field as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlreg.config import KINDS, LearnableConfig
from rlreg.yaml_text import flow

_REFERENCE = "#/$defs/"


@dataclass(frozen=True, slots=True)
class Shape:
    """A JSON Schema in words; see `rlreg.reference.record.FieldRecord`."""

    type: str
    range: str = ""
    kinds: tuple[str, ...] = ()
    section: str = ""


_UNION_KINDS = {cls.__name__: kind for kind, cls in KINDS.items()} | {
    LearnableConfig.__name__: "learnable"
}
_WORDS = {"number": "number", "integer": "integer", "boolean": "boolean", "string": "string"}


def shape_of(node: Mapping[str, Any]) -> Shape:
    """Describes the type and range that a schema allows."""
    if "$ref" in node:
        return _referenced(str(node["$ref"]).removeprefix(_REFERENCE))
    for key in ("anyOf", "oneOf"):
        if key in node:
            return _alternatives(node[key])
    if "const" in node:
        return Shape(_WORDS.get(str(node.get("type")), "constant"), flow(node["const"]))
    if "enum" in node:
        return Shape("choice", ", ".join(flow(item) for item in node["enum"]))
    kind = str(node.get("type", "anything"))
    if kind == "array":
        return _array(node)
    if kind in ("number", "integer"):
        return Shape(kind, _bounds(node))
    if kind == "string":
        return Shape(kind, _text_limits(node))
    return Shape({"object": "mapping"}.get(kind, kind))


def _referenced(name: str) -> Shape:
    kind = _UNION_KINDS.get(name)
    if kind is not None:
        return Shape(kind.replace("_", " "), kinds=(kind,))
    return Shape("mapping", section=name)


def _alternatives(nodes: list[Mapping[str, Any]]) -> Shape:
    shapes = [shape_of(node) for node in nodes]
    words = list(dict.fromkeys(shape.type for shape in shapes))
    ranges = [shape.range for shape in shapes if shape.range]
    return Shape(
        " or ".join(words),
        "; ".join(dict.fromkeys(ranges)) if len(shapes) <= 2 else "",
        tuple(dict.fromkeys(kind for shape in shapes for kind in shape.kinds)),
        next((shape.section for shape in shapes if shape.section), ""),
    )


def _array(node: Mapping[str, Any]) -> Shape:
    if "prefixItems" in node:
        shapes = [shape_of(item) for item in node["prefixItems"]]
        ranges = list(dict.fromkeys(shape.range for shape in shapes))
        text = ("each " if len(ranges) == 1 and ranges[0] else "") + "; ".join(ranges)
        kinds = tuple(dict.fromkeys(kind for shape in shapes for kind in shape.kinds))
        return Shape(f"[{', '.join(shape.type for shape in shapes)}]", text.strip("; "), kinds)
    item = shape_of(node.get("items", {}))
    count = _count(node)
    inner = f"each {item.range}" if item.range else ""
    return Shape(f"list of {item.type}", ", ".join(filter(None, (count, inner))), item.kinds)


def _count(node: Mapping[str, Any]) -> str:
    low, high = node.get("minItems"), node.get("maxItems")
    if low and high:
        return f"{number_text(low)} to {number_text(high)} items"
    if high:
        return f"at most {number_text(high)} items"
    return f"at least {number_text(low)} items" if low else ""


def _bounds(node: Mapping[str, Any]) -> str:
    low = high = ""
    if "exclusiveMinimum" in node:
        low = f"{number_text(node['exclusiveMinimum'])} <"
    elif "minimum" in node:
        low = f"{number_text(node['minimum'])} <="
    if "exclusiveMaximum" in node:
        high = f"< {number_text(node['exclusiveMaximum'])}"
    elif "maximum" in node:
        high = f"<= {number_text(node['maximum'])}"
    step = f"multiple of {number_text(node['multipleOf'])}" if "multipleOf" in node else ""
    bounds = " ".join(filter(None, (low, "x", high))) if low or high else ""
    return ", ".join(filter(None, (bounds, step)))


def _text_limits(node: Mapping[str, Any]) -> str:
    limits = []
    if "pattern" in node:
        limits.append(f"pattern {node['pattern']}")
    if "minLength" in node or "maxLength" in node:
        low, high = node.get("minLength", 0), node.get("maxLength")
        limits.append(f"{low} to {high} characters" if high else f"at least {low} characters")
    return ", ".join(limits)


def number_text(value: float) -> str:
    """Returns a bound as a person writes it: ``1e12`` and not a row of zeros."""
    if abs(value) >= 1e6 and float(value).is_integer():
        digits = str(int(value))
        stripped = digits.rstrip("0")
        if len(stripped.lstrip("-")) == 1 and len(digits) - len(stripped) >= 6:
            return f"{stripped}e{len(digits) - len(stripped)}"
    if abs(value) >= 1e16:
        return f"{value:g}".replace("e+", "e")
    return str(int(value)) if float(value).is_integer() else repr(value)
