"""The loop of online learnables, around an author who counts."""

from typing import ClassVar, Literal

import gymnasium as gym
import pytest
import torch

from rlreg import LearnableConfig
from rlreg.errors import ConfigError, EnvironmentSpecError, LearnerError
from rlreg.runtime.online import MetricMeans, OnlineLearnable, training_env_factory


class CountingConfig(LearnableConfig):
    """Counts."""

    regime: ClassVar[str] = "online"
    type: Literal["counting"] = "counting"


class Counting(OnlineLearnable):
    """Each update trains on 10 transitions."""

    def build_networks(self, spaces):
        self.net = torch.nn.Linear(1, 1)
        self.plans, self.is_closed = [], False

    def plan_run(self, unit, amount):
        self.plans.append((unit, amount))

    def train_iterations(self, env):
        try:
            while True:
                self.env_steps += 10
                yield {"loss/x": float(self.env_steps), "lag/max": float(self.env_steps)}
        finally:
            self.is_closed = True


@pytest.fixture
def counting():
    return Counting(CountingConfig(), "cpu")


def test_steps_are_transitions_and_the_last_update_may_exceed_them(counting):
    rows = counting.train("CartPole-v1", n_steps=35, epoch_length=3)
    assert counting.env_steps == 40
    assert [epoch for epoch, _ in rows] == [1, 2]
    assert rows[0][1] == {"loss/x": 20.0, "lag/max": 30.0}
    assert rows[1][1] == {"loss/x": 40.0, "lag/max": 40.0}
    assert counting.plans == [("transitions", 35)]
    assert counting.is_closed


def test_transitions_that_nobody_counts_end_the_training():
    class Forgetful(Counting):
        def train_iterations(self, env):
            while True:
                yield {"loss/x": 1.0}

    learnable = Forgetful(CountingConfig(), "cpu")
    with pytest.raises(LearnerError, match=r"Forgetful\.train_iterations: 3 updates left env_st"):
        learnable.train("CartPole-v1", n_steps=35, epoch_length=3)
    learnable.train("CartPole-v1", n_epochs=2, epoch_length=3)  # which has its end


def test_epochs_are_of_so_many_updates_and_go_on_counting(counting):
    counting.train("CartPole-v1", n_epochs=2, epoch_length=3)
    rows = counting.train("CartPole-v1", n_epochs=1)
    assert counting.plans == [("updates", 6), ("updates", 25)]
    assert [epoch for epoch, _ in rows] == [3]
    assert counting.env_steps == 310


def test_closing_the_iterator_closes_the_authors(counting):
    epochs = counting.trainer("CartPole-v1", n_epochs=9)
    next(epochs)
    epochs.close()
    assert counting.is_closed


def test_evaluators_callbacks_and_logger_are_called_after_each_epoch(counting):
    seen = []

    class Logger:
        def metrics(self, step, metrics):
            seen.append(("log", step, metrics["score"]))

    counting.train(
        "CartPole-v1",
        n_epochs=2,
        epoch_length=1,
        evaluators={"score": lambda learnable: learnable.env_steps / 2},
        callbacks=[lambda learnable, epoch, steps: seen.append(("call", epoch, steps))],
        logger=Logger(),
    )
    assert seen == [("call", 1, 10), ("log", 10, 5.0), ("call", 2, 20), ("log", 20, 10.0)]


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({}, "neither"),
        ({"n_steps": 1, "n_epochs": 1}, "both"),
        ({"n_steps": 0}, "n_steps = 0"),
        ({"n_epochs": -1}, "n_epochs = -1"),
        ({"n_epochs": 1, "epoch_length": 0}, "epoch_length = 0"),
    ],
)
def test_lengths_that_make_no_sense_are_refused_by_name(counting, lengths, named):
    with pytest.raises(ConfigError, match=named):
        counting.trainer("CartPole-v1", **lengths)


def test_an_environment_is_copied_by_its_spec_or_refused():
    env = gym.make("CartPole-v1")
    made = training_env_factory(env)()
    assert made.spec.id == "CartPole-v1"
    assert made is not env
    made.close()
    env.close()
    with pytest.raises(EnvironmentSpecError, match="factory"):
        training_env_factory(gym.Env())


def test_means_of_what_is_not_in_every_update():
    means = MetricMeans()
    means.add({"a": 1.0, "b/max": 3.0})
    means.add({"a": 2.0, "b/max": 1.0, "c": 5.0})
    assert means.result() == {"a": 1.5, "b/max": 3.0, "c": 5.0}


# --- interruption -------------------------------------------------------------------------------


class Stop(Exception):
    """Ends training."""


def stop_at(update):
    seen = iter(range(1, 100))

    def tick(count):
        if count and next(seen) == update:
            raise Stop

    return tick


@pytest.mark.parametrize("update", range(1, 7))
def test_an_interrupted_epoch_has_the_means_of_all_its_updates(counting, update):
    """Also where its last update was the one after which the end was asked for."""
    whole = Counting(CountingConfig(), "cpu").train("CartPole-v1", n_epochs=3, epoch_length=2)
    found = []
    trainer = counting.trainer("CartPole-v1", n_epochs=3, epoch_length=2, tick=stop_at(update))
    with pytest.raises(Stop):
        found.extend(trainer)
    assert len(found) == update // 2
    assert counting.env_steps == 10 * update
    if counting.epoch < 3:
        found += counting.train("CartPole-v1", n_epochs=3 - counting.epoch, epoch_length=2)
    assert found == whole


def test_another_state_ends_the_epoch_that_was_interrupted(counting):
    """Its metrics belong to updates that the loaded state does not have."""
    counting.build_with_env(gym.make("CartPole-v1"))
    state = counting.state_dict()
    with pytest.raises(Stop):
        list(counting.trainer("CartPole-v1", n_epochs=1, epoch_length=9, tick=stop_at(5)))
    counting.load_state_dict(state)
    counting.env_steps = counting.epoch_updates = 0
    [(_, metrics)] = counting.train("CartPole-v1", n_epochs=1, epoch_length=2)
    assert metrics == {"loss/x": 15.0, "lag/max": 20.0}


def test_an_epoch_that_is_longer_than_a_new_length_ends_after_one_more_update(counting):
    with pytest.raises(Stop):
        list(counting.trainer("CartPole-v1", n_epochs=1, epoch_length=9, tick=stop_at(5)))
    [(epoch, metrics)] = counting.train("CartPole-v1", n_epochs=1, epoch_length=2)
    assert epoch == 1
    assert metrics["lag/max"] == 60
    assert counting.epoch_updates == 0
