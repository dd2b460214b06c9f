"""A run folder: what is in it, who may write to it, and how it survives a kill.

``run.yaml`` and ``rlreg.lock`` are written before anything slow. Every file is replaced by a
rename, so that a reader, or a resume after a kill, finds the old one or the new one and nothing
in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlreg.atomic_file import sync_folder, write_text
from rlreg.documents import LOCK_FILE, RUN_FILE
from rlreg.errors import CheckpointError, ConfigError, FileFormatError, RunError
from rlreg.files import dump_yaml, load_run
from rlreg.json_text import from_json
from rlreg.run_config import RunConfig
from rlreg.runtime.lock import lock_from_json, lock_of, lock_to_json, require_installed
from rlreg.runtime.logging import METRICS_FILE
from rlreg.runtime.summary import check_summary

PID_FILE = "running.json"
SUMMARY_FILE = "summary.json"
SEEDS_FILE = "seeds.json"
LAST, BEST = "last.rlreg", "best.rlreg"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, run: RunConfig) -> RunFolder:
        """Makes the folder with ``run.yaml`` and ``rlreg.lock``.

        Raises:
            RunError: If there is something in it already, or it cannot be written.
        """
        require_empty(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / RUN_FILE, dump_yaml(run))
            lock = lock_to_json(lock_of(run))
            write_text(path / LOCK_FILE, json.dumps(lock, indent=2) + "\n")
        except OSError as error:
            with contextlib.suppress(OSError):
                cls(path).discard()  # half a beginning would be in the way of the next one
            raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens an existing run folder.

        Raises:
            RunError: If it is none.
        """
        if not path.is_dir():
            raise RunError(f"{path}: there is no such run folder")
        if not (path / RUN_FILE).is_file():
            raise RunError(
                f"{path}: this folder has no {RUN_FILE}, so it is no run folder{runs_within(path)}"
            )
        return cls(path)

    def require_begun(self) -> None:
        """Raises unless a run was begun here: a folder with somebody's run file is no run.

        Raises:
            RunError: If there is no lock file, which every run writes first.
        """
        if not (self.path / LOCK_FILE).is_file():
            run_file = self.path / RUN_FILE
            raise RunError(
                f"{self.path}: there is a {RUN_FILE} but no {LOCK_FILE}, so no run was begun here; "
                f"start one with: rlreg train {run_file}"
            )

    def rewrite_run(self, run: RunConfig, **reasons: str) -> None:
        """Replaces ``run.yaml`` once more is settled.

        Args:
            run: The run.
            reasons: Comments, by the field of the run they explain.

        Raises:
            RunError: If it cannot be written.
        """
        lines = dump_yaml(run).splitlines()
        for name, reason in reasons.items():
            lines = [
                f"{line}  # {reason}" if line.startswith(f"{name}:") else line for line in lines
            ]
        try:
            write_text(self.path / RUN_FILE, "\n".join(lines) + "\n")
        except OSError as error:
            raise RunError(f"{self.path}: {RUN_FILE}: {error.strerror or error}") from error

    # --- what is in it --------------------------------------------------------------------------

    @property
    def last(self) -> Path:
        """The checkpoint of the end of the last epoch."""
        return self.path / LAST

    @property
    def best(self) -> Path:
        """The checkpoint with the best evaluation."""
        return self.path / BEST

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / METRICS_FILE

    @property
    def checkpoints(self) -> list[Path]:
        """The kept checkpoints, oldest first."""
        return sorted((self.path / CHECKPOINTS).glob("step-*.rlreg"))

    def read_run(self, wanted_for: Path | None = None) -> RunConfig:
        """Reads ``run.yaml``.

        Args:
            wanted_for: The file of this folder that was asked for, for messages.

        Raises:
            FileFormatError: If it cannot be read.
            ConfigError: If it is not valid with what is installed.
            CheckpointError: If that is for want of a plugin; the message says what to install.
        """
        try:
            return load_run(self.path)
        except ConfigError:
            lock = self.read_lock()
            try:
                require_installed(lock_from_json(lock) if lock else [])
            except CheckpointError as error:
                raise CheckpointError(f"{wanted_for or self.path}: {error}") from error
            raise

    def read_lock(self) -> dict[str, Any]:
        """Reads ``rlreg.lock``; empty if it is not there."""
        return read_json(self.path / LOCK_FILE) if (self.path / LOCK_FILE).is_file() else {}

    def read_summary(self) -> dict[str, Any] | None:
        """Reads ``summary.json``: there is one when the run is finished.

        Raises:
            FileFormatError: If it is damaged.
        """
        path = self.path / SUMMARY_FILE
        return check_summary(path, read_json(path)) if path.is_file() else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``.

        Raises:
            RunError: If it cannot be written.
        """
        try:
            write_text(self.path / SUMMARY_FILE, to_text(summary))
        except OSError as error:
            raise RunError(f"{self.path}: {SUMMARY_FILE}: {error.strerror or error}") from error

    # --- checkpoints ----------------------------------------------------------------------------

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step is kept."""
        return self.path / CHECKPOINTS / f"step-{step:012d}.rlreg"

    def put(self, source: Path, target: Path) -> None:
        """Gives a finished checkpoint a second name, replacing what had it."""
        temporary = target.with_name(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            try:
                temporary.hardlink_to(source)  # no second copy: a checkpoint is never changed
            except OSError:
                shutil.copyfile(source, temporary)
            temporary.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise RunError(f"{target}: could not be written: {error.strerror or error}") from error
        sync_folder(target.parent)

    def prune(self, keep: int) -> None:
        """Deletes all but the newest ``keep`` checkpoints of ``checkpoints/``."""
        kept = self.checkpoints
        for path in kept[: max(0, len(kept) - keep)]:
            with contextlib.suppress(OSError):
                path.unlink()

    def drop_after(self, step: int) -> None:
        """Deletes what a kill left behind: temporary files, and checkpoints past a step."""
        for folder in (self.path, self.path / CHECKPOINTS):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)
        for path in self.checkpoints:
            if path.name > self.checkpoint_path(step).name:
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Takes back a folder in which nothing was trained, so that ``--out`` can be used again."""
        for name in (RUN_FILE, LOCK_FILE, PID_FILE, METRICS_FILE):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.path / CHECKPOINTS, self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()

    # --- one process at a time ------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps every other process out of the folder while the block runs.

        Raises:
            RunError: If another process is running in it.
        """
        path = self.path / PID_FILE
        try:
            _take(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
        try:
            yield
        except KeyboardInterrupt as error:
            if (self.path / RUN_FILE).is_file():
                error.add_note(self._how_to_go_on())
            raise
        finally:
            path.unlink(missing_ok=True)

    def _how_to_go_on(self) -> str:
        state = (
            "the last checkpoint is intact" if self.last.exists() else "no checkpoint was saved yet"
        )
        return f"{state}; go on with: rlreg resume {self.path}"


def is_seeds_folder(path: Path) -> bool:
    """Whether a folder holds the runs of several seeds."""
    return (path / SEEDS_FILE).is_file()


def require_empty(path: Path) -> None:
    """Raises unless nothing is at ``path``, or an empty folder.

    Raises:
        RunError: If there is something.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise RunError(
            f"{path} is not empty; choose another --out, delete it, or go on with "
            f"`rlreg resume {path}`"
            if path.is_dir()
            else f"{path} is a file; --out must be a new or an empty folder"
        )


def default_folder(name: str, seed: int) -> Path:
    """Returns a new folder ``runs/<name>/<UTC time>-s<seed>``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    base = Path("runs") / name / f"{stamp}-s{seed}"
    found, number = base, 1
    while found.exists():
        number += 1
        found = base.with_name(f"{base.name}-{number}")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON mapping.

    Raises:
        FileFormatError: If it is none.
    """
    try:
        value = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected a mapping")
    return value


def to_text(value: Mapping[str, Any]) -> str:
    """Renders JSON for people and programs."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# --- the file with the pid ----------------------------------------------------------------------


def _take(path: Path) -> None:
    content = json.dumps(_own_identity())
    for _ in range(5):
        own = path.with_name(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
        own.write_text(content)
        try:
            os.link(own, path)  # appears with its content, or not at all
            return
        except FileExistsError:
            _remove_stale(path)
        finally:
            own.unlink(missing_ok=True)
        time.sleep(0.01)
    raise RunError(f"{path}: other processes keep taking this run folder")


def _own_identity() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "started": _start_time(pid), "host": socket.gethostname()}


def _start_time(pid: int) -> str:
    """Tells processes apart that had the same number; empty where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"


def _remove_stale(path: Path) -> None:
    """Removes the file of a process that is gone.

    Of two processes that find it, one renames it; the other must not remove what the first one then
    put there, so it looks at what it has moved.
    """
    with contextlib.suppress(FileNotFoundError):
        seen = path.read_text()
        _refuse_running(path, seen)
        moved = path.with_name(f".{os.urandom(4).hex()}-stale.tmp")
        path.rename(moved)
        if moved.read_text() != seen:
            moved.rename(path)
        moved.unlink(missing_ok=True)


def _refuse_running(path: Path, content: str) -> None:
    try:
        holder = from_json(content)
    except ValueError:
        return  # nobody writes it in place, so nobody is using it
    if not isinstance(holder, dict):
        return
    pid, host = holder.get("pid"), holder.get("host")
    if host != socket.gethostname():
        raise RunError(
            f"{path.parent} is in use by process {pid} on {host}; if that is not so, delete {path}"
        )
    if isinstance(pid, int) and _is_alive(pid) and holder.get("started") == _start_time(pid):
        raise RunError(f"{path.parent} is running, as process {pid}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie has ended; only its parent has not noticed yet.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def runs_within(path: Path) -> str:
    """Names the first run folders in a folder that holds several, as of seeds or of a sweep."""
    found = sorted(place.parent for place in path.glob("*/" + RUN_FILE))
    found = found or sorted(place.parent for place in path.glob("trials/*/" + RUN_FILE))
    if not found:
        return ""
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return f"; runs in it: {', '.join(map(str, found[:2]))}{more}"
