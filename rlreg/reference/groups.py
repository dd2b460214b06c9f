"""The fields of a config in groups, as a reader looks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlreg.reference.record import FieldRecord

ALGORITHM, FORMAT = "Algorithm", "Format"
_BY_KIND = {
    "encoder": "Networks",
    "optimizer": "Optimization",
    "lr_scheduler": "Optimization",
    "observation_scaler": "Preprocessing",
    "action_scaler": "Preprocessing",
    "reward_scaler": "Preprocessing",
}
_OPTIMIZATION = ("learning_rate", "lr", "batch_size", "grad_norm")
_ORDER = (ALGORITHM, "Optimization", "Networks", "Preprocessing", FORMAT)


def group_fields(
    declared: Mapping[str, Sequence[str]], fields: Sequence[FieldRecord]
) -> dict[str, tuple[FieldRecord, ...]]:
    """Returns fields by the name of their group.

    A config may say which of its fields belong together (``field_groups``, a class attribute of
    names by title); what it leaves out is grouped by what the field takes and is called.
    """
    chosen = {name: title for title, names in declared.items() for name in names}
    groups: dict[str, list[FieldRecord]] = {title: [] for title in (*declared, *_ORDER)}
    for item in fields:
        groups.setdefault(chosen.get(item.name) or _guess(item), []).append(item)
    return {title: tuple(items) for title, items in groups.items() if items}


def _guess(item: FieldRecord) -> str:
    if item.name == "schema_version":
        return FORMAT
    for kind in item.kinds:
        return _BY_KIND.get(kind, ALGORITHM)
    return "Optimization" if item.name.endswith(_OPTIMIZATION) else ALGORITHM
