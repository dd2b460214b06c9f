"""Which pages a reference has, what they are called, and how they link to one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlreg.reference.examples import Example, component_examples, learnable_examples
from rlreg.reference.record import ClassRecord, KindRecord, Reference
from rlreg.yaml_text import flow


@dataclass(frozen=True, slots=True)
class Page:
    """One page, before it is rendered.

    Attributes:
        path: Name without suffix, from the root of the reference, e.g. ``learnables/iql``.
        template: ``index``, ``config``, ``kind`` or ``run``.
        title: Heading.
        context: What the template needs.
    """

    path: str
    template: str
    title: str
    context: dict[str, Any]

    @property
    def to_root(self) -> str:
        """The way from this page to the root: ``../`` or nothing."""
        return "../" * self.path.count("/")


@dataclass(frozen=True, slots=True)
class PresetTable:
    """The presets of a learnable side by side: a row for each setting."""

    presets: tuple[Any, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def path_of(record: ClassRecord) -> str:
    """Returns the page of a class; kinds keep tags of the same name apart."""
    if record.kind == "run":
        return "run"
    if record.kind == "learnable":
        return f"learnables/{record.slug}"
    return f"components/{record.kind}.{record.slug}"


def kind_path(kind: str) -> str:
    """Returns the page of a component kind; learnables are listed on the first page."""
    return "index" if kind == "learnable" else f"kinds/{kind}"


def pages(reference: Reference) -> Iterator[Page]:
    """Yields every page of a reference."""
    yield Page("index", "index", "Config reference", {"reference": reference})
    for record in reference.learnables:
        context = {
            "record": record,
            "examples": learnable_examples(record),
            "presets": _preset_table(record),
            "used_by": (),
        }
        yield Page(path_of(record), "config", record.reference, context)
    for kind in reference.kinds:
        yield Page(kind_path(kind.kind), "kind", f"Kind: {kind.title}", {"kind": kind})
        for record in kind.members:
            yield _component_page(record, kind)
    yield Page("run", "run", "Run file", {"record": reference.run, "sections": reference.sections})


def _component_page(record: ClassRecord, kind: KindRecord) -> Page:
    examples: list[Example] = component_examples(record, kind.used_by)
    title = f"{kind.title} {record.reference}"
    context = {
        "record": record,
        "examples": examples,
        "presets": None,
        "used_by": kind.used_by,
    }
    return Page(path_of(record), "config", title, context)


def _preset_table(record: ClassRecord) -> PresetTable | None:
    presets = tuple(item.preset for item in record.presets)
    if not presets:
        return None
    names = dict.fromkeys(name for preset in presets for name in preset.settings)
    rows = tuple(
        (
            name,
            tuple(flow(p.settings[name]) if name in p.settings else "" for p in presets),
        )
        for name in names
    )
    return PresetTable(presets, rows)
