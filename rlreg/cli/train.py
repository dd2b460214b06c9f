"""``rlreg train``, ``rlreg resume`` and ``rlreg evaluate``."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rlreg.cli.output import counted, echo_json, echo_table, json_option, note
from rlreg.cli.paths import PathOf
from rlreg.parent_process import ParentProcess
from rlreg.starting import starting

if TYPE_CHECKING:
    from rlreg.run_config import RunConfig
    from rlreg.runtime.seeds import Arrangement
    from rlreg.runtime.train import RunResult

EXIT_OFFSET = 128
_CLONING = {"bc": "cloning", "bc10": "cloning, best 10 %"}


class SignalFlag:
    """Remembers the first SIGINT or SIGTERM; a second one ends the process at once.

    One of several seeds also stops, as if by SIGTERM, when the process that started it is gone.
    """

    def __init__(self) -> None:
        self.number = 0
        self._parent = ParentProcess()

    def __call__(self) -> bool:
        """Whether training should stop."""
        if not self.number and self._parent.is_gone:
            self.number = signal.SIGTERM
            note("the process that started this seed is gone: saving a checkpoint")
        return bool(self.number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        note(f"{signal.Signals(number).name}: saving what there is; a second one ends it at once")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handles the signals inside the block."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def set_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--set``, passed as ``overrides``."""
    option = click.option(
        "--set",
        "overrides",
        metavar="KEY.PATH=VALUE",
        multiple=True,
        help="Set any value of the run or of the learnable; may be given again.",
    )
    return option(function)


# --- train --------------------------------------------------------------------------------------


@click.command()
@click.argument("source", metavar="ID|FILE")
@click.option("--dataset", "-d", help="Data set of an offline learnable: id or path.")
@click.option("--env", "-e", help="Environment: of training (online) or of evaluation (offline).")
@click.option("--steps", type=click.IntRange(1), help="Updates (offline), transitions (online).")
@click.option("--seed", type=click.IntRange(0), help="Seed of everything random.")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, help="How many seeds to train.")
@click.option(
    "--arrange",
    "arrangement",
    type=click.Choice(["auto", "spread", "stacked"]),
    default="auto",
    help="Several seeds as processes, or as one computation; auto stacks on a GPU.",
)
@click.option("--device", help="auto, cpu, cuda, cuda:1, mps, xpu or an index.")
@click.option("--preset", help="Settings that move together, e.g. iql/antmaze.")
@set_option
@click.option("--out", "-o", type=PathOf(), help="Run folder, new or empty.")
@json_option
@starting()
def train(
    *,
    source: str,
    dataset: str | None,
    env: str | None,
    steps: int | None,
    seed: int | None,
    seeds: int,
    arrangement: Arrangement,
    device: str | None,
    preset: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Train a learnable and write a run folder.

    An offline learnable without a data set uses rlreg/pendulum/mixed-v0. Ctrl-C saves a checkpoint;
    rlreg resume goes on from it.
    """
    from rlreg.files import load_run
    from rlreg.runtime.runs import require_empty  # imports no torch

    flags = {
        ("train", "n_steps"): ("--steps", steps),
        ("seed",): ("--seed", seed),
        ("device",): ("--device", device_value(device)),
    }
    # The id first, so that --set can add how it is loaded.
    named = _flag_overrides({("dataset",): ("--dataset", dataset)})
    all_overrides = [*named, *overrides, *_flag_overrides(flags)]
    if env is not None:
        path = env_path(source, preset, all_overrides)
        all_overrides = [*_flag_overrides({path: ("--env", env)}), *all_overrides]
    run = load_run(source, preset=preset, overrides=all_overrides)
    stop = SignalFlag()
    with stop.installed():
        if out is not None:
            require_empty(out)
        if seeds == 1:  # several are processes of their own
            run.learnable.start_early(run.engine)
        # Only now: what is wrong with the settings is said before torch is imported.
        from rlreg.runtime.train import train as train_run

        result = train_run(run, out=out, seeds=seeds, arrangement=arrangement, should_stop=stop)
    return _end(result, stop, as_json)


def env_path(source: str, preset: str | None, overrides: list[Any]) -> tuple[str, ...]:
    """Returns the setting that ``--env`` stands for, which the learnable's regime decides."""
    from rlreg.files import collect

    # Nothing is validated: without its environment the run may not be complete.
    cls = collect(source, preset=preset, overrides=overrides, as_run=True).learnable_class()
    return ("env",) if getattr(cls, "regime", "") == "online" else ("evaluation", "env")


def device_value(text: str | None) -> str | int | list[str] | None:
    """Reads an index as a number, and ``a,b`` as a list of fallbacks.

    Raises:
        DeviceError: If it does not follow the grammar.
    """
    from rlreg.device import DeviceSpec

    if text is None:
        return None
    value: str | int | list[str] = int(text) if text.isdecimal() else text
    if "," in text:
        value = [part.strip() for part in text.split(",")]
    DeviceSpec.parse(value)
    return value


def _flag_overrides(flags: dict[Any, tuple[str, Any]]) -> list[Any]:
    from rlreg.files import Override

    return [
        Override(path, value, f"{flag} {value}")
        for path, (flag, value) in flags.items()
        if value is not None
    ]


strict_lock_option = click.option(
    "--strict-lock",
    is_flag=True,
    help="Refuse code of another version than the file was made with, instead of warning.",
)


@click.command()
@click.argument("run", type=PathOf())
@strict_lock_option
@json_option
@starting()
def resume(*, run: Path, strict_lock: bool, as_json: bool) -> int:
    """Go on with an interrupted run from its last checkpoint."""
    stop = SignalFlag()
    with stop.installed():
        _start_early(run)
        from rlreg.runtime.train import resume as resume_run

        result = resume_run(run, strict_lock=strict_lock, should_stop=stop)
    if result.status == "already finished":
        note(f"{run} is finished already, after {result.summary.get('steps', 'all')} steps")
    return _end(result, stop, as_json)


def _start_early(folder: Path) -> None:
    """Starts what an interrupted run can start before torch is imported.

    What is wrong with the folder is said by who reads it to resume it.
    """
    from rlreg.errors import LeftOutWarning, RlregError, VersionWarning
    from rlreg.runtime.runs import RunFolder, is_seeds_folder

    with contextlib.suppress(RlregError, OSError), warnings.catch_warnings():
        for own in (LeftOutWarning, VersionWarning):  # they come again when the run is read
            warnings.simplefilter("ignore", own)
        opened = RunFolder.open(folder)
        if not is_seeds_folder(folder) and opened.read_summary() is None:
            run = opened.read_run()
            run.learnable.start_early(run.engine)


def _end(result: RunResult, stop: SignalFlag, as_json: bool) -> int:
    """Prints what a run gave and returns the exit code."""
    if as_json:
        echo_json(
            {"folder": str(result.folder), "status": result.status, "summary": result.summary}
        )
    elif result.status != "interrupted":
        _echo_results(result)
    if result.status == "interrupted":
        note(f"saved; go on with: rlreg resume {result.folder}")
        return EXIT_OFFSET + stop.number
    return 0


# --- the table at the end -----------------------------------------------------------------------


def _echo_results(result: RunResult) -> None:
    _echo_figures(_result_rows(result))
    click.echo(f"run folder: {result.folder}")


def _result_rows(result: RunResult) -> Iterator[tuple[str, ...]]:
    summary = result.summary
    if "seeds" in summary:
        yield from _seed_rows(summary)
        return
    baselines = summary["baselines"]
    for name, figures in baselines.items():
        played = counted(figures["n_episodes"], "episode")
        if name == "behaviour":
            played = f"all {figures['n_episodes']} episodes of the data set"
        yield _row(_CLONING.get(name, name), figures, played)
    references = summary.get("references")  # not in folders of earlier versions
    if references:
        # In the data sets that rlreg makes, the score 100 is that of the scripted controller.
        is_ours = references["from"].startswith("metadata of rlreg/")
        figures = {"mean_return": references["max"], "normalized_score": 100.0}
        yield _row("controller" if is_ours else "reference", figures, references["from"])
    if summary["final"]:
        figures = summary["final"]
        name = str(summary["learnable"])
        played = counted(figures["n_episodes"], "episode")
        yield _row(name, figures, f"{played}, after {figures['step']:,} steps")


def _row(name: str, figures: dict[str, Any], source: str) -> tuple[str, ...]:
    numbers = [figures.get(key) for key in ("mean_return", "std_return", "normalized_score")]
    rate = figures.get("success_rate")
    numbers.append(None if rate is None else 100 * rate)
    return (name, *("" if number is None else f"{number:.1f}" for number in numbers), source)


def _echo_figures(rows: Iterable[tuple[str, ...]]) -> None:
    """Prints rows; without the success rate where no environment reports one."""
    table = [("policy", "mean return", "std", "score %", "success %", "from"), *rows]
    if len(table) > 1:
        if not any(row[-2] for row in table[1:]):
            table = [(*row[:-2], row[-1]) for row in table]
        echo_table(table[0], table[1:])


def _seed_rows(summary: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for run in summary["runs"]:
        if run["final"]:
            yield _row(f"{run['learnable']} seed {run['seed']}", run["final"], "")
    together, scores = summary["final"]["mean_return"], summary["final"]["normalized_score"]
    if together is not None:
        figures = {
            "mean_return": together["interquartile_mean"],
            "std_return": together["std"],
            "normalized_score": scores and scores["interquartile_mean"],
        }
        low, high = together["interval"]
        interval = f"{together['confidence']:.0%} interval {low:.1f} to {high:.1f}"
        yield _row("interquartile mean", figures, interval)


# --- evaluate -----------------------------------------------------------------------------------


@click.command()
@click.argument("source", metavar="RUN|FILE.rlreg", type=PathOf())
@click.option("--env", "-e", help="Environment; that of the run if not given.")
@click.option(
    "--episodes", type=click.IntRange(1), help="Seeded episodes; the run's number, or 20."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the first episode.")
@click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu or an index.")
@strict_lock_option
@json_option
def evaluate(
    *,
    source: Path,
    env: str | None,
    episodes: int | None,
    seed: int | None,
    device: str,
    strict_lock: bool,
    as_json: bool,
) -> None:
    """Evaluate a run (its best checkpoint) or a checkpoint over seeded episodes."""
    from rlreg.run_config import EvaluationSettings
    from rlreg.runtime.checkpoint import load
    from rlreg.runtime.environments import env_name
    from rlreg.runtime.evaluation import evaluate as evaluate_policy

    path, run = checkpoint_of(source)
    settings = run.evaluation if run is not None else EvaluationSettings()
    learnable = load(path, device=device_value(device), strict_lock=strict_lock)
    place, references = _place_of(env, run, source)
    result = evaluate_policy(
        learnable,
        place,
        episodes or settings.n_episodes,
        settings.seed if seed is None else seed,
        deterministic=settings.deterministic,
        references=references,
    )
    document = {
        "checkpoint": str(path),
        "env": env_name(place),
        **result.to_json(),
        "success_rate": result.success_rate,
        "returns": list(result.returns),
    }
    if as_json:
        echo_json(document)
        return
    played = f"{counted(result.n_episodes, 'episode')}, {path}"
    _echo_figures([_row(learnable.config.get_type(), document, played)])
    if result.normalized_score is None:
        note(f"no reference returns of {env_name(place)} are known: no score")


def checkpoint_of(source: Path) -> tuple[Path, RunConfig | None]:
    """Finds the checkpoint that is meant, and the run it belongs to."""
    from rlreg.documents import RUN_FILE
    from rlreg.errors import RunError
    from rlreg.runtime.runs import RunFolder, runs_within

    if not source.is_dir():
        for folder in (source.parent, source.parent.parent):
            if (folder / RUN_FILE).is_file():
                return source, RunFolder(folder).read_run(wanted_for=source)
        return source, None
    opened = RunFolder.open(source)
    for path in (opened.best, opened.last):
        if path.exists():
            return path, opened.read_run()
    within = runs_within(source)
    if within:
        raise RunError(f"{source}: this folder holds several runs, name one{within}")
    raise RunError(f"{source}: this run has no checkpoint yet")


def _place_of(env: str | None, run: RunConfig | None, source: Path) -> tuple[Any, Any]:
    """Returns the environment to evaluate in, and what makes its returns scores."""
    from rlreg.errors import EnvironmentSpecError

    if run is not None and run.dataset is not None:
        from rlreg.runtime.data.load import load_dataset
        from rlreg.runtime.evaluation import references_of

        if env is None and run.evaluation.env in (None, "auto"):
            dataset = load_dataset(run.dataset)
            place = dataset.info.eval_env_spec or dataset.info.env_spec
            if place is not None:
                return place, references_of(dataset)
    chosen: Any = env
    if chosen is None and run is not None:
        named = run.evaluation.env not in (None, "auto")
        chosen = run.evaluation.env if named else run.env
    if chosen is None:
        raise EnvironmentSpecError(f"{source}: no environment is known for it; give --env")
    return chosen, None
