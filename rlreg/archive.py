"""The container of a checkpoint: one zip file of stored members with a hash for each.

Reading trusts nothing: names come from a fixed list, sizes must add up to the file's own size,
members are never inflated, and every byte is hashed before it is parsed. Writing is all or nothing.
Nothing here knows what a learnable is, and nothing imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlreg import __version__
from rlreg.atomic_file import replacing
from rlreg.errors import CheckpointError

FORMAT = "rlreg-checkpoint"
FORMAT_VERSION = (1, 0)
INDEX = "index.json"
WEIGHTS = "weights.safetensors"
HEADER_MEMBERS = ("config.json", "spaces.json", "lock.json")
MEMBERS = (*HEADER_MEMBERS, WEIGHTS, "trainer.json", "trainer.safetensors")

_MAX_JSON = 64 * 2**20
_MAX_DEPTH = 100
_ALL = frozenset({INDEX, *MEMBERS})
# Every zip writer can write this date, and it means nothing.
_DATE = (1980, 1, 1, 0, 0, 0)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# What zipfile raises on damaged files, besides OSError.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    KeyError,
)


# --- writing ------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Renders canonical JSON: equal values give equal bytes.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return (text + "\n").encode()


def pack(members: Mapping[str, bytes]) -> bytes:
    """Builds the bytes of an archive; equal members give equal bytes."""
    hashes = {name: hashlib.sha256(members[name]).hexdigest() for name in MEMBERS}
    major, minor = FORMAT_VERSION
    index = {
        "format": FORMAT,
        "version": f"{major}.{minor}",
        "rlreg": __version__,
        "members": hashes,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in ((INDEX, to_json(index)), *((n, members[n]) for n in MEMBERS)):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3  # the same on every system
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def write_archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Writes an archive, replacing ``path`` only when it is complete and on the disk.

    Raises:
        CheckpointError: If it could not be written; ``path`` is then what it was.
    """
    try:
        with replacing(path) as file:
            file.write(pack(members))
    except OSError as error:
        kept = "the file that was there is unchanged" if path.exists() else "nothing was written"
        raise CheckpointError(
            f"{path}: could not be written: {error.strerror or error}; {kept}"
        ) from error


# --- reading ------------------------------------------------------------------------------------


def read_archive(path: Path) -> dict[str, bytes]:
    """Reads every member of an archive, checked against its hash.

    Raises:
        CheckpointError: If the file is anything but an intact checkpoint of this format.
    """
    with _opened(path) as (archive, size):
        index = _read_index(path, archive)
        _check_members(path, archive, size)
        return {name: _read_member(path, archive, name, index[name]) for name in MEMBERS}


def read_header_members(path: Path) -> dict[str, bytes]:
    """Reads config, spaces and lock of an archive; the weights stay on the disk.

    Raises:
        CheckpointError: If the file is anything but a checkpoint of this format.
    """
    with _opened(path) as (archive, size):
        index = _read_index(path, archive)
        _check_members(path, archive, size)
        return {name: _read_member(path, archive, name, index[name]) for name in HEADER_MEMBERS}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, int]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                yield archive, size
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a folder, not a checkpoint") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _ZIP_ERRORS as error:
        if path.suffix.lower() != ".rlreg" and not _begins_like_zip(path):
            raise CheckpointError(f"{path}: is neither a .rlreg file nor a run folder") from error
        raise _damaged(path, str(error)) from error


def _begins_like_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: corrupt or truncated checkpoint: {why}")


def _check_members(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    names = [info.filename for info in archive.infolist()]
    strange = sorted(set(names) - _ALL)
    if strange:
        raise _damaged(path, f"it has the unknown member {strange[0]!r}")
    missing = sorted(_ALL - set(names))
    if missing:
        raise _damaged(path, f"it has no {missing[0]}")
    if len(names) != len(_ALL):
        raise _damaged(path, "it has a member twice")
    for info in archive.infolist():
        _check_stored(path, info)
    if sum(info.file_size for info in archive.infolist()) > size:
        raise _damaged(path, "its members claim to be larger than the file")


def _check_stored(path: Path, info: zipfile.ZipInfo) -> None:
    # A checkpoint is never compressed, so there is nothing that could be inflated without end.
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise _damaged(path, f"{info.filename} is compressed, which rlreg never does")
    if info.flag_bits & 0x1:
        raise _damaged(path, f"{info.filename} is encrypted")
    if info.filename.endswith(".json") and info.file_size > _MAX_JSON:
        raise _damaged(path, f"{info.filename} has {info.file_size:,} bytes")


def _read_index(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """Reads the index first: a newer format may have other members."""
    if INDEX not in archive.namelist():
        raise CheckpointError(f"{path}: no rlreg checkpoint: it has no {INDEX}")
    _check_stored(path, archive.getinfo(INDEX))
    index = parse_json(path, INDEX, archive.read(INDEX))
    if index.get("format") != FORMAT:
        raise CheckpointError(f"{path}: no rlreg checkpoint: its format is {index.get('format')!r}")
    major = _major(path, index.get("version"))
    if major > FORMAT_VERSION[0]:
        raise CheckpointError(
            f"{path}: written by a newer rlreg ({index.get('rlreg')}, checkpoint format "
            f"{index['version']}); this is rlreg {__version__}, which reads format "
            f"{FORMAT_VERSION[0]}: pip install --upgrade rlreg"
        )
    members = index.get("members")
    if not isinstance(members, dict) or set(members) != set(MEMBERS):
        raise _damaged(path, f"{INDEX} does not list the members")
    for name, digest in members.items():
        if not isinstance(digest, str) or not _SHA256.match(digest):
            raise _damaged(path, f"{INDEX} has no sha256 of {name}")
    return members


def _major(path: Path, version: Any) -> int:
    match = re.match(
        r"([1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\Z", version if isinstance(version, str) else ""
    )
    if match is None:
        raise _damaged(path, f"its format version is {version!r}")
    return int(match[1])


def _read_member(path: Path, archive: zipfile.ZipFile, name: str, digest: str) -> bytes:
    content = archive.read(name)
    if hashlib.sha256(content).hexdigest() != digest:
        raise _damaged(path, f"{name} is not what {INDEX} says (its sha256 differs)")
    return content


def parse_json(path: Path, name: str, content: bytes) -> dict[str, Any]:
    """Parses a member that must be a JSON mapping.

    Raises:
        CheckpointError: If it is not.
    """
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{name} is no JSON: {error}") from error
    if _is_deep(value):
        raise _damaged(path, f"{name} is nested more than {_MAX_DEPTH} deep")
    if not isinstance(value, dict):
        raise _damaged(path, f"{name} is no mapping")
    return value


def _is_deep(value: Any) -> bool:
    """Whether what reads it part by part would run out of stack; it must not do so itself."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for node in level
            if isinstance(node, dict | list)
            for part in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
