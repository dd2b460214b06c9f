"""What ``rlreg explain`` shows of a config: each value, its origin and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from rlreg import registry, run_config
from rlreg.config import LearnableConfig
from rlreg.errors import format_path
from rlreg.overrides import Settings, plain
from rlreg.reference.record import ClassRecord, record_of
from rlreg.run_config import RunConfig
from rlreg.yaml_reader import KeyPath


def explanation(config: LearnableConfig | RunConfig, settings: Settings) -> list[dict[str, Any]]:
    """Lists every value of a validated config.

    Args:
        config: The config that ``settings`` validated to.
        settings: The merged layers, which know where each value was written.
    """
    return list(_rows(type(config), plain(config), (), settings))


def _rows(
    cls: type[BaseModel], data: dict[str, Any], path: KeyPath, settings: Settings
) -> Iterator[dict[str, Any]]:
    record = record_of(cls)
    if record.kind != "run":
        yield _row((*path, "type"), data["type"], settings, record, record.kind, "", record.summary)
    for item in record.fields:
        value, at = data[item.name], (*path, item.name)
        allowed = f"{item.type}: {item.range}" if item.range else item.type
        nested = list(_nested(item.kinds, item.section, value, at))
        if nested:
            for inner, inner_data, inner_path in nested:
                yield from _rows(inner, inner_data, inner_path, settings)
        else:
            yield _row(at, value, settings, record, allowed, item.source, item.description)


def _nested(
    kinds: tuple[str, ...], section: str, value: Any, path: KeyPath
) -> Iterator[tuple[type[BaseModel], dict[str, Any], KeyPath]]:
    """Finds the configs inside a value: itself, or the items of a list."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nested(kinds, section, item, (*path, index))
    elif isinstance(value, dict) and kinds:
        yield registry.resolve(kinds[0], value["type"]).cls, value, path
    elif isinstance(value, dict) and section:
        yield getattr(run_config, section), value, path


def _row(
    path: KeyPath,
    value: Any,
    settings: Settings,
    record: ClassRecord,
    allowed: str,
    source: str,
    description: str,
) -> dict[str, Any]:
    origin = settings.origin_of(path)
    return {
        "path": format_path(path),
        "value": value,
        "layer": origin.layer,
        "origin": origin.text or f"default of {record.provenance}",
        "allowed": allowed,
        "source": source,
        "description": description,
    }
