"""`rlreg doctor` and the commands that repair, on the worst of days."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.light

SOURCES = {
    "import-dist": "import no_such_module_xyz\n",
    "exit-dist": "raise SystemExit(3)\n",
    "hook-dist": "import rlreg\n@rlreg.hookimpl\ndef rlreg_learnables():\n    return 3\n",
    "api-dist": "RLREG_PLUGIN_API = 99\nimport rlreg\n",
}


@pytest.fixture
def rlreg_cli(tmp_path):
    """Runs the command line with nothing but broken plugins beside our own, which are off."""

    def run(*arguments, sites=(), code=0):
        done = subprocess.run(
            [sys.executable, "-m", "rlreg", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, sites)),
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "RLREG_BLOCK_PLUGINS": "rlreg-iql,rlreg-impala",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def sites(make_plugin):
    made = [make_plugin(name, source) for name, source in SOURCES.items()]
    torn = make_plugin("torn-dist", "", entry_points="[rlreg]\nno equals sign\n")
    return [*made, torn]


def test_doctor_works_when_everything_is_broken(rlreg_cli, sites):
    found = json.loads(rlreg_cli("doctor", "--json", sites=sites, code=3).stdout)
    plugins = {plugin["distribution"]: plugin for plugin in found["plugins"]}
    for name in (*SOURCES, "torn-dist"):
        assert plugins[name]["status"] == "broken"
        assert plugins[name]["error"]
        assert plugins[name]["remedy"]
    assert plugins["import-dist"]["file"].endswith("import_dist_plugin.py")
    assert "no_such_module_xyz" in plugins["import-dist"]["error"]
    assert {finding["subject"].split()[0] for finding in found["findings"]} >= {*SOURCES}
    text = rlreg_cli("doctor", sites=sites, code=3).stdout
    assert "import_dist_plugin.py" in text
    assert "what to do: pip install --upgrade rlreg" in text


def test_listing_works_when_everything_is_broken(rlreg_cli, sites):
    done = rlreg_cli("list", sites=sites)
    assert "see rlreg doctor" in done.stderr
    rlreg_cli("list", "--json", sites=sites)
    rlreg_cli("schema", "run", sites=sites)
    rlreg_cli("info", sites=sites)


def test_a_plugin_that_ends_the_process_can_still_be_blocked(rlreg_cli, make_plugin):
    site = make_plugin("deadly-dist", "import os\nos._exit(9)\n")
    listed = json.loads(rlreg_cli("plugins", "list", "--json", sites=[site]).stdout)["plugins"]
    (deadly,) = [item for item in listed if item["distribution"] == "deadly-dist"]
    assert deadly["file"].endswith("deadly_dist_plugin.py")
    rlreg_cli("plugins", "block", "deadly-dist", sites=[site])
    found = json.loads(rlreg_cli("doctor", "--json", sites=[site]).stdout)
    assert {p["status"] for p in found["plugins"]} == {"blocked"}
    rlreg_cli("plugins", "unblock", "deadly-dist", sites=[site])


def test_hooks_and_file_of_a_plugin_in_order_are_shown(rlreg_cli, make_plugin):
    source = "import rlreg\n@rlreg.hookimpl\ndef rlreg_presets():\n    return []\n"
    site = make_plugin("fine-dist", source)
    found = json.loads(rlreg_cli("doctor", "--json", sites=[site]).stdout)
    (fine,) = [p for p in found["plugins"] if p["distribution"] == "fine-dist"]
    assert fine["hooks"] == ["rlreg_presets"]
    assert fine["file"] == str(site / "fine_dist_plugin.py")


HEAVY = '''
import rlreg
from typing import ClassVar, Literal

class HeavyConfig(rlreg.LearnableConfig):
    """Heavy."""
    regime: ClassVar[str] = "offline"
    type: Literal["heavy"] = "heavy"
    def create(self, device="auto"):
        print("noise")
        BODY

@rlreg.hookimpl
def rlreg_learnables():
    return [HeavyConfig]
'''
BODIES = {
    "well": ("return object()", "", ""),
    "no torch": (
        "raise ModuleNotFoundError('no', name='torch')",
        "creating 'heavy' needs torch, which is not installed",
        "pip install 'rlreg[torch]'",
    ),
    "no module": ("import no_such_module_xyz", "No module named 'no_such_module_xyz'", "install"),
    "own fault": ("return [][1]", "IndexError: list index out of range", "report it"),
    "exits": ("raise SystemExit(4)", "SystemExit: 4", "report it"),
    "dies": ("import os; os._exit(9)", "its process ended with 9", "report it to the authors of"),
}


@pytest.mark.parametrize("body", BODIES)
def test_deep_doctor_creates_every_learnable_in_a_process_of_its_own(rlreg_cli, make_plugin, body):
    code, cause, remedy = BODIES[body]
    site = make_plugin("heavy-dist", HEAVY.replace("BODY", code))
    if body == "dies":  # what --deep adds
        assert json.loads(rlreg_cli("doctor", "--json", sites=[site]).stdout)["findings"] == []
    exit_code = 3 if cause else 0
    done = rlreg_cli("doctor", "--deep", "--json", sites=[site], code=exit_code)
    findings = json.loads(done.stdout)["findings"]
    assert [item["subject"] for item in findings] == (["heavy-dist/heavy 1.0"] if cause else [])
    for item in findings:
        assert cause in item["message"]
        assert remedy in item["remedy"]


def test_unrelated_broken_plugin_does_not_disturb_create(run_python, make_plugin):
    """registry-issues 1 and 40: one plugin with a missing module, and the user creates another."""
    good = (
        "from typing import ClassVar, Literal\nimport rlreg\n"
        "class GoodConfig(rlreg.LearnableConfig):\n    'Good.'\n"
        "    regime: ClassVar[str] = 'offline'\n    type: Literal['good'] = 'good'\n"
        "    def create(self, device='auto'):\n        return 'made'\n"
        "@rlreg.hookimpl\ndef rlreg_learnables():\n    return [GoodConfig]\n"
    )
    sites = [make_plugin("aa-bad", "import no_such_module\n"), make_plugin("good-dist", good)]
    assert run_python("import rlreg; print(rlreg.create('good'))", path=sites).strip() == "made"
