"""Pages that people write: Markdown files, rendered into the site beside what is generated.

Links between the given files lead to their pages; a link to any other file becomes plain text, as
the site has nothing there. Pictures become their description: a page loads nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from markupsafe import Markup

from rlreg.errors import FileFormatError
from rlreg.reference.equations import mathml

if TYPE_CHECKING:
    from markdown_it.token import Token

_HEADING = re.compile(r"^# (?P<title>.+)$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Guide:
    """A Markdown file with a place in the site.

    Attributes:
        source: The file.
        path: Page without suffix, e.g. ``guides/plugins``.
        title: Its first heading.
        text: Markdown.
        targets: The page of every given file, by its absolute path.
    """

    source: Path
    path: str
    title: str
    text: str
    targets: Mapping[Path, str] = field(default_factory=dict)


_SHELVES = {"adr": "Decisions"}


def shelves(guides: Iterable[Guide]) -> list[tuple[str, list[Guide]]]:
    """Sorts guides for a reader: tutorials first, then the others, then those of each folder."""
    found: dict[str, list[Guide]] = {"Tutorials": [], "Guides": []}
    for guide in guides:
        _, *folders, name = guide.path.split("/")
        if folders:
            title = _SHELVES.get(folders[0], folders[0].replace("-", " ").capitalize())
        else:
            title = "Tutorials" if name.startswith(("tutorial", "writing")) else "Guides"
        found.setdefault(title, []).append(guide)
    return [(title, items) for title, items in found.items() if items]


def read_guides(sources: Iterable[str | Path]) -> list[Guide]:
    """Reads Markdown files, and those in folders.

    Raises:
        FileFormatError: If one is missing or is no text, or two want the same page.
    """
    targets: dict[Path, str] = {}
    files: list[tuple[Path, str]] = []
    for source in map(Path, sources):
        found = sorted(source.rglob("*.md")) if source.is_dir() else [source]
        for file in found:
            path = f"guides/{_page_name(file, source)}"
            if path in targets.values() and file.resolve() not in targets:
                raise FileFormatError(f"{file}: another file has the page {path} already")
            if file.resolve() not in targets:
                targets[file.resolve()] = path
                files.append((file, path))
    return [_guide(file, path, targets) for file, path in files]


def _page_name(file: Path, source: Path) -> str:
    if file != source:
        parts = list(file.relative_to(source).with_suffix("").parts)
    elif file.stem.lower() == "readme" and file.parent.name:
        parts = [file.parent.name]
    else:
        parts = [file.stem]
    return "/".join(re.sub(r"[^a-z0-9._-]+", "-", part.lower()) for part in parts)


def _guide(file: Path, path: str, targets: Mapping[Path, str]) -> Guide:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file}: cannot be read: {error}") from error
    match = _HEADING.search(text)
    title = re.sub(r"[`*_]", "", match["title"]).strip() if match else file.stem
    return Guide(file, path, title, text, targets)


# --- rendering ----------------------------------------------------------------------------------


def guide_html(guide: Guide) -> Markup:
    """Renders the body of a guide; its title is the page's."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(guide.text)
    _drop_title(tokens)
    _mark_headings(tokens)
    for token in tokens:
        token.children = _inline(token.children, guide) if token.children else token.children
    renderer: Any = parser.renderer  # its type leaves out the rules that it documents
    renderer.rules.update(
        fence=_render_fence,
        code_block=_render_fence,
        table_open=_render_table_open,
        table_close=lambda *_: "</table>\n</div>\n",
        th_open=lambda tokens, index, *_: _head(tokens[index + 1])[0],
        th_close=lambda tokens, index, *_: _head(tokens[index - 1])[1],
        td_open=lambda *_: "<td>",
    )
    return Markup(renderer.render(tokens, parser.options, {}))


def _drop_title(tokens: list[Token]) -> None:
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1":
            del tokens[index : index + 3]
            return


def _mark_headings(tokens: list[Token]) -> None:
    """Gives headings the ids that links on GitHub use, and leaves no level out."""
    known: dict[str, int] = {}
    level = 1
    for index, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        level = min(level + 1, max(2, int(token.tag[1])))
        token.tag = tokens[index + 2].tag = f"h{level}"
        name = re.sub(r"[^\w\- ]", "", tokens[index + 1].content.lower()).replace(" ", "-")
        count = known[name] = known.get(name, -1) + 1
        token.attrSet("id", f"{name}-{count}" if count else name or f"section-{index}")


def _inline(children: list[Token], guide: Guide) -> list[Token]:
    result: list[Token] = []
    is_dropped = False
    for token in children:
        if token.type == "link_open":
            address = _address(str(token.attrGet("href") or ""), guide)
            is_dropped = address is None
            token.attrSet("href", address or "")
        if is_dropped and token.type in ("link_open", "link_close"):
            continue
        if token.type == "image":
            token.type, token.tag, token.children = "text", "", None
        result.append(token)
    return result


def _address(href: str, guide: Guide) -> str | None:
    """Returns where a link leads in the site, or ``None`` if nowhere."""
    if href.startswith("#") or _ELSEWHERE.match(href):
        return href
    name, hash_, fragment = href.partition("#")
    target = guide.targets.get((guide.source.parent / unquote(name)).resolve())
    if target is None:
        return None
    way = os.path.relpath(f"{target}.html", os.path.dirname(guide.path))
    return Path(way).as_posix() + hash_ + fragment


def _render_fence(tokens: list[Token], index: int, *_: Any) -> str:
    token = tokens[index]
    if token.info.strip() == "math":
        equation = mathml(token.content, "block")
        return f'<div class="scroll equation" tabindex="0">{equation}</div>\n'
    return str(Markup('<pre tabindex="0"><code>{}</code></pre>\n').format(token.content))


def _head(content: Token) -> tuple[str, str]:
    """A head without text is no head: a reader's software would announce nothing."""
    return ('<th scope="col">', "</th>") if content.content.strip() else ("<td>", "</td>")


def _render_table_open(tokens: list[Token], index: int, *_: Any) -> str:
    heads = [
        token.content
        for token, before in zip(tokens[index:], tokens[index - 1 :], strict=False)
        if before.type == "th_open"
    ]
    label = Markup("{}").format(f"Table: {heads[0]}" if heads and heads[0] else "Table")
    return f'<div class="scroll" role="region" aria-label="{label}" tabindex="0">\n<table>\n'
