"""`rlreg new`: what it writes installs, passes `rlreg check` and trains, untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlreg.cli.main import cli
from rlreg.errors import ConfigError, FileFormatError, UnknownNameError
from rlreg.scaffold import COMPONENT_KINDS, Project, render, write

EXAMPLE = Path(__file__).parents[1] / "examples" / "rlreg-bc"


def rlreg(*arguments: str, site: Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rlreg", *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def pip_install(*projects: Path, site: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"),
            *("--no-index", "--target", str(site), *map(str, projects)),
        ],
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


# --- names --------------------------------------------------------------------------------------


@pytest.mark.light
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My Algo", "did you mean 'my-algo'"),
        ("myAlgo!", "did you mean 'myalgo'"),
        ("3d", "did you mean 'd'"),
        ("-", "for example 'my-algo'"),
        ("", "for example 'my-algo'"),
        ("../x", "did you mean 'x'"),
        ("a/b", "did you mean 'a-b'"),
        ("a-", "did you mean 'a'"),
        ("é", "for example 'my-algo'"),
        ("x" * 65, f"did you mean '{'x' * 64}'"),
        ("rlreg-td3", "the distribution gets the prefix by itself; did you mean 'td3'"),
        ("run", "choose another"),
        ("rlreg", "it is the name of the registry itself; choose another"),
        ("iql", "rlreg-iql .* already provides this learnable"),
        ("new\nline", "did you mean 'new-line'"),
    ],
)
def test_bad_name_is_refused_with_what_is_allowed(name, message):
    if name == "iql":
        pytest.importorskip("rlreg_iql", reason="the light job has core alone")
    with pytest.raises(ConfigError, match=message):
        Project(name)


@pytest.mark.light
def test_component_may_have_the_name_of_a_learnable_but_not_of_its_own_kind():
    assert Project("iql", component="encoder").distribution == "rlreg-iql"
    with pytest.raises(ConfigError, match=r"rlreg .* already provides this optimizer"):
        Project("adam", component="optimizer")


@pytest.mark.light
def test_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'encoder'"):
        Project("x", component="encodr")


# --- files --------------------------------------------------------------------------------------

PROJECTS = [
    *(("my-algo", {"regime": regime}) for regime in ("offline", "online")),
    *(("my_part", {"component": kind}) for kind in COMPONENT_KINDS),
    ("learnable", {}),
    ("offline-learnable", {}),
    ("x", {"regime": "online"}),
]


@pytest.mark.light
@pytest.mark.parametrize(("name", "options"), PROJECTS, ids=str)
def test_every_file_is_well_formed(name, options):
    project = Project(name, **options)
    files = render(project)
    for path, text in files.items():
        assert "{{" not in text.replace("${{", ""), path
        if path.endswith(".py"):
            compile(text, path, "exec")
    settings = tomllib.loads(files["pyproject.toml"])
    assert settings["project"]["name"] == f"rlreg-{name}"
    assert settings["project"]["entry-points"]["rlreg"] == {name: f"{project.package}.plugin"}
    assert f'conformance_tests("rlreg-{name}")' in files[f"tests/test_{project.module}.py"]


def test_what_it_writes_is_formatted_and_linted(tmp_path):
    for name, options in PROJECTS:
        write(Project(name, **options), tmp_path / "-".join([name, *options.values()]))
    rules = ["--isolated", "--line-length", "100"]
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    subprocess.run([*ruff, "format", *rules, "--check", "."], cwd=tmp_path, check=True)
    chosen = ["--select", "E,F,W,I,UP,B,D,ANN", "--ignore", "ANN401,D107"]
    chosen += ["--config", "lint.pydocstyle.convention='google'"]
    lines = ["--config", "lint.isort.known-third-party=['rlreg']"]
    subprocess.run([*ruff, "check", *rules, *chosen, *lines, "."], cwd=tmp_path, check=True)


@pytest.mark.light
def test_an_existing_folder_is_refused_and_nothing_is_left_behind(tmp_path):
    folder = write(Project("my-algo"), tmp_path)
    assert folder == tmp_path / "rlreg-my-algo"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileFormatError, match="exists already"):
        write(Project("my-algo", "online"), tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "rlreg-other").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="exists already"):
        write(Project("other"), tmp_path)


@pytest.mark.light
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(FileFormatError, match="No space left"):
        write(Project("my-algo"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.light
def test_a_file_in_the_way_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match="cannot be written"):
        write(Project("my-algo"), tmp_path / "file")


# --- command line -------------------------------------------------------------------------------


@pytest.mark.light
def test_new_lists_its_files_as_json(tmp_path):
    done = CliRunner().invoke(
        cli, ["new", "my-algo", "--online", "-o", str(tmp_path), "--json"], catch_exceptions=False
    )
    document = json.loads(done.stdout)
    assert document["distribution"] == "rlreg-my-algo"
    assert "src/rlreg_my_algo/learnable.py" in document["files"]
    assert ".github/workflows/ci.yml" in document["files"]


@pytest.mark.light
def test_a_component_has_no_regime(tmp_path):
    done = CliRunner().invoke(
        cli, ["new", "x", "--online", "--component", "encoder", "-o", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "neither" in done.output


def test_check_lists_what_it_proves():
    done = CliRunner().invoke(cli, ["check", "--list", "--json"], catch_exceptions=False)
    names = [row["name"] for row in json.loads(done.stdout)["checks"]]
    assert "same-seed-same-result" in names
    assert len(names) >= 30


# --- untouched ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed one project of each template."""
    parent, target = tmp_path_factory.mktemp("projects"), tmp_path_factory.mktemp("site")
    projects = [Project("new-offline"), Project("new-online", "online")]
    projects += [Project(f"new-{kind}", component=kind) for kind in COMPONENT_KINDS]
    pip_install(*(write(project, parent) for project in projects), site=target)
    return target


@pytest.mark.parametrize("name", ["new-offline", "new-online"])
def test_untouched_learnable_passes_the_check(name, site, tmp_path):
    done = rlreg("check", f"rlreg-{name}", "--json", site=site, cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["counts"]["failed"] == 0
    assert document["counts"]["passed"] >= 30


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("encoder", "logger") else pytest.mark.slow)
        for kind in COMPONENT_KINDS
    ],
)
def test_untouched_component_passes_the_check(kind, site, tmp_path):
    done = rlreg("check", f"rlreg-new-{kind}", site=site, cwd=tmp_path)
    assert "18 passed, 3 skipped" in done.stdout


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("new-offline", ["--steps", "50"]),
        ("new-online", ["--env", "CartPole-v1", "--steps", "640"]),
    ],
)
def test_untouched_learnable_trains(name, options, site, tmp_path):
    rlreg(
        "train", name, *options, "--device", "cpu", "--set", "evaluation.n_episodes=1",
        "--out", "run", site=site, cwd=tmp_path,
    )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["learnable"] == name
    assert summary["steps"] == int(options[-1])
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    if "--env" in options:  # a pole that nobody balances falls after some twenty steps
        assert 8 < rows[-1]["episode/return_mean"] < 200


def test_components_of_four_packages_train_together(site, tmp_path):
    parts = {
        "encoder_factory": "{type: new-encoder, feature_size: 32}",
        "optim_factory": "{type: new-optimizer}",
        "observation_scaler": "{type: new-observation_scaler, divisor: 2.0}",
    }
    chosen = [f"--set=learnable.{field}={value}" for field, value in parts.items()]
    chosen.append("--set=logging=[{type: jsonl}, {type: new-logger}]")
    rlreg(
        "train", "new-offline", "--steps", "20", *chosen, "--device", "cpu",
        "--set", "evaluation.n_episodes=1", "--out", "run", site=site, cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "run" / "new-logger.txt").read_text().startswith("20 ")
    rlreg("evaluate", "run", "--episodes", "1", site=site, cwd=tmp_path)


def test_check_exits_with_3_and_one_document_when_a_check_fails(site, tmp_path):
    copy = tmp_path / "site"
    subprocess.run(["cp", "-r", str(site), str(copy)], check=True)
    config = copy / "rlreg_new_offline" / "config.py"
    config.write_text(config.read_text().replace(" Default: ours, 256.", "") + "\nprint('noise')\n")
    done = rlreg(
        "check", "new-offline", "--only", "defaults-have-a-source", "--json",
        site=copy, cwd=tmp_path, code=3,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert "noise" in done.stderr
    (result,) = document["results"]
    assert result["status"] == "failed"
    assert "batch_size" in result["message"]


def test_check_of_an_unknown_name_is_bad_input(site, tmp_path):
    done = rlreg("check", "new-offlin", site=site, cwd=tmp_path, code=2)
    assert "did you mean" in done.stderr
    done = rlreg("check", "iql", "--only", "same-sed", site=site, cwd=tmp_path, code=2)
    assert "there is no check 'same-sed'" in done.stderr


@pytest.mark.slow
def test_tests_of_scaffold_and_example_pass_as_their_authors_run_them(site, tmp_path):
    target, folder = tmp_path / "site", tmp_path / "example"
    subprocess.run(["cp", "-r", str(EXAMPLE), str(folder)], check=True)
    pip_install(folder, site=target)
    project = write(Project("new-offline"), tmp_path)
    for place in (folder, project):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, target)))},
            cwd=place,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
