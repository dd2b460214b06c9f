"""Why an actor ended, in a form that travels, and how the learner raises it."""

from __future__ import annotations

from dataclasses import dataclass

from rlreg.errors import CheckpointError, EnvironmentSpecError, RlregError, RolloutError
from rlreg_impala.env_group import BadEnvironmentError

_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an actor ended.

    Attributes:
        message: One line that names the actor.
        details: Traceback; empty where the message says all.
        kind: Which error the learner raises.
        is_final: Whether another try would be no use.
    """

    message: str
    details: str = ""
    kind: type[RlregError] = RolloutError
    is_final: bool = False

    def error(self, note: str = "") -> RlregError:
        """Returns what the learner raises; ``note`` says why the actor is not replaced."""
        text = self.message if self.is_final else self.message + note
        if self.details:
            text += f"\n\nTraceback of the actor:\n{self.details}"
        return self.kind(text)


def describe(actor: int, error: BaseException, trace: str) -> Failure:
    """Describes an exception inside an actor.

    What the environment or the user is to blame for needs no traceback, and another try would end
    the same way.
    """
    for kind in (BadEnvironmentError, EnvironmentSpecError, CheckpointError):
        if isinstance(error, kind):
            public = RolloutError if kind is BadEnvironmentError else kind
            return Failure(str(error), "", public, is_final=True)
    text = str(error) if isinstance(error, RolloutError) else f"actor {actor}: {error!r}"
    return Failure(text, trace[-_LONGEST_TRACEBACK:])
