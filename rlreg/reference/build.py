"""Writing the reference: all of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlreg import __version__
from rlreg.errors import FileFormatError
from rlreg.json_text import from_json
from rlreg.reference import html, markdown
from rlreg.reference.builder import builder_files
from rlreg.reference.guides import read_guides
from rlreg.reference.pages import pages
from rlreg.reference.record import collect_reference

MARKER = ".rlreg-reference.json"
"""Lists what a build wrote, so that the next one replaces that and nothing else."""


def build_reference(
    directory: str | Path,
    *,
    learnables: list[str] | None = None,
    guides: Sequence[str | Path] = (),
) -> list[Path]:
    """Writes the reference of everything installed as Markdown and HTML.

    Args:
        directory: Where it goes; replaced as a whole if an earlier build wrote it.
        learnables: Which learnables get a page; all of them by default.
        guides: Markdown files, or folders of them, that become pages of the site.

    Returns:
        The files, sorted.

    Raises:
        UnknownNameError: If one of ``learnables`` is not installed.
        FileFormatError: If the folder holds something else or cannot be written, or a guide cannot
            be read.
    """
    target = Path(directory)
    texts = _texts(learnables, guides)
    _refuse_foreign(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise FileFormatError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        new = scratch / "new"
        _write(new, texts)
        if target.exists():
            target.rename(scratch / "old")
        new.rename(target)
    except OSError as error:
        if (scratch / "old").exists() and not target.exists():
            (scratch / "old").rename(target)
        raise FileFormatError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted(target / name for name in texts)


def _texts(learnables: list[str] | None, guides: Sequence[str | Path]) -> dict[str, str]:
    faces = {".md": (markdown, markdown.environment()), ".html": (html, html.environment())}
    texts: dict[str, str] = builder_files()
    for page in pages(collect_reference(learnables), read_guides(guides)):
        for suffix in page.faces:
            face, templates = faces[suffix]
            name = page.path + suffix
            assert name not in texts, name
            texts[name] = face.render(templates, page)
    return texts


def _refuse_foreign(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise FileFormatError(f"{target}: is a file; the reference needs a folder")
    present = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    if not present:
        return
    try:
        own = {MARKER, *from_json((target / MARKER).read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise FileFormatError(
            f"{target}: not empty and not written by `rlreg docs build`; choose another folder"
        ) from None
    foreign = sorted(present - own)
    if foreign:
        raise FileFormatError(
            f"{target}: holds {foreign[0]!r}, which no build wrote; move it away first"
        )


def _write(directory: Path, texts: dict[str, str]) -> None:
    directory.mkdir()
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    marker = {"rlreg": __version__, "files": sorted(texts)}
    (directory / MARKER).write_text(json.dumps(marker, indent=1) + os.linesep, encoding="utf-8")
