"""Discovery: whatever one plugin does, the others and the program go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.light

PIP_INSTALL = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
PIP_INSTALL += ["--no-build-isolation"]
ZOO = Path(__file__).parent / "zoo"

GOOD = '''
from typing import ClassVar, Literal
import rlreg

class GoodConfig(rlreg.LearnableConfig):
    """Good."""
    regime: ClassVar[str] = "offline"
    type: Literal["good"] = "good"

@rlreg.hookimpl
def rlreg_learnables():
    return [GoodConfig]
'''

REPORT = (
    "import rlreg, json, dataclasses\n"
    "print(json.dumps({'plugins': {p.distribution: dataclasses.asdict(p) for p in "
    "rlreg.list_plugins()}, 'names': [x.id for x in rlreg.list_learnables()]}))"
)


@pytest.fixture
def report(run_python, make_plugin):
    """Installs a good plugin beside others and returns what discovery says."""

    def run(*sites: Path, env: dict[str, str] | None = None) -> dict:
        good = make_plugin("good-dist", GOOD)
        found = json.loads(run_python(REPORT, path=[*sites, good], env=env))
        assert found["plugins"]["good-dist"]["status"] == "ok"
        assert "good-dist/good" in found["names"]
        return found

    return run


BROKEN = {
    "import error": ("import no_such_module_xyz\n", "no_such_module_xyz"),
    "system exit": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "base exception": ("class Odd(BaseException): pass\nraise Odd('odd')\n", "Odd: odd"),
    "syntax error": ("def (:\n", "SyntaxError"),
    "no hooks": ("x = 1\n", "implements no hook"),
    "hook gives None": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    [1]\n",
        "rlreg_learnables gave None; is `return` missing?",
    ),
    "hook raises": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    raise RuntimeError('boom')\n",
        "RuntimeError: boom",
    ),
    "generator raises late": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    yield 1/0\n",
        "ZeroDivisionError",
    ),
    "misspelt hook": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnable():\n    return []\n",
        "did you mean 'rlreg_learnables'",
    ),
    "returns a number": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    return 3\n",
        "must return a list",
    ),
    "returns a class": (
        GOOD.replace('"good"', '"good2"').replace("[GoodConfig]", "GoodConfig"),
        "must return a list of classes",
    ),
    "returns strings": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    return ['iql']\n",
        "must give subclasses of LearnableConfig",
    ),
    "returns a component as learnable": (
        "import rlreg\nfrom rlreg.components import Adam\n"
        "@rlreg.hookimpl\ndef rlreg_learnables():\n    return [Adam]\n",
        "must give subclasses of LearnableConfig",
    ),
    "preset of another type": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_presets():\n    return [{'id': 'x/y'}]\n",
        "must give Preset objects",
    ),
    "breach of contract": (
        GOOD.replace('Literal["good"] = "good"', 'Literal["bad"] = "bad"\n    n: int = 3'),
        "GoodConfig.n: an int needs a lower and an upper bound",
    ),
    "wrong hook argument": (
        "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables(registry):\n    return []\n",
        "registry",
    ),
    "later plugin api": ("RLREG_PLUGIN_API = 99\n" + GOOD, "incompatible: it needs plugin API 99"),
    "nonsense plugin api": ("RLREG_PLUGIN_API = 'new'\n" + GOOD, "RLREG_PLUGIN_API"),
    "registers by call": (
        GOOD + "\ntry:\n    rlreg.register_learnable(GoodConfig)\nexcept Exception:\n    pass\n",
        "while it was imported",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_reported_and_harms_nobody(case, report, make_plugin):
    source, message = BROKEN[case]
    found = report(make_plugin("bad-dist", source, version="0.7.3"))
    bad = found["plugins"]["bad-dist"]
    assert bad["status"] == "broken"
    assert message in bad["error"]
    assert "\n" not in bad["error"]
    assert bad["version"] == "0.7.3"
    assert bad["remedy"]
    assert "Traceback" in bad["traceback"]
    assert not [name for name in found["names"] if name.startswith(("bad-dist", "local"))]


PRESET = """

@rlreg.hookimpl
def rlreg_presets():
    return [rlreg.Preset("owned/small", "Small.", "ours", {"learnable.schema_version": %d})]
"""


@pytest.mark.parametrize("thief", ["aa-thief", "zz-thief"])
def test_a_preset_belongs_to_whom_its_learnable_belongs(thief, report, make_plugin):
    owner = make_plugin("owner", GOOD.replace('"good"', '"owned"') + PRESET % 1)
    taken = make_plugin(thief, "import rlreg\n" + PRESET % 2)
    plugins = report(owner, taken)["plugins"]
    assert plugins["owner"]["status"] == "ok"
    assert plugins[thief]["status"] == "broken"
    said = "preset 'owned/small' is one of owner, whose learnable it is for"
    assert plugins[thief]["error"] == said
    same = make_plugin(thief, "import rlreg\n" + PRESET % 1)
    assert report(owner, same)["plugins"][thief]["status"] == "ok"


def test_a_plugin_is_all_or_nothing(report, make_plugin):
    source = GOOD.replace('"good"', '"half"') + (
        "\n@rlreg.hookimpl\ndef rlreg_components():\n    raise RuntimeError('second hook')\n"
    )
    found = report(make_plugin("half-dist", source))
    assert found["plugins"]["half-dist"]["status"] == "broken"
    assert not [name for name in found["names"] if "half" in name]


def test_missing_module_of_the_plugin_itself_says_reinstall(report, make_plugin):
    found = report(make_plugin("gone-dist", "", value="gone_dist_package.plugin"))
    assert "reinstall gone-dist" in found["plugins"]["gone-dist"]["remedy"]


def test_entry_point_may_name_an_object_in_the_module(report, make_plugin):
    source = (
        GOOD.replace('"good"', '"obj"').replace(
            "@rlreg.hookimpl\ndef rlreg_learnables():", "def _f():"
        )
        + "\nclass Hooks:\n    @rlreg.hookimpl\n    def rlreg_learnables(self):\n"
        "        return _f()\nhooks = Hooks()\n"
    )
    for value in ("obj_dist_plugin:hooks", "obj_dist_plugin:Hooks"):
        found = report(make_plugin("obj-dist", source, value=value))
        assert found["plugins"]["obj-dist"]["status"] == "ok", found["plugins"]["obj-dist"]


def test_entry_point_that_names_a_function_is_explained(report, make_plugin):
    source = GOOD.replace('"good"', '"fun"')
    found = report(make_plugin("fun-dist", source, value="fun_dist_plugin:rlreg_learnables"))
    assert "is a function; point it at the module" in found["plugins"]["fun-dist"]["error"]


class TestStrangers:
    """Metadata of packages that have nothing to do with rlreg."""

    def test_malformed_entry_points_elsewhere_harm_nobody(self, report, tmp_path):
        for name, text in {
            "noeq": "[console_scripts]\nthis line has no equals sign\n",
            "binary": b"\xff\xfe[rlreg]\n",
            "nosection": "a = b\n",
            "badvalue": "[gui]\nx = not a valid : value !\n",
        }.items():
            info = tmp_path / "strange" / f"{name}-1.dist-info"
            info.mkdir(parents=True)
            path = info / "entry_points.txt"
            path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
        report(tmp_path / "strange")

    def test_malformed_entry_points_of_a_plugin_are_reported(self, report, make_plugin):
        site = make_plugin("torn-dist", GOOD, entry_points="[rlreg]\nno equals sign here\n")
        found = report(site)
        assert found["plugins"]["torn-dist"]["status"] == "broken"

    def test_missing_metadata_is_survived(self, report, make_plugin):
        site = make_plugin("bare-dist", GOOD.replace('"good"', '"bare"'))
        (site / "bare_dist-1.0.dist-info" / "METADATA").unlink()
        found = report(site)
        assert found["plugins"]["bare_dist"]["status"] == "ok"

    def test_broken_pydantic_plugin_is_survived(self, report, make_plugin):
        site = make_plugin(
            "pyd-dist", "raise SystemExit(5)\n", entry_points="[pydantic]\np = pyd_dist_plugin:p\n"
        )
        report(site)


class TestTwice:
    def test_one_distribution_seen_twice_is_one(self, report, make_plugin, tmp_path):
        site = make_plugin("twin-dist", GOOD.replace('"good"', '"twin"'))
        link = tmp_path / "link"
        link.symlink_to(site)
        found = report(site, link)
        assert found["names"].count("twin-dist/twin") == 1

    def test_installed_metadata_goes_before_an_egg_info(self, report, make_plugin):
        site = make_plugin("egg-dist", GOOD.replace('"good"', '"egg"'), folder="installed")
        source = make_plugin("egg-dist", GOOD.replace('"good"', '"egg"'), folder="source")
        old = source / "egg_dist-1.0.dist-info"
        egg = source / "egg_dist.egg-info"
        old.rename(egg)
        (egg / "METADATA").rename(egg / "PKG-INFO")
        (egg / "entry_points.txt").write_text("[rlreg]\nstale = no_such_module\n")
        found = report(source, site)
        assert found["plugins"]["egg-dist"]["status"] == "ok"

    def test_same_entry_point_name_in_two_distributions_loads_both(self, report, make_plugin):
        found = report(
            make_plugin("aa", GOOD.replace('"good"', '"aa"'), entry_point="same"),
            make_plugin("bb", GOOD.replace('"good"', '"bb"'), entry_point="same"),
        )
        assert {"aa/aa", "bb/bb"} <= {*found["names"]}

    def test_two_classes_of_one_name_in_one_distribution_are_refused(self, report, make_plugin):
        source = GOOD.replace('"good"', '"same"') + (
            "\nclass Second(rlreg.LearnableConfig):\n    'Second.'\n"
            "    regime: ClassVar[str] = 'offline'\n    type: Literal['same'] = 'same'\n"
            "@rlreg.hookimpl(specname='rlreg_learnables')\ndef more():\n    return [Second]\n"
        )
        found = report(make_plugin("clash-dist", source))
        assert found["plugins"]["clash-dist"]["status"] == "broken"


class TestBlocking:
    @pytest.mark.parametrize("name", ["loud-dist", "LOUD_DIST", "loud"])
    def test_blocked_plugin_is_not_imported(self, report, make_plugin, name, tmp_path):
        proof = tmp_path / "imported"
        source = f"open({str(proof)!r}, 'w').close()\n" + GOOD.replace('"good"', '"loud"')
        site = make_plugin("loud-dist", source, entry_point="loud")
        found = report(site, env={"RLREG_BLOCK_PLUGINS": f"other, {name}"})
        assert found["plugins"]["loud-dist"]["status"] == "blocked"
        assert not proof.exists()

    def test_only_list_blocks_the_rest(self, report, make_plugin):
        site = make_plugin("rest-dist", GOOD.replace('"good"', '"rest"'))
        found = report(site, env={"RLREG_ONLY_PLUGINS": "good-dist"})
        assert found["plugins"]["rest-dist"]["status"] == "blocked"
        assert "RLREG_ONLY_PLUGINS" in found["plugins"]["rest-dist"]["error"]

    def test_list_in_the_users_folder_is_kept(self, report, make_plugin, tmp_path):
        site = make_plugin("off-dist", GOOD.replace('"good"', '"off"'))
        folder = tmp_path / "config" / "rlreg"
        folder.mkdir(parents=True)
        (folder / "blocked-plugins.json").write_text('["off-dist"]')
        found = report(site)
        assert found["plugins"]["off-dist"]["status"] == "blocked"
        assert found["plugins"]["off-dist"]["remedy"] == "rlreg plugins unblock off-dist"


def test_name_of_a_broken_plugin_gives_its_cause(run_python, make_plugin):
    site = make_plugin("rlreg-lost", "import no_such_thing\n", entry_point="lost")
    code = (
        "import rlreg\n"
        "try:\n    rlreg.create('lost')\n"
        "except rlreg.RlregError as error:\n    print(error)"
    )
    out = run_python(code, path=[site])
    assert "rlreg-lost 1.0 is broken" in out
    assert "no_such_thing" in out


def test_rediscover_finds_what_was_installed_meanwhile(run_python, make_plugin):
    site = make_plugin("late-dist", GOOD.replace('"good"', '"late"'))
    code = (
        "import rlreg, sys\n"
        "before = [x.name for x in rlreg.list_learnables()]\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "rlreg.rediscover()\n"
        "print('late' in before, 'late' in [x.name for x in rlreg.list_learnables()])"
    )
    assert run_python(code).strip() == "False True"


def test_plugin_that_looks_names_up_while_it_is_imported_is_not_a_deadlock(report, make_plugin):
    source = "import rlreg\nrlreg.list_learnables()\n" + GOOD.replace('"good"', '"nosy"')
    found = report(make_plugin("nosy-dist", source))
    assert found["plugins"]["nosy-dist"]["status"] == "ok"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    copies = tmp_path_factory.mktemp("copies")
    packages = []
    for source in sorted(path for path in ZOO.iterdir() if path.is_dir()):
        copy = copies / source.name
        subprocess.run(["cp", "-r", str(source), str(copy)], check=True)
        packages.append(str(copy))
    subprocess.run(
        [*PIP_INSTALL, "--target", str(folder), *packages],
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    return folder


class TestZoo:
    """The five packages of tests/zoo, installed by pip as a user would."""

    def test_good_ones_are_listed_and_broken_ones_reported(self, site, run_python):
        found = json.loads(run_python(REPORT, path=[site]))
        plugins = found["plugins"]
        assert plugins["case-good-lite"]["status"] == "ok"
        assert plugins["case-broken-import"]["status"] == "broken"
        assert "case_missing_dep" in plugins["case-broken-import"]["error"]
        assert "case_missing_dep" in plugins["case-broken-import"]["remedy"]
        assert plugins["case-broken-hook-raises"]["status"] == "broken"
        assert "flux capacitor missing" in plugins["case-broken-hook-raises"]["error"]
        assert {"case-good-lite/tiny", "case-dup-a/case-dup", "case-dup-b/case-dup"} <= {
            *found["names"]
        }

    def test_tiny_is_created_and_its_learner_is_imported_only_then(self, site, run_python):
        code = (
            "import rlreg, sys\n"
            "rlreg.list_learnables(); rlreg.json_schema('tiny'); rlreg.make_config('tiny')\n"
            "before = 'case_good_lite.learner' in sys.modules\n"
            "made = rlreg.create('tiny', device='cpu', hidden_units=[8])\n"
            "print(before, made.config.hidden_units, made.device, 'torch' in sys.modules)"
        )
        assert run_python(code, path=[site]).strip() == "False (8,) cpu False"

    def test_duplicate_is_an_error_that_names_both_and_both_stay_reachable(self, site, run_python):
        code = (
            "import rlreg\n"
            "try:\n    rlreg.create('case-dup')\n"
            "except rlreg.RlregError as error:\n    print(error)\n"
            "for d in 'ab':\n"
            "    c = rlreg.make_config(f'case-dup-{d}/case-dup')\n"
            "    print(c.learning_rate, rlreg.create(f'case-dup-{d}/case-dup').config == c)"
        )
        message, first, second = run_python(code, path=[site]).splitlines()
        assert "'case-dup-a/case-dup' or 'case-dup-b/case-dup'" in message
        assert (first, second) == ("0.1 True", "0.2 True")


# --- defaults that name a component of somebody else --------------------------------------------

ENCODER = '''
from typing import Literal
import rlreg

class PartEncoder(rlreg.EncoderFactory):
    """A part."""
    type: Literal["part"] = "part"

@rlreg.hookimpl
def rlreg_components():
    return [PartEncoder]
'''

LEANING = (
    GOOD.replace('"good"', '"leaning"').replace(
        '"""Good."""',
        '"""Leans on a part."""\n'
        '    encoder_factory: rlreg.EncoderFactory = rlreg.make_encoder_field({"type": "part"})',
    )
    + "\n@rlreg.hookimpl\ndef rlreg_presets():\n"
    "    return [rlreg.Preset('leaning/one', 'One.', 'ours', {'seed': 1})]\n"
)


@pytest.mark.parametrize("part", ["aa-part", "zz-part"])
def test_default_may_name_a_component_of_any_distribution(part, report, make_plugin):
    found = report(make_plugin("mid-dist", LEANING), make_plugin(part, ENCODER))
    assert found["plugins"]["mid-dist"]["status"] == "ok", found["plugins"]["mid-dist"]
    assert "mid-dist/leaning" in found["names"]


@pytest.mark.parametrize("default", ['{"type": "part"}', "PartEncoder()"])
def test_default_may_be_a_component_of_its_own_distribution(
    default, run_python, make_plugin, tmp_path
):
    hook = ENCODER + LEANING.partition("@rlreg.hookimpl")[0].replace('{"type": "part"}', default)
    hook += "\n@rlreg.hookimpl\ndef rlreg_learnables():\n    return [GoodConfig]\n"
    code = (
        f"{REPORT}\nschema = rlreg.json_schema('own-dist/leaning', scope='own')\n"
        "print(schema['properties']['encoder_factory']['default']['type'], "
        "type(rlreg.make_config('leaning').encoder_factory).__name__)"
    )
    first, second = run_python(code, path=[make_plugin("own-dist", hook)]).splitlines()
    assert json.loads(first)["plugins"]["own-dist"]["status"] == "ok", first
    assert second == "part PartEncoder"


def test_object_as_default_stays_what_it_is_when_another_package_takes_its_tag(
    run_python, make_plugin
):
    hook = ENCODER + LEANING.partition("@rlreg.hookimpl")[0].replace(
        '{"type": "part"}', "PartEncoder()"
    )
    hook += "\n@rlreg.hookimpl\ndef rlreg_learnables():\n    return [GoodConfig]\n"
    sites = [make_plugin("own-dist", hook), make_plugin("aa-part", ENCODER)]
    code = (
        "import rlreg\nconfig = rlreg.make_config('leaning')\n"
        "print(type(config.encoder_factory).__module__, config.model_dump()['encoder_factory'])"
    )
    assert run_python(code, path=sites).strip() == ("own_dist_plugin {'type': 'own-dist/part'}")


def test_default_that_names_nothing_makes_its_plugin_broken_and_takes_all_of_it_back(
    run_python, make_plugin
):
    code = f"{REPORT}\nprint([p.preset.id for p in rlreg.list_presets('leaning')])"
    sites = [make_plugin("mid-dist", LEANING), make_plugin("good-dist", GOOD)]
    first, presets = run_python(code, path=sites).splitlines()
    found = json.loads(first)
    bad = found["plugins"]["mid-dist"]
    assert bad["status"] == "broken"
    assert "encoder_factory" in bad["error"]
    assert "'part'" in bad["error"]
    assert "mid-dist/leaning" not in found["names"]
    assert "good-dist/good" in found["names"]
    assert presets == "[]"


def test_plugin_that_leans_on_a_withdrawn_one_is_withdrawn_too(report, make_plugin):
    middle = ENCODER.replace(
        '"""A part."""',
        '"""A part."""\n    inner: rlreg.EncoderFactory = rlreg.make_encoder_field({"type": "no"})',
    )
    found = report(make_plugin("aa-dist", LEANING), make_plugin("bb-part", middle))
    assert found["plugins"]["bb-part"]["status"] == "broken"
    assert "'no'" in found["plugins"]["bb-part"]["error"]
    assert found["plugins"]["aa-dist"]["status"] == "broken"


def test_listing_knows_such_a_plugin_as_broken_too(run_python, make_plugin):
    code = (
        "import json\nfrom rlreg.catalog import read_catalog\nfound = read_catalog()\n"
        "print({p.status for p in found.plugins if p.distribution == 'mid-dist'})"
    )
    site = make_plugin("mid-dist", LEANING)
    assert run_python(code, path=[site]).strip() == "{'broken'}"
    assert run_python(code, path=[site, make_plugin("part", ENCODER)]).strip() == "{'ok'}"


# --- a failure is remembered per discovery ------------------------------------------------------


def test_transient_failure_recovers_after_rediscover(run_python, make_plugin, tmp_path):
    switch = tmp_path / "mounted"
    source = (
        f"import pathlib\nif not pathlib.Path({str(switch)!r}).exists():\n"
        "    raise OSError('not mounted')\n" + GOOD.replace('"good"', '"flaky"')
    )
    code = (
        "import rlreg, pathlib\n"
        "def status():\n"
        "    return [p.status for p in rlreg.list_plugins() if p.distribution == 'rlreg-flaky']\n"
        "print(status())\n"
        "try:\n    rlreg.make_config('flaky')\n"
        "except rlreg.RlregError as error:\n    print(error)\n"
        f"pathlib.Path({str(switch)!r}).touch()\n"
        "print(status())\n"
        "rlreg.rediscover()\n"
        "print(status(), rlreg.make_config('flaky').type)"
    )
    out = run_python(code, path=[make_plugin("rlreg-flaky", source)]).splitlines()
    assert out[0] == "['broken']"
    assert "not mounted" in out[1]
    assert out[2] == "['broken']"  # what is known stays until somebody asks again
    assert out[3] == "['ok'] flaky"


def test_module_that_was_missing_is_found_after_rediscover(run_python, make_plugin):
    site = make_plugin("rlreg-needs", "import later_module\n" + GOOD.replace('"good"', '"needs"'))
    code = (
        "import rlreg, pathlib\n"
        "print([p.status for p in rlreg.list_plugins() if p.distribution == 'rlreg-needs'])\n"
        f"pathlib.Path({str(site / 'later_module.py')!r}).write_text('')\n"
        "rlreg.rediscover()\n"
        "print(rlreg.make_config('needs').type)"
    )
    assert run_python(code, path=[site]).splitlines() == ["['broken']", "needs"]


def test_file_and_hooks_are_known_and_the_file_of_a_broken_plugin_too(report, make_plugin):
    site = make_plugin(
        "ok-dist",
        LEANING.replace('"leaning"', '"ok1"')
        .replace('{"type": "part"}', '{"type": "vector"}')
        .replace("'leaning/one'", "'ok1/one'"),
    )
    bad = make_plugin("bad-dist", "import no_such_module_xyz\n")
    found = report(site, bad)["plugins"]
    assert found["ok-dist"]["hooks"] == ["rlreg_learnables", "rlreg_presets"]
    assert found["ok-dist"]["file"] == str(site / "ok_dist_plugin.py")
    assert found["bad-dist"]["hooks"] == []
    assert found["bad-dist"]["file"] == str(bad / "bad_dist_plugin.py")


@pytest.mark.parametrize("command", [["schema", "good"], ["sweep", "good", "--print-space"]])
def test_what_a_plugin_prints_is_no_part_of_a_document(command, run_python, make_plugin):
    if command[0] == "sweep":
        pytest.importorskip("optuna", reason="the light half searches nothing")
    site = make_plugin("good-dist", "print('noise')\n" + GOOD)
    code = f"from rlreg.cli.main import run\nraise SystemExit(run({command}))"
    assert isinstance(json.loads(run_python(code, path=[site])), dict)
