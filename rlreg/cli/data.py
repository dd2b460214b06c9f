"""``rlreg data list``, ``generate`` and ``inspect``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from rlreg.cli.output import counted, echo_json, echo_table, json_option, note

EXIT_FOUND = 3


@click.group()
def data() -> None:
    """List, generate or inspect data sets."""


@data.command("list")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the data sets on this machine, and those that rlreg can make."""
    from rlreg.runtime.data.generate import list_generators
    from rlreg.runtime.data.load import list_local
    from rlreg.runtime.data.minari import minari_root

    local, generators = list_local(), list_generators()
    if as_json:
        echo_json(
            {
                "root": str(minari_root()),
                "local": [{**asdict(item), "path": str(item.path)} for item in local],
                "generators": [asdict(item) for item in generators],
            }
        )
        return
    here = {item.dataset_id for item in local}
    if local:
        rows = [
            (item.dataset_id, f"{item.num_steps:,}", f"{item.num_episodes:,}", item.data_format)
            for item in local
        ]
        echo_table(("data set", "steps", "episodes", "format"), rows)
    else:
        click.echo(f"no data set in {minari_root()}")
    click.echo()
    offered = [
        (item.dataset_id, f"{item.default_steps:,}", _state(item, here), item.summary)
        for item in generators
    ]
    echo_table(("rlreg data generate", "steps", "", "summary"), offered)


def _state(item: Any, here: set[str]) -> str:
    if item.dataset_id in here:
        return "here"
    return "needs an extra" if item.missing else ""


@data.command()
@click.argument("dataset_id", metavar="ID")
@click.option("--steps", type=click.IntRange(1), help="Number of steps; the recipe's own if not.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed.")
@click.option("--force", is_flag=True, help="Replace the data set if it is there.")
@json_option
def generate(*, dataset_id: str, steps: int | None, seed: int, force: bool, as_json: bool) -> None:
    """Make one of rlreg's own data sets; a data set that is there already is left alone."""
    from rlreg.runtime.data.generate import generate as generate_dataset
    from rlreg.runtime.data.load import list_local, load_dataset
    from rlreg.runtime.progress import Display

    known = [item for item in list_local() if item.dataset_id == dataset_id]
    if known and not force and steps in (None, known[0].num_steps):
        note(f"{dataset_id} is already at {known[0].path}; --force makes it again")
        folder = known[0].path.parent
    else:
        display: Display | None = None

        def show(done: int, total: int) -> None:
            nonlocal display
            display = display or Display(total, unit="steps")
            display.move_to(done)

        try:
            folder = generate_dataset(
                dataset_id, n_steps=steps, seed=seed, progress=show, overwrite=force
            )
        finally:
            if display is not None:
                display.close()
    dataset = load_dataset(dataset_id)
    if as_json:
        document = {"id": dataset_id, "path": str(folder), "steps": len(dataset)}
        echo_json({**document, "laws": dataset.laws.to_json()})
        return
    steps, episodes = len(dataset), len(dataset.episodes)
    click.echo(f"{dataset_id}: {counted(steps, 'step')}, {counted(episodes, 'episode')}")
    click.echo(str(dataset.laws))
    click.echo(f"folder: {folder}")


@data.command()
@click.argument("source", metavar="ID|PATH")
@json_option
def inspect(*, source: str, as_json: bool) -> int:
    """Look for what is odd in a data set; exit code 3 if something will hurt.

    Finds NaN, actions out of bounds, missing final observations, constant columns and more, each
    with the place of its first occurrence and what handles it.
    """
    from rlreg.runtime.data.inspect import inspect as inspect_dataset

    found = inspect_dataset(source)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(str(found))
    if not found.problems:
        return 0
    number = len(found.problems)
    note(f"{number} of the findings above {'is a problem' if number == 1 else 'are problems'}")
    return EXIT_FOUND
