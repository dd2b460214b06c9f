"""An environment that misbehaves is bad input: one message, exit code 2, nothing left behind."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rlreg
from rlreg.cli.main import run as run_cli
from rlreg.errors import ConfigError, EndlessEpisodeWarning, EnvironmentSpecError
from rlreg.files import load_run
from rlreg.runtime import playing
from rlreg.runtime.environments import make_env
from rlreg.runtime.evaluation import evaluate
from rlreg.runtime.spaces import ActionPlan, FlatteningPlan


class Odd(gymnasium.Env):
    """Has Pendulum's spaces and one fault."""

    def __init__(self, fault="", render_mode=None):
        high = np.array([1.0, 1.0, 8.0], np.float32)
        self.fault = fault
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Box(-2, 2, (1,))
        if fault == "no spaces":
            del self.observation_space
        if fault == "exit":
            raise SystemExit(3)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        faults = {"generator exit": GeneratorExit, "exit in step": SystemExit}
        if self.fault in faults:
            raise faults[self.fault]
        ends = {"text": "no", "none": None, "array": np.array([True]), "number": 1}
        terminated = ends.get(self.fault, self.steps >= 50 and self.fault != "endless")
        return np.zeros(3, np.float32), 1.0, terminated, self.steps >= 450, {}

    def close(self):
        if self.fault == "close":
            raise RuntimeError("close broke")


@pytest.fixture
def odd(monkeypatch):
    """Registers the environment with a fault for a test, and takes it away afterwards."""
    registered = dict(gymnasium.registry)
    gymnasium.register("Odd-v0", entry_point=Odd)
    yield {"id": "Odd-v0"}
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


def settings(fault):
    return {"id": "Odd-v0", "kwargs": {"fault": fault}}


def policy(observations):
    return np.zeros((len(observations), 1), np.float32)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", r"cannot be made with \{'fault': 'exit'\}: EnvironmentExit: SystemExit\(3\)"),
        ("no spaces", "its observation_space is None, expected a space"),
        ("generator exit", r"episode 0, step 1: the environment raised .*GeneratorExit"),
        ("exit in step", r"episode 0, step 1: the environment raised .*SystemExit"),
        ("text", "terminated = 'no'; expected True or False"),
        ("none", "terminated = None; expected True or False"),
    ],
    ids=["exit", "no-spaces", "generator-exit", "exit-in-step", "text", "none"],
)
def test_a_fault_is_one_message(odd, fault, message):
    with pytest.raises(EnvironmentSpecError, match=message):
        evaluate(policy, settings(fault), 1) if fault != "no spaces" else make_env(settings(fault))


@pytest.mark.parametrize("fault", ["exit", "no spaces"])
def test_the_command_says_so_and_leaves_no_folder(odd, tiny, minari_root, tmp_path, fault, capsys):
    out = tmp_path / "r"
    place = ["--set", f"evaluation.env={{id: Odd-v0, kwargs: {{fault: {fault}}}}}"]
    assert run_cli(["train", "tiny_bc", "--steps", "5", "--out", str(out), *place]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: environment 'Odd-v0'")
    assert "Traceback" not in error
    assert not out.exists()


def test_closing_costs_no_result(odd, make_tiny):
    assert evaluate(policy, settings("close"), 2).lengths == (50, 50)


def test_flags_may_be_numbers_or_arrays_of_one(odd):
    assert evaluate(policy, settings("array"), 1).lengths == (1,)
    assert evaluate(policy, settings("number"), 1).lengths == (1,)


def test_an_episode_that_goes_on_and_on_is_spoken_of(odd, monkeypatch):
    monkeypatch.setattr(playing, "LONG_EPISODE", 40)
    with pytest.warns(EndlessEpisodeWarning) as said:
        assert evaluate(policy, settings("endless"), 1).lengths == (450,)
    starts = [str(one.message).partition(" goes on")[0] for one in said]
    assert starts == [f"evaluation: after {steps} steps episode 0" for steps in (40, 400)]


def test_spaces_of_ids_are_refused_instead_of_filling_the_memory():
    for plan in (FlatteningPlan, ActionPlan):
        with pytest.raises(EnvironmentSpecError, match="at most 1,048,576 are taken"):
            plan.of(spaces.Discrete(2**40))
        assert plan.of(spaces.Discrete(2**20))


# --- settings of environments -------------------------------------------------------------------


def test_register_is_suggested_by_the_name_it_has_in_a_file():
    run = {"learnable": {"type": "iql"}, "dataset": "x", "evaluation": {}}
    for key, hint in (("register_with", "did you mean 'register'"), ("zz", "id, kwargs, register")):
        run["evaluation"]["env"] = {"id": "CartPole-v1", key: "a:b"}
        with pytest.raises(ConfigError, match=hint):
            load_run(run)


def test_a_registration_call_that_is_not_there_is_never_passed_over():
    for call in ("nosuch_module:f", "math:nosuch"):
        with pytest.raises(EnvironmentSpecError, match=r"register .* cannot be imported"):
            make_env({"id": "CartPole-v1", "register": call})
    with pytest.raises(EnvironmentSpecError, match="register 'math:sqrt': TypeError"):
        make_env({"id": "NotThere-v0", "register": "math:sqrt"})


def test_a_module_in_the_working_folder_is_said_not_to_be_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "my_envs_here.py").write_text("def register(): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EnvironmentSpecError, match=r"my_envs_here in the working folder .*PYTHONPATH"
    ):
        make_env({"id": "Mine-v0", "register": "my_envs_here:register"})
    with pytest.raises(EnvironmentSpecError, match=r"No module named 'nosuch_module'$"):
        make_env({"id": "Mine-v0", "register": "nosuch_module:register"})


def test_env_may_be_given_beside_what_is_set_in_it(tiny, minari_root, tmp_path, capsys):
    out = tmp_path / "r"
    command = ["train", "tiny_bc", "--steps", "5", "--device", "cpu", "--out", str(out)]
    command += ["--env", "Pendulum-v1", "--set", "evaluation.env.kwargs={g: 9.0}"]
    assert run_cli([*command, "--set", "evaluation.n_episodes=1"]) == 0, capsys.readouterr().err
    env = rlreg.load_config(out).evaluation.env
    assert (env.id, env.kwargs) == ("Pendulum-v1", {"g": 9.0})


@pytest.mark.parametrize("command", [["train"], ["sweep", "--print-space"]], ids=["train", "sweep"])
def test_the_same_where_training_needs_the_environment(command, tmp_path, capsys):
    name, *options = command
    place = ["--env", "NotThere-v0", "--set", "env.kwargs={g: 9.0}"]
    out = [] if options else ["--out", str(tmp_path / "r")]
    code = run_cli([name, "impala", *options, *place, *out])
    error = capsys.readouterr().err
    assert code == (0 if options else 2)
    assert "is required" not in error
    if not options:
        assert "unknown environment 'NotThere-v0'" in error


@pytest.mark.parametrize("env", ["of_here:Mine-v0", {"id": "M-v0", "register": "of_here:f"}])
def test_a_module_in_the_working_folder_is_told_how_to_be_found(env, tmp_path, monkeypatch):
    (tmp_path / "of_here.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry not in ("", ".")])
    with pytest.raises(EnvironmentSpecError, match=r"is not on Python's path: .* PYTHONPATH=\."):
        make_env(env)
