"""What of this machine's processor decides how an update is compiled."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_TELLING = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def identity() -> str:
    """Names the processor, with what it can do: compiled code runs on no lesser one.

    Where the system does not say, the machine's own name stands for it, so that code in a folder
    that several machines share is not taken for another one's.
    """
    first = _cpuinfo().split("\n\n", 1)[0].splitlines()
    told = [line for line in first if line.split(":")[0].strip() in _TELLING]
    known = told or [platform.processor(), platform.node()]
    return "\n".join([platform.system(), platform.machine(), *known])


def prefers_onednn() -> bool:
    """Whether products should go to oneDNN on this machine."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and "AuthenticAMD" in _cpuinfo()
    )
