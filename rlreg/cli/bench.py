"""``rlreg bench ID``: how fast a learnable updates here."""

from __future__ import annotations

import click

from rlreg.cli.output import echo_json, echo_table, json_option, note
from rlreg.cli.train import device_value, set_option


@click.command()
@click.argument("name", metavar="ID")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of torch; all cores if not.")
@click.option("--compile", "mode", type=click.Choice(["auto", "on", "off"]), default="auto")
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True)
@click.option("--transitions", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--observation-size", type=click.IntRange(1, 100_000), default=17, show_default=True)
@click.option("--action-size", type=click.IntRange(1, 10_000), default=6, show_default=True)
@set_option
@json_option
def bench(
    *,
    name: str,
    device: str,
    threads: int | None,
    mode: str,
    seconds: float,
    transitions: int,
    observation_size: int,
    action_size: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure updates per second of an offline learnable, with and without sampling.

    The data are random and resident on the device. Variants take turns, so that a busy machine
    slows all of them; the median of the rounds is printed.
    """
    from rlreg.files import load_run
    from rlreg.runtime.bench import Workload, measure

    config = load_run(name, overrides=overrides).learnable
    chosen = device_value(device)
    workload = Workload(transitions, observation_size, action_size)
    result = measure(
        config, workload, device=chosen, threads=threads, compile=mode, seconds=seconds
    )
    if as_json:
        echo_json(result.to_json())
        return
    rows = [
        ("with sampling", f"{result.updates_per_s:,.1f}", f"{1e3 / result.updates_per_s:.3f}"),
        ("one batch again and again", f"{result.batch_updates_per_s:,.1f}",
         f"{1e3 / result.batch_updates_per_s:.3f}"),
        ("sampling alone", "", f"{1e3 * result.sample_s:.4f}"),
    ]  # fmt: skip
    echo_table(("variant", "updates/s", "ms"), rows)
    click.echo(f"sampling is {result.sampling_share:.2%} of an update")
    note(f"{name} on {result.device}, {result.threads} threads, {result.rounds} rounds")
