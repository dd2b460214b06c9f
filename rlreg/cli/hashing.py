"""``rlreg hash``."""

from __future__ import annotations

import click

from rlreg.cli.output import echo_json, json_option


@click.command("hash")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
def hash_command(files: tuple[str, ...], *, as_json: bool) -> None:
    """Print the hash of what a config means: files, run folders or checkpoints.

    Order, comments, the format, stated defaults, the device and compile make no difference: a file
    and the folder of its run have the same. Of a run there are two: the run's, and that of its
    learnable, which its checkpoints have too.
    """
    from rlreg.files import load_config
    from rlreg.identity import config_hash
    from rlreg.run_config import RunConfig

    found: list[dict[str, str]] = []
    for file in files:
        config = load_config(file)
        if isinstance(config, RunConfig):
            found.append({"file": file, "kind": "run", "hash": config_hash(config)})
            config = config.learnable
        found.append({"file": file, "kind": "learnable", "hash": config_hash(config)})
    if as_json:
        echo_json({"hashes": found})
        return
    for item in found:
        click.echo(f"{item['hash']}  {item['kind']:9}  {item['file']}")
