"""Reference returns of D4RL tasks, which turn a return into a normalised score in percent.

Source: `d4rl/infos.py` of Farama's D4RL 1.1. They belong to D4RL's own tasks: Minari's data sets of
the same names come from other environments (MuJoCo v5) and policies, and state their own figures.
"""

from __future__ import annotations

import re

from rlreg.runtime.data.dataset import References

_SOURCE = "D4RL 1.1, infos.py"

# Task prefix -> return of a random policy, return of an expert. Longer prefixes go first.
_D4RL: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
    "pen": (96.262799, 3076.8331),
    "hammer": (-274.856578, 12794.134825),
    "door": (-56.512833, 2880.569313),
    "relocate": (-6.425911, 4233.877797),
    "maze2d-open": (0.01, 20.66),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-open-dense": (11.178, 27.167),
    "maze2d-umaze-dense": (68.538, 193.663),
    "maze2d-medium-dense": (44.265, 297.455),
    "maze2d-large-dense": (30.569, 303.486),
    "minigrid-fourrooms": (0.01442, 2.89685),
    "bullet-halfcheetah": (-1275.767, 2381.6725),
    "bullet-hopper": (20.059, 1441.806),
    "bullet-walker2d": (16.524, 1623.648),
    "bullet-ant": (373.706, 2650.495),
}
# What D4RL appends to a prefix: the kind of data and the version. A name without a kind
# ("Hopper-v5", an environment of today's gymnasium) is no D4RL task.
_KINDS = (
    "random|medium|expert|medium-replay|medium-expert|full-replay|mixed|human|cloned|complete|partial"
    "|umaze|umaze-diverse|medium-play|medium-diverse|large-play|large-diverse|ultra-play|ultra-diverse"
)
_NAME = re.compile(
    rf"(?P<task>{'|'.join(sorted(_D4RL, key=len, reverse=True))})"
    rf"(?P<kind>-(?:{_KINDS}))?(?:-v[0-2])\Z"
)
_WITHOUT_KIND = re.compile(r"maze2d-|minigrid-")


def find_references(name: str) -> References | None:
    """Returns the reference returns of a D4RL task, or ``None`` if it is none.

    Args:
        name: A D4RL name (``hopper-medium-v2``), or the stem of its file (``hopper_medium-v2``).
    """
    match = _NAME.match(name.lower().replace("_", "-"))
    if match is None or (match["kind"] is None and not _WITHOUT_KIND.match(match["task"])):
        return None
    low, high = _D4RL[match["task"]]
    return References(low, high, None, _SOURCE)
