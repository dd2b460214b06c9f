r"""Reading a docstring: paragraphs, code, equations and the paper it cites.

Authors write reStructuredText's forms, which editors and `help()` show as they stand::

    Paper: Kostrikov, Nair, Levine: Offline RL with Implicit Q-Learning, arXiv:2110.06169

    The value follows an expectile of the critics, where :math:`u = q - v`:

    .. math::

        L_V = |\tau - 1(u < 0)| u^2
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CODE = re.compile(r"(?::(?P<role>[a-z]+):)?(?P<ticks>`+)(?P<code>.+?)(?P=ticks)", re.DOTALL)
"""A code span, or a role such as ``:math:`` around one."""

_DIRECTIVE = re.compile(r"\.\. math::[ \t]*(?P<rest>.*)\Z")
_PAPER = re.compile(r"^Paper: (?P<paper>.+(?:\n(?!\s*$).+)*)", re.MULTILINE)
_ARXIV = re.compile(r"\barXiv:(?P<number>\d{4}\.\d{4,5})\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a docstring; code and equations without their indentation."""

    kind: Literal["text", "code", "math"]
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Splits a docstring into paragraphs, indented code and equations."""
    is_equation = False
    for part in re.split(r"\n\s*\n", text):
        if not part.strip():
            continue
        first, _, rest = part.partition("\n")
        directive = _DIRECTIVE.match(first)
        if directive is not None:
            body = "\n".join(filter(None, (directive["rest"], textwrap.dedent(rest))))
            is_equation = not body.strip()
            if body.strip():
                yield Block("math", body.strip())
        elif all(line.startswith("    ") for line in part.splitlines()):
            body = "\n".join(line[4:] for line in part.splitlines())
            yield Block("math", body.strip()) if is_equation else Block("code", body)
            is_equation = False
        else:
            is_equation = False
            yield Block("text", re.sub(r"::\s*\Z", ":", part))


def take_paper(details: str) -> tuple[str, str]:
    """Returns the paper that a docstring cites, and the docstring without that line."""
    match = _PAPER.search(details)
    if match is None:
        return "", details
    rest = details[: match.start()] + details[match.end() :]
    return " ".join(match["paper"].split()), re.sub(r"\n{3,}", "\n\n", rest).strip()


def paper_link(paper: str) -> str:
    """Returns the address of a paper that is cited by its arXiv number, or an empty string."""
    match = _ARXIV.search(paper)
    return f"https://arxiv.org/abs/{match['number']}" if match else ""
