"""The conformance kit: what every plugin promises, as tests that its author gets in one line.

In a test file of the plugin::

    from rlreg.testing import conformance_tests

    test_conformance = conformance_tests("rlreg-my-algo")

``rlreg check rlreg-my-algo`` runs the same checks from the command line. Nothing heavy is imported
before a check needs it. ``run_exported`` runs a policy that was exported, for tests of one's own.
"""

from __future__ import annotations

from rlreg.testing.collection import conformance_tests
from rlreg.testing.exported import run_exported
from rlreg.testing.kit import (
    Check,
    CheckResult,
    Failure,
    NotApplicable,
    Subject,
    find_subjects,
    list_checks,
    run_check,
    run_checks,
)

__all__ = [
    "Check",
    "CheckResult",
    "Failure",
    "NotApplicable",
    "Subject",
    "conformance_tests",
    "find_subjects",
    "list_checks",
    "run_check",
    "run_checks",
    "run_exported",
]
