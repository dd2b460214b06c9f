"""``rlreg bench ID``: how fast a learnable updates here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlreg.cli.output import counted, echo_json, echo_table, json_option, note
from rlreg.cli.train import device_value, set_option

if TYPE_CHECKING:
    from rlreg.run_config import RunConfig


@click.command()
@click.argument("name", metavar="ID")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of torch; all cores if not.")
@click.option("--compile", "mode", type=click.Choice(["auto", "on", "off"]), default="auto")
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True)
@click.option("--transitions", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--observation-size", type=click.IntRange(1, 100_000), default=17, show_default=True)
@click.option("--action-size", type=click.IntRange(1, 10_000), default=6, show_default=True)
@click.option("--env", "-e", help="Environment of an online learnable; it has a usual one if not.")
@click.option("--preset", help="Settings that move together, e.g. impala/throughput.")
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
    env: str | None,
    preset: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure how fast a learnable trains here.

    Offline: updates per second, with and without sampling, on random data that are resident on the
    device. Online: transitions per second, of the parts and of the whole, and which part holds the
    others back. Parts take turns, so that a busy machine slows all of them; the median of the
    rounds is printed.
    """
    from rlreg.files import load_run

    run = load_run(name, preset=preset, overrides=overrides)
    if run.learnable.regime == "online":
        _bench_online(run, run.env if env is None else env, device, seconds, as_json=as_json)
        return
    from rlreg.runtime.bench import Workload, measure

    config = run.learnable
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
    how = "compiled" if result.is_compiled else "plain"
    note(
        f"{name} on {result.device}, {how}, {counted(result.threads, 'thread')}, "
        f"{counted(result.rounds, 'round')}"
    )


def _bench_online(run: RunConfig, env: Any, device: str, seconds: float, *, as_json: bool) -> None:
    """Prints what the learnable measured itself: it alone knows its parts."""
    from rlreg.creation import create
    from rlreg.errors import ConfigError
    from rlreg.runtime.online import OnlineLearnable

    learnable = create(run.learnable, device=device_value(device) or "auto")
    if not isinstance(learnable, OnlineLearnable):
        raise ConfigError(f"{run.learnable.get_type()!r} is no OnlineLearnable: nothing to measure")
    rows = learnable.benchmark(env, run.engine, seconds)
    if as_json:
        echo_json({"device": str(learnable.device), "rows": [row.to_json() for row in rows]})
        return
    for row in rows:
        rates = [(name, f"{rate:,.0f}") for name, rate in row.rates.items()]
        echo_table((row.name, "transitions/s"), rates)
        figures = [f"{name} {value:.3g}" for name, value in row.figures.items()]
        if figures:
            click.echo(", ".join(figures))
        if row.bottleneck:
            click.echo(f"bottleneck: {row.bottleneck}\nknob: {row.knob}")
        click.echo()
