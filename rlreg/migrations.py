"""Migrations as data: how the config of an older schema version becomes one of today's.

A learnable that changes its fields in a way that old files cannot follow raises ``schema_version``
and states one :class:`Migration` for each version it left behind::

    class MyConfig(LearnableConfig):
        schema_version: Literal[2] = 2
        migrations: ClassVar[tuple[Migration, ...]] = (
            Migration(1, (Rename("lr", "learning_rate"), Drop("momentum", "it had no effect"))),
        )

Steps work on plain mappings, before validation, and report what they did. Nothing is migrated
silently: files are edited by ``rlreg migrate``, checkpoints are migrated on load with the report as
a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlreg.errors import ConfigError, Problem


class Step(Protocol):
    """One change of a mapping, applied in place."""

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Changes ``data`` and returns what was done, or ``None`` if there was nothing to do."""
        ...


def _parent(data: MutableMapping[str, Any], path: str) -> tuple[Any, str]:
    *folders, key = path.split(".")
    place: Any = data
    for folder in folders:
        place = place.get(folder) if isinstance(place, MutableMapping) else None
    return place, key


def _has(data: MutableMapping[str, Any], path: str) -> bool:
    place, key = _parent(data, path)
    return isinstance(place, MutableMapping) and key in place


def rename_key(place: MutableMapping[str, Any], old: str, new: str) -> None:
    """Renames a key where it stands: order, and comments of a YAML mapping, are kept."""
    position = list(place).index(old)
    comments = getattr(place, "ca", None)
    comment = comments.items.pop(old, None) if comments is not None else None
    value = place.pop(old)
    insert = getattr(place, "insert", None)
    if insert is not None:
        insert(position, new, value)
    else:
        rest = [(key, place.pop(key)) for key in list(place)[position:]]
        place[new] = value
        place.update(rest)
    if comments is not None and comment is not None:
        comments.items[new] = comment


@dataclass(frozen=True, slots=True)
class Rename:
    """A key got another name in the same mapping. Both are dotted paths with the same parent."""

    old: str
    new: str

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Renames the key where it is given."""
        if not _has(data, self.old):
            return None
        place, key = _parent(data, self.old)
        new = self.new.rpartition(".")[2]
        if new in place:
            raise ConfigError(f"both {self.old!r} and its new name {self.new!r} are given")
        rename_key(place, key, new)
        return f"renamed {self.old} to {self.new}"


@dataclass(frozen=True, slots=True)
class Move:
    """A value moved to another mapping, which is made if it is not there."""

    old: str
    new: str

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Moves the value where it is given."""
        if not _has(data, self.old):
            return None
        place, key = _parent(data, self.old)
        target: Any = data
        *folders, name = self.new.split(".")
        for folder in folders:
            target = target.setdefault(folder, {})
        if name in target:
            raise ConfigError(f"both {self.old!r} and its new place {self.new!r} are given")
        target[name] = place.pop(key)
        return f"moved {self.old} to {self.new}"


@dataclass(frozen=True, slots=True)
class Split:
    """A list became one key for each of its items, in the same mapping."""

    old: str
    new: tuple[str, ...]

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Splits the list where it is given."""
        if not _has(data, self.old):
            return None
        place, key = _parent(data, self.old)
        values = place[key]
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        if not is_list or len(values) != len(self.new):
            expected = f"expected a list of {len(self.new)}"
            raise ConfigError([Problem(tuple(self.old.split(".")), expected, repr(values))])
        del place[key]
        place.update(zip(self.new, values, strict=True))
        return f"split {self.old} into {', '.join(self.new)}"


@dataclass(frozen=True, slots=True)
class Drop:
    """A key is gone; the reason is shown to the user."""

    old: str
    reason: str

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Removes the key where it is given."""
        if not _has(data, self.old):
            return None
        place, key = _parent(data, self.old)
        value = place.pop(key)
        return f"dropped {self.old} = {value!r}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Keep:
    """A default changed; what an old file left out keeps its old value."""

    path: str
    value: Any

    def apply(self, data: MutableMapping[str, Any]) -> str | None:
        """Writes the old default where no value is given."""
        if _has(data, self.path):
            return None
        place, key = _parent(data, self.path)
        if not isinstance(place, MutableMapping):
            return None
        place[key] = self.value
        return f"set {self.path} = {self.value!r}, its default at the time"


@dataclass(frozen=True, slots=True)
class Migration:
    """The steps from one schema version to the next.

    Attributes:
        from_version: The version that is left behind.
        steps: What to do, in order.
    """

    from_version: int
    steps: tuple[Step, ...]


def check_chain(name: str, version: int, migrations: Sequence[Migration]) -> str:
    """Returns what is wrong with a chain of migrations, or an empty string.

    A chain leads from its first version to ``version`` without a gap.
    """
    given = [migration.from_version for migration in migrations]
    if not given:
        return ""
    wanted = list(range(given[0], version))
    if given != wanted or given[0] < 1:
        return f"{name}: migrations start from {given}, expected {wanted or 'none'}"
    return ""


def what_became_of(cls: Any, key: str) -> str:
    """Says which schema version a key belonged to, and what to do with its file; empty if none."""
    found = _version_with(cls, {key})
    if found is None:
        return ""
    version, step = found
    names = getattr(step, "new", ())
    became = " and ".join(map(repr, [names] if isinstance(names, str) else names))
    change = f"is {became} now" if became else f"is gone: {getattr(step, 'reason', '')}"
    return f"it {change}; a file of schema version {version} says so, and is migrated"


def guessed_version(cls: Any, data: MutableMapping[str, Any]) -> int | None:
    """Returns the schema version of a mapping that does not state it, by the keys that are gone."""
    if "schema_version" in data:
        return None
    found = _version_with(cls, data.keys())
    return None if found is None else found[0]


def _version_with(cls: Any, keys: Iterable[str]) -> tuple[int, Any] | None:
    """Returns the oldest version that had one of the keys, and the step that ended it."""
    gone = set(keys) - cls.model_fields.keys()
    for migration in getattr(cls, "migrations", ()):
        for step in migration.steps:
            if getattr(step, "old", None) in gone:
                return migration.from_version, step
    return None


def migrate(cls: Any, data: MutableMapping[str, Any], *, written_with: str = "") -> list[str]:
    """Brings the mapping of a learnable to the schema version of ``cls``, in place.

    Args:
        cls: The config class.
        data: A mapping with, where known, ``schema_version``; without one it is today's.
        written_with: Who wrote it, for the message about a version from the future.

    Returns:
        What was done, one sentence a step; empty if nothing was.

    Raises:
        ConfigError: If the version is later than that of ``cls``, or no migration starts from it.
    """
    current = cls.model_fields["schema_version"].default
    version = data.get("schema_version", current)
    if isinstance(version, bool) or not isinstance(version, int) or version == current:
        return []  # equal, or wrong in a way that validation reports
    tag = cls.get_type()
    if version > current:
        by = f" by {written_with}" if written_with else ""
        message = f"written{by} for schema version {version} of {tag!r}; this is {current}"
        raise ConfigError([Problem(("schema_version",), message, hint="upgrade its plugin")])
    chain = {migration.from_version: migration for migration in cls.migrations}
    report = []
    for step_version in range(version, current):
        if step_version not in chain:
            message = f"no migration of {tag!r} starts from version {step_version}"
            hint = "its plugin should state one; until then, install the version that wrote this"
            raise ConfigError([Problem(("schema_version",), message, str(version), hint)])
        done = [step.apply(data) for step in chain[step_version].steps]
        report += [f"{step_version} -> {step_version + 1}: {text}" for text in done if text]
    data["schema_version"] = current
    return report or [f"{version} -> {current}: nothing to change"]
