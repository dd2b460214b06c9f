"""What makes two configs the same: a canonical form, its hash, and the differences of two forms.

The hash is of the meaning: defaults are filled in, keys are sorted, and each ``type`` is the
qualified name of what it means, so that neither the order of a file nor what else is installed
counts. Where and how a run is computed does not count either, and what a run leaves open is filled
in as training does it: a file and the run folder made from it are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel

from rlreg import registry
from rlreg.config import LearnableConfig
from rlreg.errors import format_path
from rlreg.files import Source, load_config
from rlreg.open_union import OpenUnion
from rlreg.overrides import plain
from rlreg.run_config import DatasetSettings, EnvironmentSettings, RunConfig
from rlreg.run_defaults import fill_in

PLACES = ("device", "compile")
"""Keys of a run that say where and how it is computed, and not what."""

_OPEN = {"compile": "auto"}
"""Values that stand for any other: training replaces them by what suits the machine."""

_MISSING = object()


def config_hash(source: Source, *, ignore: Collection[str] = PLACES) -> str:
    """Returns the SHA-256 of what a config means, as 64 hexadecimal digits.

    Two configs have the same hash exactly if every setting has the same value, stated or by
    default. Order, comments, the file's format and, of a run, the device and ``compile`` make no
    difference. What a run leaves open has the value that training gives it.

    Args:
        source: A config, mapping, file, run folder or checkpoint.
        ignore: Keys of the root that do not count; a learnable has none of the default ones.

    Raises:
        FileFormatError: If a file cannot be read or parsed.
        ConfigError: If the config is not valid.
    """
    config = _filled(source if isinstance(source, BaseModel) else load_config(source))
    form = {key: value for key, value in canonical(config).items() if key not in ignore}
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _filled(config: BaseModel) -> BaseModel:
    """Returns a run with nothing left open, environments and data sets in their shortest form."""
    if not isinstance(config, RunConfig):
        return config
    run = fill_in(config)
    judged = run.evaluation.model_copy(update={"env": _short(run.evaluation.env)})
    short = {"env": _short(run.env), "dataset": _short(run.dataset)}
    return run.model_copy(update={**short, "evaluation": judged})


def _short(given: Any) -> Any:
    """Returns the id alone of an environment or a data set that says nothing else."""
    is_settings = isinstance(given, EnvironmentSettings | DatasetSettings)
    return given.id if is_settings and given == type(given)(id=given.id) else given


def canonical(config: BaseModel) -> dict[str, Any]:
    """Returns every setting of a config as plain data, with qualified types."""
    form: dict[str, Any] = _canonical(config)
    return form


def _canonical(value: Any) -> Any:
    if isinstance(value, BaseModel):
        form = {
            info.alias or name: _canonical(getattr(value, name))
            for name, info in type(value).model_fields.items()
        }
        if isinstance(value, OpenUnion):
            form["type"] = registry.provenance(type(value)).id
        return form
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        return value + 0.0  # -0.0 equals 0.0 for every validator, and would print otherwise
    return value


# --- differences --------------------------------------------------------------------------------


def flat(config: BaseModel) -> dict[str, Any]:
    """Returns every setting by its dotted path, in the order of the config's fields."""
    return dict(_flat(plain(config), ()))


def _flat(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, (*path, index))
    else:
        yield format_path(path), value


def differences(*configs: LearnableConfig | RunConfig) -> dict[str, list[Any]]:
    """Returns the settings in which configs differ, with the value of each config.

    A run compared with the config of a learnable counts by its learnable. What a run leaves open
    has the value that training gives it; ``compile: auto`` differs from nothing. A setting that a
    config does not have is :func:`is_missing`.
    """
    if any(isinstance(config, LearnableConfig) for config in configs):
        configs = tuple(
            config.learnable if isinstance(config, RunConfig) else config for config in configs
        )
    forms = [flat(_filled(config)) for config in configs]
    found = {}
    for path in dict.fromkeys(path for form in forms for path in form):
        values = [form.get(path, _MISSING) for form in forms]
        stated = [value for value in values if path not in _OPEN or value != _OPEN[path]]
        if any(not _is_same(value, stated[0]) for value in stated[1:]):
            found[path] = values
    return found


def is_missing(value: Any) -> bool:
    """Whether a value of :func:`differences` stands for a setting that is not there."""
    return value is _MISSING


def _is_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b
