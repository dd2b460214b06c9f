"""Rendering the reference as Markdown."""

from __future__ import annotations

import re
import textwrap

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlreg import __version__
from rlreg.reference.pages import Page, kind_path, path_of
from rlreg.reference.prose import CODE, Block, blocks, paper_link
from rlreg.yaml_text import flow

_SPECIAL = re.compile(r"([\\*_<>\[\]|#])")


def inline(text: str) -> str:
    """Escapes prose, so that only its `code` has a meaning in Markdown."""
    result, end = "", 0
    for match in CODE.finditer(text):
        result += _SPECIAL.sub(r"\\\1", text[end : match.start()])
        # The form that GitHub sets as an equation.
        result += f"$`{match['code']}`$" if match["role"] == "math" else code(match["code"])
        end = match.end()
    return result + _SPECIAL.sub(r"\\\1", text[end:])


def code(text: str) -> str:
    """Returns text as a code span that is safe in a table cell too."""
    if not text:
        return ""
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}".replace("|", "\\|")


def prose(text: str) -> str:
    """Renders a docstring: indented blocks stay code, equations are fenced, the rest is escaped."""
    return "\n\n".join(map(_block, blocks(text)))


def _block(block: Block) -> str:
    if block.kind == "math":
        return f"```math\n{block.text}\n```"
    if block.kind == "code":
        return textwrap.indent(block.text, "    ")
    return inline(block.text)


def environment() -> Environment:
    """Returns the templates of the Markdown pages."""
    result = Environment(
        loader=PackageLoader("rlreg.reference"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    result.filters |= {"inline": inline, "code": code, "prose": prose, "value": flow}
    result.globals |= {"path_of": path_of, "kind_path": kind_path, "version": __version__}
    result.globals |= {"paper_link": paper_link}
    return result


def render(templates: Environment, page: Page) -> str:
    """Renders one page."""
    template = templates.get_template(f"{page.template}.md.j2")
    text = template.render(page=page, root=page.to_root, **page.context)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
