"""Layers of settings: preset < file < ``--set`` and flags, with the origin of each value.

A value keeps the place it was written at, so that an error can point there and ``rlreg explain``
can show it. What no layer names is the default of its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from rlreg import registry
from rlreg.config import RUN_WORDS, LearnableConfig, Preset
from rlreg.documents import Document
from rlreg.errors import ConfigError, FileFormatError, Problem, format_path
from rlreg.open_union import OpenUnion
from rlreg.problems import key_hint, owner_of
from rlreg.run_config import RunConfig
from rlreg.yaml_reader import KeyPath, build_yaml

_SEGMENT = re.compile(r"(?P<key>[^.\[\]=\s]+)|\[(?P<index>0|[1-9][0-9]{0,8})\]")


@dataclass(frozen=True, slots=True)
class Override:
    """One value set on the command line.

    Attributes:
        path: Where it goes, from the root of the run file; ``learnable`` may be left out.
        value: Plain data.
        text: How the user wrote it, e.g. ``--set gamma=0.9``, for messages.
    """

    path: KeyPath
    value: Any
    text: str


def parse_override(text: str, *, flag: str = "--set") -> Override:
    """Parses ``key.path=value``.

    The value is a scalar or a flow collection of YAML 1.2: ``3e-4`` is a number, ``[64, 64]`` a
    list, a bare word a string. Items of a list are written ``logging[0].type``.

    Raises:
        ConfigError: If the path or the value cannot be parsed.
    """
    if not isinstance(text, str):
        raise ConfigError(f'overrides: expected "key.path=value", got {text!r}')
    origin = f"{flag} {text}"
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError([Problem((), "expected key.path=value", origin=origin)])
    return Override(_parse_path(key.strip(), origin), _parse_value(value, origin), origin)


def _parse_path(text: str, origin: str) -> KeyPath:
    parts: list[str | int] = []
    end = 0
    for match in _SEGMENT.finditer(text):
        gap = text[end : match.start()]
        is_first_key = not parts and match["key"] is not None
        if gap != ("" if is_first_key or match["index"] is not None else "."):
            break
        parts.append(match["key"] if match["index"] is None else int(match["index"]))
        end = match.end()
    if not parts or end != len(text) or isinstance(parts[0], int):
        raise ConfigError(
            [Problem((), f"{text!r} is no path; write it like a.b or a[0].b", origin=origin)]
        )
    return tuple(parts)


_NULLS = frozenset({"null", "Null", "NULL", "~"})


def _parse_value(text: str, origin: str) -> Any:
    try:
        value, _ = build_yaml(text, "")
    except FileFormatError as error:
        reason = re.sub(r"\A:(\d+:\d+:)? ?", "", str(error))
        message = f"the value cannot be parsed: {reason}; put a string in YAML quotes"
        raise ConfigError([Problem((), message, origin=origin)]) from None
    if value is None and text.strip() not in _NULLS:  # nothing, a comment, `---`
        message = "no value; write null, or '' for an empty string"
        raise ConfigError([Problem((), message, origin=origin)])
    is_flow = isinstance(value, dict | list) and text.lstrip()[0] in "{["
    if isinstance(value, dict | list) and not is_flow:
        message = "write a mapping as {key: value} and a list as [item, item]"
        raise ConfigError([Problem((), message, origin=origin)])
    return value


# --- where a value comes from -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: for messages, for listings, and for sorting.

    Attributes:
        layer: ``preset``, ``file`` or ``flag``.
        text: ``run.yaml:6:59``, ``preset iql/antmaze`` or ``--set gamma=2``.
        key_text: The same for the key, where that has its own place.
        rank: Sorts origins in the order of the document, then of the command line.
    """

    layer: str
    text: str
    key_text: str
    rank: tuple[int, int, int]


_SHORT_FORMS = (("dataset",), ("env",), ("evaluation", "env"))
"""Keys of a run whose value may be an id instead of a mapping with that id."""
NOWHERE = Origin("default", "", "", (3, 0, 0))


def plain(value: Any) -> Any:
    """Returns configs, mappings and tuples as plain data, which layers can be merged into."""
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json")
        if isinstance(value, OpenUnion):
            dumped["type"] = registry.reference(type(value))
        return dumped
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@dataclass(slots=True)
class Settings:
    """The merged data of all layers, before validation.

    Attributes:
        name: The file, for messages; empty for data from memory.
        data: The root mapping.
        origins: Where each node of ``data`` was written; defaults have none.
        problems: What was wrong with an override, reported together with the rest.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_run(self) -> bool:
        """Whether the root is a run (it has ``learnable``) and not a learnable."""
        return "learnable" in self.data

    @property
    def root(self) -> type[RunConfig] | type[LearnableConfig]:
        """The model of the root."""
        return RunConfig if self.is_run else LearnableConfig

    @property
    def learnable(self) -> Any:
        """The learnable's own mapping (whatever was written there)."""
        return self.data.get("learnable") if self.is_run else self.data

    def learnable_class(self) -> type[OpenUnion] | None:
        """Returns the config class of the learnable, or ``None`` if its tag means none."""
        tag = self.learnable.get("type") if isinstance(self.learnable, Mapping) else None
        return registry.find_member(LearnableConfig, tag)

    # --- putting values in ----------------------------------------------------------------------

    def place(self, path: KeyPath, value: Any, origin: Callable[[KeyPath], Origin]) -> None:
        """Sets one node and notes the origin of it and of all below it.

        Raises:
            ConfigError: If the path does not lead anywhere.
        """
        container = self._container(path, origin)
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]
        container[path[-1]] = value
        self._note(path, value, origin)

    def _note(self, path: KeyPath, value: Any, origin: Callable[[KeyPath], Origin]) -> None:
        self.origins[path] = origin(path)
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        for key, item in items:
            self._note((*path, key), item, origin)

    def _container(self, path: KeyPath, origin: Callable[[KeyPath], Origin]) -> Any:
        """Returns the mapping or list that holds ``path``, made from defaults where missing."""
        node: Any = self.data
        for depth, part in enumerate(path[:-1]):
            self._check_step(node, path[: depth + 1])
            child = node.get(part) if isinstance(node, dict) else node[part]
            if isinstance(child, str) and child != "auto" and path[: depth + 1] in _SHORT_FORMS:
                child = self._opened(node, path[: depth + 1], child)
            if child is None:
                child = self._default_at(path[: depth + 1], path[depth + 1])
                node[part] = child
                if not child:  # nobody else wrote it
                    self.origins[path[: depth + 1]] = origin(path[: depth + 1])
            node = child
        self._check_step(node, path)
        return node

    def _opened(self, node: Any, path: KeyPath, value: str) -> Any:
        """Turns an id that stands for a mapping with nothing else in it into that mapping."""
        node[path[-1]] = opened = {"id": value}
        self.origins[(*path, "id")] = self.origins[path]
        return opened

    def _check_step(self, node: Any, path: KeyPath) -> None:
        part, parent = path[-1], path[:-1]
        if isinstance(part, int):
            if not isinstance(node, list):
                raise ConfigError([Problem(path, "its parent is no list")])
            if part >= len(node):
                raise ConfigError([Problem(path, f"there are {len(node)} items, counted from 0")])
        elif not isinstance(node, dict):
            hint = f"an item of a list is written [{part}]" if part.isdecimal() else ""
            message = f"{format_path(parent)} is no mapping"
            raise ConfigError([Problem(path, message, hint=hint)])

    def _default_at(self, path: KeyPath, following: str | int) -> Any:
        """Returns what a setting below a missing node starts from: the default of its class.

        A new ``type`` starts from nothing: the default's settings belong to the default's type.
        """
        if following == "type":
            return {}
        owner = owner_of(self.root, self.data, path[:-1])
        name = str(path[-1])
        for key, info in owner.model_fields.items() if owner else ():
            if name == (info.alias or key):
                default = plain(info.get_default(call_default_factory=True))
                if default is not None:
                    return default
        return [] if str(following).isdecimal() else {}

    # --- layers ---------------------------------------------------------------------------------

    def add_preset(self, preset: Preset) -> None:
        """Adds the settings of a preset; those of the run are left out of a learnable's file."""
        for index, (text, value) in enumerate(preset.settings.items()):
            name = f"preset {preset.id}"
            origin = Origin("preset", name, name, (0, index, 0))
            path = _parse_path(text, name)
            if not self.is_run:
                if path[0] != "learnable" or len(path) == 1:
                    continue
                path = path[1:]
            self.place(path, plain(value), lambda _, origin=origin: origin)  # type: ignore[misc]

    def add_document(self, document: Document) -> None:
        """Adds a file over what is there: mappings of one type are merged, the rest is replaced."""
        self._merge((), self.data, plain(document.data), document)

    def _merge(
        self, path: KeyPath, base: dict[str, Any], over: dict[str, Any], document: Document
    ) -> None:
        def origin(at: KeyPath) -> Origin:
            return _file_origin(document, at)

        self.origins[path] = origin(path)
        for key, value in over.items():
            known = base.get(key)
            if isinstance(known, dict) and isinstance(value, dict) and _is_same_type(known, value):
                self._merge((*path, key), known, value, document)
            else:
                self.place((*path, key), value, origin)

    def add_overrides(self, overrides: Iterable[str | Override]) -> None:
        """Adds what the command line sets, in its order; faults are kept in ``problems``.

        Raises:
            ConfigError: If there are no overrides in what was given.
        """
        if isinstance(overrides, str) or not isinstance(overrides, Iterable):
            raise ConfigError(f'overrides: expected a list of "key.path=value", got {overrides!r}')
        for index, item in enumerate(overrides):
            try:
                override = item if isinstance(item, Override) else parse_override(item)
            except ConfigError as error:
                self.problems += error.problems
                continue
            try:
                path = self._from_root(override.path)
                origin = Origin("flag", override.text, override.text, (2, index, 0))
                self.place(path, plain(override.value), lambda _, origin=origin: origin)  # type: ignore[misc]
            except ConfigError as error:
                self.problems += [item.with_origin(override.text) for item in error.problems]

    def _from_root(self, path: KeyPath) -> KeyPath:
        """Completes the short form of a path, in which ``learnable.`` is left out."""
        first = str(path[0])
        cls = self.learnable_class()
        fields = set(cls.model_fields) if cls else set()
        if not self.is_run:
            if first == "learnable" and len(path) > 1:
                return path[1:]
            if first in RUN_WORDS:
                raise ConfigError(
                    [Problem(path, "belongs to a run file; this is the config of a learnable")]
                )
            return path
        keys = set(RunConfig.model_fields)
        if first in keys:
            return path
        if first in fields or cls is None:
            return ("learnable", *path)
        hint = key_hint(first, cls, others=keys)
        raise ConfigError([Problem(path, "no such key", hint=hint, on_key=True)])

    # --- pointing back --------------------------------------------------------------------------

    def origin_of(self, path: KeyPath) -> Origin:
        """Returns where a value was written, or :data:`NOWHERE` for a default."""
        while path not in self.origins and path and isinstance(path[-1], int):
            path = path[:-1]
        return self.origins.get(path, NOWHERE)

    def locate(self, problem: Problem) -> tuple[tuple[int, int, int], Problem]:
        """Points a problem to the value, to the key, or to the parent of what is missing."""
        exact = self.origins.get(problem.path)
        if exact is not None:
            text = exact.key_text if problem.on_key else exact.text
            return exact.rank, problem.with_origin(text)
        path = problem.path
        while path not in self.origins and path:
            path = path[:-1]
        parent = self.origins.get(path, NOWHERE)
        return parent.rank, problem.with_origin(parent.key_text or self.name)


def _is_same_type(known: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether two mappings can be merged; settings of one component mean nothing to another."""
    return "type" not in value or value["type"] == known.get("type")


def _file_origin(document: Document, path: KeyPath) -> Origin:
    near = path
    while near not in document.positions and near:
        near = near[:-1]
    position = document.positions.get(near)
    rank = (1, position.key_line, position.key_column) if position else (1, 0, 0)
    return Origin("file", document.origin(near), document.origin(near, on_key=True), rank)


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str | Override]) -> dict[str, Any]:
    """Returns a copy of a run's or learnable's mapping with overrides applied; not yet validated.

    Raises:
        ConfigError: With every override that cannot be parsed or applied.
    """
    settings = Settings("", plain(data))
    settings.add_overrides(overrides)
    if settings.problems:
        raise ConfigError(settings.problems)
    return settings.data
