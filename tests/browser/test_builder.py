"""The config builder in a real browser: pick, break, fix, switch, paste, copy; and rlreg agrees."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rlreg
from rlreg.files import load_config, load_run

pytestmark = pytest.mark.browser

EXPECTILE = "#root_learnable_expectile"
ENCODER = "#root_learnable_actor_encoder_factory"


@pytest.fixture
def builder(browser, site):
    browser.open(site / "builder.html", "#iql")
    browser.find(EXPECTILE)
    return browser


def copy(browser, face: str) -> str:
    browser.find(f"#copy-{face}").click()
    browser.wait_for(f"#copy-{face}", lambda text: text == "Copied")
    return browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], error => arguments[0](String(error)))"
    )


def validate(text: str, folder: Path):
    (folder / "run.yaml").write_text(text)
    command = [sys.executable, "-m", "rlreg", "validate", "run.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def loaded(text: str, folder: Path):
    (folder / "run.yaml").write_text(text)
    return load_config(str(folder / "run.yaml"))


def problems(browser) -> str:
    return browser.text("#problems")


def test_pick_break_fix_switch_copy(builder, tmp_path):
    assert problems(builder) == "Valid"
    builder.write(EXPECTILE, "1.5")
    builder.wait_for("#problems", lambda text: "expectile must be < 1" in text)
    assert "must be < 1" in builder.text(f"{EXPECTILE}__error")
    assert not builder.find("#copy-yaml").is_enabled()
    builder.write(EXPECTILE, "0.9")
    builder.wait_for("#problems", lambda text: text == "Valid")
    builder.choose(f"{ENCODER}__select", "vector")
    builder.write(f"{ENCODER}_hidden_units", "[64, 0]")
    builder.wait_for("#problems", lambda text: "hidden_units[1] must be >= 1" in text)
    assert "item 2: must be >= 1" in builder.text(f"{ENCODER}_hidden_units__error")
    builder.write(f"{ENCODER}_hidden_units", "[64, 32]")
    builder.wait_for("#problems", lambda text: text == "Valid")

    text = copy(builder, "yaml")
    done = validate(text, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = rlreg.make_config(
        "iql", expectile=0.9, actor_encoder_factory={"type": "vector", "hidden_units": [64, 32]}
    )
    assert loaded(text, tmp_path).learnable == expected
    assert len(text.splitlines()) == 7  # nothing that is a default
    namespace: dict = {}
    python = copy(builder, "python").replace("learnable = rlreg.create(config)", "")
    exec(python, namespace)
    assert namespace["config"] == expected
    assert of_command(copy(builder, "command")).learnable == expected


def of_command(text: str):
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["rlreg", "train"]
    sets = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    presets = [words[index + 1] for index, word in enumerate(words) if word == "--preset"]
    return load_run(words[2], overrides=sets, preset=presets[0] if presets else None)


def all_presets():
    return [item.preset.id for item in rlreg.registry.list_presets()]


@pytest.mark.parametrize("preset", all_presets())
def test_every_preset_means_the_same_in_all_forms(builder, tmp_path, preset):
    name = preset.partition("/")[0]
    builder.choose("#learnable", name)
    builder.choose("#preset", preset)
    assert problems(builder) == "Valid"
    expected = load_run(name, preset=preset)
    assert loaded(builder.text("#yaml"), tmp_path) == expected
    builder.find("#full").click()
    assert loaded(builder.text("#yaml"), tmp_path) == expected
    assert builder.text("#command").replace("\\\n  ", "") == (
        f"rlreg train {name} --preset {preset}\n"
    )
    namespace: dict = {}
    python = builder.text("#python").replace("result = rlreg.train(run)", "")
    exec(python.replace("learnable = rlreg.create(config)", ""), namespace)
    made = namespace.get("run") or namespace["config"]
    assert made == (expected if "run" in namespace else expected.learnable)


def test_a_change_on_a_preset_is_a_flag(builder):
    builder.choose("#learnable", "impala")
    builder.choose("#preset", "impala/paper")
    builder.write("#root_learnable_optim_factory_eps", "0.02")
    builder.choose("#root_learnable_lr_scheduler_factory__select", "none (null)")
    builder.choose("#root_learnable_actor_encoder_factory__select", "vector")
    builder.wait_for("#problems", lambda text: text == "Valid")
    run = of_command(builder.text("#command"))
    expected = load_run(
        "impala", preset="paper",
        overrides=["optim_factory.eps=0.02", "lr_scheduler_factory=null",
                   "actor_encoder_factory={type: vector}"],
    )  # fmt: skip
    assert run == expected


def test_a_pasted_file_fills_the_form_and_shows_its_faults(builder, tmp_path):
    builder.find("summary").click()
    text = (
        "learnable:\n  type: iql\n  expectil: 0.9\n  tau: 3e-2\n  batch_size: 0\n"
        "  value_learning_rate: 20\n  actor_encoder_factory: {type: vectr}\nseed: 7\n"
    )
    builder.run("arguments[0].scrollIntoView()", builder.find("#paste"))
    builder.find("#paste").send_keys(text)
    builder.find("#fill").click()
    builder.wait_for("#problems", lambda found: "problems" in found)
    found = problems(builder)
    assert "line 3: learnable has no setting 'expectil'" in found or "expectil" in found
    assert "line 5: learnable.batch_size must be >= 1" in found
    assert "line 6: learnable.value_learning_rate must be <= 10" in found
    assert "line 7: learnable.actor_encoder_factory.type must be one of" in found
    assert "must be null" not in found
    assert builder.find("#root_learnable_tau").get_property("value") == "0.03"
    assert builder.find("#root_seed").get_property("value") == "7"

    builder.find("#problems li button").click()  # Remove expectil
    builder.write("#root_learnable_batch_size", "64")
    builder.write("#root_learnable_value_learning_rate", "0.1")
    builder.choose(f"{ENCODER}__select", "pixel")
    builder.wait_for("#problems", lambda text: text == "Valid")
    run = loaded(copy(builder, "yaml"), tmp_path)
    assert run.seed == 7
    assert (run.learnable.tau, run.learnable.batch_size) == (0.03, 64)
    assert run.learnable.value_learning_rate == 0.1
    assert run.learnable.actor_encoder_factory.type == "pixel"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learnable: {type: iql", "at line 1"),
        ("a: 1", "Expected `learnable`"),
        ("learnable: {type: iqll}", "no learnable \"iqll\""),
        ("type: iql\ntype: iql", "unique"),
        ("", "Expected"),
    ],
)  # fmt: skip
def test_a_paste_that_is_no_config_says_why_and_changes_nothing(builder, text, message):
    before = builder.text("#yaml")
    builder.find("summary").click()
    builder.run("arguments[0].scrollIntoView()", builder.find("#paste"))
    builder.find("#paste").send_keys(text)
    builder.find("#fill").click()
    builder.wait_for("#paste-errors", lambda found: message in found)
    assert builder.text("#yaml") == before


def test_the_form_of_a_learnable_is_pasted_without_a_run(builder, tmp_path):
    builder.find("summary").click()
    builder.run("arguments[0].scrollIntoView()", builder.find("#paste"))
    builder.find("#paste").send_keys("type: impala\nlr: 0.01\n")
    builder.find("#fill").click()
    builder.wait_for("#yaml", lambda text: "lr: 0.01" in text)
    assert loaded(builder.text("#yaml"), tmp_path).learnable == rlreg.make_config("impala", lr=0.01)


def test_the_run_settings_are_edited_too(builder, tmp_path):
    for summary in builder.driver.find_elements("css selector", "summary"):
        if summary.text == "Run settings":
            builder.run("arguments[0].scrollIntoView()", summary)
            summary.click()
    builder.choose("#root_train_n_steps__select", "number")
    builder.write("#root_train_n_steps", "5000")
    builder.choose("#root_dataset__select", "text")
    builder.write("#root_dataset", "D4RL/pointmaze/umaze-v2")
    builder.wait_for("#problems", lambda text: text == "Valid")
    run = loaded(builder.text("#yaml"), tmp_path)
    assert (run.train.n_steps, run.dataset) == (5000, "D4RL/pointmaze/umaze-v2")
    namespace: dict = {}
    exec(builder.text("#python").replace("result = rlreg.train(run)", ""), namespace)
    assert namespace["run"] == run


def test_pictures_of_the_builder(builder, pictures):
    builder.write(EXPECTILE, "1.5")
    builder.choose(f"{ENCODER}__select", "vector")
    for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
        builder.resize(width, 900, dark=dark)
        assert not builder.is_too_wide()
        name = f"builder-{width}{'-dark' if dark else ''}.png"
        builder.picture(pictures / name)
        assert os.path.getsize(pictures / name) > 20_000
