"""From a name to a folder: a plugin that installs, passes ``rlreg check`` and trains, untouched."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlreg import __version__, registry
from rlreg.errors import ConfigError, FileFormatError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from jinja2 import Environment

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")
_MAX_LENGTH = 64
_RESERVED = {
    "run": "`rlreg schema run` is the schema of run files",
    "rlreg": "it is the name of the registry itself",
}

_COMMON = {
    "common/pyproject.toml.j2": "pyproject.toml",
    "common/gitignore.j2": ".gitignore",
    "common/ci.yml.j2": ".github/workflows/ci.yml",
    "common/init.py.j2": "src/{package}/__init__.py",
    "common/py.typed.j2": "src/{package}/py.typed",
    "common/plugin.py.j2": "src/{package}/plugin.py",
    "common/test.py.j2": "tests/test_{module}.py",
}
_REGIMES = {
    regime: {
        "common/README.md.j2": "README.md",
        f"{regime}/config.py.j2": "src/{package}/config.py",
        f"{regime}/learnable.py.j2": "src/{package}/learnable.py",
    }
    for regime in ("offline", "online")
}
_COMPONENT = {
    "component/README.md.j2": "README.md",
    "component/components.py.j2": "src/{package}/components.py",
}
_IMPLEMENTATIONS = {
    "encoder": "encoder.py",
    "optimizer": "optimizer.py",
    "lr_scheduler": "schedule.py",
    "observation_scaler": "scaler.py",
    "action_scaler": "scaler.py",
    "reward_scaler": "scaler.py",
    "logger": "logger.py",
}

COMPONENT_KINDS = tuple(_IMPLEMENTATIONS)
"""The kinds of components that there is a template for."""

_BASES = {
    "encoder": "EncoderFactory",
    "optimizer": "OptimizerFactory",
    "lr_scheduler": "LRSchedulerFactory",
    "observation_scaler": "ObservationScaler",
    "action_scaler": "ActionScaler",
    "reward_scaler": "RewardScaler",
    "logger": "LoggerFactory",
}


@dataclass(frozen=True, slots=True)
class Project:
    """What is to be written.

    Attributes:
        name: Id of the learnable or tag of the component.
        regime: ``offline`` or ``online``; of no meaning for a component.
        component: Its kind, or empty for a learnable.
    """

    name: str
    regime: str = "offline"
    component: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.component and self.component not in COMPONENT_KINDS:
            hint = did_you_mean(self.component, COMPONENT_KINDS)
            listed = f"there is {', '.join(COMPONENT_KINDS)}"
            raise UnknownNameError(
                f"no template for a component of kind {self.component!r}; {hint or listed}"
            )
        _check_free(self.component or "learnable", self.name)

    @property
    def distribution(self) -> str:
        """Name on the package index: ``rlreg-my-algo`` owns the bare id ``my-algo``."""
        return f"rlreg-{self.name}"

    @property
    def module(self) -> str:
        """The name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def package(self) -> str:
        """Name of the import package."""
        return f"rlreg_{self.module}"

    @property
    def title(self) -> str:
        """The name as the first part of a class name: ``MyAlgo``."""
        return "".join(part.capitalize() for part in re.split("[-_]", self.name))

    def variables(self) -> dict[str, Any]:
        """Returns what the templates may use."""
        implementation = _IMPLEMENTATIONS.get(self.component, "")
        major, minor = (int(part) for part in __version__.split(".")[:2])
        return {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "title": self.title,
            "regime": self.regime,
            "kind": self.component,
            "words": self.component.replace("_", " "),
            "base": _BASES.get(self.component, ""),
            "class_name": f"{self.title}{_suffix(self.component)}",
            "built_name": f"{self.title}{Path(implementation).stem.capitalize()}Impl",
            "implementation": Path(implementation).stem,
            "requirement": f"rlreg[torch]>={major}.{minor},<{major}.{minor + 1}",
        }


def _suffix(component: str) -> str:
    return {
        "encoder": "Encoder",
        "optimizer": "Optimizer",
        "lr_scheduler": "Scheduler",
        "logger": "Logger",
    }.get(component, "Scaler" if component else "Config")


# --- names --------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if name in _RESERVED:
        raise ConfigError(f"name {name!r}: {_RESERVED[name]}; choose another")
    if name.startswith("rlreg-") and _is_name(name.removeprefix("rlreg-")):
        raise ConfigError(
            f"name {name!r}: the distribution gets the prefix by itself; did you mean "
            f"{name.removeprefix('rlreg-')!r}?"
        )
    if not _is_name(name):
        near = _nearest_name(name)
        hint = f"; did you mean {near!r}?" if near else ", for example 'my-algo'"
        raise ConfigError(
            f"name {name!r}: expected lower-case words of letters and digits, joined by '-' or "
            f"'_', at most {_MAX_LENGTH} characters{hint}"
        )


def _is_name(name: str) -> bool:
    return len(name) <= _MAX_LENGTH and bool(_NAME.match(name))


def _nearest_name(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).removeprefix("rlreg-")
    slug = re.sub(r"\A[^a-z]+", "", slug)[:_MAX_LENGTH].strip("-")
    return slug if _is_name(slug) and slug not in _RESERVED else ""


def _check_free(kind: str, name: str) -> None:
    for record in registry.records(kind):
        if record.name == name and record.distribution != registry.LOCAL:
            owner = f"{record.distribution} {record.version}".rstrip()
            raise ConfigError(
                f"name {name!r}: {owner} already provides this {kind}; choose another"
            )


# --- files --------------------------------------------------------------------------------------


def render(project: Project) -> dict[str, str]:
    """Returns the text of every file of a project by its path in the folder."""
    templates = {**_COMMON, **_REGIMES[project.regime]}
    if project.component:
        implementation = _IMPLEMENTATIONS[project.component]
        templates = {
            **_COMMON,
            **_COMPONENT,
            f"component/{implementation}.j2": f"src/{{package}}/{implementation}",
        }
    environment, variables = _environment(), project.variables()
    names = {"package": project.package, "module": project.module}
    return {
        target.format(**names): environment.get_template(source).render(variables)
        for source, target in sorted(templates.items())
    }


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("rlreg.scaffold"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def write(project: Project, parent: Path) -> Path:
    """Writes a project into a new folder of ``parent``, whole or not at all.

    Returns:
        The folder, named after the distribution.

    Raises:
        FileFormatError: If it exists already, or cannot be written.
    """
    target = parent / project.distribution
    if os.path.lexists(target):
        raise FileFormatError(
            f"{target}: exists already; remove it, or give another folder with -o"
        )
    files = render(project)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{project.distribution}-", dir=parent))
    except OSError as error:
        raise FileFormatError(f"{parent}: cannot be written: {error.strerror}") from error
    try:
        _write_files(building / "new", files)
        (building / "new").rename(target)
    except OSError as error:
        raise FileFormatError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
