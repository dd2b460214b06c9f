"""Where a sweep looks: ranges and choices, declared beside the field they are for.

``Annotated[float, Search(1e-5, 1e-2, log=True)]`` changes neither what a field accepts nor its
schema: it is what the author would try first. `rlreg.search_space` makes a space of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rlreg.errors import RegistrationError

Choice = str | int | float | bool | None | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What a sweep tries for a field: a range of numbers, or choices.

    The values of an ``int`` field are drawn as whole numbers. On a field of a component kind the
    choices are tags, and what the chosen component declares is searched with it.

    Attributes:
        low: The least value.
        high: The greatest value, itself included.
        log: Whether each factor is as likely as the next, instead of each difference.
        step: Distance of the values from each other; not with ``log``.
        choices: The values; not with a range.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise RegistrationError(f"{self!r}: {fault}")

    def _fault(self) -> str:
        if self.choices:
            has_range = self.low is not None or self.high is not None or self.log or self.step
            return "give a range or choices, not both" if has_range else ""
        if self.low is None or self.high is None:
            return "give low and high, or choices"
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            return "low and high must be finite, low below high"
        if self.log and (self.low <= 0 or self.step is not None):
            return "log needs a low above 0 and no step"
        return "step must be above 0" if self.step is not None and self.step <= 0 else ""

    @property
    def corners(self) -> tuple[Choice, ...]:
        """The values that must be valid if all are: the ends of the range, or every choice."""
        return self.choices or (self.low, self.high)


def search_of(metadata: Iterable[Any]) -> Search | None:
    """Returns the search hint among the metadata of a field, if there is one."""
    return next((item for item in metadata if isinstance(item, Search)), None)


def check_searches(cls: Any, takes_component: Callable[[Any], bool]) -> None:
    """Checks that every value a class would let a sweep try is valid.

    Args:
        cls: A config class.
        takes_component: Tells from an annotation whether the field takes a component; its choices
            are tags, of members that need not be registered yet.

    Raises:
        RegistrationError: With the field and the value.
    """
    for name, info in cls.model_fields.items():
        search = search_of(info.metadata)
        if search is None:
            continue
        where = f"{cls.__name__}.{name}: {search!r}"
        if takes_component(info.annotation):
            if not all(value is None or isinstance(value, str) for value in search.corners):
                raise RegistrationError(f"{where}: the choices of a component are tags")
            continue
        for value in search.corners:
            fault = _fault_of(cls, name, value)
            if fault:
                raise RegistrationError(f"{where}: {value!r} is not valid: {fault}")


def _fault_of(cls: Any, name: str, value: Choice) -> str:
    from pydantic import ValidationError

    try:
        cls(**{name: value})
    except ValidationError as error:
        # Other fields are not the question; their defaults may need what is registered later.
        found = [item["msg"] for item in error.errors() if item["loc"][:1] == (name,)]
        return found[0] if found else ""
    return ""
