"""Encoders: layer order, shapes, images, stacking."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rlreg.components import DefaultEncoder, PixelEncoder, VectorEncoder
from rlreg.errors import ConfigError
from rlreg.runtime.ensemble import EnsembleLayerNorm, EnsembleLinear, stack
from rlreg.runtime.networks import (
    GEGLU,
    PixelEncoderNetwork,
    VectorEncoderNetwork,
    dense_layers,
    has_batch_norm,
    initialize,
    scale_images,
)

ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "swish": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def names(module):
    return [type(layer).__name__ for layer in module]


def test_layers_come_in_the_order_linear_activation_norms_dropout():
    layers = dense_layers(
        3,
        [4, 5],
        activation="tanh",
        use_batch_norm=True,
        use_layer_norm=True,
        dropout_rate=0.1,
        last_activation="relu",
    )
    block = ["Linear", "Tanh", "BatchNorm1d", "LayerNorm", "Dropout"]
    assert names(layers) == [*block, "Linear", "ReLU", *block[2:]]


def test_the_last_activation_can_be_left_out():
    layers = dense_layers(3, [4, 5], exclude_last_activation=True, last_activation="tanh")
    assert names(layers) == ["Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_compute_what_their_names_say(activation):
    encoder = VectorEncoder(hidden_units=(5,), activation=activation).create((5,))
    with torch.no_grad():
        encoder.layers[0].weight.copy_(torch.eye(5))
        encoder.layers[0].bias.zero_()
    values = [-2.0, -0.5, 0.0, 0.5, 3.0]
    expected = torch.tensor([[ACTIVATIONS[activation](value) for value in values]])
    torch.testing.assert_close(encoder(torch.tensor([values])), expected)


def test_geglu_gates_one_half_by_the_other_and_keeps_the_width():
    given = GEGLU()(torch.tensor([[3.0, 2.0]]))
    torch.testing.assert_close(given, torch.tensor([[3 * ACTIVATIONS["gelu"](2.0)]]))
    encoder = VectorEncoder(hidden_units=(6, 4), activation="geglu", use_layer_norm=True)
    assert encoder.create((3,))(torch.zeros(2, 3)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 4)])
def test_a_vector_encoder_flattens_observations_of_any_shape(shape):
    encoder = VectorEncoder(hidden_units=(7, 6)).create(shape)
    assert encoder.output_size == 6
    assert encoder(torch.zeros(5, *shape)).shape == (5, 6)


def test_actions_stand_behind_the_observation():
    encoder = VectorEncoder(hidden_units=(4,), activation="tanh").create_with_action((3,), 2)
    assert encoder.layers[0].in_features == 5
    observations, actions = torch.randn(6, 3), torch.randn(6, 2)
    joined = torch.cat([observations, actions], dim=1)
    torch.testing.assert_close(encoder(observations, actions), encoder.layers(joined))


def test_uint8_is_divided_by_255_and_floats_are_not():
    image = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(scale_images(image), torch.tensor([[0.0, 0.2, 1.0]]))
    floats = torch.tensor([[0.0, 51.0]])
    assert scale_images(floats) is floats


# --- pixels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 4), (1, 36, 50), (36, 50, 1)])
def test_a_pixel_encoder_takes_channels_first_and_last(shape):
    encoder = PixelEncoder().create(shape)
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert encoder(image).shape == (2, 512)
    assert encoder.cnn_layers[0].in_channels == min(shape)


def test_channels_last_equals_channels_first():
    first = PixelEncoderNetwork(PixelEncoder(), (3, 40, 44))
    last = PixelEncoderNetwork(PixelEncoder(), (40, 44, 3))
    last.load_state_dict(first.state_dict())
    image = torch.randint(0, 256, (2, 3, 40, 44), dtype=torch.uint8)
    assert torch.equal(first(image), last(image.permute(0, 2, 3, 1)))


def test_pixel_layers_follow_the_config_and_take_actions_late():
    config = PixelEncoder(
        filters=((8, 3, 2),), feature_size=16, use_batch_norm=True, dropout_rate=0.1
    )
    encoder = config.create_with_action((3, 9, 9), 2)
    assert names(encoder.cnn_layers) == ["Conv2d", "ReLU", "BatchNorm2d", "Dropout2d"]
    assert names(encoder.last_layers) == ["Linear", "ReLU", "BatchNorm1d", "Dropout"]
    assert encoder.last_layers[0].in_features == 8 * 4 * 4 + 2
    assert encoder(torch.zeros(2, 3, 9, 9), torch.zeros(2, 2)).shape == (2, 16)


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (PixelEncoder(), (3, 35, 35), "too small"),
        (PixelEncoder(), (3,), "images"),
        (PixelEncoder(activation="geglu"), (3, 40, 40), "geglu"),
    ],
)
def test_what_convolutions_cannot_take_is_a_config_error(config, shape, message):
    with pytest.raises(ConfigError, match=message):
        config.create(shape)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5,), VectorEncoderNetwork),
        ((4, 36, 36), PixelEncoderNetwork),
        ((36, 36, 3), PixelEncoderNetwork),
        ((7, 7, 3), VectorEncoderNetwork),
        ((10, 10, 6), VectorEncoderNetwork),
    ],
)
def test_the_default_encoder_suits_the_shape(shape, expected):
    assert type(DefaultEncoder().create(shape)) is expected
    assert type(DefaultEncoder().create_with_action(shape, 2)) is expected


# --- stacking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_members", [1, 3])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "geglu"])
def test_stacked_layers_equal_a_loop_in_values_and_gradients(num_members, activation):
    torch.manual_seed(0)
    members = [
        dense_layers(4, [6, 5], activation=activation, use_layer_norm=True)
        for _ in range(num_members)
    ]
    for member in members:
        for layer in member:
            if isinstance(layer, nn.LayerNorm):
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    stacked = stack(members)
    features = torch.randn(7, 4)
    given, expected = stacked(features), torch.stack([member(features) for member in members])
    torch.testing.assert_close(given, expected, rtol=1e-6, atol=1e-6)
    given.square().sum().backward()
    expected.square().sum().backward()
    for index, layer in enumerate(stacked):
        if isinstance(layer, EnsembleLinear | EnsembleLayerNorm):
            for name in ("weight", "bias"):
                wanted = torch.stack([getattr(member[index], name).grad for member in members])
                torch.testing.assert_close(getattr(layer, name).grad, wanted, rtol=1e-4, atol=1e-4)


def test_stacking_copies_parameters():
    member = dense_layers(3, [2])
    stacked = stack([member, member])
    before = stacked(torch.ones(1, 3))
    with torch.no_grad():
        member[0].weight.zero_()
    assert torch.equal(before, stacked(torch.ones(1, 3)))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 2, False)]
)
def test_layers_that_cannot_be_stacked_are_declined(layer):
    assert stack([nn.Sequential(nn.Linear(2, 2), layer)] * 2) is None


def test_members_have_their_own_dropout_masks():
    torch.manual_seed(0)
    stacked = stack([nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5))] * 2)
    with torch.no_grad():
        stacked[0].bias.fill_(1.0)
        stacked[0].weight.zero_()
    masks = stacked(torch.zeros(3, 2)) > 0
    assert not torch.equal(masks[0], masks[1])


# --- initialisation -----------------------------------------------------------------------------


def test_orthogonal_initialisation_reaches_linear_and_convolutional_layers():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3))
    assert initialize(module, "orthogonal") is module
    for weight in (module[0].weight.flatten(1), module[2].weight):
        product = weight @ weight.T
        torch.testing.assert_close(product, 2 * torch.eye(len(weight)), rtol=0, atol=1e-5)
    assert module[0].bias.abs().max() == module[2].bias.abs().max() == 0
    assert torch.equal(module[3].weight, torch.ones(3))


def test_torch_initialisation_changes_nothing():
    module = nn.Linear(3, 3)
    before = module.weight.clone()
    initialize(module, "torch")
    assert torch.equal(before, module.weight)


def test_batch_norm_is_noticed():
    assert has_batch_norm(dense_layers(3, [2], use_batch_norm=True))
    assert not has_batch_norm(dense_layers(3, [2], use_layer_norm=True))


def test_building_an_encoder_draws_only_what_its_layers_draw():
    torch.manual_seed(0)
    VectorEncoder(hidden_units=(4,)).create((3,))
    after = torch.rand(1)
    torch.manual_seed(0)
    nn.Linear(3, 4)
    assert torch.equal(after, torch.rand(1))
    assert np.isfinite(float(after))
