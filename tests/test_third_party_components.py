"""Parts from five strangers' packages work in IQL and IMPALA and come back in a fresh process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlreg.scaffold import Project, render

pytest.importorskip("rlreg_iql", reason="the light job has core alone")
pytest.importorskip("rlreg_impala", reason="the light job has core alone")

KINDS = ("encoder", "optimizer", "lr_scheduler", "observation_scaler", "logger")
CRACKED = '''
from typing import Literal
import rlreg

class CrackedLogger(rlreg.LoggerFactory):
    """Breaks at the second row."""
    type: Literal["cracked"] = "cracked"

    def create(self):
        class Logger:
            rows = 0
            def start(self, run):
                pass
            def metrics(self, step, row):
                self.rows += 1
                if self.rows == 2:
                    raise ConnectionError("the server hung up")
            def checkpoint(self, path):
                pass
            def end(self, summary):
                raise AssertionError("it was switched off")
        return Logger()

@rlreg.hookimpl
def rlreg_components():
    return [CrackedLogger]
'''

IQL = """
learnable:
  type: iql
  batch_size: 8
  actor_encoder_factory: {type: their-encoder, feature_size: 6}
  critic_encoder_factory: {type: vector, hidden_units: [4]}
  value_encoder_factory: {type: their-encoder, feature_size: 5}
  actor_optim_factory: {type: their-optimizer, momentum: 0.5}
  critic_optim_factory: {type: adam, lr_scheduler_factory: {type: their-lr_scheduler, half_life: 7}}
  observation_scaler: {type: their-observation_scaler, divisor: 2.0}
dataset: rlreg/pendulum/mixed-v0
train: {n_steps: 12, n_steps_per_epoch: 4}
evaluation: {n_episodes: 1}
logging: [{type: jsonl}, {type: their-logger, digits: 3}]
"""
IMPALA = """
learnable:
  type: impala
  n_rollout_steps: 8
  actor_encoder_factory: {type: their-encoder, feature_size: 6}
  optim_factory: {type: their-optimizer, momentum: 0.5}
  lr_scheduler_factory: {type: their-lr_scheduler, half_life: 7}
env: CartPole-v1
engine: {type: sequential}
train: {n_epochs: 3, epoch_length: 2}
evaluation: {n_episodes: 1}
logging: [{type: jsonl}, {type: their-logger, digits: 3}]
"""
RELOAD = """
import json, sys
import numpy as np
import rlreg
from rlreg.files import dump_yaml, load_config
run = load_config("run")
learnable = rlreg.load("run/last.rlreg", device="cpu")
config = learnable.config
assert config == run.learnable
assert load_config(json.loads(config.model_dump_json())) == config
assert load_config(json.loads(run.model_dump_json(by_alias=True))) == run
open("again.yaml", "w").write(dump_yaml(run))
assert load_config("again.yaml") == run
learnable.save("again.rlreg")
assert rlreg.load("again.rlreg", device="cpu").config == config
lock = json.load(open("run/rlreg.lock"))
row = np.zeros((2, *learnable.spaces.observation_shape), np.float32)
print(json.dumps({
    "distributions": sorted({entry["id"].rpartition("/")[0] for entry in lock["ids"]}),
    "encoder": type(config.actor_encoder_factory).__module__,
    "actions": np.asarray(learnable.predict(row)).tolist(),
    "grad_step": learnable.grad_step,
}))
"""


def install(site: Path, name: str, kind: str) -> None:
    """Leaves in ``site`` what pip would."""
    project = Project(name, component=kind)
    for path, text in render(project).items():
        if path.startswith("src/"):
            target = site / path.removeprefix("src/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    add_metadata(site, project.distribution, name, f"{project.package}.plugin")


def add_metadata(site: Path, distribution: str, entry_point: str, value: str) -> None:
    info = site / f"{distribution.replace('-', '_')}-0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[rlreg]\n{entry_point} = {value}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    for kind in KINDS:
        install(folder, f"their-{kind}", kind)
    (folder / "cracked_plugin.py").write_text(CRACKED)
    add_metadata(folder, "rlreg-cracked", "cracked", "cracked_plugin")
    return folder


@pytest.fixture
def python(site, tmp_path):
    def run(*arguments, site=site, code=0):
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize(("name", "text"), [("iql", IQL), ("impala", IMPALA)])
def test_parts_of_five_packages_train_and_reload_in_a_fresh_process(name, text, python, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    python("-m", "rlreg", "train", "mine.yaml", "--device", "cpu", "--out", "run")
    first = json.loads(python("-c", RELOAD).stdout)
    assert first["encoder"] == "rlreg_their_encoder.components"
    assert first["grad_step"] == (12 if name == "iql" else 6)
    used = [kind for kind in KINDS if f"their-{kind}" in text]
    assert len(used) == (5 if name == "iql" else 4)  # IMPALA has no field for a scaler
    assert {f"rlreg-their-{kind}" for kind in used} <= {*first["distributions"]}
    rows = (tmp_path / "run" / "rlreg-their-logger.txt", tmp_path / "run" / "their-logger.txt")
    assert any(path.exists() for path in rows)


def test_without_one_of_the_packages_the_checkpoint_says_what_to_install(python, site, tmp_path):
    (tmp_path / "mine.yaml").write_text(IQL)
    python("-m", "rlreg", "train", "mine.yaml", "--device", "cpu", "--out", "run")
    poorer = tmp_path / "poorer"
    shutil.copytree(site, poorer)
    shutil.rmtree(poorer / "rlreg_their_encoder-0.3.dist-info")
    for command in (["evaluate", "run"], ["evaluate", "run/last.rlreg"], ["resume", "run"]):
        if command[0] == "resume":
            (tmp_path / "run" / "summary.json").unlink()
        done = python("-m", "rlreg", *command, site=poorer, code=2)
        assert "encoder 'their-encoder' of rlreg-their-encoder 0.3" in done.stderr
        assert "pip install 'rlreg-their-encoder==0.3'" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_logger_that_raises_in_mid_training_is_reported_attributed_and_survived(python, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        IQL.replace("{type: their-logger, digits: 3}", "{type: cracked}")
    )
    done = python("-m", "rlreg", "train", "mine.yaml", "--device", "cpu", "--out", "run")
    assert done.stderr.count("ConnectionError: the server hung up") == 1
    assert "the logger 'cracked of rlreg-cracked 0.3' failed and is switched off" in done.stderr
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 12
    assert (tmp_path / "run" / "summary.json").exists()


LEARNABLE = '''
from typing import ClassVar, Literal
import rlreg


class GoodConfig(rlreg.LearnableConfig):
    """Good."""

    regime: ClassVar[str] = "offline"
    type: Literal["good"] = "good"
    encoder_factory: rlreg.EncoderFactory = rlreg.make_encoder_field()


@rlreg.hookimpl
def rlreg_learnables():
    return [GoodConfig]
'''

ENCODER = '''
from typing import Literal
import rlreg


class Mine(rlreg.EncoderFactory):
    """Mine."""

    type: Literal["layers"] = "layers"


@rlreg.hookimpl
def rlreg_components():
    return [Mine]
'''


@pytest.mark.parametrize("second", ["aa-second", "rlreg-layers"], ids=["ambiguous", "owner"])
def test_a_run_means_what_it_meant_when_another_package_brings_the_same_tag(
    second, make_plugin, run_python, tmp_path
):
    sites = [make_plugin("good-dist", LEARNABLE), make_plugin("first", ENCODER)]
    folder = tmp_path / "run"
    folder.mkdir()
    text = "learnable: {type: good, encoder_factory: {type: layers}}\n"
    (folder / "run.yaml").write_text(text)
    (tmp_path / "mine.yaml").write_text(text)
    write = (
        "import json, sys, rlreg\n"
        "from rlreg.runtime.lock import lock_of, lock_to_json\n"
        "lock = lock_to_json(lock_of(rlreg.load_config(sys.argv[1])))\n"
        f"open({str(folder / 'rlreg.lock')!r}, 'w').write(json.dumps(lock))\n"
    ).replace("sys.argv[1]", repr(str(folder)))
    run_python(write, path=sites)
    read = (
        "import rlreg\n"
        "found = rlreg.load_config({!r}).learnable.encoder_factory\n"
        "print(type(found).__module__)\n"
    )
    sites.append(make_plugin(second, ENCODER))
    assert run_python(read.format(str(folder)), path=sites).strip() == "first_plugin"
    # A file that somebody wrote has no such record.
    own = run_python(
        "import rlreg\n"
        "try:\n"
        f"    print(type(rlreg.load_config({str(tmp_path / 'mine.yaml')!r}).learnable"
        ".encoder_factory).__module__)\n"
        "except rlreg.RlregError as error:\n"
        "    print(error)\n",
        path=sites,
    )
    assert "claimed by 2 distributions" in own or "rlreg_layers_plugin" in own
