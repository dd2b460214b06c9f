"""Fifty updates of d3rlpy 2.8.1 on fixed batches, replayed from its own weights.

The fixtures hold weights, batches and results; tests/data/iql_parity has three scenarios. The slow
test has d3rlpy itself play thirty-odd more (d3rlpy_scenarios.py).
"""

import io
import json
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlreg.errors import LeftOutWarning
from rlreg_iql.d3rlpy_import import (
    NETWORKS,
    _critic_state,
    _renamed,
    convert_d3rlpy,
    import_d3rlpy,
    load_weights,
)

DATA = Path(__file__).parent / "data" / "iql_parity"
SCENARIOS = ["default", "terminals_intervals", "expectile09_temp10"]
METRICS = ["critic_loss", "q_loss", "v_loss", "actor_loss"]


@pytest.fixture(params=SCENARIOS)
def scenario(request):
    folder = DATA / request.param
    return folder, np.load(folder / "fixture.npz", allow_pickle=False)


def state_of(fixture, moment):
    """Weights of one moment, by network and d3rlpy's names."""
    found = {name: {} for name in NETWORKS}
    for key in fixture.files:
        head, _, name = key.partition("/")
        if head == moment:
            network, _, rest = name.partition(".")
            found[network][rest] = torch.from_numpy(fixture[key])
    return found


def built_learnable(folder, fixture):
    config, nothing = import_d3rlpy(folder / "params.json")
    assert nothing is None
    learnable = config.create("cpu")
    learnable.build(
        spaces.Box(-np.inf, np.inf, (5,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    )
    load_weights(learnable, state_of(fixture, "init"))
    return learnable


def batch_of(fixture, index):
    names = ["observations", "actions", "rewards", "next_observations", "intervals"]
    batch = {name: fixture[f"batch/{name}"][index] for name in names}
    return {**batch, "terminations": fixture["batch/terminals"][index]}


def largest_difference(learnable, expected):
    modules = {
        "policy": (learnable.policy, _renamed),
        "q_funcs": (learnable.critics, lambda state: _critic_state(learnable.critics, state)),
        "targ_q_funcs": (
            learnable.target_critics,
            lambda state: _critic_state(learnable.critics, state),
        ),
        "value_func": (learnable.value, _renamed),
    }
    worst = 0.0
    for name, (module, translate) in modules.items():
        wanted = translate(expected[name])
        given = module.state_dict()
        assert given.keys() == wanted.keys()
        for key, value in wanted.items():
            worst = max(worst, float((given[key] - value).abs().max()))
    return worst


def assert_predictions(learnable, fixture, moment):
    observations, actions = fixture["probe/observations"], fixture["probe/actions"]
    tolerance = {"rtol": 1e-5, "atol": 2e-6}
    predicted = learnable.predict(observations)
    np.testing.assert_allclose(predicted, fixture[f"{moment}/action"], **tolerance)
    np.testing.assert_allclose(
        learnable.predict_value(observations, actions), fixture[f"{moment}/value"], **tolerance
    )
    np.testing.assert_allclose(
        learnable.predict_value(observations, predicted),
        fixture[f"{moment}/value_of_action"],
        **tolerance,
    )
    state_values = learnable.value(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(state_values, fixture[f"{moment}/state_value"], **tolerance)


def test_fifty_updates_equal_those_of_d3rlpy(scenario):
    folder, fixture = scenario
    learnable = built_learnable(folder, fixture)
    assert_predictions(learnable, fixture, "before")
    steps = len(fixture["metrics/q_loss"])
    assert steps == 50
    for index in range(steps):
        metrics = learnable.update(batch_of(fixture, index))
        for name in METRICS:
            wanted = fixture[f"metrics/{name}"][index]
            assert metrics[name] == pytest.approx(wanted, rel=1e-5, abs=1e-6), (index, name)
        if index in (0, 9):
            assert largest_difference(learnable, state_of(fixture, f"step{index + 1:04}")) <= 2e-6
    assert learnable.grad_step == steps
    assert largest_difference(learnable, state_of(fixture, "final")) <= 2e-6
    assert_predictions(learnable, fixture, "after")


def test_optimizer_moments_and_their_order_equal_those_of_d3rlpy(scenario):
    folder, fixture = scenario
    learnable = built_learnable(folder, fixture)
    for index in range(50):
        learnable.update(batch_of(fixture, index))
    num_compared = 0
    for owner, optimizer in (
        ("actor", learnable.actor_optim),
        ("critic", learnable.critic_optim),
    ):
        expected = expected_moments(fixture, owner, learnable)
        state = optimizer.state_dict()["state"]
        assert list(state) == list(range(len(expected)))
        for index, fields in enumerate(expected):
            for name in ("exp_avg", "exp_avg_sq"):
                wanted, given = fields[name], state[index][name]
                assert wanted.shape == given.shape
                assert (given - wanted).abs().max() <= 1e-5 * wanted.abs().max()
                num_compared += 1
            assert float(state[index]["step"]) == 50
    assert num_compared == 2 * (7 + 12)


def expected_moments(fixture, owner, learnable):
    """Moments in the order of d3rlpy's optimizer, critics stacked."""
    moments = {}
    for name in fixture[f"optim_order/{owner}"].tolist():
        network, _, rest = name.partition(".")
        _, _, tail = rest.partition(".")
        key = (network, tail) if network == "q_funcs" else (network, rest)
        for part in ("exp_avg", "exp_avg_sq"):
            value = torch.from_numpy(fixture[f"final_optim/{owner}/{name}/{part}"])
            moments.setdefault(key, {}).setdefault(part, []).append(value)
    stacked = []
    for (network, _), parts in moments.items():
        join = torch.stack if network == "q_funcs" else lambda values: values[0]
        stacked.append({part: join(values) for part, values in parts.items()})
    return stacked


def test_a_d3_file_becomes_a_learnable_with_equal_predictions(scenario):
    folder, fixture = scenario
    learnable = convert_d3rlpy(folder / "model.d3")
    assert largest_difference(learnable, state_of(fixture, "init")) == 0
    assert_predictions(learnable, fixture, "before")


def test_params_json_and_d3_file_hold_the_same_config(scenario):
    folder, _ = scenario
    from_json, _ = import_d3rlpy(folder / "params.json")
    from_model, weights = import_d3rlpy(folder / "model.d3")
    assert from_json == from_model
    assert set(weights) == set(NETWORKS)
    raw = json.loads((folder / "params.json").read_text())["config"]["params"]
    for name in ("expectile", "weight_temp", "max_weight", "tau", "gamma", "n_critics"):
        assert getattr(from_json, name) == raw[name]
    assert from_json.actor_encoder_factory.hidden_units == (32, 32)
    assert from_json.observation_scaler is None


def trained_file(path, folder, fixture):
    """The file that d3rlpy writes after its 50 updates, put together from the fixture."""
    content = pickle.loads((folder / "model.d3").read_bytes())  # our own fixture, plain data
    tensors = torch.load(io.BytesIO(content["torch"]), weights_only=True)
    tensors |= state_of(fixture, "final")
    for owner in ("actor", "critic"):
        slots = {}
        for index, name in enumerate(fixture[f"optim_order/{owner}"]):
            prefix = f"final_optim/{owner}/{name}/"
            slots[index] = {
                key.removeprefix(prefix): torch.from_numpy(np.array(fixture[key]))
                for key in fixture.files
                if key.startswith(prefix)
            }
        tensors[f"{owner}_optim"]["optim"]["state"] = slots
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    path.write_bytes(pickle.dumps({**content, "torch": buffer.getvalue()}))
    return tensors


def test_an_imported_model_goes_on_with_the_moments_of_d3rlpy(scenario, tmp_path):
    """The moments are those of a learnable that did the same updates, and so is the next update."""
    folder, fixture = scenario
    trained_file(tmp_path / "model.d3", folder, fixture)
    imported, ours = convert_d3rlpy(tmp_path / "model.d3"), built_learnable(folder, fixture)
    for index in range(50):
        ours.update(batch_of(fixture, index))
    for name, optimizer in ours.optimizers().items():
        other = imported.optimizers()[name].state_dict()["state"]
        for number, slot in optimizer.state_dict()["state"].items():
            assert slot.keys() == other[number].keys() == {"step", "exp_avg", "exp_avg_sq"}
            assert other[number]["step"] == slot["step"] == 50
            for field, value in slot.items():
                torch.testing.assert_close(other[number][field], value, rtol=1e-4, atol=1e-5)
    batch = batch_of(fixture, 0)
    assert imported.update(batch) == pytest.approx(ours.update(batch), rel=1e-4, abs=1e-6)
    for one, two in zip(imported.policy.parameters(), ours.policy.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    imported.save(tmp_path / "model.rlreg")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda state: state["optim"]["state"].pop(3), "it is for 6 parameters"),
        (lambda state: state["optim"]["state"][2].update(exp_avg=torch.zeros(7)), "'exp_avg'"),
        (lambda state: state["optim"]["state"][2]["exp_avg"].fill_(np.nan), "not finite"),
        (lambda state: state["optim"]["state"][2].pop("exp_avg"), "for some parameters only"),
        (lambda state: state.pop("optim"), "no state"),
    ],
    ids=["missing", "other shape", "nan", "partial", "none"],
)
def test_moments_that_do_not_fit_are_left_out_with_a_warning(scenario, damage, reason, tmp_path):
    folder, fixture = scenario
    path = tmp_path / "model.d3"
    tensors = trained_file(path, folder, fixture)
    damage(tensors["actor_optim"])
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "torch": buffer.getvalue()}))
    with pytest.warns(LeftOutWarning, match=f"actor_optim.*{reason}.*fresh moments"):
        imported = convert_d3rlpy(path)
    assert not imported.actor_optim.state
    assert len(imported.critic_optim.state) == 12


PEER = Path(__file__).parents[3] / "benchmarks" / ".peers" / "d3rlpy" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PEER.exists(), reason="needs d3rlpy: run `make bench-peers`")
def test_updates_equal_those_of_d3rlpy_in_many_settings(tmp_path, subtests):
    script = Path(__file__).with_name("d3rlpy_scenarios.py")
    subprocess.run([str(PEER), str(script), "played"], check=True, cwd=tmp_path)
    played = sorted((tmp_path / "played").iterdir())
    assert len(played) >= 30
    for folder in played:
        with subtests.test(folder.name):
            assert_replayed(folder)


def assert_replayed(folder):
    run = np.load(folder / "run.npz", allow_pickle=False)
    learnable = convert_d3rlpy(folder / "before.d3")
    assert_probes(learnable, run, "before")
    # Batch normalisation magnifies the last digit: weights one rounding apart differ by 2e-4 here.
    normalises_batches = "batch_norm" in folder.name or folder.name == "both_norms"
    rel = 1e-3 if normalises_batches else 1e-5
    for index in range(50):
        metrics = learnable.update(batch_of(run, index))
        for name in METRICS:
            wanted = run[f"metrics/{name}"][index]
            assert metrics[name] == pytest.approx(wanted, rel=rel, abs=1e-6), (index, name)
    assert_probes(learnable, run, "after")
    if not normalises_batches:
        # d3rlpy calls its target critics twice an update, so their batch statistics, which no
        # prediction reads, move twice.
        _, weights = import_d3rlpy(folder / "after.d3")
        assert largest_difference(learnable, weights) <= 1e-5
    assert_goes_on_alike(learnable, convert_d3rlpy(folder / "after.d3"), run)


def assert_goes_on_alike(learnable, imported, run):
    """Another update from the file: moments and schedules came along."""
    ours, theirs = (one.update(batch_of(run, 0)) for one in (learnable, imported))
    for name in METRICS:
        assert theirs[name] == pytest.approx(ours[name], rel=1e-4, abs=1e-6)
    for name, optimizer in learnable.optimizers().items():
        other = imported.optimizers()[name]
        assert [group["lr"] for group in other.param_groups] == pytest.approx(
            [group["lr"] for group in optimizer.param_groups]
        )


def assert_probes(learnable, run, moment):
    observations, actions = run["batch/observations"][0, :4], run["batch/actions"][0, :4]
    tolerance = {"rtol": 1e-5, "atol": 5e-6}
    predicted = learnable.predict(observations)
    np.testing.assert_allclose(predicted, run[f"{moment}/action"], **tolerance)
    values = learnable.predict_value(observations, actions)
    np.testing.assert_allclose(values, run[f"{moment}/value"], **tolerance)
