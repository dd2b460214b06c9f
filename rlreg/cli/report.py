"""``rlreg report``."""

from __future__ import annotations

from pathlib import Path

import click

from rlreg.cli.output import echo_json, json_option
from rlreg.cli.paths import PathOf


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PathOf())
@click.option(
    "-o", "--output", type=PathOf(), default=Path("report.html"),
    show_default=True, metavar="FILE", help="The page; replaced if it is there.",
)  # fmt: skip
@click.option("--title", default="", help="Heading; the names of the runs if not given.")
@click.option("--no-animation", is_flag=True, help="Do not play an episode with each policy.")
@click.option("--no-data", is_flag=True, help="Do not look at the data sets.")
@json_option
def report(
    *,
    runs: tuple[Path, ...],
    output: Path,
    title: str,
    no_animation: bool,
    no_data: bool,
    as_json: bool,
) -> None:
    """Write one HTML page about runs: curves, results, differences, data, versions.

    A RUN is a run folder or a folder of seeds; runs that differ in their seed alone are drawn
    together. The page holds all it shows and needs neither script nor network.
    """
    from rlreg.runtime.report import write_report

    path = write_report(runs, output, title=title, animations=not no_animation, data=not no_data)
    if as_json:
        echo_json({"file": str(path)})
    else:
        click.echo(f"{path}: written")
