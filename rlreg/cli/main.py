"""The entry point: finds the command's module, runs it, turns what it raises into an exit code.

Groups: look things up (`listing`, `schemas`, `docs`), config files (`configs`), plugins and health
(`plugins`), and, where the heavy half is installed, runs (`train`), files of policies (`export`,
`imports`), data (`data`) and `bench`.
``rlreg --help`` imports none of them, nor pydantic; a command's module is imported when the command
or its own help is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlreg import __version__

if TYPE_CHECKING:
    from rlreg.errors import Problem

EXIT_BUG = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_LONGEST_NAME = 120


class Entry(NamedTuple):
    """Where a command lives and what ``rlreg --help`` says of it."""

    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "list": Entry("listing", "list_command", "List the installed learnables and plugins."),
    "show": Entry("listing", "show", "Show a learnable: fields, ranges, defaults, presets."),
    "info": Entry("listing", "info", "Show versions of rlreg and of what it runs on."),
    "schema": Entry("schemas", "schema", "Print, export or compare JSON Schemas."),
    "docs": Entry("docs", "docs", "Build the config reference."),
    "init": Entry("configs", "init", "Write a commented run file for a learnable."),
    "validate": Entry("configs", "validate", "Check a config file."),
    "explain": Entry("configs", "explain", "Show each value of a config and where it comes from."),
    "diff": Entry("configs", "diff", "Compare two configs by meaning."),
    "hash": Entry("hashing", "hash_command", "Print the hash of what a config means."),
    "migrate": Entry("configs", "migrate", "Bring a config to the installed schema version."),
    "plugins": Entry("plugins", "plugins", "List, block or unblock plugins."),
    "doctor": Entry("plugins", "doctor", "Find broken plugins and names claimed twice."),
    "train": Entry("train", "train", "Train a learnable."),
    "resume": Entry("train", "resume", "Go on with an interrupted run."),
    "evaluate": Entry("train", "evaluate", "Evaluate a run or a checkpoint."),
    "export": Entry("export", "export", "Write a policy as ONNX or torch.export file."),
    "import": Entry("imports", "import_command", "Convert a model of another library."),
    "data": Entry("data", "data", "List, generate or inspect data sets."),
    "sweep": Entry("sweep", "sweep", "Search good settings of a learnable."),
    "report": Entry("report", "report", "Write a page with curves and results of runs."),
    "new": Entry("new", "new", "Write a new plugin to start from."),
    "check": Entry("check", "check", "Check that a plugin keeps its promises."),
    "bench": Entry("bench", "bench", "Measure the speed of an algorithm."),
    "completion": Entry("completion", "completion", "Print a script that completes rlreg."),
}


class ReaderGoneError(Exception):
    """Whoever read what a command writes is gone; click would end that with the code of a bug."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is needed."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Reads the command line, and prints help."""
        with _readers_noticed():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with _readers_noticed():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names the commands whose module is installed."""
        return [name for name in COMMANDS if _is_installed(COMMANDS[name])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the module of a command and returns it."""
        entry = COMMANDS.get(cmd_name)
        if entry is None or not _is_installed(entry):
            return None
        module = importlib.import_module(f"rlreg.cli.{entry.module}")
        command: click.Command = getattr(module, entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands from the table, without importing them."""
        rows = [(name, COMMANDS[name].summary) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, or names the nearest one."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            if name.startswith("-"):
                return super().resolve_command(ctx, args)
            from rlreg.errors import did_you_mean

            hint = did_you_mean(name, self.list_commands(ctx)) or "see rlreg --help"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return name, command, args[1:]


@contextlib.contextmanager
def _readers_noticed() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def _is_installed(entry: Entry) -> bool:
    return importlib.util.find_spec(f"rlreg.cli.{entry.module}") is not None


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlreg", message="%(prog)s %(version)s")
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    help="Show where a plugin raised, line by line.",
)
def cli() -> None:
    """The registry of reinforcement-learning algorithms in which a config is a contract.

    A FILE ends in .yaml, .yml, .toml, .json or .rlreg, or is a run folder; anything else is an id.
    With --json, stdout is exactly one JSON document.
    """


# --- running it ---------------------------------------------------------------------------------


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    _open_what_is_closed()
    if "_RLREG_COMPLETE" in os.environ:
        from rlreg.cli.completion import answer

        sys.exit(answer())
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code; every error becomes one message on stderr."""
    wants_json, is_long = "--json" in arguments, "--traceback" in arguments
    try:
        with _plain_warnings(), _documents_alone() if wants_json else contextlib.nullcontext():
            result = cli.main(args=list(arguments), prog_name="rlreg", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # to click that is Ctrl-D; we ask for no input
            return _report_error(error.__cause__, wants_json=wants_json, is_long=is_long)
        notes = getattr(error.__cause__ or error, "__notes__", ())  # what became of a run
        click.echo("; ".join(["interrupted", *notes]), err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _report_usage(error, wants_json=wants_json)
    except (ReaderGoneError, BrokenPipeError):
        # Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last line of defence: no bare traceback
        return _report_error(error, wants_json=wants_json, is_long=is_long)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows our own warnings as one line on stderr, without the line of source they come from."""
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        from rlreg.errors import EndlessEpisodeWarning, LeftOutWarning, VersionWarning

        if issubclass(category, EndlessEpisodeWarning | VersionWarning | LeftOutWarning):
            click.echo(f"warning: {message}", err=True)
        else:
            before(message, category, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _open_what_is_closed() -> None:
    """Gives a process that was started without stdin, stdout or stderr (``>&-``) an empty one.

    Otherwise the next file that is opened would get the number, and the output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, open(null, "w" if number else "r", closefd=False))  # noqa: SIM115


def _documents_alone() -> contextlib.AbstractContextManager[None]:
    from rlreg.cli.output import documents_alone

    return documents_alone()


def _report_usage(error: click.ClickException, *, wants_json: bool) -> int:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is not None:
        click.echo(context.get_usage(), err=True)
        click.echo(f"Try '{context.command_path} --help' for help.\n", err=True)
    click.echo(f"error: {message}", err=True)
    if wants_json:
        _echo_error("UsageError", message, ())
    return EXIT_BAD_INPUT


def _report_error(error: Exception, *, wants_json: bool, is_long: bool = False) -> int:
    from rlreg.errors import ConfigError, RlregError

    if is_long:
        _echo_traceback(error, limit=None)
    error = _missing_extra(error) or _refusal_of_system(error) or error
    if not isinstance(error, RlregError):
        error = _fault_of_plugin(error) or error
    if isinstance(error, RlregError):
        problems = error.problems if isinstance(error, ConfigError) else ()
        click.echo(f"error: {_printable(str(error))}", err=True)
        if wants_json:
            _echo_error(type(error).__name__, str(error), problems)
        return error.exit_code
    message = f"{type(error).__name__}: {error}"
    if not is_long:
        _echo_traceback(error)
    click.echo(
        f"error: {_printable(message)}\nThis is a bug in rlreg {__version__} or in a plugin it "
        "called; please report it with the lines above.",
        err=True,
    )
    if wants_json:
        _echo_error("Bug", message, ())
    return EXIT_BUG


def _printable(text: str) -> str:
    """Spells out what would steer a terminal: a message quotes files that anybody may have made."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


# What a path, a disk or a limit of the system is to blame for, and no code.
_REFUSALS = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
     errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE}
)  # fmt: skip


_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def _refusal_of_system(error: Exception) -> Exception | None:
    """Says which path the system refuses, and why; ``None`` if it is something else."""
    from rlreg.errors import FileFormatError, RlregError

    is_torch = type(error).__name__ == "OutOfMemoryError" or _OUT_OF_MEMORY in str(error)
    if isinstance(error, MemoryError) or is_torch:
        return RlregError("there is not enough memory; smaller networks, batches or data need less")
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return None
    name = "" if error.filename is None else os.fsdecode(error.filename)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}..."
    return FileFormatError(f"{name or 'output'}: {error.strerror}")


def _fault_of_plugin(error: Exception) -> Exception | None:
    """Says which plugin raised, and where; ``None`` if none did, or nobody can tell."""
    from rlreg.faults import fault_of_plugin

    try:
        fault = fault_of_plugin(error)
    except Exception:  # noqa: BLE001 - the error itself matters more than whose it is
        return None
    return None if fault is None else type(fault)(f"{fault}; all of it: rlreg --traceback ...")


def _echo_traceback(error: Exception, limit: int | None = 40) -> None:
    import traceback

    click.echo("".join(_shortened(traceback.format_exception(error), limit)), err=True)


def _missing_extra(error: Exception) -> Exception | None:
    """Says what to install where a command needs the heavy half and it is not there."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    from rlreg.errors import explain_missing

    explained = explain_missing(error, "this command", extra="train")
    return None if explained is error else explained


def _shortened(lines: list[str], limit: int | None) -> Iterator[str]:
    """Keeps the end of a traceback, where the cause is."""
    flat = "".join(lines).splitlines(keepends=True)
    if limit is not None and len(flat) > limit:
        yield "...\n"
        flat = flat[-limit:]
    yield from flat


def _echo_error(kind: str, message: str, problems: Sequence[Problem]) -> None:
    document: dict[str, Any] = {
        "error": {
            "kind": kind,
            "message": message,
            "problems": [
                {
                    "path": list(problem.path),
                    "message": problem.message,
                    "given": problem.given,
                    "hint": problem.hint,
                    "origin": problem.origin,
                }
                for problem in problems
            ],
        }
    }
    with contextlib.suppress(OSError):  # it may be stdout that is full: stderr has said it
        click.echo(json.dumps(document, ensure_ascii=False))
