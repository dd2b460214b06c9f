"""What makes editors and pre-commit check run files: texts that `rlreg schema install` writes.

Files that people keep by hand (`.vscode/settings.json` with comments, `.pre-commit-config.yaml`)
are changed by inserting text, never by writing them anew; what comes out is read back, and if it
does not say exactly what was meant, nothing is written and the user gets the lines to insert.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any

from rlreg.atomic_file import write_text
from rlreg.documents import Document, parse_document
from rlreg.errors import FileFormatError
from rlreg.json_text import from_json
from rlreg.yaml_reader import KeyPath
from rlreg.yaml_text import scalar

RUN_SCHEMA = "schemas/run.schema.json"
HOOK_ID = "rlreg-run-files"
_SETTING = "yaml.schemas"
# A string, which is left as it is, or a comment, or a comma before a closing bracket.
_JSONC = re.compile(
    r'(?P<keep>"(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])',
    re.DOTALL,
)


def write_run_schema(path: Path) -> bool:
    """Writes the run schema of everything installed, in the editor flavour.

    Returns:
        Whether the file is new or changed. A schema that closes its unions over named distributions
        (``rlreg schema export``) is left alone: it is somebody's choice.
    """
    from rlreg.manifest_index import installed_schema
    from rlreg.schema import dump_schema

    known = read_schema(path)
    if known is not None and not str(known.get("$id", "")).endswith(":all:editor"):
        return False
    text = dump_schema(installed_schema("run", flavour="editor"))
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    replace_text(path, text)
    return True


def read_schema(path: Path) -> dict[str, Any] | None:
    """Returns the schema in a file, or ``None`` if there is no such file."""
    try:
        found = from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_text(path: Path) -> str:
    """Returns the text of a file that may not be there yet.

    Raises:
        FileFormatError: If it is there and cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read: {error}") from error


def replace_text(path: Path, text: str) -> None:
    """Writes a file by rename, with the folders it needs.

    Raises:
        FileFormatError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror}") from error


# --- VS Code ------------------------------------------------------------------------------------


def vscode_settings(text: str, name: str, schema: str, globs: Sequence[str]) -> str:
    """Returns VS Code's settings with a schema registered for some files; comments are kept.

    Raises:
        FileFormatError: If the settings are not what this can add to; the message has the lines.
    """
    wanted = {schema: list(globs)}
    if not text.strip():
        return json.dumps({_SETTING: wanted}, indent=2) + "\n"
    plain = _JSONC.sub(_blank, text)
    document = parse_document(plain, ".json", name)
    known = document.data.get(_SETTING)
    if known is None:
        member = f"{json.dumps(_SETTING)}: {json.dumps(wanted)}"
        result = _insert(text, document, (), member, is_first=not document.data)
    elif not isinstance(known, dict):
        raise FileFormatError(f"{name}: {_SETTING} is no mapping; {_by_hand(wanted)}")
    elif known.get(schema) == list(globs):
        return text
    elif schema in known:
        raise FileFormatError(
            f"{name}: {_SETTING} has {schema} already, for {json.dumps(known[schema])}; "
            f"{_by_hand(wanted)}"
        )
    else:
        member = f"{json.dumps(schema)}: {json.dumps(list(globs))}"
        result = _insert(text, document, (_SETTING,), member, is_first=not known)
    expected = {**document.data, _SETTING: {**(known or {}), **wanted}}
    if json.loads(_JSONC.sub(_blank, result)) != expected:
        raise FileFormatError(f"{name}: {_by_hand(wanted)}")
    return result


def _blank(match: re.Match[str]) -> str:
    if match["keep"] is not None:
        return match["keep"]
    return re.sub(r"[^\n]", " ", match.group())  # so that every place stays where it was


def _insert(text: str, document: Document, path: KeyPath, member: str, *, is_first: bool) -> str:
    """Puts a member behind the opening brace of a mapping."""
    start = document.positions[path]
    lines = text.splitlines(keepends=True)
    offset = sum(map(len, lines[: start.line - 1])) + start.column
    indent = "  " * (len(path) + 1)
    end = "\n" + "  " * len(path) if is_first else ","
    return f"{text[:offset]}\n{indent}{member}{end}{text[offset:]}"


def _by_hand(wanted: dict[str, Any]) -> str:
    return f"insert this yourself: {json.dumps(_SETTING)}: {json.dumps(wanted)}"


# --- pre-commit ---------------------------------------------------------------------------------


def precommit_config(text: str, name: str, schema: str, globs: Sequence[str]) -> str:
    """Returns a pre-commit config with a hook that checks run files against a schema.

    Raises:
        FileFormatError: If the config is not what this can add to; the message has the lines.
    """
    if not text.strip():
        return "repos:\n" + _hook(schema, globs, "  ")
    document = parse_document(text, ".yaml", name)
    repos = document.data.get("repos")
    if not isinstance(repos, list) or not repos:
        raise FileFormatError(f"{name}: it has no list of repos; {_hook_by_hand(schema, globs)}")
    hooks = [hook for repo in repos if isinstance(repo, dict) for hook in repo.get("hooks") or ()]
    if any(isinstance(hook, dict) and hook.get("id") == HOOK_ID for hook in hooks):
        return text
    dash = document.positions["repos", 0].column - 3  # the dash stands two columns before its key
    result = text.rstrip("\n") + "\n" + _hook(schema, globs, " " * max(0, dash))
    expected = {**document.data, "repos": [*repos, *_parsed(_hook(schema, globs, ""))]}
    try:
        is_meant = parse_document(result, ".yaml", name).data == expected
    except FileFormatError:
        is_meant = False
    if not is_meant:
        raise FileFormatError(f"{name}: cannot be added to; {_hook_by_hand(schema, globs)}")
    return result


def _hook(schema: str, globs: Sequence[str], indent: str) -> str:
    lines = [
        "- repo: local",
        "  hooks:",
        f"    - id: {HOOK_ID}",
        "      name: rlreg run files match their schema",
        f"      entry: check-jsonschema --schemafile {schema}",
        "      language: python",
        "      additional_dependencies: [check-jsonschema]",
        f"      files: {scalar(_pattern(globs))}",
    ]
    return "".join(f"{indent}{line}\n" for line in lines)


def _parsed(hook: str) -> list[Any]:
    found: list[Any] = parse_document("repos:\n" + hook, ".yaml", "").data["repos"]
    return found


def _hook_by_hand(schema: str, globs: Sequence[str]) -> str:
    return f"insert this yourself:\n{_hook(schema, globs, '  ')}"


def _pattern(globs: Sequence[str]) -> str:
    """Returns the regular expression of some globs; one without a slash holds at any depth."""
    parts = []
    for glob in globs:
        core = re.sub(r"\A\(\?s:(.*)\)\\[Zz]\Z", r"\1", translate(glob.removeprefix("**/")))
        is_rooted = "/" in glob and not glob.startswith("**/")
        parts.append(("^" if is_rooted else "(^|/)") + core + "$")
    return "|".join(parts)
