"""The search space of a learnable: what its config declares beside its fields, as plain data.

A parameter under a component exists only while that component is the one chosen, so that no sample
has the momentum of an optimizer that has none. Paths are those of the run file; a sample becomes a
run by :func:`apply_sample`. Nothing here knows who searches.
"""

from __future__ import annotations

import math
import random
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rlreg import registry
from rlreg.config import ComponentConfig
from rlreg.files import load_run
from rlreg.open_union import OpenUnion
from rlreg.overrides import plain
from rlreg.run_config import RunConfig
from rlreg.search import Search, search_of

MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension of a space.

    Attributes:
        path: Place in the run file; of a component it ends in ``.type``.
        kind: What its values are.
        low: The least value of a number.
        high: The greatest value of a number.
        log: Whether factors count instead of differences.
        step: Distance of the values; ``None`` for 1 (int) or none (float).
        choices: The values of a categorical parameter.
        default: What the config's own default is.
        when: Path and value of the parameter that this one needs; ``None`` if it always exists.
    """

    path: str
    kind: Literal["float", "int", "categorical"]
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    default: Any = None
    when: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """What a sweep may try for a learnable; a parameter comes after the one that it needs."""

    learnable: str
    version: str
    parameters: tuple[Parameter, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the space as plain data, for any search program."""
        rows = [plain(_row(parameter)) for parameter in self.parameters]
        return {"learnable": self.learnable, "version": self.version, "parameters": rows}

    def without(self, paths: Collection[str]) -> Space:
        """Leaves out what is fixed: the given paths, and what is below them."""
        fixed = [_from_root(path) for path in paths]
        kept = [
            parameter
            for parameter in self.parameters
            if not any(f"{parameter.path}.".startswith(f"{path}.") for path in fixed)
        ]
        known = {parameter.path for parameter in kept}
        kept = [item for item in kept if item.when is None or item.when[0] in known]
        return replace(self, parameters=tuple(kept))

    def sample(self, choose: Callable[[Parameter], Any]) -> dict[str, Any]:
        """Asks for the value of each parameter that exists, in their order."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.when is None or values.get(parameter.when[0]) == parameter.when[1]:
                values[parameter.path] = choose(parameter)
        return values


def _row(parameter: Parameter) -> dict[str, Any]:
    row = {key: value for key, value in asdict(parameter).items() if key != "when"}
    numeric = ("low", "high", "log", "step")
    unused = numeric if parameter.kind == "categorical" else ("choices",)
    row = {key: value for key, value in row.items() if key not in unused}
    if parameter.when is not None:
        row["when"] = {"path": parameter.when[0], "equals": parameter.when[1]}
    return row


def _from_root(path: str) -> str:
    """Completes the short form of a path; what selects a component fixes all of it."""
    is_whole = path.partition(".")[0] in RunConfig.model_fields
    return (path if is_whole else f"learnable.{path}").removesuffix(".type")


# --- from a config ------------------------------------------------------------------------------


def search_space(learnable: str | type[OpenUnion]) -> Space:
    """Returns the space that a learnable's config declares; it may be empty.

    Raises:
        UnknownNameError: If there is no such learnable, or a component it searches is not there.
    """
    if isinstance(learnable, str):
        record = registry.resolve("learnable", learnable)
    else:
        record = registry.provenance(learnable)
    found = tuple(_parameters(record.cls, "learnable", None, 0))
    return Space(record.id, record.version, found)


def _parameters(
    cls: type[OpenUnion], prefix: str, when: tuple[str, str] | None, depth: int
) -> Iterator[Parameter]:
    for name, info in cls.model_fields.items():
        search = search_of(info.metadata)
        if search is None:
            continue
        path, types_ = f"{prefix}.{name}", list(_types_of(info.annotation))
        default = plain(info.get_default(call_default_factory=True))
        kind = next((item for item in types_ if issubclass(item, ComponentConfig)), None)
        if kind is not None:
            yield from _component(kind, path, search, default, when, depth)
        elif search.choices:
            yield Parameter(path, "categorical", choices=search.choices, default=default, when=when)
        else:
            yield _number(path, search, default, when, is_int=int in types_)


def _types_of(annotation: Any) -> Iterator[type]:
    """Yields the types in an annotation: of ``Annotated[float, ...] | None`` float and NoneType."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _types_of(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for item in typing.get_args(annotation):
            yield from _types_of(item)
    elif isinstance(annotation, type):
        yield annotation


def _number(
    path: str, search: Search, default: Any, when: tuple[str, str] | None, *, is_int: bool
) -> Parameter:
    low, high, step = search.low, search.high, search.step
    if is_int:
        assert low is not None
        assert high is not None
        low, high, step = int(low), int(high), None if step is None else int(step)
    return Parameter(
        path, "int" if is_int else "float", low, high, search.log, step, (), default, when
    )


def _component(
    kind: type[ComponentConfig],
    path: str,
    search: Search,
    default: Any,
    when: tuple[str, str] | None,
    depth: int,
) -> Iterator[Parameter]:
    at, own = f"{path}.type", default.get("type") if isinstance(default, dict) else None
    yield Parameter(at, "categorical", choices=search.choices, default=own, when=when)
    if depth == MAX_DEPTH:
        return
    for tag in search.choices:
        if tag is not None:
            member = registry.resolve(kind.kind, str(tag)).cls
            yield from _parameters(member, path, (at, str(tag)), depth + 1)


# --- samples ------------------------------------------------------------------------------------


def draw(parameter: Parameter, generator: random.Random) -> Any:
    """Draws a value, each as likely as the next."""
    if parameter.kind == "categorical":
        return generator.choice(parameter.choices)
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if parameter.log:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    elif parameter.step is not None:
        value = low + parameter.step * generator.randrange(int((high - low) / parameter.step) + 1)
    else:
        value = generator.uniform(low, high)
    value = round(value) if parameter.kind == "int" else value
    return min(max(value, low), high)


def apply_sample(run: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Returns a run with the values of a sample.

    A component that is the run's already keeps what the sample says nothing about; another one
    starts from its own defaults.

    Raises:
        ConfigError: If a value is not valid.
    """
    data = plain(run)
    for path, value in values.items():
        keys = path.split(".")
        is_tag = keys[-1] == "type"
        if is_tag:
            keys.pop()
        node = data
        for key in keys[:-1]:
            node = node[key]
        if is_tag:
            _choose(node, keys[-1], value)
        else:
            node[keys[-1]] = plain(value)
    return load_run(data)


def _choose(node: dict[str, Any], key: str, tag: str | None) -> None:
    known = node.get(key)
    if tag is None:
        node[key] = None
    elif not (isinstance(known, dict) and known.get("type") == tag):
        node[key] = {"type": tag}
