"""Which pages a reference has, what they are called, and how they link to one another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlreg.reference.builder import builder_context
from rlreg.reference.examples import Example, component_examples, learnable_examples
from rlreg.reference.guides import Guide
from rlreg.reference.record import ClassRecord, KindRecord, Reference
from rlreg.yaml_text import flow


@dataclass(frozen=True, slots=True)
class Page:
    """One page, before it is rendered.

    Attributes:
        path: Name without suffix, from the root of the reference, e.g. ``learnables/iql``.
        template: ``index``, ``config``, ``kind``, ``run``, ``guide`` or ``builder``.
        title: Heading.
        context: What the template needs.
        faces: Suffixes of the files it becomes.
    """

    path: str
    template: str
    title: str
    context: dict[str, Any]
    faces: tuple[str, ...] = (".md", ".html")

    @property
    def has_contents(self) -> bool:
        """Whether a reader may want a list of its sections: it is long, and is read, not used."""
        return self.template in ("config", "run", "guide")

    @property
    def to_root(self) -> str:
        """The way from this page to the root: ``../`` or nothing."""
        return "../" * self.path.count("/")


@dataclass(frozen=True, slots=True)
class PresetTable:
    """The presets of a learnable side by side: a row for each setting, its default first."""

    presets: tuple[Any, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]


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


def pages(reference: Reference, guides: Sequence[Guide] = ()) -> Iterator[Page]:
    """Yields every page of a reference."""
    first = {"reference": reference, "guides": guides}
    yield Page("index", "index", "Config reference", first)
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
    for guide in guides:
        yield Page(guide.path, "guide", guide.title, {"guide": guide}, (".html",))
    yield Page("builder", "builder", "Config builder", builder_context(reference), (".html",))


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
            _default_of(record, name),
            tuple(flow(p.settings[name]) if name in p.settings else "" for p in presets),
        )
        for name in names
    )
    return PresetTable(presets, rows)


def _default_of(record: ClassRecord, setting: str) -> str:
    """Returns the default of what a preset sets; of the run's settings the run page has it."""
    scope, _, name = setting.partition(".")
    field = next((item for item in record.fields if item.name == name), None)
    return flow(field.default) if scope == "learnable" and field is not None else ""


def slug(text: str) -> str:
    """Returns text as part of an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
