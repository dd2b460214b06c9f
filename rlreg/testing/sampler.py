"""Documents that a schema accepts, or nearly: what schema and validator have to agree on.

Seeded and without dependencies, so that a fault found once is found again, also from the command
line.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 0.5, 1.0, -0.0, 1e-9, 1e300, "", "a", "3", "true", [], [1],
    ["a"], [[]], {}, {"type": None}, {"type": "no-such-type"},
)  # fmt: skip
_STRINGS = ("", "a", "ab", "abc-1", "A b", "é", "x" * 40)
_MAX_DEPTH = 6


class Sampler:
    """Draws documents from a JSON Schema as `rlreg.schema` exports them.

    Args:
        schema: The schema of a config class.
        seed: Equal seeds give equal documents.
        odd_share: How often a value of another type takes the place of a fitting one.
    """

    def __init__(self, schema: Mapping[str, Any], *, seed: int = 0, odd_share: float = 0.0) -> None:
        self._schema = schema
        self._random = random.Random(seed)
        self._odd_share = odd_share
        self._of_type: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "array": self._array,
            "boolean": lambda node, depth: self._random.random() < 0.5,
            "integer": self._integer,
            "null": lambda node, depth: None,
            "number": self._number,
            "object": self._object,
            "string": self._string,
        }

    def documents(self, count: int) -> Iterator[dict[str, Any]]:
        """Yields documents of the root; each sets a few of its fields."""
        for _ in range(count):
            document = self._object(self._schema, 0)
            if self._is_odd():
                document[self._random.choice(["extra", "Type", ""])] = self._random.choice(_ODD)
            yield document

    def edge_values(self, field: str) -> Iterator[Any]:
        """Yields values at and just beyond what a field allows, and of every other type."""
        node = self._schema["properties"][field]
        for _ in range(12):
            yield self._value(node, 1)
        yield from _ODD

    def _is_odd(self) -> bool:
        return self._random.random() < self._odd_share

    def _value(self, node: Mapping[str, Any], depth: int) -> Any:
        if self._is_odd():
            return self._random.choice(_ODD)
        if "$ref" in node:
            return self._value(self._resolve(node["$ref"]), depth)
        for key in ("anyOf", "oneOf"):
            if key in node:
                return self._value(self._random.choice(node[key]), depth)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self._random.choice(node["enum"])
        make = self._of_type.get(str(node.get("type")))
        return self._random.choice(_ODD) if make is None else make(node, depth)

    def _resolve(self, reference: str) -> Mapping[str, Any]:
        node: Any = self._schema
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        found: Mapping[str, Any] = node
        return found

    def _object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        branches = node.get("allOf")
        if branches:  # an open union: a tag, and what belongs to it
            branch = self._random.choice(branches)["then"]
            chosen: dict[str, Any] = self._object(self._resolve(branch["$ref"]), depth)
            return chosen
        properties, required = node.get("properties", {}), node.get("required", ())
        share = 0.5 if depth < _MAX_DEPTH else 0.0
        return {
            name: self._value(part, depth + 1)
            for name, part in properties.items()
            if name in required or self._random.random() < share
        }

    def _array(self, node: Mapping[str, Any], depth: int) -> list[Any]:
        if "prefixItems" in node:
            items = [self._value(item, depth + 1) for item in node["prefixItems"]]
            return items[:-1] if self._is_odd() else items
        low = int(node.get("minItems", 0))
        high = min(int(node.get("maxItems", low + 3)), low + 3)
        length = max(0, self._random.randint(low, high) - self._is_odd())
        return [self._value(node.get("items", {}), depth + 1) for _ in range(length)]

    def _string(self, node: Mapping[str, Any], depth: int) -> str:
        default = node.get("default")
        return str(self._random.choice([*_STRINGS, default] if default else _STRINGS))

    def _integer(self, node: Mapping[str, Any], depth: int) -> int | float:
        low, high = _bounds(node, 1)
        step = int(node.get("multipleOf", 1))
        edges = [low, high, low + step, (low + high) // 2]
        value = int(self._random.choice([*edges, self._random.randint(int(low), int(high))]))
        if self._is_odd():
            value = int(self._random.choice([low - 1, high + 1]))
        return float(value) if self._random.random() < 0.1 and abs(value) < 2**53 else value

    def _number(self, node: Mapping[str, Any], depth: int) -> int | float:
        low, high = _bounds(node, 0)
        inner = [low + (high - low) * share for share in (0.1, 0.5, 0.9)]
        beyond = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
        value = self._random.choice(beyond if self._is_odd() else [low, high, *inner])
        return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _bounds(node: Mapping[str, Any], step: int) -> tuple[float, float]:
    """Returns the least and greatest number allowed, or likely ones where there is no bound.

    An exclusive bound of a number is returned as it is: a value to be refused.
    """
    low = node.get("minimum", node.get("exclusiveMinimum", -10) + step)
    high = node.get("maximum", node.get("exclusiveMaximum", low + 20) - step)
    if step:
        return low, high
    return float(low), float(high)
