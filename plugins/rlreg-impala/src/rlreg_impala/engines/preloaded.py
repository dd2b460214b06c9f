"""What every actor imports anyway; only the server that actors are forked from imports this.

Without the garbage collector, and out of its sight afterwards: it would copy the memory that
forked processes share, because looking at an object writes to it.
"""

from __future__ import annotations

from rlreg.starting import end_start, starting

with starting():
    import torch  # noqa: F401 - the import is the purpose, here and below

    import rlreg_impala.engines.worker  # noqa: F401

    end_start()
