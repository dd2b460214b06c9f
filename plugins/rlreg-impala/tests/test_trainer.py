"""The loop between engine and learner, with Maze's methods."""

import io
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from learner_helpers import (
    SEQUENTIAL,
    Aim,
    OneState,
    Recall,
    RewardAtEnd,
    config,
    fragment,
    model_for,
)

from rlreg import RolloutEngineFactory
from rlreg.errors import CheckpointError, ConfigError, EnvironmentSpecError, RolloutError
from rlreg.open_union import validate
from rlreg_impala.ledger import Ledger
from rlreg_impala.metrics import MAZE_NAMES
from rlreg_impala.rollouts import ActorStatus, EngineSpec, RolloutEngine
from rlreg_impala.selection import BestModelSelection
from rlreg_impala.trainer import MultiStepIMPALA


def engine(**settings):
    return validate(RolloutEngineFactory, {**SEQUENTIAL, **settings})


def trainer_for(make=OneState, seed=0, num_envs=4, **settings):
    settings = {"n_rollout_steps": 5, "lr": 1e-2, "gamma": 0.9, **settings}
    env = make()
    model = model_for(env.observation_space, env.action_space, seed=seed, **settings)
    return MultiStepIMPALA(model, engine(num_envs=num_envs), make, config(**settings), seed=seed)


class ScriptedEngine(RolloutEngine):
    """Hands over fragments of a model that ages as it is told; never steps anything."""

    def __init__(self, spec, lags=(0,), numbers=None):
        super().__init__(spec)
        self.lags, self.numbers = list(lags), numbers
        self.released, self.calls, self.count = [], [], 0

    def start(self, policy_spec, env_factory, seeds):
        self.calls.append("start")
        self.model = policy_spec

    def publish(self, version, flat_weights):
        self.calls.append(f"publish {version}")
        self.version = version

    def collect(self, n, timeout=None):
        made = []
        for _ in range(n):
            lag = self.lags[self.count % len(self.lags)]
            number = self.count if self.numbers is None else self.numbers[self.count]
            made.append(self._fragment(self.version - lag, number))
            self.count += 1
        return made

    def _fragment(self, version, number):
        size = (self.spec.unroll_length, self.spec.num_envs)
        model = model_for(OneState.observation_space, OneState.action_space)
        resets = np.zeros(size, dtype=bool)
        resets[0, 0] = True
        made = fragment(model, *size, version=version, sequence=number, resets=resets)
        return replace(made, actor_id=0)

    def release(self, fragments):
        self.calls.append(f"release {len(fragments)}")
        self.released += fragments

    def health(self):
        return [ActorStatus(index=0, state="idle", fragments=self.count)]

    def stop(self):
        self.calls.append("stop")

    def state(self):
        return {}

    def load_state(self, state):
        pass


def scripted(settings=None, **script):
    settings = {"n_rollout_steps": 3, **(settings or {})}
    made = ScriptedEngine(EngineSpec(num_envs=2, unroll_length=3), **script)
    model = model_for(OneState.observation_space, OneState.action_space, **settings)
    return MultiStepIMPALA(model, made, OneState, config(**settings)), made


# --- learning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_a_time_limit_is_no_end_the_value_goes_to_10_and_not_to_6_5(mode):
    def vector():
        return SyncVectorEnv([OneState] * 4, autoreset_mode=mode)

    model = model_for(OneState.observation_space, OneState.action_space)
    settings = config(n_rollout_steps=5, gamma=0.9, lr=0.03, entropy_coef=0.0, max_grad_norm=0.0)
    factory = OneState if mode is None else vector
    trainer = MultiStepIMPALA(model, engine(), None, settings, env_factory=factory)
    trainer.train(6, 50, True, 0, None)
    with torch.no_grad():
        value = model.step(torch.ones(1, 1), torch.zeros(1, 0))[1].item()
    assert value == pytest.approx(10, abs=0.3)


def test_a_reward_at_the_last_row_of_every_fragment_is_learned():
    trainer = trainer_for(lambda: RewardAtEnd(4), n_rollout_steps=4, lr=0.03, max_grad_norm=0.0)
    trainer.train(6, 40, True, 0, None)
    with torch.no_grad():
        values = trainer.model.step(torch.eye(4), torch.zeros(4, 0))[1]
    np.testing.assert_allclose(values.numpy(), [0.729, 0.81, 0.9, 1.0], atol=0.06)


def test_structured_observations_and_actions_are_learned():
    trainer = trainer_for(
        Aim, num_envs=16, n_rollout_steps=8, gamma=0.0, entropy_coef=0.0, initial_log_std=-1.0,
    )  # fmt: skip
    trainer.train(10, 40, True, 20, None)
    assert trainer.last_evaluation.mean_return > 0.85 * 8


@pytest.mark.slow
@pytest.mark.parametrize(("core", "solved"), [("lstm", True), ("gru", True), ("none", False)])
def test_a_task_that_needs_memory_is_solved_with_it_and_not_without(core, solved):
    trainer = trainer_for(
        Recall, num_envs=16, n_rollout_steps=9, core=core, core_size=16, gamma=0.99,
        critic_encoder_factory=None,
    )  # fmt: skip
    trainer.train(12, 50, True, 64, None)
    result = trainer.last_evaluation.mean_return
    assert result > 0.95 if solved else result < 0.75


# --- accounting and lag -------------------------------------------------------------------------


def test_sampled_is_trained_and_masked_and_discarded():
    trainer, made = scripted({"actors_batch_size": 2}, lags=[0, 0, 5])
    trainer.intake.max_lag = 2
    trainer.train(2, 10, True, 0, None)
    row = trainer.history[-1]
    assert row["rows/sampled"] == 6 * made.count
    assert row["rows/masked"] == 2 * 20
    assert row["rows/trained"] == 5 * 2 * 20
    assert row["rows/discarded"] == row["rows/sampled"] - 12 * 20 > 0
    assert row["rows/in_flight"] == 0
    assert len(made.released) == made.count
    assert row["queue/policy_lag/max"] == 0


def test_old_fragments_are_used_where_no_lag_is_too_large():
    trainer, _ = scripted(lags=[3])
    trainer.train(1, 5, True, 0, None)
    assert trainer.history[-1]["queue/policy_lag"] == 3
    assert trainer.history[-1]["rows/discarded"] == 0


def test_a_lost_or_doubled_fragment_is_an_error():
    for numbers in ([0, 1, 3], [0, 1, 1]):
        trainer, made = scripted(numbers=numbers)
        with pytest.raises(RolloutError, match=f"fragment {numbers[2]} where 2 was due"):
            trainer.train(1, 3, True, 0, None)
        assert made.calls[-1] == "stop"


def test_the_law_catches_a_wrong_count():
    ledger = Ledger()
    model = model_for(OneState.observation_space, OneState.action_space)
    ledger.arrive(fragment(model))
    ledger.check(masked=0)
    ledger.train(12, 11)
    ledger.check(masked=1)
    with pytest.raises(RolloutError, match="accounting"):
        ledger.check(masked=0)
    ledger.trained += 1
    with pytest.raises(RolloutError, match="sampled 12 rows, but trained 12"):
        ledger.check(masked=1)


def test_training_ends_where_the_law_is_broken():
    """The learner claims one transition that no fragment had."""
    trainer, made = scripted()
    update = trainer.learner.update

    def claim_one_more(batch):
        metrics = update(batch)
        return metrics | {"update/transitions": metrics["update/transitions"] + 1}

    trainer.learner.update = claim_one_more
    with pytest.raises(RolloutError, match=r"sampled 6 rows, but trained 6 .* in flight 0 = 6"):
        trainer.train(1, 1, True, 0, None)
    assert made.calls[-1] == "stop"


def test_weights_are_published_before_slots_are_released():
    trainer, made = scripted()
    trainer.train(1, 2, True, 0, None)
    assert made.calls == [
        "start", "publish 0", "publish 1", "release 1", "publish 2", "release 1", "stop",
    ]  # fmt: skip


# --- ending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, RolloutError, SystemExit])
def test_actors_end_whatever_happens(error):
    trainer, made = scripted()

    def fail(fragments):
        raise error("now")

    made.release = fail
    with pytest.raises(error):
        trainer.train(1, 5, True, 0, None)
    assert made.calls[-1] == "stop"
    assert not trainer.is_started


def test_train_async_leaves_the_actors_running():
    trainer, made = scripted()
    trainer.train_async(1, 2, True, 0, None)
    trainer.train_async(1, 2, True, 0, None)
    assert made.calls.count("start") == 1
    assert "stop" not in made.calls
    trainer.stop()
    trainer.stop()
    assert made.calls.count("stop") == 1


def test_a_trainer_can_be_started_again():
    trainer = trainer_for()
    trainer.train(1, 3, True, 0, None)
    trainer.train(1, 3, True, 0, None)
    assert trainer.learner.progress.updates == 6
    assert trainer.learner.progress.transitions == trainer.ledger.trained == 6 * 20


class Scores(MultiStepIMPALA):
    """Evaluations give what the test says."""

    def __init__(self, *args, results, **kwargs):
        super().__init__(*args, **kwargs)
        self.results = iter(results)

    def evaluate(self, deterministic, repeats):
        from rlreg.runtime.evaluation import Evaluation

        result = next(self.results)
        self.last_evaluation = Evaluation(result, 0.0, (result,), repeats)


def scores(*results):
    made = ScriptedEngine(EngineSpec(num_envs=2, unroll_length=3))
    model = model_for(OneState.observation_space, OneState.action_space)
    options = config(n_rollout_steps=3, lr_scheduler_factory=None)
    return Scores(model, made, OneState, options, results=results)


@pytest.mark.parametrize(
    ("results", "patience", "epochs"),
    [
        ([1, 0, 0, 0], 3, 3),
        ([1, 2, 0, 3, 1, 1], 2, 5),
        ([1, 1, 1], 2, 2),  # a tie is no improvement
        ([1, math.nan, math.nan], 2, 2),
        ([math.nan, 1, 2, 0, 0], 2, 4),
        ([-math.inf, 0, 0, 0], 2, 3),
    ],
)
def test_training_stops_after_exactly_so_many_bad_evaluations(results, patience, epochs):
    trainer = scores(*results)
    trainer.train(0, 1, True, 5, patience)
    assert trainer.learner.progress.epochs == epochs
    assert next(trainer.results, "all used") == "all used"


def test_without_patience_it_trains_to_the_end():
    trainer = scores(3, 2, 1, 0)
    trainer.train(3, 1, True, 5, None)
    assert trainer.learner.progress.epochs == 3


def test_the_best_model_is_a_real_copy():
    trainer = scores(1, 5, 0, 0)
    kept = []
    trainer.on_epoch = lambda epoch, metrics: kept.append(
        {name: t.clone() for name, t in trainer.model.state_dict().items()}
    )
    selection = BestModelSelection(None, None)
    trainer.train(3, 1, True, 5, None, selection)
    name = "policy.head.linear.weight"
    assert not torch.equal(kept[0][name], kept[2][name])
    selection.reset_to_best()
    for key, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, kept[0][key]), key
    assert selection.best_reward == 5


def test_of_equal_results_the_later_model_is_kept(tmp_path):
    weight = torch.nn.Linear(1, 1)
    selection = BestModelSelection(tmp_path / "best.safetensors", weight)
    for value, reward in ((1.0, 2.0), (2.0, 2.0), (3.0, 1.0), (4.0, math.nan)):
        torch.nn.init.constant_(weight.weight, value)
        selection.update(reward)
    assert selection.best_weights["weight"].item() == 2.0
    assert selection.last_improvement == 3
    from safetensors.torch import load_file

    assert load_file(tmp_path / "best.safetensors")["weight"].item() == 2.0
    with pytest.raises(ConfigError, match="no best model"):
        BestModelSelection(None, weight).reset_to_best()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("n_epochs", -1), ("epoch_length", 0), ("eval_repeats", -1), ("patience", 0)],
)
def test_lengths_out_of_range_are_refused_by_name(argument, value):
    given = {"n_epochs": 1, "epoch_length": 1, "eval_repeats": 0, "patience": None}
    with pytest.raises(ConfigError, match=argument):
        trainer_for().train(**{**given, argument: value}, deterministic_eval=True)


# --- evaluating ---------------------------------------------------------------------------------


class Coin(gym.Env):
    """Episodes of 1 or 9 steps, by the seed; each step gives 1."""

    observation_space, action_space = OneState.observation_space, OneState.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9 if self.np_random.random() < 0.5 else 1
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.ones(1, dtype=np.float32), 1.0, self.left <= 0, False, {}


@pytest.mark.parametrize("kind", ["factory", "env", "vectors", *AutoresetMode])
def test_evaluation_plays_exactly_the_seeded_episodes(kind):
    expected = []
    for episode in range(7):
        env = Coin()
        env.reset(seed=10_000 + episode)
        expected.append(float(env.left))
    envs = {"factory": Coin, "env": Coin(), "vectors": lambda: SyncVectorEnv([Coin] * 2)}
    eval_env = envs.get(kind) or SyncVectorEnv([Coin] * 3, autoreset_mode=kind)
    model = model_for(Coin.observation_space, Coin.action_space).train()
    trainer = MultiStepIMPALA(model, engine(), eval_env, config(), env_factory=Coin)
    assert trainer.evaluate(deterministic=False, repeats=7) is None
    assert list(trainer.last_evaluation.returns) == expected
    assert model.training
    assert model.policy.training


def test_evaluation_repeats_itself():
    trainer = trainer_for(Aim)
    trainer.evaluate(deterministic=False, repeats=5)
    first = trainer.last_evaluation.returns
    trainer.evaluate(deterministic=False, repeats=5)
    assert trainer.last_evaluation.returns == first


def test_evaluation_without_an_environment_is_refused():
    model = model_for(OneState.observation_space, OneState.action_space)
    trainer = MultiStepIMPALA(model, engine(), None, config(), env_factory=OneState)
    with pytest.raises(ConfigError, match="eval_env"):
        trainer.evaluate(deterministic=True, repeats=1)


def test_an_environment_that_cannot_be_copied_needs_a_factory():
    model = model_for(OneState.observation_space, OneState.action_space)
    trainer = MultiStepIMPALA(model, engine(), OneState(), config())
    with pytest.raises(EnvironmentSpecError, match="factory"):
        trainer.train(1, 1, True, 1, None)


def test_an_environment_with_a_spec_is_copied():
    env = gym.make("CartPole-v1")
    model = model_for(env.observation_space, env.action_space)
    trainer = MultiStepIMPALA(model, engine(), env, config())
    trainer.train(1, 2, True, 1, None)
    assert trainer.learner.progress.updates == 2
    env.close()


# --- going on -----------------------------------------------------------------------------------


def assert_same(ours, theirs, path="state"):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for key in ours:
            assert_same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), path
    elif isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, err_msg=path)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), path


@pytest.mark.parametrize("core", ["none", "gru"])
def test_ten_and_ten_epochs_are_twenty(core):
    settings = {
        "core": core, "core_size": 4, "observation_normalization": "running",
        "entropy_coef_final": 0.0, "critic_burn_in_epochs": 2,
        "critic_encoder_factory": {"type": "vector", "hidden_units": [8], "dropout_rate": 0.1},
    }  # fmt: skip

    def make():
        return trainer_for(lambda: gym.make("CartPole-v1"), **settings)

    def last_metrics(trainer):
        timeless = {k: v for k, v in trainer.history[-1].items() if "time" not in k}
        return {k: v for k, v in timeless.items() if not k.startswith("queue/waiting")}

    whole = make()
    whole.train(20, 3, True, 2, 30)
    half = make()
    half.learner.progress.plan("updates", 60)
    half.train(10, 3, True, 2, 30)
    buffer = io.BytesIO()
    torch.save(half.state_dict(), buffer)
    other = make()
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False))
    other.train(10, 3, True, 2, 30)
    assert_same(whole.model.state_dict(), other.model.state_dict())
    assert_same(whole.selection.state_dict(), other.selection.state_dict())
    assert_same(last_metrics(whole), last_metrics(other))
    assert_same(
        whole.learner.optimizer.state_dict()["state"],
        other.learner.optimizer.state_dict()["state"],
    )


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not():
    found = []
    for seed in (3, 3, 4):
        trainer = trainer_for(lambda: gym.make("CartPole-v1"), seed=seed)
        trainer.train(2, 10, True, 0, None)
        found.append(trainer.model.state_dict())
    assert_same(found[0], found[1])
    name = "policy.head.linear.weight"
    assert not torch.equal(found[0][name], found[2][name])


def test_fragments_that_cannot_fit_are_refused_before_anything_starts():
    trainer = trainer_for(n_rollout_steps=100_000, num_envs=65_536)
    with pytest.raises(ConfigError, match=r"GiB.*n_rollout_steps"):
        trainer.train(1, 1, True, 0, None)
    assert not trainer.is_started


def make_cartpole():
    return gym.make("CartPole-v1")


@pytest.mark.slow
def test_real_processes_give_the_same_bits_in_deterministic_mode():
    found = []
    for _ in range(2):
        settings = config(n_rollout_steps=5, actors_batch_size=2)
        env = make_cartpole()
        model = model_for(env.observation_space, env.action_space)
        actors = validate(
            RolloutEngineFactory,
            {"type": "process", "num_actors": 2, "num_envs": 2, "deterministic": True},
        )
        trainer = MultiStepIMPALA(model, actors, make_cartpole, settings)
        trainer.train(2, 10, True, 0, None)
        found.append(trainer.model.state_dict())
        assert trainer.history[-1]["queue/policy_lag/max"] <= 1
    assert_same(*found)


def test_weights_of_other_people_are_loaded(tmp_path):
    source, target = trainer_for(seed=1), trainer_for(seed=2)
    torch.save(source.model.state_dict(), tmp_path / "model.pt")
    selection = BestModelSelection(tmp_path / "model.safetensors", source.model)
    selection.update(1.0)
    for name in ("model.pt", "model.safetensors"):
        target = trainer_for(seed=2)
        target.load_state(str(tmp_path / name))
        assert_same(source.model.state_dict(), target.model.state_dict())
        target = trainer_for(seed=2)
        with (tmp_path / name).open("rb") as file:
            target.load_state(file)
        assert_same(source.model.state_dict(), target.model.state_dict())


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_files_that_are_none_or_run_code_are_refused(tmp_path, capsys):
    (tmp_path / "text").write_text("hello")
    torch.save(Evil(), tmp_path / "evil.pt")
    torch.save(model_for(Aim.observation_space, Aim.action_space).state_dict(), tmp_path / "other")
    names = ["text", "evil.pt", "other", "missing"]
    for number, text in enumerate(("{", "[]", "{}", '{"state": {}}', "[" * 10_000)):
        names.append(f"{number}.safetensors")
        tensors = {"weight": torch.zeros(2)}
        safetensors.torch.save_file(tensors, tmp_path / names[-1], metadata={"rlreg": text})
    trainer = trainer_for()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    for name in names:
        with pytest.raises(CheckpointError):
            trainer.load_state(str(tmp_path / name))
    assert capsys.readouterr().out == ""
    assert_same(before, trainer.model.state_dict())


def test_metrics_have_mazes_names_as_aliases():
    trainer = trainer_for()
    trainer.train(1, 3, True, 1, None)
    row = trainer.history[-1]
    assert {name.removeprefix("maze/") for name in row if "maze/" in name} >= set(MAZE_NAMES)
    assert row["maze/policy_loss"] == row["loss/policy"]
    assert row["maze/critic_value_loss"] == row["loss/value"]
    assert 0 < row["maze/time_backprob_percent"] < 100
    assert all("/" in name for name in row)
    assert all(math.isfinite(value) for value in row.values())
