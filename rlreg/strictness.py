"""How a pydantic model becomes a contract.

pydantic's defaults let a config drift: unknown keys are dropped, ``True`` is an ``int``, ``"3"`` is
a number, copies skip validation, NaN passes. :class:`StrictModel` closes each of these once, for
every config of rlreg and of its plugins. What a subclass could open again, `rlreg.contract` refuses
at registration.
"""

from __future__ import annotations

import math
import numbers
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    # pydantic scans for its own plugins when the first model class is made, and a broken one takes
    # the process down. It marks the scan as done before it starts, so a throw-away class absorbs
    # the blow.
    try:

        class _Probe(BaseModel):
            x: int = 0

    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - other people's pydantic plugins are not ours to judge
        pass
    ModelMetaclass = type(BaseModel)


# --- closing pydantic's lax conversions ---------------------------------------------------------

_DATA_KEYS = frozenset(
    {"metadata", "default", "default_factory", "serialization", "cls", "expected", "config"}
    | {"function", "ref", "schema_ref", "post_init"}
)


def _reject_lax_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise PydanticCustomError("number_type", "expected a number")
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    if not math.isfinite(number):
        raise PydanticCustomError("finite_number", "expected a finite number")
    return number


def _exact_literal(expected: list[Any]) -> Callable[[Any], Any]:
    """Returns a check that keeps 1, True and 1.0 apart, as JSON Schema does."""

    def check(value: Any) -> Any:
        for member in expected:
            if type(value) is type(member) and value == member:
                return member
            if type(value) is float and type(member) is int and value == member:
                return member
        wanted = " or ".join(repr(member) for member in expected)
        raise PydanticCustomError("literal_error", "expected {wanted}", {"wanted": wanted})

    return check


def _is_own_check(node: Mapping[str, Any]) -> bool:
    function = node.get("function", {})
    target = function.get("function") if isinstance(function, Mapping) else None
    return target is _reject_lax_number or getattr(target, "__module__", "") == __name__


def tighten(node: Any) -> Any:
    """Returns a core schema in which no string or boolean passes as a number, and so on.

    ``ConfigDict(strict=True)`` is no substitute: it also refuses a list for a tuple and 3.0 for an
    integer, both of which JSON Schema accepts.
    """
    if isinstance(node, list):
        return [tighten(item) for item in node]
    if isinstance(node, tuple):
        return tuple(tighten(item) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if kind == "function-before" and _is_own_check(node):
        return node
    walked = {key: value if key in _DATA_KEYS else tighten(value) for key, value in node.items()}
    if not isinstance(kind, str):
        return walked
    return _tighten_leaf(kind, walked)


def _tighten_leaf(kind: str, node: dict[str, Any]) -> Any:
    if kind in ("int", "float"):
        return core_schema.no_info_before_validator_function(
            _reject_lax_number, typing.cast("CoreSchema", node)
        )
    if kind in ("bool", "str"):
        return {**node, "strict": True}
    if kind == "literal" and any(isinstance(member, bool | int) for member in node["expected"]):
        return core_schema.no_info_before_validator_function(
            _exact_literal(node["expected"]), typing.cast("CoreSchema", node)
        )
    return node


def find_model_fields(node: Any, cls: type) -> dict[str, Any] | None:
    """Returns the ``model-fields`` of ``cls`` inside a core schema, for editing in place."""
    if isinstance(node, Mapping):
        if node.get("type") == "model" and node.get("cls") is cls:
            return _first_fields(node["schema"])
        for key, value in node.items():
            if key not in _DATA_KEYS and (found := find_model_fields(value, cls)) is not None:
                return found
    if isinstance(node, list | tuple):
        for item in node:
            if (found := find_model_fields(item, cls)) is not None:
                return found
    return None


def _first_fields(node: Mapping[str, Any]) -> dict[str, Any] | None:
    while node.get("type") != "model-fields":
        if "schema" not in node:
            return None
        node = node["schema"]
    fields: dict[str, Any] = node["fields"]
    return fields


# --- the model ----------------------------------------------------------------------------------


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class FrozenMeta(ModelMetaclass):
    """Tells type checkers that every config is frozen, without a keyword in each subclass."""


class StrictModel(BaseModel, metaclass=FrozenMeta):
    """A frozen model that accepts exactly what its JSON Schema accepts."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        revalidate_instances="always",
        serialize_by_alias=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Builds pydantic's schema and closes the lax conversions in it."""
        tightened: CoreSchema = tighten(handler(source))
        return tightened

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns this config with ``update`` applied and validated.

        Raises:
            ValidationError: If the updated config is not valid.
        """
        del deep  # a frozen tree has nothing to copy
        if not update:
            return self
        fields = type(self).model_fields
        names = {name: info.alias or name for name, info in fields.items()}
        current = {names[name]: value for name, value in self.__dict__.items()}
        return type(self).model_validate({**current, **update})

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Builds a validated config: there is no way around validation."""
        del _fields_set
        return cls(**values)

    def copy(self, **_: Any) -> NoReturn:
        """Refused: ``model_copy`` validates, ``copy`` would not."""
        raise TypeError("a config has no copy(); use model_copy(update={...}), which validates")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.model_dump()))

    def __setstate__(self, state: Any) -> NoReturn:
        raise TypeError("a config is rebuilt by validation, not by setting its state")


def _rebuild(cls: type[StrictModel], data: dict[str, Any]) -> StrictModel:
    return cls.model_validate(data)
