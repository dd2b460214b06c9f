"""`show`, `schema` and the reference read manifests, and say what the code would say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.light

# Two distributions: the learnable of one may take the encoder of the other. Each leaves a file
# where it is imported.
HEAD = """
import os, pathlib
pathlib.Path(os.environ["FLAGS"], {name!r}).touch()
from typing import Annotated, ClassVar, Literal
from pydantic import Field
import rlreg
from rlreg.migrations import Migration, Rename
"""
PACK = '''
class PackConfig(rlreg.LearnableConfig):
    """Packed.

    Paper: Somebody, 2020, arXiv:2001.00001

    More about it.
    """
    regime: ClassVar[str] = "offline"
    field_groups: ClassVar[dict] = {"Speed": ("rate",)}
    migrations: ClassVar = (Migration(1, (Rename("speed", "rate"),)),)
    type: Literal["pack"] = "pack"
    schema_version: Literal[2] = 2
    rate: float = Field(0.5, ge=0, le=1, description="How fast. Default: ours, 0.5.")
    encoder_factory: rlreg.EncoderFactory = rlreg.make_encoder_field()
    optim_factory: rlreg.OptimizerFactory = rlreg.make_optimizer_field()

@rlreg.hookimpl
def rlreg_learnables():
    return [PackConfig]

@rlreg.hookimpl
def rlreg_presets():
    return [rlreg.Preset("pack/fast", "Fast.", "ours", {"learnable.rate": 1.0})]
'''
PART = '''
class PartEncoder(rlreg.EncoderFactory):
    """A part with a schedule of its own."""
    type: Literal["part"] = "part"
    width: int = Field(3, ge=1, le=9, description="Width. Default: ours, 3.")
    lr_scheduler_factory: rlreg.LRSchedulerFactory | None = rlreg.make_lr_scheduler_field()
    def create(self, observation_shape):
        raise NotImplementedError

@rlreg.hookimpl
def rlreg_components():
    return [PartEncoder]
'''
LEAN = (
    PACK.replace("pack", "lean")
    .replace("Pack", "Lean")
    .replace("rlreg.make_encoder_field()", "rlreg.make_encoder_field({'type': 'part'})")
)
SOURCES = {"pack-dist": PACK, "part-dist": PART, "lean-dist": LEAN}
MAKE = (
    "import sys\nfrom rlreg.manifest import make_manifest, write_manifest\n"
    "for name in sys.argv[1].split(): write_manifest(*make_manifest(name))"
)
RUN = (
    "import sys, json\nfrom rlreg.cli.main import run\n"
    "codes = [run(arguments) for arguments in json.loads({commands!r})]\n"
    "assert not any(codes), codes"
)
LOOK = [
    ["show", "pack"], ["show", "pack", "--json"], ["show", "pack-dist/pack"],
    ["show", "encoder.part"], ["show", "encoder.part", "--json"], ["show", "encoder.vector"],
    ["show", "run", "--json"],
    ["schema", "pack"], ["schema", "pack", "--scope", "own"], ["schema", "run"],
    ["schema", "pack", "--flavour", "editor"], ["schema", "diff", "pack", "pack"],
]  # fmt: skip


class World:
    """Installed plugins, and which of them are imported."""

    def __init__(self, run_python, make_plugin, folder: Path) -> None:
        self.run_python, self.make_plugin, self.folder = run_python, make_plugin, folder
        self.sites: dict[str, Path] = {}
        self.flags = folder / "flags"
        self.flags.mkdir()

    def install(self, *names: str) -> None:
        for name in names:
            module = name.replace("-", "_")
            site = self.make_plugin(name, "", value=f"{module}.plugin")
            package = site / module
            package.mkdir()
            (package / "__init__.py").write_text("")
            (package / "plugin.py").write_text(HEAD.format(name=name) + SOURCES[name])
            self.sites[name] = site
        self.write_manifests()

    def manifest(self, name: str) -> Path:
        return self.sites[name] / name.replace("-", "_") / "rlreg-manifest.json"

    def write_manifests(self) -> None:
        code = MAKE.replace("sys.argv[1]", repr(" ".join(self.sites)))
        self.python(code)

    def python(self, code: str, *, only: str = "") -> str:
        for flag in self.flags.iterdir():
            flag.unlink()
        env = {
            "FLAGS": str(self.flags),
            "RLREG_ONLY_PLUGINS": only or ",".join(self.sites),
        }
        return self.run_python(code, path=list(self.sites.values()), env=env)

    def command(self, *commands: list[str]) -> str:
        return self.python(RUN.format(commands=json.dumps(commands)))

    @property
    def imported(self) -> set[str]:
        return {path.name for path in self.flags.iterdir()}


@pytest.fixture
def world(run_python, make_plugin, tmp_path):
    return World(run_python, make_plugin, tmp_path)


def test_show_and_schema_import_nothing_and_say_the_same(world):
    world.install("pack-dist", "part-dist")
    written = world.command(*LOOK)
    assert world.imported == set()
    world.manifest("part-dist").unlink()
    assert world.command(*LOOK) == written
    assert world.imported == {"pack-dist", "part-dist"}
    assert '"const": "part"' in written
    assert "arXiv:2001.00001" in written


def test_the_reference_imports_nothing_and_says_the_same(world, tmp_path):
    world.install("pack-dist", "part-dist")
    folders = [tmp_path / "written", tmp_path / "live"]
    world.command(["docs", "build", str(folders[0])])
    assert world.imported == set()
    world.manifest("pack-dist").unlink()
    world.command(["docs", "build", str(folders[1])])
    assert world.imported == {"pack-dist", "part-dist"}
    pages = [
        {path.relative_to(folder): path.read_text() for path in folder.rglob("*.*")}
        for folder in folders
    ]
    assert pages[0] == pages[1]
    assert "`speed` is now called `rate`." in pages[0][Path("learnables/pack.md")]
    assert "Speed" in pages[0][Path("learnables/pack.md")]


def test_an_unknown_name_has_the_same_answer(world):
    world.install("pack-dist")
    code = "from rlreg.cli.main import run\nassert run(['show', 'pakc']) == 2"
    world.python(code)
    code = (
        "import rlreg\nfrom rlreg.manifest_index import installed_schema\n"
        "try:\n    installed_schema('pakc')\nexcept rlreg.RlregError as e:\n    print(e)"
    )
    assert "did you mean 'pack'" in world.python(code)


def test_a_name_claimed_twice_is_left_to_the_registry(world, monkeypatch):
    monkeypatch.setitem(SOURCES, "other-dist", PACK)
    world.install("pack-dist", "other-dist")
    code = "from rlreg.manifest_index import read_index\nprint(read_index())"
    assert world.python(code).strip() == "None"
    assert world.imported == set()


def test_what_a_process_knows_goes_before_manifests(world):
    world.install("pack-dist")
    code = (
        "import rlreg\nfrom rlreg.manifest_index import read_index\n"
        "print(read_index() is None)\nrlreg.list_learnables()\nprint(read_index() is None)"
    )
    assert world.python(code).split() == ["False", "True"]


# --- a plugin without a fresh manifest ----------------------------------------------------------

LIST = (
    "import json\nfrom rlreg.catalog import read_catalog\nc = read_catalog()\n"
    "print(json.dumps([[x.id for x in c.learnables], [p.status for p in c.plugins "
    "if p.status != 'blocked']]))"
)


def listed(world) -> list[list[str]]:
    found: list[list[str]] = json.loads(world.python(LIST))
    return found


def test_only_the_plugin_without_manifest_is_imported(world):
    world.install("pack-dist", "part-dist")
    world.manifest("pack-dist").unlink()
    assert listed(world) == [["pack-dist/pack"], ["ok", "ok"]]
    assert world.imported == {"pack-dist"}


def test_and_of_the_others_those_that_its_defaults_name(world):
    world.install("part-dist", "pack-dist", "lean-dist")
    world.manifest("lean-dist").unlink()
    assert listed(world) == [["lean-dist/lean", "pack-dist/pack"], ["ok", "ok", "ok"]]
    assert world.imported == {"lean-dist", "part-dist"}


def test_a_default_that_nobody_provides_is_a_fault(world):
    world.install("part-dist", "lean-dist")
    world.manifest("lean-dist").unlink()
    del world.sites["part-dist"]
    assert listed(world) == [[], ["broken"]]


def test_lent_plugins_leave_no_trace_in_the_registry(world):
    world.install("part-dist", "lean-dist")
    world.manifest("lean-dist").unlink()
    code = f"{LIST}\nfrom rlreg import registry\nwith registry.without_discovery():\n"
    code += "    print(sorted({r.distribution for r in registry.records('encoder')}))"
    assert world.python(code).splitlines()[-1] == "['rlreg']"
