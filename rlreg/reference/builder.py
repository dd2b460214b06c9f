"""The builder page: schemas, presets and groups as data for the form that runs in the browser.

Its script is made from `builder/` by ``make builder`` and lies in `builder_dist/`: in every wheel,
but not in a fresh checkout, where the page says how to make it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from rlreg import __version__
from rlreg.manifest_index import installed_schema
from rlreg.overrides import plain
from rlreg.reference.record import ClassRecord, Reference
from rlreg.run_config import RunConfig

FILES = ("builder.js", "builder.css", "LICENSES.txt")


def builder_files() -> dict[str, str]:
    """Returns the files that lie beside the builder page, by name; none if they are not made."""
    folder = files("rlreg.reference") / "builder_dist"
    if not all((folder / name).is_file() for name in FILES):
        return {}
    return {f"builder/{name}": (folder / name).read_text(encoding="utf-8") for name in FILES}


def builder_context(reference: Reference) -> dict[str, Any]:
    """Returns what the builder's template needs."""
    data = {
        "rlreg": __version__,
        "schema": installed_schema("run"),
        "learnables": [_learnable(record) for record in reference.learnables],
        "run_fields": list(RunConfig.model_fields),
    }
    # Inside a script element only `<` could end the data or open markup.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return {"data": text, "has_script": bool(builder_files()), "reference": reference}


def _learnable(record: ClassRecord) -> dict[str, Any]:
    return {
        "name": record.reference,
        "summary": record.summary,
        "regime": record.regime,
        "page": f"learnables/{record.slug}.html",
        "groups": [
            {"title": title, "fields": [item.name for item in items]}
            for title, items in record.groups.items()
        ],
        "presets": [
            {
                "id": item.preset.id,
                "summary": item.preset.summary,
                "source": item.preset.source,
                "settings": plain(item.preset.settings),
            }
            for item in record.presets
        ],
    }
