"""From a pydantic ValidationError to problems a person can act on.

Every fault of a document is reported in one go, with the path in the file (no union tags in it),
the value given, what was expected, and for an unknown key the nearest key of the same config or the
algorithm that does have it.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from rlreg.device import DEVICE_PATTERN, device_problem
from rlreg.errors import Problem, did_you_mean
from rlreg.migrations import what_became_of

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxlist = _REPR.maxdict = _REPR.maxtuple = 4

_EXPECTED = {
    "missing": "is required",
    "extra_forbidden": "no such key",
    "bool_type": "expected true or false",
    "string_type": "expected a string",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "int_from_float": "expected a whole number",
    "int_parsing_size": "expected a smaller whole number",
}


# The tags of rlreg's own unions of forms that a file may have.
_FORMS = {
    "<string>": "a string", "<index>": "a whole number", "<list>": "a list",
    "<mapping>": "a mapping",
}  # fmt: skip


def problems_of(error: ValidationError, cls: type[Any], data: Any) -> list[Problem]:
    """Lists the faults in ``error``.

    Args:
        error: What pydantic raised while validating ``data`` with ``cls``.
        cls: The model that was asked.
        data: The document it was given; used to find which component a path leads into.
    """
    details = error.errors(include_url=False)
    locations = [_path(item["loc"]) for item in details]
    problems = []
    for item, path in zip(details, locations, strict=True):
        below = any(other != path and other[: len(path)] == path for other in locations)
        if item["type"] == "too_short" and below:
            continue  # all items were refused, so the tuple counts as empty: no fault of its own
        problems.append(_problem(typing.cast("Mapping[str, Any]", item), path, cls, data))
    return problems


def order_problems(config: Any, path: tuple[str | int, ...] = ()) -> list[Problem]:
    """Lists pairs of fields that stand in the wrong order, in a config and all its parts.

    A schema cannot say that one field must not be above another, and what validates accepts what
    the schema accepts; so this is looked at afterwards, before anything is made of a config.

    Args:
        config: A validated config, or a part of one.
        path: Where it stands in the document.
    """
    if isinstance(config, list | tuple):
        parts: Iterable[tuple[str | int, Any]] = enumerate(config)
    elif isinstance(config, BaseModel):
        parts = config.__dict__.items()
    else:
        return []
    problems = []
    for below, above in getattr(config, "ordered_fields", ()):
        low, high = getattr(config, below), getattr(config, above)
        if low is not None and high is not None and _is_above(low, high):
            message = f"must not be above {above} = {_REPR.repr(high)}"
            problems.append(Problem((*path, below), message, _REPR.repr(low)))
    for key, part in parts:
        problems += order_problems(part, (*path, key))
    return problems


def _is_above(low: Any, high: Any) -> bool:
    """Whether a number is above another, or any of a row above its partner."""
    if isinstance(low, tuple) and isinstance(high, tuple):
        return any(a > b for a, b in zip(low, high, strict=False))
    return bool(low > high)


def _path(loc: Iterable[str | int]) -> tuple[str | int, ...]:
    # Parts in angle brackets are the tags of rlreg's own unions of file forms, not keys.
    return tuple(part for part in loc if not (isinstance(part, str) and part.startswith("<")))


def shown(value: Any) -> str:
    """Shows a value in a message: short, and a part of a config as a file has it."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return _REPR.repr(value)


def _problem(
    item: Mapping[str, Any], path: tuple[str | int, ...], cls: type[Any], data: Any
) -> Problem:
    kind = str(item["type"])
    on_key = kind == "extra_forbidden"
    given = "" if kind in ("missing", "missing_tag") or on_key else shown(item.get("input"))
    context = item.get("ctx") or {}
    hint = str(context.get("hint", ""))
    if on_key:
        hint = key_hint(str(path[-1]), owner_of(cls, data, path[:-1]))
    if kind == "literal_error" and isinstance(item.get("input"), str):
        hint = did_you_mean(item["input"], _literal_members(str(context.get("expected", ""))))
    return Problem(path, _message(kind, item, context), given, hint, on_key=on_key)


def _message(kind: str, item: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    bounds = {
        "greater_than": "> {gt}",
        "greater_than_equal": ">= {ge}",
        "less_than": "< {lt}",
        "less_than_equal": "<= {le}",
        "multiple_of": "a multiple of {multiple_of}",
    }
    if kind in bounds:
        return f"must be {bounds[kind].format(**context)}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        word = "at least" if kind == "too_short" else "at most"
        return f"needs {word} {limit} items, got {context.get('actual_length')}"
    if kind == "literal_error" and "expected" in context:
        return f"expected {context['expected']}"
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind == "union_tag_invalid" and "'<" in context["expected_tags"]:
        forms = [_FORMS[tag] for tag in _literal_members(context["expected_tags"])]
        return f"expected {' or '.join(forms)}"
    if kind == "string_pattern_mismatch" and context["pattern"] == DEVICE_PATTERN:
        return device_problem(item["input"])
    message = str(item["msg"])
    return message.replace("Input should be", "expected").removeprefix("Value error, ")


def _literal_members(expected: str) -> list[str]:
    return [part.strip().strip("'") for part in expected.replace(" or ", ",").split(",")]


def key_hint(key: str, owner: type[BaseModel] | None, others: Iterable[str] = ()) -> str:
    """Says where this very key belongs, or suggests the nearest key that is there.

    Args:
        key: What there is none of.
        owner: The class whose key it should be.
        others: Keys of other classes that may stand in the same place.
    """
    if owner is None:
        return ""
    place = _place_in_run(key, owner)
    if place:
        return f"in a run file it belongs to {place}"
    became = what_became_of(owner, key)
    if became:
        return became
    names = {info.alias or name for name, info in owner.model_fields.items()}
    near = did_you_mean(key, {*names, *others})
    if near:
        return near
    from rlreg import registry

    siblings = registry.classes_with_field(owner, key)
    if siblings:
        named = ", ".join(repr(name) for name in siblings)
        return f"'{key}' is a key of {named}, not of {_title(owner)}"
    known = ", ".join(sorted(names))
    return f"{_title(owner)} has {known}"


def _place_in_run(key: str, owner: type[BaseModel]) -> str:
    """Returns the path in a run file that has ``key``, when it stands in the wrong section."""
    from rlreg import registry
    from rlreg.open_union import OpenUnion
    from rlreg.run_config import RunConfig

    stated: str | None = getattr(owner, "elsewhere", {}).get(key)
    if stated is not None:
        return stated
    if key in RunConfig.model_fields and not issubclass(owner, RunConfig):
        return f"its top level, beside `learnable`: {key}"
    for section, info in RunConfig.model_fields.items():
        model = _model_in(info.annotation)
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is owner:
            continue
        if not issubclass(model, OpenUnion):
            keys = {*model.model_fields}
        elif issubclass(owner, model):
            continue
        else:
            keys = {
                name for record in registry.records(model.kind) for name in record.cls.model_fields
            }
        if key in keys - {"type"}:
            return f"{section}.{key}"
    return ""


def _title(owner: type[BaseModel]) -> str:
    tag = owner.model_fields.get("type")
    return repr(tag.default) if tag is not None and isinstance(tag.default, str) else "this section"


def owner_of(cls: Any, data: Any, path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Returns the model that a path of a document leads into, following the tags on the way."""
    current = _concrete(cls, data)
    annotation: Any = current
    for part in path:
        if isinstance(part, str) and isinstance(current, type) and issubclass(current, BaseModel):
            info = current.model_fields.get(part)
            annotation = info.annotation if info else None
        else:
            annotation = _item_of(annotation, part)
        data = _child(data, part)
        current = _concrete(_model_in(annotation), data)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _concrete(cls: Any, data: Any) -> Any:
    from rlreg.open_union import OpenUnion

    if not (isinstance(cls, type) and issubclass(cls, OpenUnion) and cls.is_abstract()):
        return cls
    from rlreg import registry

    tag = data.get("type") if isinstance(data, Mapping) else getattr(data, "type", None)
    return registry.find_member(cls, tag)


def _model_in(annotation: Any) -> Any:
    """Returns the model class inside ``X | None`` or ``Annotated[X, ...]``."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _model_in(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        for arg in typing.get_args(annotation):
            found = _model_in(arg)
            if isinstance(found, type) and issubclass(found, BaseModel):
                return found
    return annotation


def _item_of(annotation: Any, part: str | int) -> Any:
    args = typing.get_args(_model_in(annotation))
    if not args:
        return None
    if isinstance(part, int) and Ellipsis not in args and part < len(args):
        return args[part]
    return args[0]


def _child(data: Any, part: str | int) -> Any:
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(part, int) and isinstance(data, list | tuple) and part < len(data):
        return data[part]
    return getattr(data, str(part), None)
