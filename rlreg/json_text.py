"""Reads JSON that anybody may have written: what nests too deep is a fault like any other."""

from __future__ import annotations

import json
from typing import Any


def from_json(text: str | bytes) -> Any:
    """Parses JSON.

    Raises:
        ValueError: If it is none, or nests deeper than Python's stack.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None
