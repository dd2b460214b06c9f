"""``rlreg list``, ``rlreg show`` and ``rlreg info``."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rlreg import __version__
from rlreg.cli.output import echo_json, echo_table, json_option, note

if TYPE_CHECKING:
    from rlreg.reference.record import ClassRecord

PACKAGES = ("pydantic", "pluggy", "torch", "numpy", "gymnasium", "minari", "safetensors", "h5py")


def listing(*, components: bool = False) -> dict[str, Any]:
    """Returns what ``rlreg list --json`` prints; reads manifests and imports what has none."""
    from rlreg.catalog import core_components, read_catalog
    from rlreg.entry_points import PLUGIN_API

    catalog = read_catalog()
    plugins = [asdict(plugin) for plugin in catalog.plugins]
    for plugin in plugins:
        for key in ("location", "file", "hooks"):  # rlreg doctor has them: a manifest does not
            del plugin[key]
    found = {
        "rlreg": __version__,
        "plugin_api": PLUGIN_API,
        "learnables": [asdict(info) for info in catalog.learnables],
        "plugins": plugins,
    }
    if components:
        found["components"] = [asdict(i) for i in core_components() + catalog.components]
    return found


@click.command("list")
@click.option("--components", is_flag=True, help="List encoders, optimizers, ... too.")
@json_option
def list_command(*, components: bool, as_json: bool) -> None:
    """List the installed learnables and plugins.

    A broken plugin never hides the others; see rlreg doctor for what is wrong with it.
    """
    found = listing(components=components)
    if as_json:
        echo_json(found)
        return
    rows = [
        (_written(item, found["learnables"]), item["regime"], _provider(item), item["summary"])
        for item in found["learnables"]
    ]
    if rows:
        echo_table(("learnable", "regime", "from", "summary"), rows)
    else:
        click.echo("no learnable is installed; for example: pip install rlreg-iql")
    if components:
        click.echo()
        parts = [
            (item["kind"], item["name"], _provider(item), item["summary"])
            for item in found["components"]
        ]
        echo_table(("kind", "type", "from", "summary"), parts)
    _note_broken(found["plugins"])


def note_unknown_blocks(plugins: list[dict[str, Any]]) -> None:
    """Says on stderr which names in the blocking variables mean no plugin."""
    from rlreg.blocking import BlockList

    known = {plugin[key] for plugin in plugins for key in ("distribution", "entry_point")}
    for remark in BlockList.read().unknown(known):
        note(remark)


def _note_broken(plugins: list[dict[str, Any]]) -> None:
    note_unknown_blocks(plugins)
    for plugin in plugins:
        if plugin["status"] != "ok":
            note(
                f"{plugin['status']}: {plugin['distribution']} {plugin['version']} "
                f"({plugin['entry_point']}): {plugin['error']}"
            )
    if any(plugin["status"] == "broken" for plugin in plugins):
        note("see rlreg doctor")


def _written(item: dict[str, Any], learnables: list[dict[str, Any]]) -> str:
    """Returns the shortest name that works: the bare one unless it belongs to somebody else."""
    from rlreg.blocking import normalize

    claims = [normalize(e["distribution"]) for e in learnables if e["name"] == item["name"]]
    own, owner = normalize(item["distribution"]), f"rlreg-{normalize(item['name'])}"
    if len(claims) == 1 or own == owner:
        return str(item["name"])
    return str(item["id"])


def _provider(item: dict[str, Any]) -> str:
    return f"{item['distribution']} {item['version']}".strip()


# --- show ---------------------------------------------------------------------------------------


@click.command()
@click.argument("name", metavar="ID")
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Show the fields of a learnable, of a component or of the run file.

    ID is a learnable (iql), a component (encoder.vector) or run.
    """
    record, unions = _described(name)
    if as_json:
        document = record.as_json()
        if record.kind == "learnable":
            document["unions"] = unions
        echo_json(document)
        return
    regime = f", {record.regime}" if record.regime else ""
    click.echo(f"{record.id} ({record.kind.replace('_', ' ')}{regime}), {record.provenance}")
    click.echo(f"{record.summary}\n")
    if record.details:
        click.echo(f"{record.details}\n")
    _echo_fields(record)
    for kind, members in unions.items():
        click.echo(f"\n{kind.replace('_', ' ')}: {', '.join(members) or 'none installed'}")
    if record.presets:
        click.echo()
        rows = [
            (p.preset.id, f"{p.preset.summary} Source: {p.preset.source}.") for p in record.presets
        ]
        echo_table(("preset", "summary"), rows)


def _described(name: str) -> tuple[ClassRecord, dict[str, list[str]]]:
    """Returns what is known of a name, and the tags that its fields take by component kind."""
    from rlreg.config import KINDS
    from rlreg.manifest_index import read_index
    from rlreg.reference.record import record_of, written_record
    from rlreg.run_config import RunConfig

    kind, _, tag = name.partition(".")
    kind, tag = (kind, tag) if kind in KINDS and tag else ("learnable", name)
    index = read_index()
    entry = index.find(kind, tag) if index is not None else None
    if index is not None and (entry is not None or name == "run"):
        record = record_of(RunConfig) if entry is None else written_record(index, entry)
        return record, {k: [e.name for e in index.of_kind(k)] for k in _kinds(record)}
    from rlreg.registry import records, reference, resolve

    record = record_of(RunConfig if name == "run" else resolve(kind, tag).cls)
    return record, {k: [reference(member.cls) for member in records(k)] for k in _kinds(record)}


def _kinds(record: ClassRecord) -> list[str]:
    return list(dict.fromkeys(kind for item in record.fields for kind in item.kinds))


def _echo_fields(record: Any) -> None:
    from rlreg.yaml_text import flow

    rows = []
    for item in record.fields:
        default = "(required)" if item.is_required else flow(_without_nulls(item.default))
        allowed = item.type if len(item.range) > 28 or not item.range else f"{item.type}, "
        if len(item.range) <= 28:
            allowed += item.range
        long_range = f" Allowed: {item.range}." if len(item.range) > 28 else ""
        source = f" Default: {item.source}." if item.source else ""
        default = default if len(default) <= 28 else default[:25] + "..."
        rows.append((item.name, allowed, default, f"{item.description}{source}{long_range}"))
    echo_table(("field", "type and range", "default", "description"), rows)


def _without_nulls(default: Any) -> Any:
    """Leaves out what a component's default leaves open, so that its type can be read."""
    if isinstance(default, dict) and "type" in default:
        return {key: value for key, value in default.items() if value is not None}
    return default


# --- info ---------------------------------------------------------------------------------------


@click.command()
@click.option("--devices", is_flag=True, help="List the devices too (imports torch).")
@json_option
def info(*, devices: bool, as_json: bool) -> None:
    """Show versions of rlreg, of Python and of what rlreg runs on."""
    found: dict[str, Any] = {
        "rlreg": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": [
            {key: plugin[key] for key in ("distribution", "version", "entry_point", "status")}
            for plugin in listing()["plugins"]
        ],
    }
    if devices:
        found["devices"] = _devices()
    if as_json:
        echo_json(found)
        return
    rows = [(key, str(found[key])) for key in ("rlreg", "python", "platform")]
    rows += [(name, version or "not installed") for name, version in found["packages"].items()]
    rows += [
        (plugin["distribution"], f"{plugin['version']} ({plugin['status']})")
        for plugin in found["plugins"]
    ]
    if devices:
        rows.append(("devices", ", ".join(found["devices"])))
    echo_table(("what", "version"), rows)


def _version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    from rlreg.device import available_devices
    from rlreg.errors import MissingExtraError

    try:
        return available_devices()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "--devices needs torch, which is not installed: pip install 'rlreg[torch]'"
        ) from error
