"""What goes into a results file beside the figures, and how figures are summed up."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """Describes the machine as far as speed depends on it."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))  # those this run was allowed
    return {"cpu": model, "cores": cores, "python": platform.python_version()}


def load() -> float:
    """Processes that want to run, mean of the last minute: more than 1 before a run is noise."""
    return round(os.getloadavg()[0], 2)


def versions(*distributions: str) -> dict[str, str]:
    """Returns the installed versions."""
    return {name: importlib.metadata.version(name) for name in distributions}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Sums up a figure over rounds; of one round alone, it is its own quartiles."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values[:1] * 3
    return {
        "median": statistics.median(values),
        "quartile_1": low,
        "quartile_3": high,
        "min": min(values),
        "max": max(values),
    }


def ratios(rates: Mapping[str, Sequence[float]], base: str) -> dict[str, dict[str, float]]:
    """Compares every rate with one of them, round by round."""
    return {
        name: spread([own / other for own, other in zip(values, rates[base], strict=True)])
        for name, values in rates.items()
        if name != base
    }


def write(name: str, document: Mapping[str, Any], path: Path | None = None) -> Path:
    """Writes a results file, rounded to what the figures are worth."""
    target = path or RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_rounded({"benchmark": name, **document}), indent=2, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    return target


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
