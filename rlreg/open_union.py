"""Open tagged unions: a model chosen by its ``type`` among the classes that are registered.

Which classes belong to a union is looked up when a value is validated or a schema is exported, so a
member registered after ``IQLConfig`` was written validates, dumps with its tag, reloads to the same
class and appears in the schema. The registry stands above this module, which therefore asks it
inside function bodies only.
"""

from __future__ import annotations

import builtins
import contextvars
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rlreg.errors import ConfigError, RegistrationError, RlregError, nearest
from rlreg.strictness import StrictModel, find_model_fields, tighten

MAX_DEPTH = 32
"""How deep components may nest: deeper documents are refused instead of exhausting the stack."""

LOOK_UP = "look_up"
"""Type of the error about a name that is not registered, or means several things."""

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("rlreg_depth", default=0)


_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")


def _is_tuple(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(_is_tuple, typing.get_args(annotation)))
    return typing.get_origin(annotation) is tuple


def _abstract_message(cls: type[OpenUnion]) -> str:
    return (
        f"{cls.__name__} is a kind, not a component: use one of its members, or give a subclass a "
        'tag with `type: Literal["name"] = "name"`'
    )


def _fault(error: RlregError) -> PydanticCustomError:
    return PydanticCustomError(LOOK_UP, "{message}", {"message": str(error)})


def _at_tag(error: RlregError, tag: Any) -> ValidationError:
    """Reports a failed look-up at the path of the tag itself."""
    return ValidationError.from_exception_data(
        "type", [{"type": _fault(error), "loc": ("type",), "input": tag}]
    )


def _misspelt_type(value: Mapping[Any, Any]) -> str:
    others = (key for key in value if isinstance(key, str) and key != "type")
    near = nearest("type", others, count=1)
    return f"write `type` instead of {near[0]!r}" if near else ""


def _article(kind: str) -> str:
    text = kind.replace("_", " ")
    return f"an {text}" if text[:1] in "aeiou" else f"a {text}"


def _require_tag(fields: dict[str, Any]) -> None:
    """Drops the default of ``type``, so that a mapping must state it and the schema says so."""
    node = fields["type"]["schema"]
    if node["type"] == "default":
        fields["type"]["schema"] = node["schema"]


def _pin_schema_version(fields: dict[str, Any], cls: type[OpenUnion]) -> None:
    if "schema_version" in fields:
        version = cls.model_fields["schema_version"].default
        fields["schema_version"]["schema"] = core_schema.with_default_schema(
            core_schema.literal_schema([version]), default=version
        )


def _dump(value: OpenUnion, info: core_schema.SerializationInfo) -> Any:
    from rlreg import registry

    dumped = type(value).__pydantic_serializer__.to_python(
        value,
        mode=info.mode,
        exclude_defaults=info.exclude_defaults,
        exclude_unset=info.exclude_unset,
        exclude_none=info.exclude_none,
    )
    return {**dumped, "type": registry.reference(type(value))}


class OpenUnion(StrictModel):
    """Base of learnables and components: a model chosen by its ``type`` tag."""

    kind: ClassVar[str] = ""
    ordered_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of fields of which the first must not be above the second, where both are given.

    JSON Schema has no word for it: say so in the descriptions of both.
    """

    if TYPE_CHECKING:  # checkers see the fields of each config as parameters, the tag as optional
        type: str = ""
    else:
        type: str

        def __init__(self, /, **data: Any) -> None:
            # Written by hand, a config needs no tag; read from a file, it does (see the core
            # schema).
            if type(self).is_abstract():
                raise TypeError(_abstract_message(type(self)))
            data.setdefault("type", type(self).get_type())
            self.__pydantic_validator__.validate_python(data, self_instance=self)

        # pydantic then calls the validator directly for mappings, where a missing tag must be an
        # error.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses bounds of a whole tuple, over which pydantic stumbles where a value is made."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, info in cls.__pydantic_fields__.items():
            stated = info.metadata
            bounds = [
                b for b in _BOUNDS if any(getattr(item, b, None) is not None for item in stated)
            ]
            if bounds and _is_tuple(info.annotation):
                raise RegistrationError(
                    f"{cls.__name__}.{name}: a tuple has no {bounds[0]}; bounds stand on its "
                    "items: tuple[Annotated[float, Field(ge=0, le=1)], ...]"
                )

    @classmethod
    def is_abstract(cls) -> bool:
        """Whether this class is a kind (it has no tag of its own)."""
        info = cls.__pydantic_fields__.get("type")
        return info is None or typing.get_origin(info.annotation) is not Literal

    @classmethod
    def get_type(cls) -> str:
        """Returns the tag: the value of ``type`` in files and schemas.

        Raises:
            TypeError: If the class is abstract.
        """
        if cls.is_abstract():
            raise TypeError(_abstract_message(cls))
        tags = typing.get_args(cls.model_fields["type"].annotation)
        return str(tags[0])

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Builds the schema of a member, or a look-up for a kind."""
        if cls.is_abstract():
            return core_schema.with_info_plain_validator_function(
                cls._dispatch,
                serialization=core_schema.plain_serializer_function_ser_schema(
                    _dump, info_arg=True
                ),
            )
        schema = handler(source)
        fields = find_model_fields(schema, cls)
        if fields is not None:
            _require_tag(fields)
            _pin_schema_version(fields, cls)
        tightened: CoreSchema = tighten(schema)
        return tightened

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any, /) -> dict[str, Any]:
        """Marks a kind, for `rlreg.schema` to close over the members it is asked for."""
        if cls.is_abstract():
            return {"x-open-union": [cls.kind, f"{cls.__module__}:{cls.__qualname__}"]}
        produced: dict[str, Any] = handler(schema)
        return produced

    @classmethod
    def _dispatch(cls, value: Any, info: core_schema.ValidationInfo) -> OpenUnion:
        depth = _depth.get()
        if depth >= MAX_DEPTH:
            raise PydanticCustomError(
                "too_deep", "components nest at most {limit} deep", {"limit": MAX_DEPTH}
            )
        token = _depth.set(depth + 1)
        try:
            target, data = cls._choose(value)
            member: OpenUnion = target.__pydantic_validator__.validate_python(
                data, context=info.context
            )
            return member
        finally:
            _depth.reset(token)

    @classmethod
    def _choose(cls, value: Any) -> tuple[builtins.type[OpenUnion], Any]:
        """Finds the class for ``value`` and the data to validate with it."""
        from rlreg import registry

        if isinstance(value, OpenUnion):
            target = type(value)
            if not issubclass(target, cls):
                raise PydanticCustomError(
                    "wrong_kind",
                    "expected {wanted}, got {given}",
                    {"wanted": _article(cls.kind), "given": _article(target.kind)},
                )
            try:
                registry.require_registered(target)
            except RlregError as error:
                raise _fault(error) from None
            return target, value
        if not isinstance(value, Mapping):
            raise PydanticCustomError(
                "component_type",
                "expected a mapping with a `type`, one of {known}",
                {"known": ", ".join(registry.component_names(cls)) or "(none installed)"},
            )
        tag = value.get("type")
        if tag is None:
            raise PydanticCustomError(
                "missing_tag",
                "needs a `type`, one of {known}",
                {
                    "known": ", ".join(registry.component_names(cls)) or "(none installed)",
                    "hint": _misspelt_type(value),
                },
            )
        try:
            target = registry.member(cls, tag)
        except RlregError as error:
            raise _at_tag(error, tag) from None
        return target, {**value, "type": target.get_type()}


def validate(cls: type[Any], data: Mapping[str, Any]) -> Any:
    """Validates ``data`` with ``cls`` and reports everything that is wrong at once.

    Raises:
        ConfigError: With one problem for each fault.
    """
    from rlreg.problems import problems_of

    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, cls, data)) from None
