"""``rlreg completion``, and the answers that the scripts it prints ask for.

A shell asks by running ``rlreg`` with ``_RLREG_COMPLETE`` set. click finds out which word is asked
for; what fits there is looked up here, so that the modules of commands know nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from rlreg.cli import candidates
from rlreg.cli.candidates import Candidate
from rlreg.cli.main import COMMANDS, LazyGroup, cli

VARIABLE = "_RLREG_COMPLETE"
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps", "xpu")

# --- what stands where --------------------------------------------------------------------------


_before: list[str] = []
"""The words before the one in question; click drops them all if the last one is an option."""


def _given(context: click.Context) -> tuple[str, list[str]]:
    """Returns the first argument of the command and what ``--set`` says so far."""
    takes_value = {
        name
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and not parameter.is_flag
        for name in parameter.opts
    }
    words = iter(_before[_before.index(str(context.info_name)) + 1 :])
    arguments, settings = [], []
    for word in words:
        value = next(words, "") if word in takes_value else ""
        if word == "--set":
            settings.append(value)
        elif not word.startswith("-"):
            arguments.append(word)
    return arguments[0] if arguments else "", settings


def _learnable_of(context: click.Context) -> str:
    source, _ = _given(context)
    return candidates.learnable_in(source) if source else ""


def _settings(context: click.Context, text: str) -> Iterator[Candidate]:
    chosen = {
        path.removeprefix("learnable.").removesuffix(".type"): tag
        for path, _, tag in (item.partition("=") for item in _given(context)[1])
        if path.endswith(".type")
    }
    return candidates.Settings(_learnable_of(context), chosen).complete(text)


def _shown(_context: click.Context, _text: str) -> Iterator[Candidate]:
    yield from candidates.learnables()
    yield Candidate("run", "The run file.")
    yield from candidates.components()


def _devices(_context: click.Context, _text: str) -> Iterator[Candidate]:
    yield from map(Candidate, DEVICES)


Finder = Callable[[click.Context, str], Iterable[Candidate]]
_LEARNABLES: Finder = lambda _context, _text: candidates.learnables()  # noqa: E731
_PLUGINS: Finder = lambda _context, _text: candidates.plugins()  # noqa: E731
_DATASETS: Finder = lambda _context, _text: candidates.datasets()  # noqa: E731

# By command and parameter, or by parameter alone; a star after it: or a file.
FINDERS: dict[str, Finder] = {
    "show name": _shown,
    "init name": _LEARNABLES,
    "bench name": _LEARNABLES,
    "print name": _LEARNABLES,
    "learnable": _LEARNABLES,
    "learnables": _LEARNABLES,
    "train source*": _LEARNABLES,
    "sweep source*": _LEARNABLES,
    "a*": _LEARNABLES,
    "b*": _LEARNABLES,
    "names": _PLUGINS,
    "distribution": _PLUGINS,
    "check name*": _PLUGINS,
    "dataset*": _DATASETS,
    "dataset_id": _DATASETS,
    "inspect source*": _DATASETS,
    "device": _devices,
    "preset": lambda context, _text: candidates.presets(_learnable_of(context)),
    "overrides": _settings,
    "file*": lambda _context, _text: (),
}


def _complete(
    finder: Finder, is_file: bool, context: click.Context, text: str
) -> list[CompletionItem]:
    found = {item.value: item for item in finder(context, text) if item.value.startswith(text)}
    items = [CompletionItem(item.value, help=item.help or None) for item in found.values()]
    return items or ([CompletionItem(text, type="file")] if is_file else [])


def attach(command: click.Command) -> None:
    """Gives the parameters of a command, or of those in a group, their answers."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            attach(inner)
    for parameter in command.params:
        for key in (f"{command.name} {parameter.name}", str(parameter.name)):
            for ending in ("", "*"):
                finder = FINDERS.get(key + ending)
                if finder is not None and "shell_complete" not in vars(parameter):
                    answer: Any = partial(_complete, finder, ending == "*")
                    parameter.shell_complete = answer  # type: ignore[method-assign]


class CompletingGroup(LazyGroup):
    """The commands, with answers; naming them imports none of their modules."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the module of a command and prepares it."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            attach(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names the commands from the table."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=COMMANDS[name].summary)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]


# --- the shells ---------------------------------------------------------------------------------


def _whole(item: CompletionItem, incomplete: str) -> str:
    """Returns the whole word on the line: of ``--option=value`` click gives the value alone."""
    option, is_both, _ = incomplete.partition("=")
    is_both = is_both if option.startswith("--") and not item.value.startswith("--") else ""
    return f"{option}={item.value}" if is_both else str(item.value)


class Bash(BashComplete):
    """bash, which takes ``=`` and ``:`` for the ends of words."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
        %(complete_var)s=bash_complete $1)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *) COMPREPLY+=("$value")
               [[ $value == *[=.] ]] && compopt -o nospace ;;
        esac
    done
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """Returns the script; click would start a bash to look at its version."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Puts words together again that bash took apart."""
        words = os.environ["COMP_WORDS"].split("\n")
        given = words[1 : int(os.environ["COMP_CWORD"]) + 1]
        joined: list[str] = []
        for word in given:
            is_going_on = joined and (word in "=:" or joined[-1].endswith(("=", ":")))
            if word and is_going_on:
                joined[-1] += word
            elif word or not (joined and joined[-1].endswith(("=", ":"))):
                joined.append(word)
        self._given = given[-1] if given else ""
        return joined[:-1], joined[-1] if joined else ""

    def format_completion(self, item: CompletionItem) -> str:
        """Answers with the part that bash is going to replace."""
        _, incomplete = self.get_completion_args()
        is_cut = incomplete != self._given and item.type == "plain"
        kept = max(incomplete.rfind("="), incomplete.rfind(":")) + 1 if is_cut else 0
        # Of `--option=value` click gives the value alone.
        kept = kept if item.value.startswith(incomplete[:kept]) else 0
        return f"{item.type},{item.value[kept:]}"


class Zsh(ZshComplete):
    """zsh, with descriptions."""

    source_template = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a words_ shown response
    local type value text
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s)}")
    for type value text in ${response}; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            *) words_=("$value")
               [[ $text == _ ]] && shown=("$value") || shown=("$value  -- $text")
               if [[ $value == *[=.] ]]; then compadd -S '' -l -d shown -a words_
               else compadd -l -d shown -a words_; fi ;;
        esac
    done
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def format_completion(self, item: CompletionItem) -> str:
        """Answers in three lines; click would escape colons, which the script above takes as is."""
        _, incomplete = self.get_completion_args()
        return f"{item.type}\n{_whole(item, incomplete)}\n{item.help or '_'}"


class Fish(FishComplete):
    """fish, with descriptions in which there may be commas."""

    source_template = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \\
        COMP_CWORD=(commandline -t) %(prog_name)s)
    for completion in $response
        set -l metadata (string split -m 1 "," $completion)
        switch $metadata[1]
            case dir
                __fish_complete_directories $metadata[2]
            case file
                __fish_complete_path $metadata[2]
            case plain
                echo $metadata[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem) -> str:
        """Answers in one line."""
        _, incomplete = self.get_completion_args()
        text = " ".join((item.help or "").split())
        return f"{item.type},{_whole(item, incomplete)}" + (f"\t{text}" if text else "")


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def answer() -> int:
    """Answers a shell; whatever goes wrong is silence, as a traceback would end up on a prompt."""
    shell, _, request = os.environ[VARIABLE].partition("_")
    chosen = SHELLS.get(shell)
    if chosen is None or request != "complete":
        return 2
    group = CompletingGroup(name="rlreg", params=cli.params, context_settings=cli.context_settings)
    try:
        asked = chosen(group, {}, "rlreg", VARIABLE)
        _before[:] = asked.get_completion_args()[0]
        click.echo(asked.complete())
    except Exception:  # noqa: BLE001
        return 1
    return 0


@click.command()
@click.argument("shell", type=click.Choice(sorted(SHELLS)))
def completion(shell: str) -> None:
    """Print a script that completes rlreg in a shell.

    bash: rlreg completion bash >> ~/.bashrc; zsh: the same with ~/.zshrc, after compinit; fish:
    rlreg completion fish > ~/.config/fish/completions/rlreg.fish.
    """
    script = SHELLS[shell](cli, {}, "rlreg", VARIABLE).source()
    click.echo(script.strip())
