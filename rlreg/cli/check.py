"""``rlreg check``: the conformance kit on the command line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlreg.cli.output import counted, echo_json, echo_table, json_option, note

if TYPE_CHECKING:
    from rlreg.testing import CheckResult

EXIT_FOUND = 3


@click.command()
@click.argument("name", metavar="DIST", required=False)
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check alone; repeatable.")
@click.option("--list", "is_list", is_flag=True, help="List the checks instead of running them.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, name: str | None, *, only: tuple[str, ...], is_list: bool, as_json: bool
) -> None:
    """Check that a plugin keeps every promise that rlreg's users rely on.

    DIST is an installed distribution (rlreg-iql, or iql) or the id of one learnable. Exits with 3
    if a check fails. Plugin authors run the same checks in their tests: see rlreg.testing.
    """
    if is_list:
        _echo_checks(as_json=as_json)
        return
    if name is None:
        raise click.UsageError("name a distribution or a learnable, or give --list", ctx)
    results = _run(name, only)
    failed = [result for result in results if result.status == "failed"]
    if as_json:
        echo_json({"name": name, "counts": _counts(results), "results": [*map(asdict, results)]})
    else:
        _echo_results(name, results)
    if failed:
        ctx.exit(EXIT_FOUND)


def _echo_checks(*, as_json: bool) -> None:
    from rlreg.testing import list_checks

    rows = [(check.name, check.proves) for check in list_checks()]
    if as_json:
        echo_json({"checks": [{"name": name, "proves": proves} for name, proves in rows]})
    else:
        echo_table(("check", "what it proves"), rows)


_LOADS = "hooks-are-found"


def _run(name: str, only: tuple[str, ...]) -> list[CheckResult]:
    from rlreg.testing import find_subjects, run_check
    from rlreg.testing.kit import cases

    _require_checks(only)
    listed = list(cases(find_subjects(name)))
    chosen = [(c, s) for c, s in listed if not only or c.name in only]
    note(f"{counted(len(chosen), 'check')} of {name} ...")
    # What a plugin prints is not the report: stdout stays one JSON document or one table.
    with contextlib.redirect_stdout(sys.stderr):
        results = [run_check(each, subject) for each, subject in chosen]
        # Of a plugin that does not load no other check would fail, or be there at all.
        loads = [run_check(c, s) for c, s in listed if only and c.name == _LOADS not in only]
    return [result for result in loads if result.status == "failed"] + results


def _require_checks(names: tuple[str, ...]) -> None:
    from rlreg.errors import UnknownNameError, did_you_mean
    from rlreg.testing import list_checks

    known = [check.name for check in list_checks()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "see rlreg check --list"
            raise UnknownNameError(f"there is no check {name!r}; {hint}")


def _counts(results: list[CheckResult]) -> dict[str, int]:
    statuses = [result.status for result in results]
    return {status: statuses.count(status) for status in ("passed", "failed", "skipped")}


def _rows(results: list[CheckResult]) -> Iterator[tuple[str, str, str, str]]:
    """Yields a row for each result; equal failures of one subject are one row."""
    alike: dict[tuple[str, str], list[CheckResult]] = {}
    for result in results:
        if result.status == "failed":
            alike.setdefault((result.subject, result.message), []).append(result)
    for result in results:
        same = alike.get((result.subject, result.message), [result])
        if result.status != "failed":
            yield result.subject, result.check, result.status, result.message or result.proves
        elif result is same[0]:
            others = [each.check for each in same[1:]]
            more = f" (so do {len(others)} more: {', '.join(others)})" if others else ""
            yield result.subject, result.check, result.status, result.message + more


def _innermost(result: CheckResult) -> str:
    return "".join(result.traceback.splitlines()[-3:])


def _echo_results(name: str, results: list[CheckResult]) -> None:
    echo_table(("subject", "check", "result", "why"), list(_rows(results)))
    # One fault in build_networks fails most checks: its traceback is shown once.
    first = {(result.message, _innermost(result)): result for result in reversed(results)}
    for result in reversed(first.values()):
        if result.traceback:
            note(f"\n{result.subject} {result.check}\n{result.traceback}")
    counts = _counts(results)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    click.echo(f"\n{name}: {summary or 'nothing to check'}")
