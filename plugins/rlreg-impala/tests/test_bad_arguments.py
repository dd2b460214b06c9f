"""What a trainer, its states and the selection refuse: one line that names the argument."""

import copy
import io

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_helpers import SEQUENTIAL, Aim, OneState, config, model_for

import rlreg
from rlreg import RolloutEngineFactory
from rlreg.errors import CheckpointError, ConfigError, RlregError
from rlreg.open_union import validate
from rlreg_impala.selection import BestModelSelection
from rlreg_impala.trainer import MultiStepIMPALA

LENGTHS = {"n_epochs": 1, "epoch_length": 1, "eval_repeats": 0, "patience": None}


def trainer_for(seed=0):
    settings = {"n_rollout_steps": 5, "lr": 1e-2}
    model = model_for(OneState.observation_space, OneState.action_space, seed=seed, **settings)
    engine = validate(RolloutEngineFactory, {**SEQUENTIAL, "num_envs": 4})
    return MultiStepIMPALA(model, engine, OneState, config(**settings), seed=seed)


def arguments():
    made = trainer_for()
    return {
        "model": made.model,
        "rollout_actors": made.engine,
        "eval_env": OneState,
        "options": made.options,
    }


def trained():
    made = trainer_for(seed=1)
    made.train(1, 2, True, 1, None)
    return made


def flat(state, name=""):
    """All leaves of a nested state, by their way."""
    if isinstance(state, dict | list | tuple):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, part in pairs for k, v in flat(part, f"{name}/{key}").items()}
    return {name: state.tolist() if isinstance(state, torch.Tensor | np.ndarray) else state}


def without(*keys):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return change


def put(value, *keys):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return change


def only_the_model(state):
    for key in set(state) - {"model"}:
        del state[key]


def nan_weights(state):
    next(iter(state["model"].values())).fill_(float("nan"))


def misshapen_moment(state):
    moments = state["optimizer"]["state"][0]
    moments.update({name: torch.zeros(7, 7) for name, m in moments.items() if m.ndim})


BAD_STATES = {
    "no_trainer": (without("trainer"), "has no 'trainer'"),
    "no_optimizer": (without("optimizer"), "has no 'optimizer'"),
    "only_the_model": (only_the_model, "has no 'optimizer'.*weights of a model alone"),
    "surplus": (put(1, "extra"), "has 'extra'"),
    "model_is_no_mapping": (put(3, "model"), "model: expected a state dict, got int"),
    "nan_weights": (nan_weights, "not finite"),
    "counter_missing": (without("trainer", "evaluations"), "trainer: has no 'evaluations'"),
    "noise_is_text": (put("x", "trainer", "noise"), "trainer: "),
    "trainer_is_none": (put(None, "trainer"), "trainer: "),
    "progress_is_text": (put("many", "progress", "updates"), "progress: updates = 'many'"),
    "optimizer_is_list": (put([], "optimizer"), "optimizer: "),
    "optimizer_of_another": (put([], "optimizer", "param_groups"), "optimizer: "),
    "misshapen_moment": (misshapen_moment, r"optimizer: .*shape \[7, 7\]"),
    "selection_is_empty": (put({}, "selection"), "selection: has no 'best_weights'"),
    "best_weights_of_another": (put({"a": torch.zeros(1)}, "selection", "best_weights"), "select"),
}


@pytest.mark.parametrize("fault", BAD_STATES)
def test_a_bad_state_changes_nothing(fault):
    change, message = BAD_STATES[fault]
    state = copy.deepcopy(trained().state_dict())
    change(state)
    target = trainer_for()
    target.selection.update(5.0)
    before = flat(copy.deepcopy(target.state_dict()))
    with pytest.raises(CheckpointError, match=message) as caught:
        target.load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert flat(target.state_dict()) == before


def test_a_good_state_and_weights_alone_are_taken():
    source, target = trained(), trainer_for()
    target.load_state_dict(copy.deepcopy(source.state_dict()))
    assert flat(target.state_dict()) == flat(source.state_dict())
    other = trainer_for()
    other.load_state_dict(source.model.state_dict())
    assert flat(other.model.state_dict()) == flat(source.model.state_dict())
    assert other.learner.progress.updates == 0


@pytest.mark.parametrize("given", [None, "text", 3, [], {}], ids=repr)
def test_what_is_no_state_is_refused(given):
    with pytest.raises(CheckpointError, match=r"state dict|has no"):
        trainer_for().load_state_dict(given)


@pytest.mark.parametrize("given", [None, 3, io.StringIO("text")], ids=["none", "int", "text_file"])
def test_what_is_no_binary_file_is_refused(given):
    with pytest.raises(ConfigError, match=r"^file_path: expected "):
        trainer_for().load_state(given)


def test_a_pickle_is_refused_in_one_line_that_recommends_nothing_unsafe(tmp_path):
    torch.save({"a": Aim()}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="could run code") as caught:
        trainer_for().load_state(str(tmp_path / "m.pt"))
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("model", None),
        ("model", "impala"),
        ("model", torch.nn.Linear(2, 2)),
        ("options", None),
        ("options", {"lr": 0.1}),
        ("options", OneState),
        ("rollout_actors", "process"),
    ],
    ids=["no_model", "text", "linear", "no_options", "mapping", "class", "engine_text"],
)
def test_a_trainer_names_the_argument_of_the_wrong_type(name, given):
    with pytest.raises(ConfigError, match=f"^{name}: expected .*, got "):
        MultiStepIMPALA(**{**arguments(), name: given})


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("given", ["2", 1.5, float("nan"), True, [1]], ids=repr)
def test_a_length_is_a_whole_number(name, given):
    lengths = {**LENGTHS, name: given}
    with pytest.raises(ConfigError, match=f"^{name} = .*expected a whole number"):
        trainer_for().train(deterministic_eval=True, **lengths)


def test_a_length_may_be_numpys():
    made = trainer_for()
    made.train(deterministic_eval=True, **{**LENGTHS, "n_epochs": np.int64(1)})
    assert made.learner.progress.updates == 1


def test_a_schedule_over_a_run_without_an_end_names_what_to_give():
    given = arguments()
    options = config(n_rollout_steps=5, lr_scheduler_factory={"type": "linear"})
    made = MultiStepIMPALA(**{**given, "options": options})
    with pytest.raises(ConfigError, match=r"^lr_scheduler_factory: 'linear' .*n_epochs = 0") as it:
        made.train(deterministic_eval=True, **{**LENGTHS, "n_epochs": 0})
    assert "\n" not in str(it.value)
    assert not made.is_started


def test_an_engine_is_named_where_it_is_wrong():
    made = rlreg.create("impala", device="cpu")
    with pytest.raises(ConfigError, match=r"^engine = 'process': expected a mapping"):
        made.train("CartPole-v1", n_steps=10, engine="process")


def test_a_selection_is_a_selection():
    with pytest.raises(ConfigError, match=r"^model_selection: expected .*, got str"):
        trainer_for().train(deterministic_eval=True, model_selection="best", **LENGTHS)


@pytest.mark.parametrize("given", [3, ".", "missing/best.safetensors"], ids=repr)
def test_a_selection_says_at_once_that_it_cannot_write(given):
    with pytest.raises(ConfigError, match=r"^dump_file: "):
        BestModelSelection(given)


@pytest.mark.parametrize("given", [None, "a", True], ids=repr)
def test_a_result_is_a_number(given):
    selection = BestModelSelection(None, torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"^reward: expected a number, got "):
        selection.update(given)
    assert selection.last_improvement == 0
    assert selection.update(np.float32(2.0))


@pytest.mark.parametrize("bounds", [(-3e38, 3e38), (-2e38, 2e38)], ids=["whole", "half"])
def test_bounds_that_are_too_far_apart_are_refused(bounds):
    space = spaces.Box(np.float32([bounds[0], -1]), np.float32([bounds[1], 1]))
    with pytest.raises(RlregError, match=r"^action: the bounds of dimensions \[0\] are too far"):
        model_for(OneState.observation_space, space)
