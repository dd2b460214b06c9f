"""Listing reads manifests and imports nothing, as long as they are fresh."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from statistics import median

import pytest

pytestmark = pytest.mark.light

SOURCE = '''
from typing import ClassVar, Literal
import rlreg

class PackConfig(rlreg.LearnableConfig):
    """Packed."""
    regime: ClassVar[str] = "offline"
    type: Literal["pack"] = "pack"

@rlreg.hookimpl
def rlreg_learnables():
    return [PackConfig]
'''

LIST = (
    "import sys, json\nfrom rlreg.catalog import read_catalog\nc = read_catalog()\n"
    "print(json.dumps([[x.id for x in c.learnables], 'pack_dist.plugin' in sys.modules, "
    "[p.status for p in c.plugins if p.distribution == 'pack-dist']]))"
)
MAKE = (
    "from rlreg.manifest import make_manifest, write_manifest\n"
    "write_manifest(*make_manifest('pack-dist'))"
)


@pytest.fixture
def package(make_plugin):
    """A plugin in a package of its own, where a manifest can lie beside the module."""
    site = make_plugin("pack-dist", "", value="pack_dist.plugin")
    folder = site / "pack_dist"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "plugin.py").write_text(SOURCE)
    return site


def read(run_python, site, env=None):
    # Alone: a neighbour without a fresh manifest is loaded, and its config may look names up.
    env = env or {"RLREG_ONLY_PLUGINS": "pack-dist"}
    return json.loads(run_python(LIST, path=[site], env=env))


def test_without_a_manifest_the_plugin_is_imported(run_python, package):
    ids, is_imported, status = read(run_python, package)
    assert "pack-dist/pack" in ids
    assert (is_imported, status) == (True, ["ok"])


def test_with_a_fresh_manifest_nothing_is_imported(run_python, package):
    run_python(MAKE, path=[package])
    ids, is_imported, status = read(run_python, package)
    assert "pack-dist/pack" in ids
    assert (is_imported, status) == (False, ["ok"])


@pytest.mark.parametrize("change", ["source", "version", "garbage", "format", "entry point"])
def test_a_stale_manifest_does_not_count(run_python, package, change):
    run_python(MAKE, path=[package])
    path = package / "pack_dist" / "rlreg-manifest.json"
    info = package / "pack_dist-1.0.dist-info"
    if change == "source":
        plugin = package / "pack_dist" / "plugin.py"
        plugin.write_text(plugin.read_text().replace('"pack"', '"packed"'))
    elif change == "version":
        text = (info / "METADATA").read_text()
        (info / "METADATA").write_text(text.replace("1.0", "1.1"))
    elif change == "garbage":
        path.write_text("{not json")
    elif change == "format":
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    else:
        (info / "entry_points.txt").write_text("[rlreg]\nrenamed = pack_dist.plugin\n")
    ids, is_imported, status = read(run_python, package)
    assert (is_imported, status) == (True, ["ok"])
    assert ("pack-dist/packed" if change == "source" else "pack-dist/pack") in ids


def test_a_blocked_plugin_is_not_listed_from_its_manifest(run_python, package):
    run_python(MAKE, path=[package])
    ids, is_imported, status = read(run_python, package, env={"RLREG_BLOCK_PLUGINS": "pack-dist"})
    assert "pack-dist/pack" not in ids
    assert (is_imported, status) == (False, ["blocked"])


def test_a_manifest_holds_the_own_schema_and_is_reproducible(run_python, package):
    run_python(MAKE, path=[package])
    path = package / "pack_dist" / "rlreg-manifest.json"
    first = path.read_text()
    run_python(MAKE, path=[package])
    assert path.read_text() == first
    (listed,) = json.loads(first)["entry_points"]["plug"]["learnables"]
    assert listed["summary"] == "Packed."
    (learnable,) = json.loads(first)["details"]["plug"]["learnables"]
    assert learnable["own_schema"]["properties"]["type"]["const"] == "pack"


def test_a_listing_reads_less_of_a_manifest_and_the_same(run_python, package):
    run_python(MAKE, path=[package])
    code = (
        "from rlreg.entry_points import find_entry_points\n"
        "from rlreg.manifest import BRIEF, read_manifest\n"
        "(info,) = [i for i in find_entry_points() if i.distribution == 'pack-dist']\n"
        "(whole,), (brief,) = (read_manifest(info, is_brief=b).learnables for b in (False, True))\n"
        "assert brief == {key: whole[key] for key in BRIEF}, brief\n"
        "print(*whole)"
    )
    assert {"own_schema", "defaults", "search_space"} <= {*run_python(code, path=[package]).split()}


def test_a_broken_plugin_gets_no_manifest(run_python, package):
    (package / "pack_dist" / "plugin.py").write_text("import no_such_module\n")
    code = f"import rlreg\ntry:\n    exec({MAKE!r})\nexcept rlreg.RlregError as e:\n    print(e)"
    assert "is broken" in run_python(code, path=[package])
    assert not (package / "pack_dist" / "rlreg-manifest.json").exists()


@pytest.mark.parametrize("distribution", ["rlreg-iql", "rlreg-impala"])
def test_our_own_manifests_are_fresh(distribution):
    pytest.importorskip(distribution.replace("-", "_"), reason="the light job has core alone")
    done = subprocess.run(
        [sys.executable, "-m", "rlreg", "plugins", "manifest", "--check", distribution],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"run `make manifests`: {done.stdout}{done.stderr}"


def cpu_seconds(*arguments: str) -> float:
    """Returns the processor time of a command, which a busy machine changes less than its wall."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


QUICK = {"list": ["list"], "help": ["--help"], "help of list": ["list", "--help"]}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", QUICK.values(), ids=QUICK)
def test_listing_takes_little_more_than_importing_pydantic_and_pluggy(arguments):
    pytest.importorskip("rlreg_iql", reason="the light job has core alone")
    ratios = []
    for _ in range(15):
        baseline = cpu_seconds("-c", "import pydantic, pluggy")
        ratios.append(cpu_seconds("-m", "rlreg", *arguments) / baseline)
    assert median(ratios) < 1.5, ratios


@pytest.mark.parametrize("arguments", [*QUICK.values(), ["list", "--json"]], ids=[*QUICK, "json"])
def test_listing_imports_nothing_that_it_can_do_without(run_python, package, arguments):
    run_python(MAKE, path=[package])
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom rlreg.cli.main import run\n"
        f"run({arguments!r})\n"
        "for name in sorted(set(sys.modules) - before):\n"
        "    if name.partition('.')[0] in NO or name in NO:\n        print('costly:', name)"
    )
    costly = (
        "pydantic pluggy ruamel rich jinja2 platformdirs traceback difflib tempfile "
        "importlib.metadata hashlib rlreg.registry rlreg.config rlreg.plugins pack_dist torch numpy"
    )
    said = run_python(
        f"NO = {set(costly.split())!r}\n{code}",
        path=[package],
        env={"RLREG_ONLY_PLUGINS": "pack-dist"},
    )
    assert "costly" not in said
