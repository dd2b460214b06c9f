"""What is said of a name without its class: listings, and to whom a bare name belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlreg.blocking import normalize

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class _Distributed(Protocol):
        @property
        def distribution(self) -> str: ...

    Claim = TypeVar("Claim", bound=_Distributed)


@dataclass(frozen=True, slots=True)
class LearnableInfo:
    """What a listing says of a learnable."""

    name: str
    id: str
    summary: str
    regime: str
    distribution: str
    version: str
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class ComponentInfo:
    """What a listing says of a component."""

    kind: str
    name: str
    id: str
    summary: str
    distribution: str
    version: str


def owner_among(kind: str, name: str, claims: Sequence[Claim]) -> Claim | None:
    """Returns whom a bare name belongs to, or ``None`` if it is ambiguous or nobody's."""
    if len(claims) == 1:
        return claims[0]
    named_after = f"rlreg-{normalize(name)}"
    owners = [named_after] if kind == "learnable" else ["rlreg", named_after]
    for owner in owners:
        for claim in claims:
            if normalize(claim.distribution) == owner:
                return claim
    return None


def summary_of(cls: type) -> str:
    """Returns the first paragraph of a class's docstring on one line."""
    paragraph = (cls.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split())
