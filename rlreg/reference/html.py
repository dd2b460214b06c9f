"""Rendering the reference as plain HTML: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rlreg import __version__
from rlreg.reference.markdown import CODE
from rlreg.reference.pages import Page, kind_path, path_of
from rlreg.yaml_text import flow


def inline(text: str) -> Markup:
    """Escapes prose and sets its `code` as such."""
    result, end = Markup(), 0
    for match in CODE.finditer(text):
        result += escape(text[end : match.start()])
        result += Markup("<code>{}</code>").format(match["code"])
        end = match.end()
    return result + escape(text[end:])


def prose(text: str) -> Markup:
    """Renders a docstring: paragraphs, and indented blocks as they stand."""
    return Markup("\n").join(_blocks(text))


def _blocks(text: str) -> Iterator[Markup]:
    for block in re.split(r"\n\s*\n", text):
        if not block.strip():
            continue
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            yield Markup("<pre><code>{}</code></pre>").format("\n".join(line[4:] for line in lines))
        else:
            body = re.sub(r"::\s*\Z", ":", "\n".join(line.strip() for line in lines))
            yield Markup("<p>{}</p>").format(inline(body))


def environment() -> Environment:
    """Returns the templates of the HTML pages, with autoescaping."""
    result = Environment(
        loader=PackageLoader("rlreg.reference"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= {"inline": inline, "prose": prose, "value": flow}
    result.globals |= {"path_of": path_of, "kind_path": kind_path, "version": __version__}
    return result


def render(templates: Environment, page: Page) -> str:
    """Renders one page."""
    template = templates.get_template(f"{page.template}.html.j2")
    return template.render(page=page, root=page.to_root, **page.context) + "\n"
