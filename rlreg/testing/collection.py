"""The kit as tests: one parametrised function for pytest to collect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlreg.errors import ConfigError, did_you_mean
from rlreg.testing.kit import Check, NotApplicable, Subject, cases, find_subjects, list_checks


def conformance_tests(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """Makes the conformance tests of a plugin; assign the result to a name with ``test``.

    Args:
        name: The distribution, which stands for all it provides, or the id of one learnable.
        settings: Fields of the learnables to set in tests that build them, e.g. a small network.
        expected_failures: Names of checks that are known to fail, each with the reason. One that
            passes nevertheless is an error: the reason has gone.

    Raises:
        UnknownNameError: If there is no such distribution or learnable.
        ConfigError: If ``expected_failures`` names no check, or gives no reason.
    """
    import pytest

    expected = dict(expected_failures or {})
    _require_checks(expected)

    def case(check: Check, subject: Subject) -> Any:
        reason = expected.get(check.name)
        marks = (pytest.mark.xfail(reason=reason, strict=True),) if reason else ()
        return pytest.param(check, subject, id=f"{subject.label}-{check.name}", marks=marks)

    found = [case(check, subject) for check, subject in cases(find_subjects(name, settings))]

    @pytest.mark.parametrize(("check", "subject"), found)
    def test_conformance(check: Check, subject: Subject) -> None:
        try:
            check.run(subject)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return test_conformance


def _require_checks(expected: Mapping[str, str]) -> None:
    names = [check.name for check in list_checks()]
    for name, reason in expected.items():
        if name not in names:
            raise ConfigError(f"the kit has no check {name!r}; {did_you_mean(name, names)}")
        if not reason.strip():
            raise ConfigError(f"expected_failures[{name!r}]: say why it fails")
