"""Arguments of calls that mean nothing are refused by name, with an error of rlreg."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import rlreg
from rlreg.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    FileFormatError,
    NonFiniteError,
    RlregError,
    RunError,
    UnknownNameError,
)
from rlreg.runtime import runs as runs_module
from rlreg.runtime.arguments import file_path, whole_number
from rlreg.runtime.data.replay import ReplayBuffer
from rlreg.runtime.environments import env_factory
from rlreg.runtime.evaluation import evaluate
from rlreg.runtime.online import _check_lengths, _engine_of
from rlreg.runtime.progress import Display
from rlreg.runtime.runs import RunFolder
from rlreg.runtime.settling import settle_run


@pytest.mark.parametrize("value", ["5", None, 1.5, 2.0, math.nan, True, np.True_, [1]], ids=repr)
def test_what_is_no_whole_number_is_refused_by_its_name(value):
    with pytest.raises(ConfigError, match=r"n_steps = .*: expected a whole number of at least 1"):
        whole_number("n_steps", value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)], ids=repr)
def test_whole_numbers_of_every_kind_are_taken(value):
    assert whole_number("n", value) == 3
    with pytest.raises(ConfigError, match="n = 3: must be at least 4"):
        whole_number("n", value, 4)


@pytest.mark.parametrize("value", [None, 3, "", ".", b"x"], ids=repr)
def test_what_is_no_path_of_a_file_is_refused(value, make_tiny):
    with pytest.raises(ConfigError, match="save: "):
        file_path("save", value)
    learnable = make_tiny(0)
    for save in (learnable.save, learnable.save_model):
        with pytest.raises(ConfigError, match="save"):
            save(value)
    with pytest.raises(ConfigError, match="export: "):
        learnable.export(value, "torch_export")


def test_lengths_of_training_are_whole_numbers(make_tiny, arrays_data):
    learnable = make_tiny(0)
    for bad in ("5", None, 1.5, math.nan):
        with pytest.raises(ConfigError, match="n_steps = "):
            learnable.fit(arrays_data, bad, show_progress=False)
        with pytest.raises(ConfigError, match="n_steps_per_epoch = "):
            learnable.fit(arrays_data, 5, bad, show_progress=False)
    assert learnable.grad_step == 0
    with pytest.raises(ConfigError, match="n_epochs = True: expected a whole number"):
        _check_lengths(None, True, 25)
    with pytest.raises(ConfigError, match=r"n_steps = 1\.5: expected a whole number"):
        _check_lengths(1.5, None, 25)


def test_evaluations_say_what_is_wrong_with_their_own_arguments(make_tiny):
    learnable = make_tiny(0)
    for name, bad in (("n_episodes", "a"), ("n_episodes", 1.5), ("seed", -1), ("seed", "a")):
        with pytest.raises(ConfigError, match=f"^{name} = "):
            evaluate(learnable, "Pendulum-v1", **{name: bad})
    with pytest.raises(ConfigError):
        env_factory("")


def test_seeds_of_numpy_are_seeds(tiny):
    created = rlreg.create("tiny_bc", device="cpu", seed=np.int64(3))
    assert created.seed == 3
    assert type(created.seed) is int
    with pytest.raises(ConfigError, match="seed = True"):
        rlreg.create("tiny_bc", device="cpu", seed=True)


NO_FUNCTIONS = {
    "evaluators": [
        (3, "evaluators: expected a mapping from names to functions, got 3"),
        ([len], "evaluators: expected a mapping"),
        ({"a": 3}, r"evaluators\['a'\]: expected a function, got 3"),
        ({3: len}, "evaluators: expected names of functions, one is 3"),
    ],
    "callbacks": [
        (3, "callbacks: expected a list of functions, got 3"),
        (len, "callbacks: expected a list of functions"),
        ("abc", "callbacks: expected a list of functions"),
        ([len, 3], r"callbacks\[1\]: expected a function, got 3"),
    ],
    "logger": [("csv", r"logger: expected something with metrics\(step, dict\), got 'csv'")],
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_what_is_called_while_training_is_looked_at_before(make_tiny, arrays_data, name):
    learnable, online = make_tiny(0), rlreg.create("impala", device="cpu")
    for value, message in NO_FUNCTIONS[name]:
        with pytest.raises(ConfigError, match=f"^{message}"):
            learnable.fit(arrays_data, 5, show_progress=False, **{name: value})
        with pytest.raises(ConfigError, match=f"^{message}"):
            learnable.fitter(arrays_data, 5, **{name: value})
        with pytest.raises(ConfigError, match=f"^{message}"):
            online.train("CartPole-v1", n_epochs=1, **{name: value})
        if name != "evaluators":
            with pytest.raises(ConfigError, match=f"^{message}"):
                learnable.fit_online("Pendulum-v1", n_steps=5, **{name: value})
    assert learnable.grad_step == online.grad_step == 0
    assert not online.is_built


def test_a_buffer_that_is_none_is_refused(make_tiny):
    with pytest.raises(ConfigError, match="buffer: expected a ReplayBuffer or None, got 3"):
        make_tiny(0).fit_online("Pendulum-v1", 3, n_steps=5, show_progress=False)


def test_a_run_that_is_none_is_refused():
    for bad in (None, 3):
        with pytest.raises(ConfigError, match="train: expected a run, a config, a file or an id"):
            rlreg.train(bad)
        with pytest.raises(ConfigError, match="resume: expected the path of a folder"):
            rlreg.resume(bad)
    with pytest.raises(ConfigError, match="out: expected the path of a folder"):
        rlreg.train("iql", out=3)
    with pytest.raises(ConfigError, match="seeds = 'a'"):
        rlreg.train("iql", seeds="a")
    with pytest.raises(ConfigError, match="should_stop: expected a function, got 3"):
        rlreg.train("iql", should_stop=3)
    with pytest.raises(ConfigError, match="should_stop: expected a function, got 3"):
        rlreg.resume("here", should_stop=3)
    with pytest.raises(ConfigError, match="preset: expected its name, got 3"):
        rlreg.train("iql", preset=3)
    for bad in (3, "a=b"):
        with pytest.raises(ConfigError, match=r"overrides: expected a list of .key.path=value., "):
            rlreg.train("iql", overrides=bad)
    with pytest.raises(ConfigError, match=r"overrides: expected .key.path=value., got 3"):
        rlreg.train("iql", overrides=[3])


@pytest.mark.parametrize("engine", ["process", 3, {"type": "nosuch"}], ids=str)
def test_an_engine_that_is_none_is_named(engine):
    with pytest.raises(RlregError, match="engine"):
        _engine_of(engine)


def test_predictions_on_what_is_no_number(make_tiny):
    learnable = make_tiny(0)
    for bad in ("abc", np.array([["a", "b", "c"]]), np.zeros((1, 3), complex), [[1, 2], [3]]):
        with pytest.raises(RlregError, match="expected"):
            learnable.predict(bad)
    with pytest.raises(NonFiniteError):
        learnable.predict(np.full((1, 3), np.nan))


def test_a_state_that_is_none_is_refused(make_tiny):
    learnable = make_tiny(0)
    for bad in (None, 3, "state", []):
        with pytest.raises(CheckpointError, match=f"got a {type(bad).__name__}"):
            learnable.load_state_dict(bad)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in the file system are POSIX")
@pytest.mark.parametrize("name", ["pipe.yaml", "pipe.rlreg"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileFormatError, match=f"{name}: no regular file"):
        rlreg.load_config(tmp_path / name)


def test_a_disk_that_is_full_at_the_start_leaves_an_empty_folder(tiny, tmp_path, monkeypatch):
    run = settle_run(rlreg.files.load_run({"type": "tiny_bc"}))
    write = runs_module.write_text

    def full(path: Path, text: str) -> None:
        if path.name == "rlreg.lock":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr(runs_module, "write_text", full)
    with pytest.raises(RunError, match="No space left"):
        RunFolder.create(tmp_path / "r", run)
    monkeypatch.undo()
    RunFolder.create(tmp_path / "r", run)


def test_the_time_that_remains_is_never_negative(capsys):
    display = Display(100)
    display._begun_at -= 10  # as if ten seconds had passed: 16 updates a second
    display.advance(160)
    display.epoch(1, None, {"loss": 1.0})
    assert "ETA 0:00:00" in capsys.readouterr().err


@pytest.mark.parametrize("value", [5, None, ("iql",), b"iql", np.float32(1), {}, []], ids=repr)
def test_a_name_that_is_no_text_is_refused(value):
    for call in (rlreg.get_config_class, rlreg.json_schema, rlreg.make_config):
        with pytest.raises(UnknownNameError, match=r"^expected the (name|id)"):
            call(value)


@pytest.mark.parametrize("value", [{}, "iql", 5, None], ids=repr)
def test_a_policy_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="policy: expected a function"):
        evaluate(value, "Pendulum-v1", 1)


@pytest.mark.parametrize("is_buffer", [False, True])
def test_samples_are_drawn_by_number_and_generator(is_buffer, arrays_data):
    source = arrays_data
    if is_buffer:
        source = ReplayBuffer(10, dataset=arrays_data)
        for limit in (0, "many", 1.5):
            with pytest.raises(ConfigError, match="limit"):
                ReplayBuffer(limit, dataset=arrays_data)
        for share in (0, 1, "half", math.nan):
            with pytest.raises(ConfigError, match="balanced_share"):
                ReplayBuffer(10, dataset=arrays_data, balanced_share=share)
    generator = torch.Generator()
    for size in (0, -1, 1.5, "8", (2,)):
        with pytest.raises(ConfigError, match="batch_size"):
            source.sample(size, generator)
    for other in (None, 5, torch):
        with pytest.raises(ConfigError, match="generator: expected one of torch or numpy"):
            source.sample(2, other)
    assert len(source.sample(np.int64(2), generator)["rewards"]) == 2


@pytest.mark.parametrize("name", ["actions", "rewards", "terminations"])
@pytest.mark.parametrize("value", [["a"] * 4, [object()] * 4, [[1.0], [1.0, 2.0]] * 2])
def test_a_batch_of_no_numbers_is_refused_by_its_name(name, value, make_tiny, arrays_data):
    batch = {**arrays_data.sample(4, torch.Generator()), name: value}
    with pytest.raises(DatasetError, match=f"batch: {name}: expected an array of numbers"):
        make_tiny(0).update(batch)


def test_a_space_is_no_observation(make_tiny):
    with pytest.raises(RlregError):
        make_tiny(0).predict(gymnasium.spaces.Text(3))


def test_options_of_loading_that_are_no_flag_are_refused(minari_root):
    for value in (torch.zeros(2), "no", 1):
        with pytest.raises(DatasetError, match="clip_actions: expected True or False"):
            rlreg.load_dataset("rlreg/pendulum/mixed-v0", generate=True, clip_actions=value)
