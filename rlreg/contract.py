"""The rules a class must keep to be registered.

What a subclass could weaken in :class:`rlreg.strictness.StrictModel`, and every field type for
which validator and JSON Schema cannot agree, is refused here with the field's name.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlreg.config import RUN_WORDS, TAG, ComponentConfig, LearnableConfig
from rlreg.errors import RegistrationError
from rlreg.migrations import Migration, check_chain
from rlreg.open_union import LOOK_UP, OpenUnion
from rlreg.problems import problems_of
from rlreg.search import Search, check_searches
from rlreg.strictness import StrictModel

REGIMES = ("offline", "online")


def check_member(cls: Any, *, is_alone: bool = True) -> type[OpenUnion]:
    """Checks that a class keeps the contract before it is registered.

    Args:
        cls: The class.
        is_alone: Whether no other class is about to be registered with it. During discovery a
            default may name a component that is not there yet; :func:`check_default` finds it
            missing afterwards.

    Returns:
        The class, for use as its kind's member.

    Raises:
        RegistrationError: With the class, and the field where one is at fault.
    """
    if not (isinstance(cls, type) and issubclass(cls, LearnableConfig | ComponentConfig)):
        raise RegistrationError(
            f"expected a subclass of LearnableConfig or of a component kind, got {cls!r}"
        )
    name = cls.__name__
    _resolve_annotations(cls)
    if cls.is_abstract():
        raise RegistrationError(f'{name}.type: state the tag as `type: Literal["name"] = "name"`')
    tags = typing.get_args(cls.model_fields["type"].annotation)
    if len(tags) != 1 or cls.model_fields["type"].default != tags[0]:
        raise RegistrationError(f"{name}.type: one tag, equal to its default, got {list(tags)}")
    if not TAG.match(str(tags[0])):
        raise RegistrationError(
            f"{name}.type: tag {tags[0]!r} must start with a lower-case letter and consist of "
            "lower-case letters, digits, '-' and '_'"
        )
    if not cls.kind:
        raise RegistrationError(f"{name}: derive from a kind such as EncoderFactory")
    if issubclass(cls, LearnableConfig):
        _check_learnable(cls)
    elif hasattr(cls, "migrations") or "schema_version" in cls.model_fields:
        raise RegistrationError(
            f"{cls.__name__}: a component has no schema_version and no migrations: give new fields "
            "a default, and what cannot stay compatible a tag of its own"
        )
    check_fields(cls, OpenUnion, ComponentConfig)
    for name in {field for pair in cls.ordered_fields for field in pair}:
        if name not in cls.model_fields:
            raise RegistrationError(f"{cls.__name__}.ordered_fields: there is no field {name!r}")
    check_default(cls, is_final=is_alone)
    check_searches(cls, _names_a_kind)
    return cls


def _resolve_annotations(cls: type[OpenUnion]) -> None:
    try:
        cls.model_rebuild(raise_errors=True)
    except Exception as error:
        raise RegistrationError(
            f"{cls.__name__}: its annotations do not resolve: {error}"
        ) from error


def _check_learnable(cls: type[LearnableConfig]) -> None:
    name = cls.__name__
    if cls.regime not in REGIMES:
        raise RegistrationError(
            f'{name}.regime: state `regime: ClassVar[str] = "offline"` or "online", '
            f"got {cls.regime!r}"
        )
    if not (cls.__doc__ or "").strip() or cls.__doc__ == LearnableConfig.__doc__:
        raise RegistrationError(f"{name}: write a docstring; its first line is the summary")
    _check_versions(cls)
    _check_create(cls)
    for reserved in sorted(RUN_WORDS & cls.model_fields.keys()):
        raise RegistrationError(f"{name}.{reserved}: this name belongs to the run file")


def _check_versions(cls: type[LearnableConfig]) -> None:
    info, name = cls.model_fields["schema_version"], cls.__name__
    version: Any = info.default
    is_whole = type(version) is int and version >= 1
    if not is_whole or info.annotation not in (int, Literal[version]):
        raise RegistrationError(
            f"{name}.schema_version: state it as `schema_version: Literal[1] = 1`, a whole number "
            f"of at least 1, got {_name(info.annotation)} = {version!r}"
        )
    for item in cls.migrations:
        if not isinstance(item, Migration):
            raise RegistrationError(
                f"{name}.migrations: expected Migration(from_version, steps), got {item!r}"
            )
    fault = check_chain(f"{name}.migrations", version, cls.migrations)
    if fault:
        raise RegistrationError(fault)


def _check_create(cls: type[LearnableConfig]) -> None:
    try:
        inspect.signature(cls.create).bind(None, "cpu")
    except TypeError as error:
        raise RegistrationError(
            f'{cls.__name__}.create: write it as `def create(self, device="auto")`: {error}'
        ) from error


def check_default(cls: type[OpenUnion], *, is_final: bool = True) -> None:
    """Checks that a class can be made without settings.

    Args:
        cls: The class.
        is_final: Whether a name that is not registered is a fault.

    Raises:
        RegistrationError: With the first field whose default is not valid.
    """
    try:
        typing.cast("typing.Any", cls)()
    except ValidationError as error:
        if not is_final and all(item["type"] == LOOK_UP for item in error.errors()):
            return
        first = problems_of(error, cls, {})[0]
        raise RegistrationError(f"{cls.__name__}: its defaults are not valid: {first}") from error


def takes_components(cls: type[OpenUnion]) -> bool:
    """Whether a class has a field for a component."""
    return any(_names_a_kind(info.annotation) for info in cls.model_fields.values())


def _names_a_kind(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, ComponentConfig):
        return True
    return any(_names_a_kind(item) for item in typing.get_args(annotation))


_CONSTRAINTS = (
    annotated_types.Ge,
    annotated_types.Gt,
    annotated_types.Le,
    annotated_types.Lt,
    annotated_types.MultipleOf,
    annotated_types.MinLen,
    annotated_types.MaxLen,
    annotated_types.Interval,
    annotated_types.Len,
)
_ALLOWED = (
    "allowed are bool, int with both bounds, float, str, Literal, tuples of these, "
    "component kinds, and any of them with `| None`"
)


def check_fields(cls: type[StrictModel], base: type[StrictModel], kind: type) -> None:
    """Checks that ``cls`` keeps the contract of ``base``.

    Args:
        cls: The config class to be registered.
        base: The class whose ``model_config`` must still hold.
        kind: The class whose subclasses are component kinds (a parameter, so that this module
            knows nothing of them).

    Raises:
        RegistrationError: If a setting is weakened, a validator is added, or a field hides a
            method or has a type outside the closed list; the message names the field.
    """
    _check_settings(cls, base)
    for name, info in cls.model_fields.items():
        where = f"{cls.__name__}.{name}"
        if info.alias or info.validation_alias or info.serialization_alias:
            raise RegistrationError(f"{where}: a field has one name; remove the alias")
        if info.exclude or info.init is False:
            raise RegistrationError(f"{where}: a field cannot be left out of the config")
        if any(name in vars(parent) for parent in cls.__mro__[1:]):
            raise RegistrationError(
                f"{where}: this name belongs to a method of every config; choose another"
            )
        if info.is_required() and name != "type":
            raise RegistrationError(f"{where}: every field needs a default")
        if name in ("type", "schema_version"):
            continue
        _check_type(info.annotation, info.metadata, where, kind)


def _check_settings(cls: type[StrictModel], base: type[StrictModel]) -> None:
    wanted = {key: value for key, value in base.model_config.items() if key != "title"}
    given = {key: value for key, value in cls.model_config.items() if key != "title"}
    for key in sorted(wanted.keys() | given.keys()):
        if wanted.get(key) != given.get(key):
            raise RegistrationError(
                f"{cls.__name__}: model_config[{key!r}] is {given.get(key)!r}; "
                f"a config keeps {wanted.get(key)!r} of {base.__name__}"
            )
    decorators = cls.__pydantic_decorators__
    for group in ("validators", "field_validators", "root_validators", "model_validators"):
        for name in getattr(decorators, group):
            raise RegistrationError(
                f"{cls.__name__}.{name}: a validator has no form in JSON Schema; state ranges in "
                "Field(), an order of two fields in ordered_fields, and report other relations in "
                "create() as a ConfigError"
            )
    for group in ("field_serializers", "model_serializers", "computed_fields"):
        for name in getattr(decorators, group):
            raise RegistrationError(
                f"{cls.__name__}.{name}: a config is dumped as it is written; remove the {group}"
            )


def _constraints(metadata: typing.Iterable[Any], where: str) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _constraints(item.metadata, where)
        elif isinstance(item, annotated_types.GroupedMetadata):
            yield from item
        elif isinstance(item, _CONSTRAINTS):
            yield item
        elif isinstance(item, Search):
            continue  # where a sweep looks; says nothing about what is valid
        elif set(getattr(item, "__dict__", {"?": 0})) <= {"pattern"}:
            yield item  # pydantic keeps Field(pattern=) in a private metadata class
        else:
            raise RegistrationError(f"{where}: {item!r} has no form in JSON Schema; {_ALLOWED}")


def _check_type(annotation: Any, metadata: typing.Iterable[Any], where: str, kind: type) -> None:
    constraints = list(_constraints(metadata, where))
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        _check_type(inner, [*constraints, *more], where, kind)
    elif origin in (typing.Union, types.UnionType):
        _check_union(annotation, constraints, where, kind)
    elif origin is tuple:
        for index, item in enumerate(typing.get_args(annotation)):
            if item is not Ellipsis:
                _check_type(item, (), f"{where}[{index}]", kind)
    elif origin is Literal:
        _check_literal(annotation, where)
    else:
        _check_plain(annotation, constraints, where, kind)


def _check_plain(annotation: Any, constraints: list[Any], where: str, kind: type) -> None:
    if annotation is int:
        _check_bounds(constraints, where)
    elif annotation is float:
        _refuse_multiples(constraints, where)
    elif annotation is str:
        _check_patterns(constraints, where)
    elif annotation is bool:
        return
    elif not (isinstance(annotation, type) and issubclass(annotation, kind)):
        raise RegistrationError(f"{where}: type {_name(annotation)} is not allowed; {_ALLOWED}")
    elif not typing.cast("type[OpenUnion]", annotation).is_abstract():
        raise RegistrationError(
            f"{where}: {annotation.__name__} is one component; annotate its kind, and give the "
            "component as the default"
        )


# What the regular expressions of pydantic know and those of JavaScript do not.
_FOREIGN = re.compile(r"\(\?(?![:=!<])|\\[AzZGQpPhHRXK]|\[\[:|\\x\{")


def _check_patterns(constraints: list[Any], where: str) -> None:
    for item in constraints:
        pattern = getattr(item, "pattern", None)
        if not isinstance(pattern, str):
            continue
        found = _FOREIGN.search(pattern.replace(r"\\", ""))  # two stand for one that means itself
        if found:
            raise RegistrationError(
                f"{where}: pattern {pattern!r}: JSON Schema has no {found.group()!r}, and editors "
                "and forms fail on it"
            )


def _check_union(annotation: Any, constraints: list[Any], where: str, kind: type) -> None:
    members = [arg for arg in typing.get_args(annotation) if arg is not types.NoneType]
    if len(members) != 1:
        raise RegistrationError(
            f"{where}: a union of {' and '.join(_name(member) for member in members)} has unclear "
            f"errors; {_ALLOWED}"
        )
    _check_type(members[0], constraints, where, kind)


def _check_literal(annotation: Any, where: str) -> None:
    for member in typing.get_args(annotation):
        if isinstance(member, enum.Enum) or not isinstance(member, str | int | bool):
            raise RegistrationError(f"{where}: Literal member {member!r} must be str, int or bool")


def _check_bounds(constraints: list[Any], where: str) -> None:
    has_lower = any(
        getattr(item, "ge", getattr(item, "gt", None)) is not None for item in constraints
    )
    has_upper = any(
        getattr(item, "le", getattr(item, "lt", None)) is not None for item in constraints
    )
    if not (has_lower and has_upper):
        raise RegistrationError(
            f"{where}: an int needs a lower and an upper bound (Field(ge=..., le=...)), also "
            "inside a tuple: Annotated[int, Field(ge=1, le=4096)]"
        )


def _refuse_multiples(constraints: list[Any], where: str) -> None:
    if any(getattr(item, "multiple_of", None) is not None for item in constraints):
        raise RegistrationError(
            f"{where}: multiple_of on a float means something else to each validator; use an int"
        )


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
