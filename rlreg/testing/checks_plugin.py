"""Checks of a whole distribution: is it found, light, and complete?"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from rlreg import registry
from rlreg.blocking import ONLY_VARIABLE, normalize
from rlreg.errors import RlregError
from rlreg.plugins import PluginInfo
from rlreg.testing.kit import (
    Failure,
    NotApplicable,
    Subject,
    check,
    checks_in,
    kinds,
    plugins,
    require,
)

HEAVY = ("torch", "numpy", "gymnasium", "minari", "h5py", "tensorflow", "jax")

_REPORT = """
import json, os, sys
import rlreg
from rlreg import registry
from rlreg.plugins import find_entry_points
from rlreg.testing.kit import kinds
infos = rlreg.list_plugins()
for info in rlreg.list_learnables():
    rlreg.json_schema(info.id)
    rlreg.make_config(info.id)
own = {info.distribution for info in infos if info.status == "ok"}
foreign = [info.distribution for info in find_entry_points() if info.distribution not in own
           and info.value.partition(":")[0].partition(".")[0] in sys.modules]
heavy = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
sys.stdout = open(os.devnull, "w")
for info in rlreg.list_learnables():
    try:
        rlreg.create(info.id, device="cpu")
    except Exception:
        pass  # another check says so
report = {
    "status": {info.distribution: [info.status, info.error] for info in infos},
    "heavy": heavy,
    "foreign": foreign,
    "local": [r.id for kind in kinds() for r in registry.records(kind)
              if r.distribution == registry.LOCAL],
}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
"""


@check(plugins)
def hooks_are_found(subject: Subject) -> None:
    """The entry point loads, its hooks are rlreg's, and they provide something."""
    for info in _infos(subject):
        if info.status != "ok":
            # Whoever checks a plugin is its author: nobody to report it to.
            remedy = "" if "report it to" in info.remedy else f"; {info.remedy}"
            # Where no line of the plugin raised, they would be rlreg's own.
            trace = info.traceback if str(Path(info.file).parent) in info.traceback else ""
            raise Failure(f"{info.status}: {info.error}{remedy}", trace)
    provided = [
        record
        for kind in kinds()
        for record in registry.records(kind)
        if record.distribution == subject.distribution
    ]
    require(
        bool(provided or _presets(subject)),
        "its hooks return nothing: no learnable, no component, no preset",
    )


@check(plugins)
def importing_it_is_light(subject: Subject) -> None:
    """Listing, schemas and configs import neither torch nor numpy (fresh process)."""
    heavy = _report(subject)["heavy"]
    require(
        not heavy,
        f"it imports {', '.join(heavy)}; move that import into create(), or into a module that "
        "only create() imports",
    )


@check(plugins)
def importing_it_prints_nothing(subject: Subject) -> None:
    """Loading it writes nothing to stdout, which belongs to whoever asked (fresh process)."""
    printed = _report(subject)["stdout"]
    require(not printed, f"it prints {printed!r}, which breaks `rlreg list --json`")


@check(plugins)
def nothing_is_registered_by_call(subject: Subject) -> None:
    """It provides classes through hooks alone, so that blocking it and provenance work."""
    report = _report(subject)
    for status, error in report["status"].values():
        require(status == "ok" or "while it was imported" not in error, error)
    require(
        not report["local"],
        f"it calls register_learnable or register_component for {', '.join(report['local'])}; "
        "return the classes from its hooks instead",
    )


@check(plugins)
def it_stands_alone(subject: Subject) -> None:
    """It needs no other plugin than those that its metadata requires."""
    _require_ok(subject)
    report = _report(subject)
    status, error = report["status"].get(subject.distribution, ("broken", "not found"))
    require(status == "ok", f"without other plugins it is {status}: {error}")
    foreign = ", ".join(report["foreign"])
    require(not foreign, f"it imports {foreign}, which its metadata does not require")


@check(plugins)
def names_are_its_own(subject: Subject) -> None:
    """No other installed distribution claims one of its names."""
    for kind in kinds():
        records = registry.records(kind)
        own = {r.name for r in records if r.distribution == subject.distribution}
        for other in records:
            require(
                other.distribution == subject.distribution or other.name not in own,
                f"{kind} {other.name!r} is also in {other.distribution}; choose another name",
            )


@check(plugins)
def presets_are_valid(subject: Subject) -> None:
    """Every preset gives a valid run, and says what it is for and where its values come from."""
    from rlreg.files import load_run

    found = _presets(subject)
    if not found:
        is_broken = any(info.status != "ok" for info in _infos(subject))
        raise NotApplicable("the plugin does not load" if is_broken else "it has no presets")
    for preset in found:
        require(bool(preset.summary.strip()), f"preset {preset.id!r} has no summary")
        require(bool(preset.source.strip()), f"preset {preset.id!r} names no source")
        try:
            load_run(preset.learnable, preset=preset.id)
        except RlregError as error:
            require(False, f"preset {preset.id!r}: {error}")


@check(plugins)
def metadata_is_complete(subject: Subject) -> None:
    """The distribution has a summary, a version and a readme, and requires rlreg."""
    metadata: Any = importlib.metadata.metadata(subject.distribution)
    missing = [key for key in ("Version", "Summary") if not metadata.get(key)]
    # In files of metadata version 2.1 and later the readme is the body.
    if not (metadata.get("Description") or metadata.get_payload() or "").strip():
        missing.append("readme")
    require(not missing, f"pyproject.toml does not state: {', '.join(missing).lower()}")
    require(
        "rlreg" in _required(subject.distribution),
        "it does not require rlreg: dependencies = ['rlreg[torch]>=0.1,<0.2']",
    )


@check(plugins)
def manifest_is_fresh(subject: Subject) -> None:
    """The manifest it carries describes the code it carries."""
    from rlreg.manifest import MANIFEST_NAME, package_folder, staleness

    for info in _infos(subject):
        folder = package_folder(info)
        path = folder / MANIFEST_NAME if folder is not None else None
        if folder is None or path is None or not path.exists():
            raise NotApplicable("it carries no manifest")
        renew = f"renew it: rlreg plugins manifest {subject.distribution}"
        try:
            content = json.loads(path.read_bytes())
            fault = staleness(content, info, folder) or _unlisted(subject, content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            fault = f"it cannot be read: {type(error).__name__}: {error}"
        require(not fault, f"{path.name}: {fault}; {renew}")


def _unlisted(subject: Subject, content: Any) -> str:
    """Says which names a manifest and the hooks do not have in common."""
    parts = content["entry_points"].values()
    listed = {("learnable", item["name"]) for part in parts for item in part["learnables"]}
    listed |= {(item["kind"], item["name"]) for part in parts for item in part["components"]}
    provided = {
        (record.kind, record.name)
        for kind in kinds()
        for record in registry.records(kind)
        if record.distribution == subject.distribution
    }
    differing = ", ".join(f"{kind} {name}" for kind, name in sorted(listed ^ provided))
    return f"manifest and hooks differ in {differing}" if differing else ""


# --- what they look at --------------------------------------------------------------------------


def _infos(subject: Subject) -> list[PluginInfo]:
    wanted = normalize(subject.distribution)
    return [info for info in registry.list_plugins() if normalize(info.distribution) == wanted]


def _require_ok(subject: Subject) -> None:
    if any(info.status != "ok" for info in _infos(subject)):
        raise NotApplicable("the plugin does not load")


def _presets(subject: Subject) -> list[Any]:
    held = registry.list_presets()
    return [item.preset for item in held if item.distribution == subject.distribution]


def _report(subject: Subject) -> dict[str, Any]:
    return _report_of(subject.distribution, registry.generation())


@functools.lru_cache(maxsize=8)
def _report_of(distribution: str, _generation: int) -> dict[str, Any]:
    """Lists, exports and creates in a fresh process that sees this plugin and its requirements."""
    from rlreg.testing.toy import run_fresh

    only = {ONLY_VARIABLE: ",".join(sorted({distribution, *_closure(distribution)}))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        printed = run_fresh(_REPORT, str(path), json.dumps(HEAVY), environment=only)
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    report["stdout"] = printed.strip()
    return report


def _closure(distribution: str) -> set[str]:
    """Returns what a distribution requires, directly or not, as far as it is installed."""
    found: set[str] = set()
    pending = [distribution]
    while pending:
        for name in _required(pending.pop()) - found:
            found.add(name)
            pending.append(name)
    return found


def _required(distribution: str) -> set[str]:
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines if "extra ==" not in line)
    return {normalize(match[0]) for match in names if match}


CHECKS = checks_in(globals())
