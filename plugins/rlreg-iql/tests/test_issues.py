"""Reports of users of other libraries that no other test answers; see docs/iql-issues.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.cli.main import run
from rlreg.errors import ConfigError, DeviceUnavailableError
from rlreg.runtime.optimizers import parameters_in

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
STANDARD = {"type": "standard"}


@pytest.fixture
def data():
    """200 steps in episodes of 20, as plain arrays: no environment anywhere."""
    rng, size = np.random.default_rng(0), 200
    observations = rng.normal(2.0, 3.0, (size + 1, 4)).astype(np.float32)
    return rlreg.TransitionDataset.from_arrays(
        observations[:-1],
        rng.uniform(-1, 1, (size, 2)).astype(np.float32),
        rng.normal(size=size),
        np.arange(size) % 40 == 39,
        np.arange(size) % 40 == 19,
        next_observations=observations[1:],
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )


def probe(size=6):
    return np.random.default_rng(5).normal(size=(size, 4)).astype(np.float32)


def weights(learnable):
    return {
        f"{part}.{name}": value.clone()
        for part, module in learnable.modules().items()
        for name, value in module.state_dict().items()
    }


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]


def test_arrays_without_an_environment_train(make_iql, data):
    learnable = make_iql()
    history = learnable.fit(data, 4, 2, show_progress=False)
    assert data.env_spec is None
    assert all(np.isfinite(metrics["critic_loss"]) for _, metrics in history)


def test_saved_weights_bring_the_scalers_along_bit_for_bit(make_iql, data, tmp_path):
    settings = {"observation_scaler": STANDARD, "reward_scaler": {"type": "return"}}
    learnable, other = make_iql(**settings), make_iql(seed=9, **settings)
    learnable.fit(data, 3, show_progress=False)
    learnable.save_model(tmp_path / "weights.safetensors")
    other.load_model(tmp_path / "weights.safetensors")
    assert other.reward_scaler.is_fitted
    np.testing.assert_array_equal(other.predict(probe()), learnable.predict(probe()))


def test_building_alone_fits_nothing_and_says_so_and_building_with_data_fits(make_iql, data):
    learnable = make_iql(observation_scaler=STANDARD)
    with pytest.raises(ConfigError, match=r"observation scaler .* has no statistics"):
        learnable.predict(probe())
    learnable.build_with_dataset(data)
    assert learnable.predict(probe()).shape == (6, 2)


def test_a_file_made_on_another_device_opens_where_it_is_told_to(make_iql, tmp_path):
    learnable = make_iql()
    learnable.device = torch.device("cuda:3")  # as if it had been made there
    learnable.save(tmp_path / "model.rlreg")
    learnable.device = torch.device("cpu")
    loaded = rlreg.load(tmp_path / "model.rlreg", device="cpu")
    assert loaded.device == torch.device("cpu")
    np.testing.assert_array_equal(loaded.predict(probe()), learnable.predict(probe()))
    if not torch.cuda.is_available():
        with pytest.raises(DeviceUnavailableError, match="cuda"):
            rlreg.load(tmp_path / "model.rlreg", device="cuda:0")


def test_two_halves_with_a_file_between_equal_the_whole_bit_for_bit(make_iql, data, tmp_path):
    cosine = {"type": "adam", "lr_scheduler_factory": {"type": "cosine_annealing"}}
    whole, half = (make_iql(actor_optim_factory=cosine) for _ in range(2))
    for learnable in (whole, half):
        learnable.set_total_steps(40)
    whole.fit(data, 40, show_progress=False)
    half.fit(data, 20, show_progress=False)
    half.save(tmp_path / "half.rlreg")
    rest = rlreg.load(tmp_path / "half.rlreg", device="cpu")
    assert rest.grad_step == 20
    rest.fit(data, 20, show_progress=False)
    assert rest.grad_step == whole.grad_step == 40
    assert_equal_weights(weights(whole), weights(rest))
    rates = [one.actor_optim.param_groups[0]["lr"] for one in (whole, rest)]
    assert rates[0] == rates[1] == 0.0


_FRESH = """
import sys
from pathlib import Path
import numpy as np
import rlreg
learnable = rlreg.load(sys.argv[1], device="cpu")
observations = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32)
np.save(sys.argv[2], learnable.predict(observations))
print(learnable.config.actor_encoder_factory.type)
"""


def test_an_encoder_of_a_plugin_comes_back_in_a_fresh_process(make_iql, tmp_path):
    encoder = {"type": "simba", "feature_size": 8, "hidden_size": 8, "n_blocks": 1}
    learnable = make_iql(actor_encoder_factory=encoder)
    learnable.save(tmp_path / "model.rlreg")
    paths = [str(tmp_path / "model.rlreg"), str(tmp_path / "actions.npy")]
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, *paths],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "simba"
    np.testing.assert_array_equal(np.load(paths[1]), learnable.predict(probe()))


def test_an_unknown_encoder_names_the_candidates():
    with pytest.raises(ConfigError, match="simba"):
        rlreg.make_config("iql", actor_encoder_factory={"type": "simbaa"})


def test_sharing_an_encoder_is_refused_and_every_parameter_has_one_owner(make_iql):
    with pytest.raises(ConfigError, match="share_encoder"):
        rlreg.make_config("iql", share_encoder=True)
    for rule in ("d3rlpy", "paper"):
        learnable = make_iql(update_rule=rule)
        owned = [
            id(parameter)
            for optimizer in learnable.optimizers().values()
            for parameter in parameters_in(optimizer)
        ]
        trained = [
            id(parameter)
            for module in (learnable.policy, learnable.critics, learnable.value)
            for parameter in module.parameters()
        ]
        assert sorted(owned) == sorted(trained)
        assert len(set(owned)) == len(owned)


def test_the_order_of_steps_of_corl_is_refused_by_name():
    with pytest.raises(ConfigError, match="update_rule = 'corl': expected 'd3rlpy' or 'paper'"):
        rlreg.make_config("iql", update_rule="corl")


def test_settings_of_corl_and_of_the_paper_are_compared_by_name(tmp_path, capsys):
    """CORL on hopper: a deterministic policy on standardised observations."""
    paper, corl = tmp_path / "paper.yaml", tmp_path / "corl.yaml"
    paper.write_text("{type: iql, update_rule: paper}\n")
    corl.write_text(
        "{type: iql, update_rule: paper, actor_kind: deterministic, expectile: 0.5,\n"
        " weight_temp: 6.0, observation_scaler: {type: standard}}\n"
    )
    run(["diff", str(paper), str(corl)])
    shown = capsys.readouterr().out
    for name in ("actor_kind", "expectile", "weight_temp", "observation_scaler"):
        assert name in shown
    assert "update_rule" not in shown


def test_target_critics_survive_a_file_apart_from_the_critics(make_iql, data, tmp_path):
    learnable = make_iql()
    learnable.fit(data, 5, show_progress=False)
    learnable.save(tmp_path / "model.rlreg")
    loaded = rlreg.load(tmp_path / "model.rlreg", device="cpu")
    assert_equal_weights(weights(learnable), weights(loaded))
    own, slow = loaded.critics.state_dict(), loaded.target_critics.state_dict()
    assert all(not torch.equal(own[name], slow[name]) for name in own)


def test_eight_updates_at_once_equal_eight_single_ones(make_iql, data):
    """The slow copy of the critics follows each update, not each call."""
    at_once, one_by_one = make_iql(), make_iql()
    at_once.run_updates(data, 8)
    for _ in range(8):
        one_by_one.run_updates(data, 1)
    assert at_once.grad_step == one_by_one.grad_step == 8
    assert_equal_weights(weights(at_once), weights(one_by_one))


def test_every_update_draws_other_transitions(make_iql, data, monkeypatch):
    drawn = []
    original = data.sample_indices

    def sample(size, generator):
        drawn.append(original(size, generator))
        return drawn[-1]

    monkeypatch.setattr(data, "sample_indices", sample)
    make_iql().run_updates(data, 6)
    assert len({tuple(indices.tolist()) for indices in drawn}) == 6


def test_ten_thousand_samples_lie_in_an_uneven_box(make_iql):
    box = spaces.Box(np.float32([-0.3, 2.0]), np.float32([7.0, 2.5]))
    actions = make_iql(action_space=box).sample_action(probe(10_000) * 100)
    assert (actions >= box.low).all()
    assert (actions <= box.high).all()
    assert np.isfinite(actions).all()


def test_every_row_of_the_table_names_tests_that_exist():
    root = Path(__file__).parents[3]
    rows = (root / "docs" / "iql-issues.md").read_text().splitlines()[8:]
    assert len(rows) >= 37
    for row in rows:
        named = re.findall(r"`([\w/.-]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, name in named:
            assert f"def {name}(" in (root / path).read_text(), f"{path}::{name}"
