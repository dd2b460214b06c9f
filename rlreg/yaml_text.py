"""Writing configs as YAML that every YAML reader, 1.1 or 1.2, takes for the same values."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from rlreg import registry, run_config
from rlreg.config import LearnableConfig
from rlreg.overrides import plain
from rlreg.run_config import RunConfig
from rlreg.yaml_reader import plain_scalar

if TYPE_CHECKING:
    from rlreg.reference.record import FieldRecord

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*\Z")
_YAML_1_1_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def dump_yaml(config: LearnableConfig | RunConfig) -> str:
    """Returns a config as canonical YAML: every field, in the order of its class."""
    return "\n".join(mapping_lines(plain(config))) + "\n"


def mapping_lines(data: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yields the lines of a block mapping."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{scalar(key)}:"
            yield from mapping_lines(value, indent + "  ")
        else:
            yield f"{indent}{scalar(key)}: {flow(value)}"


def flow(value: Any) -> str:
    """Returns a value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def scalar(value: Any) -> str:
    """Returns a scalar, quoted where some reader would take it for something else."""
    if isinstance(value, str):
        is_word = _PLAIN.match(value) and value.lower() not in _YAML_1_1_WORDS
        return value if is_word and plain_scalar(value) == value else json.dumps(value)
    if isinstance(value, float):
        text = repr(value)
        mantissa, exponent, power = text.partition("e")
        # YAML 1.1 takes a number with an exponent for a string unless it has a point.
        return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else text
    return json.dumps(value)


# --- the commented form -------------------------------------------------------------------------


def commented_yaml(run: RunConfig, *, schema: str = "schemas/run.schema.json") -> str:
    """Returns a run file in which every field is explained; it loads back to the same run.

    Args:
        run: What to write.
        schema: Where a YAML language server finds the schema, from the folder of the file.
    """
    lines = [f"# yaml-language-server: $schema={schema}"]
    for line in _section_lines(type(run), plain(run), ""):
        if line.startswith("#") and not lines[-1].startswith("#"):
            lines.append("")
        lines.append(line)
    lines.insert(1, "")
    return "\n".join(lines) + "\n"


def _section_lines(cls: type[BaseModel], data: dict[str, Any], indent: str) -> Iterator[str]:
    """Yields the fields of one config class, each under its description."""
    from rlreg.reference.record import record_of

    record = record_of(cls)
    if "type" in data and record.kind != "run":
        yield from _comment(record.summary, indent)
        yield f"{indent}type: {scalar(data['type'])}"
    for item in record.fields:
        value = data[item.name]
        yield from _comment(_explanation(item), indent)
        if isinstance(value, dict) and value and (item.kinds or item.section):
            yield f"{indent}{item.name}:"
            yield from _section_lines(_class_in(item, value), value, indent + "  ")
        else:
            yield from mapping_lines({item.name: value}, indent)


def _class_in(item: FieldRecord, value: dict[str, Any]) -> type[BaseModel]:
    if item.section:
        section: type[BaseModel] = getattr(run_config, item.section)
        return section
    kind = item.kinds[0]
    return registry.resolve(kind, value["type"]).cls


def _explanation(item: FieldRecord) -> str:
    source = f"Default: {item.source}." if item.source else ""
    if item.kinds:
        names = sorted({registry.reference(r.cls) for k in item.kinds for r in registry.records(k)})
        shape = f"[{item.type}: {', '.join(names) or 'none installed'}]"
    elif item.section:
        shape = ""
    else:
        shape = f"[{item.type}{': ' if item.range else ''}{item.range}]"
    return " ".join(filter(None, (item.description, source, shape)))


def _comment(text: str, indent: str) -> list[str]:
    width = max(40, 98 - len(indent))
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]
