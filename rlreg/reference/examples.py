"""The examples of a page, made from the defaults of its class, so that they are always valid."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlreg.reference.record import ClassRecord, FieldRecord
from rlreg.yaml_text import flow, mapping_lines

Use = tuple[ClassRecord, FieldRecord]


@dataclass(frozen=True, slots=True)
class Example:
    """One piece of text to copy."""

    title: str
    language: str
    text: str


def learnable_examples(record: ClassRecord) -> list[Example]:
    """Shows how a learnable is written, trained and created."""
    data = _defaults(record)
    field = next((item for item in record.fields if item.type == "number"), None)
    setting = f"{field.name}={flow(field.default)}" if field else ""
    cli = [
        f"rlreg init {record.reference} -o {record.slug}.yaml",
        f"rlreg train {record.slug}.yaml" + (f" --set learnable.{setting}" if field else ""),
    ]
    keyword = f", {field.name}={field.default!r}" if field else ""
    python = f'import rlreg\n\nlearnable = rlreg.create("{record.reference}"{keyword})'
    return [
        Example("Run file (YAML)", "yaml", "\n".join(mapping_lines({"learnable": data}))),
        Example("Config (JSON)", "json", _json(data)),
        Example("Command line", "sh", "\n".join(cli)),
        Example("Python", "python", python),
    ]


def component_examples(record: ClassRecord, used_by: Iterable[Use]) -> list[Example]:
    """Shows how a component is written, and how one learnable that takes it is told to use it."""
    data = _defaults(record)
    uses = list(used_by)
    use = next((use for use in uses if use[0].kind in ("learnable", "run")), None)
    key = use[1].name if use else record.kind
    many = use is not None and use[1].type.startswith("list")
    examples = [
        Example("YAML", "yaml", "\n".join(mapping_lines({key: [data] if many else data}))),
        Example("JSON", "json", _json(data)),
    ]
    if use is not None:
        examples += [Example("Command line", "sh", _command(record, use, uses))]
    module, name = record.import_path
    if "<" not in name:
        call = f"{name}()"
        examples.append(
            Example("Python", "python", f"from {module} import {name}\n\n{key} = {call}")
        )
    return examples


def _command(record: ClassRecord, use: Use, uses: list[Use]) -> str:
    owner, field = use
    many = field.type.startswith("list")
    value = f"'{field.name}=[{{type: {record.reference}}}]'" if many else ""
    if owner.kind == "run":
        learnable = next((item[0].reference for item in uses if item[0].kind == "learnable"), "ID")
        return f"rlreg train {learnable} --set {value or f'{field.name}.type={record.reference}'}"
    path = f"learnable.{field.name}.type={record.reference}"
    return f"rlreg train {owner.reference} --set {path}"


def _defaults(record: ClassRecord) -> dict[str, Any]:
    return dict(record.defaults)


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)
