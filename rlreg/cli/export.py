"""``rlreg export``: a policy as a file for deployment."""

from __future__ import annotations

from pathlib import Path

import click

from rlreg.cli.output import echo_json, echo_table, json_option
from rlreg.cli.paths import PathOf
from rlreg.cli.train import checkpoint_of

_SUFFIXES = {"onnx": ".onnx", "torch_export": ".pt2"}


@click.command()
@click.argument("source", metavar="RUN|FILE.rlreg", type=PathOf())
@click.option(
    "--format",
    "-f",
    "file_format",
    type=click.Choice(["onnx", "torch_export"]),
    default="onnx",
    show_default=True,
    help="ONNX (needs the extra `export`), or torch.export's .pt2.",
)
@click.option(
    "--kind",
    type=click.Choice(["action", "distribution"]),
    default="action",
    show_default=True,
    help="The best action, or the parameters of the policy's distribution.",
)
@click.option("-o", "--output", type=PathOf(), required=True, help="File to write.")
@json_option
def export(*, source: Path, file_format: str, kind: str, output: Path, as_json: bool) -> None:
    """Write the policy of a run (its best checkpoint) or of a checkpoint for deployment.

    Scalers, flattening, clipping and categories are inside the file. It is run and compared with
    the policy on random inputs before it gets its name; if they differ, no file is left.
    """
    from rlreg.errors import ConfigError
    from rlreg.runtime.checkpoint import load
    from rlreg.runtime.export import export as write

    if output.suffix.lower() != _SUFFIXES[file_format]:
        raise ConfigError(
            f"{output}: expected a name that ends in .onnx, or in .pt2 with --format torch_export"
        )
    path, _ = checkpoint_of(source)
    learnable = load(path, device="cpu")
    written = write(learnable, output, format=file_format, kind=kind)  # type: ignore[arg-type]
    if as_json:
        echo_json({"checkpoint": str(path), **written.to_json()})
        return
    rows = [
        (role, port.name, port.dtype, str(["B", *port.shape]).replace("'", ""))
        for role, ports in (("input", written.inputs), ("output", written.outputs))
        for port in ports
    ]
    echo_table(("", "name", "type", "shape"), rows)
    click.echo(
        f"{output}: {path} as {file_format}, run at batch 1 and 7: within "
        f"{written.max_difference:.1g} of the policy"
    )
