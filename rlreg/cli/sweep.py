"""``rlreg sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlreg.cli.output import counted, documents_alone, echo_json, echo_table, json_option, note
from rlreg.cli.paths import PathOf

if TYPE_CHECKING:
    from rlreg.runtime.sweep import SweepResult

EXIT_OFFSET = 128
SHOWN = 5


@click.command()
@click.argument("source", metavar="ID|FILE|SWEEP")
@click.option("--trials", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--dataset", "-d", help="Data set of an offline learnable: id or path.")
@click.option("--env", "-e", help="Environment: of training (online) or of evaluation (offline).")
@click.option("--steps", type=click.IntRange(1), help="Length of each trial.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the search and of every trial.")
@click.option("--workers", type=click.IntRange(1, 1024), help="How many trials at once.")
@click.option("--device", help="auto, cpu, cuda, cuda:1, mps, xpu or an index.")
@click.option("--preset", help="Settings that every trial starts from.")
@click.option(
    "--set", "overrides", metavar="KEY.PATH=VALUE", multiple=True,
    help="Set a value, which is then not searched; may be given again.",
)  # fmt: skip
@click.option("--metric", help="What counts; evaluation/mean_return by default.")
@click.option("--minimize", is_flag=True, help="Less of the metric is better.")
@click.option("--no-pruning", is_flag=True, help="Train every trial to its end.")
@click.option("--out", "-o", type=PathOf(), help="Folder of the sweep.")
@click.option("--print-space", is_flag=True, help="Print the space as JSON and search nothing.")
@json_option
def sweep(
    *, source: str, trials: int, workers: int | None, out: Path | None, print_space: bool,
    as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Search good settings of a learnable, in the space that its config declares.

    The best trial is written to SWEEP/best.yaml, a run file like any other. A sweep that was
    interrupted goes on with: rlreg sweep SWEEP --trials N. The same seed and number of workers
    give the same trials.
    """
    if print_space:
        from rlreg.search_space import search_space

        with documents_alone():
            run, _ = _plan_of(source, out, options, reads_space=True)
            fixed = _paths(options["overrides"])
            echo_json(search_space(type(run.learnable)).without(fixed).as_json())
        return 0
    plan, folder = _plan_of(source, out, options, reads_space=False)
    from rlreg.cli.train import SignalFlag
    from rlreg.runtime.sweep import sweep as run_sweep

    stop = SignalFlag()
    with stop.installed():
        result = run_sweep(plan, folder, trials, workers=workers, should_stop=stop)
    _echo(result, as_json=as_json)
    if result.status == "interrupted":
        note(f"go on with: rlreg sweep {folder} --trials {trials}")
        return EXIT_OFFSET + stop.number
    return 0


def _plan_of(source: str, out: Path | None, options: Any, *, reads_space: bool) -> Any:
    """Returns the plan and its folder; for the space alone the run, without the heavy half."""
    from rlreg.files import load_run

    if Path(source, "sweep.json").is_file():
        from rlreg.runtime.sweep import SweepPlan

        plan = SweepPlan.read(Path(source))
        return (plan.run, None) if reads_space else (plan, Path(source))
    overrides = _overrides(source, options)
    run = load_run(source, preset=options["preset"], overrides=overrides)
    if reads_space:
        return run, None
    from rlreg.runtime.runs import default_folder
    from rlreg.runtime.sweep import DEFAULT_METRIC, SweepPlan

    plan = SweepPlan(
        run,
        _paths(options["overrides"]),
        options["metric"] or DEFAULT_METRIC,
        options["minimize"],
        not options["no_pruning"],
        run.seed,
    )
    return plan, out or default_folder(f"sweep-{run.learnable.get_type()}", run.seed)


def _overrides(source: str, options: Any) -> list[Any]:
    from rlreg.cli.train import device_value, env_path
    from rlreg.files import Override

    found: list[Any] = [*options["overrides"]]
    flags = {
        ("dataset",): ("--dataset", options["dataset"]),
        ("train", "n_steps"): ("--steps", options["steps"]),
        ("seed",): ("--seed", options["seed"]),
        ("device",): ("--device", device_value(options["device"])),
    }
    if options["env"] is not None:
        path = env_path(source, options["preset"], found)
        found.insert(0, Override(path, options["env"], f"--env {options['env']}"))
    found += [
        Override(path, value, f"{flag} {value}")
        for path, (flag, value) in flags.items()
        if value is not None
    ]
    return found


def _paths(overrides: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item.partition("=")[0].strip() for item in overrides)


def _echo(result: SweepResult, *, as_json: bool) -> None:
    if as_json:
        document = {"folder": str(result.folder), "status": result.status, "best": result.best}
        echo_json({**document, "trials": result.trials})
        return
    from rlreg.yaml_text import flow

    finished = [row for row in result.trials if row["value"] is not None]
    if result.best is not None:
        # The best first; in which direction that is, the best one tells.
        ends = sorted(finished, key=lambda row: row["value"])
        is_last = ends[-1]["value"] == result.best["value"]
        shown = (ends[::-1] if is_last else ends)[:SHOWN]
        rows = [
            (row["number"], row["state"], f"{row['value']:.4g}", flow(_short(row["settings"])))
            for row in shown
        ]
        echo_table(("trial", "state", "value", "settings"), rows)
        click.echo(f"best run file: {result.folder / 'best.yaml'}")
    click.echo(f"{counted(len(result.trials), 'trial')} in {result.folder}")


def _short(settings: dict[str, Any]) -> dict[str, Any]:
    values = {key.removeprefix("learnable."): value for key, value in settings.items()}
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in values.items()
    }
