"""What changed between two schemas, and whether a file that was valid may no longer be.

A change is *breaking* when a document that the old schema accepts can be refused by the new one. A
changed default is no such change, but it is reported: the same file then means something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        path: Definition and field, e.g. ``encoder.vector/hidden_units``.
        message: What changed.
        is_breaking: Whether documents that were valid may be refused now.
    """

    path: str
    message: str
    is_breaking: bool


_LOWER = ("minimum", "exclusiveMinimum", "minItems", "minLength")
_UPPER = ("maximum", "exclusiveMaximum", "maxItems", "maxLength")


def compare_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Lists the changes from one exported schema to the other; descriptions do not count."""
    changes = list(_compare_object("", old, new))
    before, after = old.get("$defs", {}), new.get("$defs", {})
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            changes.append(Change(name, "was removed", is_breaking=True))
        elif name not in before:
            changes.append(Change(name, "is new", is_breaking=False))
        else:
            changes += _compare_object(name, before[name], after[name])
    return changes


def _compare_object(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = old.get("properties", {}), new.get("properties", {})
    required = set(new.get("required", ())) - set(old.get("required", ()))
    for name in [*before, *(name for name in after if name not in before)]:
        where = f"{path}/{name}" if path else name
        if name not in after:
            yield Change(where, "was removed", is_breaking=True)
        elif name not in before:
            yield Change(where, "is new", is_breaking=name in required)
        else:
            if name in required:
                yield Change(where, "is required now", is_breaking=True)
            yield from _compare_node(where, before[name], after[name])


def _compare_node(path: str, old: Any, new: Any) -> Iterator[Change]:
    if "default" in old and "default" in new and old["default"] != new["default"]:
        message = f"the default changed from {old['default']!r} to {new['default']!r}"
        yield Change(path, message, is_breaking=False)
    yield from _compare_shape(path, _shape(old), _shape(new))


def _shape(node: Any) -> Any:
    texts = ("description", "default", "title")
    return {key: value for key, value in node.items() if key not in texts}


def _compare_shape(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Compares what two nodes accept; where it cannot tell, a change counts as breaking."""
    if old == new:
        return
    if "anyOf" in old or "anyOf" in new:
        yield from _compare_alternatives(path, old, new)
        return
    before, after = _choices(old), _choices(new)
    if before is not None and after is not None:
        yield from _compare_choices(path, before, after)
        return
    if _is_widened(old, new):
        yield Change(path, "takes every number now, not only whole ones", is_breaking=False)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key) or (key == "type" and _is_widened(old, new)):
            continue
        if key == "items" and key in old and key in new:
            yield from _compare_shape(f"{path}[]", _shape(old[key]), _shape(new[key]))
        else:
            yield _compare_limit(path, key, old.get(key), new.get(key))


def _is_widened(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old.get("type") == "integer" and new.get("type") == "number"


def _choices(node: Mapping[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    choices: list[Any] | None = node.get("enum")
    return choices


def _compare_choices(path: str, before: list[Any], after: list[Any]) -> Iterator[Change]:
    for item in before:
        if item not in after:
            yield Change(path, f"no longer takes {item!r}", is_breaking=True)
    for item in after:
        if item not in before:
            yield Change(path, f"takes {item!r} now", is_breaking=False)


def _compare_alternatives(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Change]:
    before = [_shape(node) for node in old.get("anyOf", [old])]
    after = [_shape(node) for node in new.get("anyOf", [new])]
    gone = [node for node in before if node not in after]
    come = [node for node in after if node not in before]
    if len(gone) == len(come) == 1:  # the same alternative with other limits
        yield from _compare_shape(path, gone[0], come[0])
        return
    for node in gone:
        yield Change(path, f"no longer takes {_name(node)}", is_breaking=True)
    for node in come:
        yield Change(path, f"takes {_name(node)} now", is_breaking=False)


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("$ref", "")).rpartition("/")[2] or str(node.get("type", node))


def _compare_limit(path: str, key: str, old: Any, new: Any) -> Change:
    message = f"{key} changed from {old!r} to {new!r}"
    is_limit = key in _LOWER or key in _UPPER
    if new is None and (is_limit or key in ("pattern", "multipleOf", "minItems")):
        return Change(path, f"{key} {old!r} was lifted", is_breaking=False)
    if is_limit and old is not None and new is not None:
        return Change(path, message, is_breaking=new > old if key in _LOWER else new < old)
    return Change(path, message, is_breaking=True)
