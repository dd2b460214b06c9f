"""Files of older plugin versions: warned about, refused on demand, migrated with a report."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

FIRST = '''
from typing import ClassVar, Literal
import rlreg
from pydantic import Field

class OldieConfig(rlreg.LearnableConfig):
    """Clones, and grows old."""
    regime: ClassVar[str] = "offline"
    type: Literal["oldie"] = "oldie"
    schema_version: Literal[1] = 1
    batch_size: int = Field(16, ge=1, le=512, description="Minibatch. Default: ours, 16.")
    lr: float = Field(1e-3, gt=0, le=1, description="Step size. Default: ours, 1e-3.")
    momentum: float = Field(0.0, ge=0, le=1, description="Nothing. Default: ours, 0.")
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field(
        {"type": "vector", "hidden_units": [4]}
    )
    optim_factory: rlreg.OptimizerFactory = rlreg.make_optimizer_field()

    def create(self, device="auto"):
        from oldie_learner import Oldie
        return Oldie(self, device)

@rlreg.hookimpl
def rlreg_learnables():
    return [OldieConfig]
'''
SECOND = (
    FIRST.replace("Literal[1] = 1", "Literal[2] = 2")
    .replace("    lr: float", "    learning_rate: float")
    .replace(
        '    momentum: float = Field(0.0, ge=0, le=1, description="Nothing. Default: ours, 0.")\n',
        "",
    )
    .replace("    encoder: rlreg", "    encoder_factory: rlreg")
    .replace(
        "    batch_size",
        "    migrations: ClassVar = (\n"
        "        Migration(1, (\n"
        '            Rename("lr", "learning_rate"),\n'
        '            Rename("encoder", "encoder_factory"),\n'
        '            Drop("momentum", "it had no effect"),\n'
        "        )),\n"
        "    )\n"
        "    batch_size",
        1,
    )
    .replace(
        "import rlreg\n", "import rlreg\nfrom rlreg.migrations import Drop, Migration, Rename\n", 1
    )
)
NEW_FIELD = FIRST.replace(
    "    batch_size",
    '    extra: float = Field(0.5, ge=0, le=1, description="New. Default: ours, 0.5.")\n'
    "    batch_size",
    1,
)
LEARNER = '''
import torch
from torch import nn
import rlreg

class Oldie(rlreg.OfflineLearnable):
    """Clones."""

    def build_networks(self, spaces):
        config = self.config
        factory = getattr(config, "encoder_factory", None) or config.encoder
        encoder = factory.create(spaces.observation_shape)
        self.policy = nn.Sequential(encoder, nn.Linear(encoder.output_size, spaces.action_size))
        rate = getattr(config, "learning_rate", None) or config.lr
        self.optimizer = config.optim_factory.create(self.policy.named_modules(), rate)

    def update(self, batch):
        loss = (torch.tanh(self.policy(batch.observations)) - batch.actions).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    def act(self, observations, deterministic):
        return torch.tanh(self.policy(observations))
'''


class Installed:
    """A folder with some version of the plugin, and the command line with it."""

    def __init__(self, folder, env):
        self.folder, self.site, self.env = folder, folder / "site", env

    def install(self, version: str, source: str) -> None:
        for old in self.site.glob("*.dist-info"):
            shutil.rmtree(old)
        info = self.site / f"rlreg_oldie-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: rlreg-oldie\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text("[rlreg]\noldie = oldie_plugin\n")
        (self.site / "oldie_plugin.py").write_text(source)
        (self.site / "oldie_learner.py").write_text(LEARNER)

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "rlreg", *arguments],
            env={**self.env, "PYTHONPATH": str(self.site)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory, minari_root):
    """A run that version 1.0 wrote, and that is not finished."""
    folder = tmp_path_factory.mktemp("oldie")
    env = {
        **os.environ,
        "MINARI_DATASETS_PATH": str(minari_root),
        "OMP_NUM_THREADS": "1",
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    installed = Installed(folder, env)
    installed.install("1.0", FIRST)
    installed.run(
        *("train", "oldie", "--steps", "6", "--device", "cpu", "--out", "run"),
        *("--set", "train.n_steps_per_epoch=3", "--set", "evaluation.n_episodes=1"),
    )
    (folder / "run" / "summary.json").unlink()
    return installed


@pytest.fixture
def oldie(tmp_path, trained):
    shutil.copytree(trained.folder, tmp_path, dirs_exist_ok=True)
    copy = Installed(tmp_path, trained.env)
    return copy.install, copy.run


def test_the_same_version_says_nothing(oldie):
    _, run = oldie
    assert "warning" not in run("resume", "run", "--strict-lock").stderr
    done = run("evaluate", "run/last.rlreg", "--episodes", "1", "--strict-lock")
    assert "warning" not in done.stderr


def test_an_emptied_lock_is_a_warning_and_refused_on_demand(oldie, tmp_path):
    _, run = oldie
    (tmp_path / "run" / "rlreg.lock").write_text("{}")
    expected = "its lock does not name rlreg-oldie/oldie (learnable), rlreg/vector (learnable.enc"
    assert expected in run("resume", "run", "--strict-lock", code=2).stderr
    assert expected in run("resume", "run").stderr


def test_another_version_is_a_warning_with_the_difference_and_refused_on_demand(oldie):
    install, run = oldie
    install("1.1", NEW_FIELD)
    expected = "made with rlreg-oldie 1.0, here is rlreg-oldie 1.1"
    for command in (["evaluate", "run/last.rlreg", "--episodes", "1"], ["resume", "run"]):
        refused = run(*command, "--strict-lock", code=2)
        assert expected in refused.stderr
        assert "Traceback" not in refused.stderr
        done = run(*command)
        assert done.stderr.count(expected) == 1
        assert "the settings of rlreg-oldie/oldie (learnable) have changed" in done.stderr
        if command[0] == "evaluate":
            assert "extra is new and takes its default, 0.5" in done.stderr


def test_an_old_checkpoint_is_migrated_with_a_report(oldie):
    install, run = oldie
    before = json.loads(run("evaluate", "run/last.rlreg", "--episodes", "2", "--json").stdout)
    install("2.0", SECOND)
    done = run("evaluate", "run/last.rlreg", "--episodes", "2", "--json")
    assert json.loads(done.stdout)["returns"] == before["returns"]
    for step in (
        "1 -> 2: renamed lr to learning_rate",
        "1 -> 2: renamed encoder to encoder_factory",
        "1 -> 2: dropped momentum = 0.0: it had no effect",
    ):
        assert step in done.stderr
    assert "renamed lr" in run("evaluate", "run", "--episodes", "1").stderr
    assert (
        "made with rlreg-oldie 1.0"
        in run("evaluate", "run/last.rlreg", "--strict-lock", code=2).stderr
    )


def test_a_run_of_an_older_schema_goes_on(oldie):
    install, run = oldie
    install("2.0", SECOND)
    assert "renamed lr to learning_rate" in run("resume", "run").stderr
    assert "valid" in run("validate", "run/last.rlreg").stdout


def test_an_old_file_of_a_user_is_left_to_the_command_that_edits_it(oldie, tmp_path):
    install, run = oldie
    install("2.0", SECOND)
    path = tmp_path / "mine.yaml"
    path.write_text("type: oldie\nschema_version: 1\nlr: 0.5  # measured\n")
    refused = run("validate", "mine.yaml", code=2)
    assert "written for schema version 1 of oldie" in refused.stderr
    assert "rlreg migrate mine.yaml" in refused.stderr
    run("migrate", "mine.yaml")
    assert re.search("learning_rate: 0.5 +# measured", path.read_text())
    run("validate", "mine.yaml")


def test_a_checkpoint_from_the_future_says_who_wrote_it(oldie):
    install, run = oldie
    install("2.0", SECOND)
    run(
        *("train", "oldie", "--steps", "2", "--device", "cpu", "--out", "new"),
        *("--set", "evaluation.env=null"),
    )
    install("1.0", FIRST)
    refused = run("evaluate", "new/last.rlreg", "--env", "Pendulum-v1", code=2)
    assert "schema version 2" in refused.stderr
    assert "rlreg-oldie" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_moved_config_class_still_loads(oldie, tmp_path):
    """A checkpoint names ids, never modules: renaming or moving the class changes nothing."""
    install, run = oldie
    source = FIRST.replace("OldieConfig", "RenamedConfig")
    install("1.0", "from moved_module import *\nfrom moved_module import rlreg_learnables\n")
    (tmp_path / "site" / "moved_module.py").write_text(source)
    done = run("evaluate", "run/last.rlreg", "--episodes", "1", "--strict-lock")
    assert "warning" not in done.stderr


def test_a_checkpoint_without_its_plugin_says_what_to_install(oldie, tmp_path):
    _, run = oldie
    (tmp_path / "site" / "rlreg_oldie-1.0.dist-info" / "entry_points.txt").unlink()
    refused = run("evaluate", "run/last.rlreg", "--env", "Pendulum-v1", code=2)
    assert "pip install 'rlreg-oldie==1.0'" in refused.stderr
    assert refused.stderr.startswith("error: run/last.rlreg: ")
