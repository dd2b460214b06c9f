"""``rlreg plugins`` and ``rlreg doctor``.

The commands that repair (list, block, unblock) never import a plugin: they must work when one of
them takes the process down.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from rlreg.cli.output import counted, echo_json, echo_table, json_option, note


@click.group()
def plugins() -> None:
    """List, block or unblock plugins, without importing any of them."""


@plugins.command("list")
@json_option
def list_plugins(*, as_json: bool) -> None:
    """List the installed plugins and whether they are blocked."""
    from rlreg.blocking import BlockList, normalize
    from rlreg.plugins import find_entry_points, module_file

    blocked = BlockList.read()
    found = []
    for plugin in sorted(find_entry_points(), key=lambda p: normalize(p.distribution)):
        reason = blocked.reason(plugin.distribution, plugin.entry_point)
        found.append(
            {
                "distribution": plugin.distribution,
                "version": plugin.version,
                "entry_point": plugin.entry_point,
                "value": plugin.value,
                "file": module_file(plugin),
                "blocked": reason is not None,
                "reason": reason[0] if reason else "",
            }
        )
    if as_json:
        echo_json({"plugins": found})
        return
    if not found:
        click.echo("no plugin is installed")
    rows = [
        (
            str(item["distribution"]),
            str(item["version"]),
            str(item["entry_point"]),
            str(item["value"]),
            str(item["reason"] or "on"),
        )
        for item in found
    ]
    echo_table(("distribution", "version", "entry point", "module", "state"), rows)


@plugins.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def block(names: tuple[str, ...], *, as_json: bool) -> None:
    """Turn plugins off for this user, by distribution or entry-point name."""
    from rlreg.blocking import normalize, read_block_file, write_block_file

    known = _installed_names()
    _require_known(names, known)
    blocked = read_block_file() | {normalize(name) for name in names}
    write_block_file(blocked)
    _report(blocked, as_json=as_json)


@plugins.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def unblock(names: tuple[str, ...], *, as_json: bool) -> None:
    """Turn plugins on again that `rlreg plugins block` turned off."""
    from rlreg.blocking import BlockList, normalize, read_block_file, write_block_file

    blocked = read_block_file()
    wanted = {normalize(name) for name in names}
    _require_known(sorted(wanted), set(blocked), what="blocked plugin")
    write_block_file(blocked - wanted)
    environment = BlockList.read()
    for name in sorted(wanted):
        reason = environment.reason(name, name)
        if reason:
            note(f"{name} is still off: {reason[0]}")
    _report(blocked - wanted, as_json=as_json)


@plugins.command("manifest")
@click.argument("distribution")
@click.option("--check", is_flag=True, help="Compare instead of writing; exit 3 if it is stale.")
@json_option
@click.pass_context
def manifest(ctx: click.Context, distribution: str, *, check: bool, as_json: bool) -> None:
    """Write the manifest of a plugin, so that listing it imports nothing."""
    from rlreg.manifest import dump_manifest, make_manifest, write_manifest

    path, content = make_manifest(distribution)
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    is_fresh = known == dump_manifest(content)
    if not check and not is_fresh:
        write_manifest(path, content)
    if as_json:
        echo_json({"path": str(path), "fresh": is_fresh or not check})
    elif check:
        click.echo(f"{path}: {'fresh' if is_fresh else 'stale'}")
    else:
        click.echo(f"{path}: {'is fresh' if is_fresh else 'written'}")
    if check and not is_fresh:
        ctx.exit(3)


def _installed_names() -> set[str]:
    from rlreg.blocking import normalize
    from rlreg.plugins import find_entry_points

    return {
        normalize(name)
        for plugin in find_entry_points()
        for name in (plugin.distribution, plugin.entry_point)
        if name
    }


def _require_known(names: Any, known: set[str], *, what: str = "installed plugin") -> None:
    from rlreg.blocking import normalize
    from rlreg.errors import UnknownNameError, did_you_mean

    for name in names:
        if normalize(name) not in known:
            hint = did_you_mean(name, known) or f"there is {', '.join(sorted(known)) or 'none'}"
            raise UnknownNameError(f"no {what} {name!r}; {hint}")


def _report(blocked: frozenset[str] | set[str], *, as_json: bool) -> None:
    if as_json:
        echo_json({"blocked": sorted(blocked)})
    else:
        click.echo(f"blocked: {', '.join(sorted(blocked)) or 'nothing'}")


# --- doctor -------------------------------------------------------------------------------------


@click.command()
@click.option("--deep", is_flag=True, help="Create every learnable too, each in its own process.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, deep: bool, as_json: bool) -> None:
    """Find broken plugins, names that several distributions claim and presets that do not fit.

    Exits with 3 if there is a finding. A blocked plugin is none. Without --deep it imports what
    plugins declare, and not the half that needs torch.
    """
    found = _loaded()
    found["findings"] = [
        *_broken_plugins(found["plugins"]),
        *_names_claimed_twice(),
        *_bad_presets(),
    ]
    if deep:
        from rlreg.cli.probing import findings

        found["findings"] += findings(found["learnables"])
    if as_json:
        echo_json(found)
    else:
        _echo_report(found)
    if found["findings"]:
        ctx.exit(3)


def _loaded() -> dict[str, Any]:
    """Returns what ``rlreg list --json`` prints, after loading every plugin for real."""
    from rlreg import __version__
    from rlreg.plugins import PLUGIN_API
    from rlreg.registry import list_learnables, list_plugins

    return {
        "rlreg": __version__,
        "plugin_api": PLUGIN_API,
        "learnables": [asdict(info) for info in list_learnables()],
        "plugins": [asdict(plugin) for plugin in list_plugins()],
    }


def _broken_plugins(plugins: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "kind": "broken plugin",
            "subject": f"{plugin['distribution']} {plugin['version']}".strip(),
            "message": plugin["error"],
            "remedy": plugin["remedy"],
        }
        for plugin in plugins
        if plugin["status"] == "broken"
    ]


def _bad_presets() -> list[dict[str, str]]:
    """Returns a finding for every preset that gives no valid run."""
    from rlreg.errors import RlregError
    from rlreg.files import load_run
    from rlreg.registry import list_presets, records

    ids = {record.id for record in records("learnable")}
    findings = []
    for held in list_presets():
        preset, own = held.preset, f"{held.distribution}/{held.preset.learnable}"
        try:
            load_run(own if own in ids else preset.learnable, preset=preset.id)
        except RlregError as error:
            findings.append(
                {
                    "kind": "preset that does not fit",
                    "subject": f"{preset.id} of {held.distribution} {held.version}".strip(),
                    "message": str(error),
                    "remedy": f"report it to the authors of {held.distribution}",
                }
            )
    return findings


def _names_claimed_twice() -> list[dict[str, str]]:
    from rlreg.config import KINDS
    from rlreg.errors import AmbiguousNameError
    from rlreg.registry import records, resolve

    findings = []
    for kind in ("learnable", *KINDS):
        for name in sorted({record.name for record in records(kind)}):
            ids = [record.id for record in records(kind) if record.name == name]
            try:
                owner = resolve(kind, name)
            except AmbiguousNameError as error:
                findings.append(
                    {
                        "kind": "ambiguous name",
                        "subject": f"{kind} {name}",
                        "message": str(error),
                        "remedy": f"write one of {', '.join(ids)}, or block one of the plugins",
                    }
                )
                continue
            if len(ids) > 1:
                others = ", ".join(each for each in ids if each != owner.id)
                findings.append(
                    {
                        "kind": "name claimed twice",
                        "subject": f"{kind} {name}",
                        "message": f"{name!r} means {owner.id}; {others} also has this name",
                        "remedy": f"write {others} for the other one, or rename it",
                    }
                )
    return findings


def _echo_report(found: dict[str, Any]) -> None:
    from rlreg.cli.listing import note_unknown_blocks

    note_unknown_blocks(found["plugins"])
    rows = [
        (
            plugin["status"],
            plugin["distribution"],
            plugin["version"],
            plugin["entry_point"],
            ", ".join(hook.removeprefix("rlreg_") for hook in plugin["hooks"]),
            plugin["file"] or plugin["location"],
        )
        for plugin in found["plugins"]
    ]
    echo_table(("status", "distribution", "version", "entry point", "hooks", "file"), rows)
    for finding in found["findings"]:
        click.echo(f"\n{finding['kind']}: {finding['subject']}")
        click.echo(f"  {finding['message']}")
        click.echo(f"  what to do: {finding['remedy']}")
    count = len(found["findings"])
    sums = {"learnable": len(found["learnables"]), "plugin": len(rows), "finding": count}
    click.echo("\n" + ", ".join(counted(number, thing) for thing, number in sums.items()))
