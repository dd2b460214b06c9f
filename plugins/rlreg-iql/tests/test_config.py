"""The config of IQL, its components and presets, as the registry sees them."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.errors import ConfigError
from rlreg_iql.components import ReturnRewardScaler, SimBaEncoder
from rlreg_iql.config import IQLConfig
from rlreg_iql.presets import PRESETS

D3RLPY_DEFAULTS = {
    "actor_learning_rate": 3e-4,
    "critic_learning_rate": 3e-4,
    "batch_size": 256,
    "gamma": 0.99,
    "tau": 0.005,
    "n_critics": 2,
    "expectile": 0.7,
    "weight_temp": 3.0,
    "max_weight": 100.0,
    "observation_scaler": None,
    "action_scaler": None,
    "reward_scaler": None,
}


def test_defaults_are_those_of_d3rlpy():
    config = IQLConfig()
    assert {name: getattr(config, name) for name in D3RLPY_DEFAULTS} == D3RLPY_DEFAULTS
    assert config.update_rule == "d3rlpy"
    for name in ("actor", "critic"):
        optimizer = getattr(config, f"{name}_optim_factory")
        assert (optimizer.type, optimizer.betas, optimizer.eps) == ("adam", (0.9, 0.999), 1e-8)
        assert (optimizer.weight_decay, optimizer.clip_grad_norm) == (0, None)
    for name in ("actor", "critic", "value"):
        assert getattr(config, f"{name}_encoder_factory").type == "default"


def test_every_field_says_what_it_is_and_where_its_default_comes_from():
    for cls in (IQLConfig, SimBaEncoder, ReturnRewardScaler):
        for name, field in cls.model_fields.items():
            if name in ("type", "schema_version"):
                continue
            assert field.description.endswith("."), name
            assert "Default: " in field.description, name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expectile", 0.0),
        ("expectile", 1.0),
        ("tau", 0.0),
        ("tau", 1.1),
        ("gamma", -0.1),
        ("gamma", 1.01),
        ("n_critics", 0),
        ("n_critics", 101),
        ("batch_size", 0),
        ("actor_learning_rate", 0.0),
        ("weight_temp", -1.0),
        ("max_weight", 0.0),
        ("update_rule", "corl"),
        ("actor_kind", "tanh"),
        ("initialization", "he"),
        ("value_optim_factory", {"type": "vector"}),
        ("expectiles", 0.5),
    ],
)
def test_values_outside_their_range_are_refused_with_the_field(field, value):
    with pytest.raises(ConfigError, match=field):
        rlreg.make_config("iql", **{field: value})


def test_importing_config_components_and_presets_needs_no_torch():
    code = (
        "import sys, rlreg_iql.plugin, rlreg_iql.config, rlreg_iql.components, rlreg_iql.presets;"
        "heavy = {'torch', 'numpy', 'gymnasium'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_components_come_from_this_plugin():
    assert rlreg.make_config("iql", actor_encoder_factory={"type": "simba"})
    assert rlreg.make_config("iql", reward_scaler={"type": "return"})
    from rlreg.components import CORE_COMPONENTS

    tags = {(cls.kind, cls.get_type()) for cls in CORE_COMPONENTS}
    assert ("encoder", "simba") not in tags
    assert ("reward_scaler", "return") not in tags


def test_a_config_survives_json():
    config = rlreg.make_config(
        "iql",
        actor_encoder_factory={"type": "simba", "n_blocks": 3},
        value_optim_factory={"type": "sgd", "momentum": 0.9},
        reward_scaler={"type": "return", "multiplier": 1000},
    )
    assert IQLConfig.model_validate(json.loads(config.model_dump_json())) == config


# --- presets ------------------------------------------------------------------------------------


def nested(settings):
    document = {}
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = document
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = value
    return document


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.id)
def test_a_preset_is_a_valid_run(preset):
    document = nested(preset.settings)
    document["learnable"]["type"] = "iql"
    run = rlreg.RunConfig.model_validate(document)
    if "update_rule" not in document["learnable"]:
        assert preset.source.startswith("ours")  # only our own preset leaves the rule alone
        return
    assert run.learnable.update_rule == "paper"
    assert run.learnable.initialization == "orthogonal"
    assert run.learnable.actor_optim_factory.lr_scheduler_factory.T_max is None
    assert run.learnable.critic_optim_factory.lr_scheduler_factory is None
    assert "Kostrikov et al. 2021" in preset.source


def test_presets_hold_the_papers_numbers():
    numbers = {
        preset.id: (
            preset.settings["learnable.expectile"],
            preset.settings["learnable.weight_temp"],
            preset.settings["evaluation.n_episodes"],
        )
        for preset in PRESETS
    }
    assert numbers == {
        "iql/locomotion": (0.7, 3.0, 10),
        "iql/antmaze": (0.9, 10.0, 100),
        "iql/adroit": (0.7, 0.5, 10),
        "iql/kitchen": (0.7, 0.5, 10),
        "iql/pointmaze": (0.7, 10.0, 100),
        "iql/pendulum": (0.9, 10.0, 20),
    }
    by_id = {preset.id: preset.settings for preset in PRESETS}
    assert by_id["iql/locomotion"]["learnable.reward_scaler"] == {
        "type": "return",
        "multiplier": 1000.0,
    }
    assert by_id["iql/antmaze"]["learnable.reward_scaler"] == {"type": "shift", "shift": -1.0}
    for name in ("adroit", "kitchen"):
        encoder = by_id[f"iql/{name}"]["learnable.actor_encoder_factory"]
        assert encoder["dropout_rate"] == 0.1


def test_presets_are_found_through_the_registry():
    found = {record.preset.id for record in rlreg.list_presets()}
    assert {preset.id for preset in PRESETS} <= found


# --- the return scaler --------------------------------------------------------------------------


def dataset_of(rewards, ends):
    size = len(rewards)
    return rlreg.TransitionDataset.from_arrays(
        np.arange(size + 0.0, dtype=np.float32)[:, None],
        np.zeros((size, 1), np.float32),
        np.asarray(rewards, np.float32),
        np.asarray(ends, bool),
        action_space=spaces.Box(-1, 1, (1,), np.float32),
    )


def test_the_return_scaler_divides_by_the_range_of_returns():
    scaler = ReturnRewardScaler(multiplier=10.0).create()
    scaler.fit(dataset_of([1, 2, 3, 4, -1], [0, 0, 1, 0, 1]))  # returns 6 and 3
    given = scaler.transform(torch.tensor([3.0, -1.5]))
    torch.testing.assert_close(given, torch.tensor([10.0, -5.0]))
    torch.testing.assert_close(scaler.inverse(given), torch.tensor([3.0, -1.5]))


def test_equal_returns_leave_rewards_as_they_are():
    scaler = ReturnRewardScaler(multiplier=2.0).create()
    scaler.fit(dataset_of([3, 1, 2], [1, 0, 1]))  # returns 3 and 3
    assert torch.equal(scaler.transform(torch.tensor([3.0])), torch.tensor([6.0]))


def test_given_returns_are_kept_and_checked():
    scaler = ReturnRewardScaler(return_min=0.0, return_max=4.0).create()
    assert scaler.is_fitted
    scaler.fit(dataset_of([1, 2, 3], [0, 0, 1]))
    assert float(scaler.transform(torch.tensor(2.0))) == 0.5
    with pytest.raises(ConfigError, match="return_min"):
        ReturnRewardScaler(return_min=1.0, return_max=0.0).create()


def test_an_unfitted_return_scaler_says_so():
    with pytest.raises(ConfigError, match="reward scaler"):
        ReturnRewardScaler().create().transform(torch.ones(1))


# --- SimBa --------------------------------------------------------------------------------------


def test_simba_is_residual_and_normalised():
    encoder = SimBaEncoder(feature_size=8, hidden_size=16, n_blocks=2).create((3,))
    features = encoder(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    assert features.shape == (50, 8)
    assert encoder.output_size == 8
    torch.testing.assert_close(features.mean(dim=1), torch.zeros(50), atol=1e-5, rtol=0)
    with torch.no_grad():
        for block in encoder.layers[1:-1]:
            block.layers[-1].weight.zero_()
            block.layers[-1].bias.zero_()
    stem = encoder.layers[0](torch.ones(1, 3))
    expected = torch.nn.functional.layer_norm(stem, (8,))
    torch.testing.assert_close(encoder(torch.ones(1, 3)), expected)


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_a_learning_rate_in_an_optimizer_is_told_where_it_belongs(name):
    optimizer = {"type": "adam", name: 1e-3}
    with pytest.raises(
        ConfigError, match=f"actor_optim_factory.{name}: .* to the learnable, whose"
    ):
        rlreg.make_config("iql", actor_optim_factory=optimizer)
