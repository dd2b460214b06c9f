"""Offline to online: the policy goes on learning in an environment, as the same policy."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg import TransitionDataset
from rlreg.errors import ConfigError, EnvironmentSpecError
from rlreg.runtime.data.replay import ReplayBuffer

OBSERVATIONS = spaces.Box(-1, 1, (2,), np.float32)
ACTIONS = spaces.Box(-2, 2, (1,), np.float32)


class Aim(gymnasium.Env):
    """Pays ``-|a - 2 o_0|``; episodes of 5 steps, every third ends in a terminal state."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self):
        self.episode = 0
        self.seen, self.taken, self.seeds = [], [], []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.seeds.append(seed)
        self.episode += 1
        self.step_number = 0
        return self._observe(), {}

    def step(self, action):
        self.taken.append(np.array(action))
        reward = -abs(float(action[0]) - 2 * float(self.state[0]))
        self.step_number += 1
        is_over = self.step_number == 5
        is_terminal = is_over and self.episode % 3 == 0
        return self._observe(), reward, is_terminal, is_over and not is_terminal, {}

    def _observe(self):
        self.state = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.seen.append(self.state)
        return self.state


@pytest.fixture
def data():
    """Random actions and what Aim pays for them."""
    rng, size = np.random.default_rng(0), 500
    observations = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    actions = rng.uniform(-2, 2, (size, 1)).astype(np.float32)
    return TransitionDataset.from_arrays(
        observations,
        actions,
        -np.abs(actions[:, 0] - 2 * observations[:, 0]),
        np.zeros(size, bool),
        np.ones(size, bool),
        next_observations=rng.uniform(-1, 1, (size, 2)).astype(np.float32),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )


@pytest.fixture
def make(make_iql):
    def make(**settings):
        chosen = {"gamma": 0.5, "batch_size": 64, "weight_temp": 10.0, "expectile": 0.9}
        for name in ("actor", "critic"):
            chosen[f"{name}_learning_rate"] = 1e-3
        return make_iql(OBSERVATIONS, ACTIONS, **{**chosen, **settings})

    return make


def tune(learnable, env, buffer=None, n_steps=20, **settings):
    return learnable.fit_online(
        env, buffer, n_steps, settings.pop("n_steps_per_epoch", 10), show_progress=False, **settings
    )


@pytest.mark.parametrize("share", [None, 0.5])
def test_fine_tuning_improves_on_the_data_it_starts_from(make, data, share):
    learnable = make()
    learnable.fit(data, 50, show_progress=False)
    before = learnable.evaluate(Aim, 40).mean_return
    buffer = ReplayBuffer(dataset=data, balanced_share=share)
    tune(learnable, Aim(), buffer, 800, n_steps_per_epoch=400)
    after = learnable.evaluate(Aim, 40).mean_return
    assert after > before + 1.0
    assert after > -3.5  # random: -5.8


def test_the_same_observation_gives_the_same_action_offline_and_online(make, data):
    """Of two equal learnables one samples inside fit_online, the other by itself."""
    online, offline = (make(observation_scaler={"type": "standard"}) for _ in range(2))
    for learnable in (online, offline):
        learnable.fit(data, 10, show_progress=False)
    env = Aim()
    tune(online, env, ReplayBuffer(dataset=data), 12, update_start_step=12)
    acted = [seen for index, seen in enumerate(env.seen) if index % 6 != 5]  # not on the last one
    for seen, taken in zip(acted[:12], env.taken, strict=True):
        np.testing.assert_array_equal(offline.sample_action(seen), taken)
        np.testing.assert_array_equal(offline.predict(seen), online.predict(seen))


def test_one_reward_scaler_serves_old_and_new_transitions(make, data):
    learnable = make(reward_scaler={"type": "return", "multiplier": 1000.0})
    learnable.fit(data, 5, show_progress=False)
    statistics = {name: value.clone() for name, value in learnable.reward_scaler.named_buffers()}
    scaled = []
    original = learnable.scale_batch
    learnable.scale_batch = lambda batch: scaled.append((batch, original(batch))) or scaled[-1][1]
    buffer = ReplayBuffer(dataset=data, balanced_share=0.5)
    tune(learnable, Aim(), buffer, 10)
    for name, value in learnable.reward_scaler.named_buffers():
        assert torch.equal(value, statistics[name])
    span = float(statistics["return_max"] - statistics["return_min"])
    for raw, batch in scaled:
        torch.testing.assert_close(batch.rewards, raw.rewards * (1000.0 / span))


def test_mixed_buffers_count_and_updates_follow_the_ratio(make, data):
    learnable = make()
    learnable.fit(data, 3, show_progress=False)
    buffer = ReplayBuffer(505, dataset=data)
    history = tune(
        learnable, Aim(), buffer, 20, update_interval=2, n_updates=3, update_start_step=10
    )
    assert learnable.grad_step == 3 + 3 * 5
    assert (buffer.num_offline, buffer.num_online) == (485, 20)
    assert [epoch for epoch, _ in history] == [1, 2]
    assert "q_loss" not in history[0][1]  # no updates in the first 10 steps
    assert history[1][1]["q_loss"] > 0
    assert history[1][1]["buffer/online"] == 20
    assert history[1][1]["episode/return_mean"] < 0


def test_ends_of_episodes_reach_the_buffer(make, data):
    learnable = make()
    buffer = ReplayBuffer(observation_space=OBSERVATIONS, action_space=ACTIONS)
    tune(learnable, Aim(), buffer, 30, update_start_step=30)
    state = buffer.state_dict()["numbers"]
    ends = state[:30, -4 - 2 + 1 : -4 - 2 + 3]  # termination, truncation
    assert ends[:, 0].nonzero().flatten().tolist() == [14, 29]
    assert ends[:, 1].nonzero().flatten().tolist() == [4, 9, 19, 24]
    # The next observation of an episode's last step is not where the next one starts.
    assert not torch.equal(state[4, -2:], state[5, :2])


def test_it_starts_from_nothing_and_evaluates_on_request(make):
    learnable, calls = make(), []
    history = tune(
        learnable,
        Aim,
        n_steps=30,
        n_steps_per_epoch=15,
        random_steps=10,
        eval_env=Aim,
        n_episodes=2,
        callbacks=[lambda one, epoch, step: calls.append((epoch, step))],
    )
    assert calls == [(1, 15), (2, 30)]
    assert all("evaluation/mean_return" in metrics for _, metrics in history)


def test_the_same_seed_gives_the_same_fine_tuning(make, data):
    results = []
    for _ in range(2):
        learnable = make()
        learnable.fit(data, 5, show_progress=False)
        tune(learnable, Aim(), ReplayBuffer(dataset=data))
        results.append(learnable.policy.state_dict())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name])


def test_going_on_plays_other_episodes(make, data):
    learnable, env = make(), Aim()
    buffer = ReplayBuffer(dataset=data)
    tune(learnable, env, buffer)
    tune(learnable, env, buffer)
    assert buffer.num_online == 40
    assert len(env.seeds) == env.episode == 10  # 8 of 5 steps, and the first of what did not come
    assert len(set(env.seeds)) == 9  # which the second call begins with


RESUMED = {
    "n_steps": 30,
    "n_steps_per_epoch": 5,
    "random_steps": 8,
    "update_interval": 2,
    "n_updates": 3,
    "update_start_step": 6,
}


class Interrupted(Exception):
    pass


class Drawn(Aim):
    """Draws at a reset whether the episode ends in a terminal state, instead of counting."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.episode = 3 if self.np_random.random() < 0.5 else 1
        return observation, info


def interrupted_after(path, data, make, done):
    """Fine-tunes, saves everything at the end of an epoch and is interrupted there."""
    learnable, buffer = make(), ReplayBuffer(dataset=data, balanced_share=0.5)
    learnable.fit(data, 5, show_progress=False)
    states = []

    def stop(one, epoch, step):
        if epoch * 5 == done:
            one.save(path)
            states.append(buffer.state_dict())
            raise Interrupted

    with pytest.raises(Interrupted):
        tune(learnable, Drawn(), buffer, callbacks=[stop], **RESUMED)
    return states[0]


@pytest.mark.parametrize("done", [5, 10, 25])
def test_fine_tuning_saved_between_two_episodes_goes_on_bit_for_bit(make, data, tmp_path, done):
    settings = {
        "actor_optim_factory": {
            "type": "adam",
            "lr_scheduler_factory": {"type": "cosine_annealing"},
        }
    }
    whole, buffer = make(**settings), ReplayBuffer(dataset=data, balanced_share=0.5)
    whole.fit(data, 5, show_progress=False)
    expected = tune(whole, Drawn(), buffer, **RESUMED)
    path = tmp_path / "model.rlreg"
    state = interrupted_after(path, data, lambda: make(**settings), done)
    resumed = rlreg.load(path, device="cpu")
    again = ReplayBuffer(dataset=data, balanced_share=0.5)
    again.load_state_dict(state)
    history = tune(resumed, Drawn(), again, steps_done=done, **RESUMED)
    assert [epoch for epoch, _ in history] == [epoch for epoch, _ in expected][done // 5 :]
    for (_, one), (_, two) in zip(history, expected[done // 5 :], strict=True):
        own = {name: value for name, value in two.items() if name != "episode/return_mean"}
        assert own == {name: one[name] for name in own}
    for name, value in whole.state_dict()["networks"]["policy"].items():
        assert torch.equal(value, resumed.state_dict()["networks"]["policy"][name])
    for name, value in buffer.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]) if name in ("numbers", "images") else 1
    assert whole.grad_step == resumed.grad_step


def test_fine_tuning_saved_within_an_episode_goes_on_with_a_new_one(make, data):
    learnable, env = make(), Aim()
    buffer = ReplayBuffer(dataset=data)
    tune(learnable, env, buffer, 7)  # the second episode has two steps
    assert (env.episode, env.step_number) == (2, 2)
    following = Aim()
    tune(learnable, following, buffer, 12, steps_done=7)
    assert (following.episode, following.step_number) == (2, 0)
    assert buffer.num_online == 12


def test_steps_done_must_leave_something_to_do(make, data):
    with pytest.raises(ConfigError, match="steps_done must be from 0 to 9"):
        tune(make(), Aim(), ReplayBuffer(dataset=data), 10, steps_done=10)


@pytest.mark.parametrize("mode", ["on", "auto", "off"])
def test_fine_tuning_is_compiled_only_if_that_is_asked_for(make, data, monkeypatch, mode):
    """The step runs as it is handed to the compiler, without compiling it."""
    from rlreg_iql import compiled

    monkeypatch.setattr(compiled, "_compile", lambda step, threads: step)
    plain, asked = make(), make()
    asked.compile = mode
    calls = []
    original = compiled.CompiledUpdates.run

    def counted(self, draw, n_updates):
        calls.append(n_updates)
        return original(self, draw, n_updates)

    monkeypatch.setattr(compiled.CompiledUpdates, "run", counted)
    plain.compile = "off"
    for learnable in (plain, asked):
        tune(learnable, Aim(), ReplayBuffer(dataset=data), 10, update_start_step=4)
    assert calls == ([1] * 6 if mode == "on" else [])
    for one, two in zip(plain.policy.parameters(), asked.policy.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_a_schedule_over_the_run_ends_with_the_last_update(make, data):
    learnable = make(
        actor_optim_factory={"type": "adam", "lr_scheduler_factory": {"type": "cosine_annealing"}}
    )
    learnable.fit(data, 20, show_progress=False)
    rates = [learnable.actor_optim.param_groups[0]["lr"]]

    def note(one, epoch, step):
        rates.append(one.actor_optim.param_groups[0]["lr"])

    tune(learnable, Aim(), ReplayBuffer(dataset=data), n_steps_per_epoch=5, callbacks=[note])
    assert rates[0] == rates[-1] == 0.0
    assert all(rate > 0 for rate in rates[1:-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "n_steps"),
        ({"update_interval": 0}, "update_interval"),
        ({"random_steps": -1}, "random_steps"),
    ],
)
def test_numbers_out_of_range_are_refused(make, settings, message):
    with pytest.raises(ConfigError, match=message):
        tune(make(), Aim(), **settings)


def test_a_scaler_that_was_never_fitted_is_named_before_the_first_step(make):
    env = Aim()
    with pytest.raises(ConfigError, match="reward scaler"):
        tune(make(reward_scaler={"type": "return"}), env)
    assert not env.taken


def test_other_spaces_are_refused(make, data):
    with pytest.raises(EnvironmentSpecError, match="other spaces"):
        tune(make(), "Pendulum-v1", ReplayBuffer(dataset=data))
    with pytest.raises(ConfigError, match="vector"):
        tune(make(), gymnasium.vector.SyncVectorEnv([Aim]))
