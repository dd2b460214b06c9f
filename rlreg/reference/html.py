"""Rendering the reference as plain HTML: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rlreg import __version__
from rlreg.reference.equations import mathml
from rlreg.reference.guides import guide_html, shelves
from rlreg.reference.pages import Page, kind_path, path_of, slug
from rlreg.reference.prose import CODE, blocks, paper_link
from rlreg.reference.record import FieldRecord
from rlreg.yaml_text import flow


def inline(text: str) -> Markup:
    """Escapes prose and sets its `code` and equations as such."""
    result, end = Markup(), 0
    for match in CODE.finditer(text):
        result += escape(text[end : match.start()])
        if match["role"] == "math":
            result += mathml(match["code"])
        else:
            result += Markup("<code>{}</code>").format(match["code"])
        end = match.end()
    return result + escape(text[end:])


def prose(text: str) -> Markup:
    """Renders a docstring: paragraphs, indented blocks as they stand, and equations."""
    return Markup("\n").join(_blocks(text))


def _blocks(text: str) -> Iterator[Markup]:
    for block in blocks(text):
        if block.kind == "math":
            equation = mathml(block.text, "block")
            yield Markup('<div class="scroll equation" tabindex="0">{}</div>').format(equation)
        elif block.kind == "code":
            yield Markup('<pre tabindex="0"><code>{}</code></pre>').format(block.text)
        else:
            lines = [line.strip() for line in block.text.splitlines()]
            yield Markup("<p>{}</p>").format(inline("\n".join(lines)))


def linked_type(item: FieldRecord, root: str) -> Markup:
    """Returns what a field takes, with the kinds and sections in it as links."""
    targets = {kind.replace("_", " "): f"{kind_path(kind)}.html" for kind in item.kinds}
    if item.section and not targets:
        targets = {item.section: f"run.html#{item.section}"}
    text = escape(item.type)
    for title, target in targets.items():
        link = Markup('<a href="{}{}">{}</a>').format(root, target, title)
        text = (
            text.replace(title, link, 1) if title in text else text + Markup(" ({})").format(link)
        )
    return text


_SECTION = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>', re.DOTALL)
FEWEST_SECTIONS = 3


def headings(article: str) -> list[tuple[str, str]]:
    """Returns id and text of the sections of a rendered page, if they are worth a list."""
    found = [(name, Markup(text).striptags()) for name, text in _SECTION.findall(article)]
    return found if len(found) >= FEWEST_SECTIONS else []


def environment() -> Environment:
    """Returns the templates of the HTML pages, with autoescaping."""
    result = Environment(
        loader=PackageLoader("rlreg.reference"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= {"inline": inline, "prose": prose, "value": flow, "guide": guide_html}
    result.globals |= {"path_of": path_of, "kind_path": kind_path, "version": __version__}
    result.globals |= {"paper_link": paper_link, "slug": slug, "shelves": shelves}
    result.globals |= {"headings": headings, "linked_type": linked_type}
    return result


def render(templates: Environment, page: Page) -> str:
    """Renders one page."""
    template = templates.get_template(f"{page.template}.html.j2")
    return template.render(page=page, root=page.to_root, **page.context) + "\n"
