"""``rlreg doctor --deep``: creates every learnable, each in a process of its own.

Loading a plugin reads its configs; whether its heavy half works shows when something is created.
That may take the process down, so that another one does it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rlreg.parent_process import python_command

TIME_LIMIT = 300.0
"""Seconds for one learnable; importing torch from a cold disk takes many of them."""

_PROBE = """
import json, sys
from rlreg.cli.probing import probe
answer = probe(sys.argv[1])
sys.stdout.flush()
print("\\n" + json.dumps(answer))
"""


def probe(learnable: str) -> dict[str, str]:
    """Creates a learnable on the CPU and says what is wrong; nothing is empty strings."""
    from rlreg import creation, registry
    from rlreg.plugins import as_broken

    record = registry.resolve("learnable", learnable)
    try:
        unwritten = missing_methods(creation.create(learnable, device="cpu"))
        if unwritten:
            return {
                "error": f"its class does not write {', '.join(unwritten)}",
                "remedy": f"report it to the authors of {record.distribution}",
            }
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit included, as in discovery
        plugin = next(
            item for item in registry.list_plugins() if item.distribution == record.distribution
        )
        broken = as_broken(plugin, error)
        return {"error": broken.error, "remedy": _install(error) or broken.remedy}
    return {"error": "", "remedy": ""}


def missing_methods(learnable: Any) -> list[str]:
    """Names what the author of a learnable has not written; without any of it nothing trains."""
    # Whoever subclasses Learnable has imported it; an object of another kind may need no torch.
    if "rlreg.runtime.learnable" not in sys.modules:
        return []
    from rlreg.runtime.learnable import Learnable
    from rlreg.runtime.offline import OfflineLearnable
    from rlreg.runtime.online import OnlineLearnable

    wanted = (
        (Learnable, "build_networks", ("build",)),
        (Learnable, "act", ("predict",)),
        (OfflineLearnable, "update", ("run_updates", "train_epoch")),
        (OnlineLearnable, "train_iterations", ("trainer",)),
    )
    cls = type(learnable)
    return [
        name
        for base, name, instead in wanted
        if isinstance(learnable, base)
        # Who overrides what calls the method need not write it.
        and all(getattr(cls, each) is getattr(base, each) for each in (name, *instead))
    ]


def _install(error: BaseException) -> str:
    """Returns the command that installs what is missing, where it is an extra of rlreg."""
    from rlreg.errors import MissingExtraError

    if not isinstance(error, MissingExtraError):
        return ""
    return f"pip install{str(error).rpartition('pip install')[2]}"


def findings(learnables: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Creates each learnable of a listing and returns a finding for each that fails."""
    found = []
    for item in learnables:
        answer = _asked(item["id"])
        if answer["error"]:
            found.append(
                {
                    "kind": "cannot be created",
                    "subject": f"{item['id']} {item['version']}".strip(),
                    "message": answer["error"],
                    "remedy": answer["remedy"],
                }
            )
    return found


def _asked(learnable: str) -> dict[str, str]:
    report = f"report it to the authors of {learnable.partition('/')[0]}"
    try:
        done = subprocess.run(
            [*python_command(), "-c", _PROBE, learnable],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,  # how it ended is the answer
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it was not created within {TIME_LIMIT:.0f} s", "remedy": report}
    try:
        answer: dict[str, str] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        lines = done.stderr.strip().splitlines() or [""]
        how = f"its process ended with {done.returncode}" + (f": {lines[-1]}" if lines[-1] else "")
        return {"error": how, "remedy": report}
    return answer
