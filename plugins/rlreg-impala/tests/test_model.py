import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_helpers import SMALL, config, model_for
from torch import nn

from rlreg.errors import ConfigError, EnvironmentSpecError, NonFiniteError, ShapeError
from rlreg_impala.components import IMPALAResNetEncoder, MinAtarEncoder, RMSpropTF
from rlreg_impala.model import TorchActorCritic
from rlreg_impala.networks import RunningNormalizer
from rlreg_impala.player import Player
from rlreg_impala.policy import ActingPolicy, FlatWeights

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 20, 20), np.uint8)
DICT = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2, 2), np.float32)})
ACTIONS = spaces.Dict({"choice": spaces.Discrete(3), "aim": spaces.Box(-2, 2, (2,), np.float32)})
RESNET = {"type": "impala_resnet", "filters": [4, 8], "feature_size": 16}


def flat(model, *leading, seed=0):
    rng = np.random.default_rng(seed)
    shape = (*leading, *model.plan.shape)
    if model.plan.is_image:
        return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def starts_at(steps, columns, *rows):
    starts = torch.zeros(steps, columns, dtype=torch.bool)
    for t, n in rows:
        starts[t, n] = True
    return starts


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("space", [VECTOR, IMAGE, DICT], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("actions", [spaces.Discrete(4), ACTIONS], ids=["discrete", "dict"])
def test_every_combination_unrolls(space, actions, core, shared):
    encoder = RESNET if space is IMAGE else SMALL
    model = model_for(
        space,
        actions,
        core=core,
        core_size=5,
        actor_encoder_factory=encoder,
        critic_encoder_factory=None if shared else encoder,
    )
    seen = model.unroll(
        flat(model, 5, 3),
        starts_at(5, 3, (2, 1)),
        torch.zeros(3, model.state_size),
        flat(model, 2),
        torch.tensor([[1, 1], [3, 2]]),
    )
    assert seen.params.shape == (4, 3, model.codec.num_params)
    assert seen.values.shape == (5, 3)
    assert seen.final_values.shape == (2,)
    (seen.params.sum() + seen.values.sum()).backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == []


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("shared", [True, False])
def test_an_unroll_equals_steps_with_resets(core, shared):
    critic = None if shared else SMALL
    model = model_for(VECTOR, ACTIONS, core=core, core_size=6, critic_encoder_factory=critic)
    observations = flat(model, 8, 3)
    starts = starts_at(8, 3, (0, 0), (3, 1), (4, 1), (7, 2))
    state = torch.randn(3, model.state_size, generator=torch.Generator().manual_seed(0))
    seen = model.unroll(observations, starts, state)
    for t in range(8):
        state = torch.where(starts[t][:, None], 0.0, state)
        params, values, state = model.step(observations[t], state)
        torch.testing.assert_close(values, seen.values[t])
        if t < 7:
            torch.testing.assert_close(params, seen.params[t])


def test_memory_crosses_the_border_of_fragments():
    model = model_for(VECTOR, spaces.Discrete(2), core="lstm", core_size=6)
    observations, nothing = flat(model, 9, 2), torch.zeros(9, 2, dtype=torch.bool)
    whole = model.unroll(observations, nothing, torch.zeros(2, model.state_size))
    state = torch.zeros(2, model.state_size)
    for t in range(4):
        _, _, state = model.step(observations[t], state)
    second = model.unroll(observations[4:], nothing[4:], state)
    torch.testing.assert_close(whole.values[4:], second.values)
    torch.testing.assert_close(whole.params[4:], second.params)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_final_observation_is_seen_with_the_memory_of_its_own_episode(core):
    model = model_for(VECTOR, spaces.Discrete(2), core=core, core_size=6)
    observations, final = flat(model, 4, 2), flat(model, 1, seed=9)
    starts = starts_at(4, 2, (2, 1))  # column 1 was reset after step 1
    state = torch.zeros(2, model.state_size)
    rows = torch.tensor([[1, 1]])
    seen = model.unroll(observations, starts, state, final, rows)
    for t in range(2):
        _, _, state = model.step(observations[t], state)
    own = torch.stack([observations[2, 0], final[0]])
    expected = model.step(own, state)[1][1]
    torch.testing.assert_close(seen.final_values[0], expected)


@pytest.mark.parametrize("space", [VECTOR, DICT, spaces.Box(-1, 1, (2, 2, 2), np.float32)])
@pytest.mark.parametrize("actions", [spaces.Discrete(4), ACTIONS], ids=["discrete", "dict"])
@pytest.mark.parametrize("normalization", ["none", "running"])
def test_numpy_and_torch_act_alike(space, actions, normalization):
    model = model_for(space, actions, observation_normalization=normalization)
    if model.policy.normalizer is not None:
        model.policy.normalizer.update(3 + 2 * flat(model, 50))
    spec = model.policy_spec()
    quick = spec.make()
    slow = ActingPolicy(spec.make()._network, spec.codec, use_numpy=False)
    assert quick.uses_numpy
    observations, state = flat(model, 7).numpy(), np.zeros((7, 0), dtype=np.float32)
    before = observations.copy()
    for weights in (None, np.random.default_rng(1).normal(size=quick.num_weights)):
        if weights is not None:
            weights = np.abs(weights).astype(np.float32)  # variances are among them
            quick.load_flat(weights)
            slow.load_flat(weights)
        ours, _ = quick.parameters(observations, state)
        theirs, _ = slow.parameters(observations, state)
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(observations, before)


def test_means_stay_within_bounds_and_only_those_that_have_bounds():
    """A mean beyond them would have no gradient: every action there is clipped to the same one."""
    half_open = spaces.Box(np.array([-2, 0], np.float32), np.array([2, np.inf], np.float32))
    actions = spaces.Dict({"aim": half_open, "choice": spaces.Discrete(3)})
    model = model_for(VECTOR, actions)
    with torch.no_grad():
        model.policy.head.linear.bias.fill_(50.0)
        params = model.policy.step(torch.zeros(1, 3), torch.zeros(1, 0))[0][0]
    bounded, unbounded, _, _, *logits = params.tolist()
    assert bounded == pytest.approx(1)
    assert [unbounded, *logits] == pytest.approx([50.0] * 4, abs=1)
    spec = model.policy_spec()
    by_numpy = spec.make()
    assert by_numpy.uses_numpy
    found, _ = by_numpy.parameters(np.zeros((1, 3), np.float32), np.zeros((1, 0), np.float32))
    np.testing.assert_allclose(found[0], params.numpy(), rtol=1e-5)


class Squared(nn.Module):
    """Looks like one Sequential, but is not."""

    output_size = 4

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh())

    def forward(self, observations):
        return self.layers(observations) ** 2


@pytest.mark.parametrize("encoder", [Squared(), nn.Sequential(nn.Tanh(), nn.Linear(3, 4))])
def test_what_cannot_be_mirrored_is_left_to_torch(encoder):
    encoder.output_size = 4
    model = TorchActorCritic(VECTOR, spaces.Discrete(2), encoder)
    assert not model.policy_spec().make().uses_numpy


def test_images_and_memories_are_left_to_torch():
    model = model_for(IMAGE, spaces.Discrete(2), critic_encoder_factory=None)
    assert not model.policy_spec().make().uses_numpy
    model = model_for(VECTOR, spaces.Discrete(2), core="gru")
    assert not model.policy_spec().make().uses_numpy


def test_the_policy_travels_and_weights_arrive_whole():
    batch_norm = {"type": "vector", "hidden_units": [8], "use_batch_norm": True}
    settings = {"actor_encoder_factory": batch_norm, "observation_normalization": "running"}
    model = model_for(VECTOR, ACTIONS, seed=1, **settings)
    model.policy.normalizer.update(5 + flat(model, 64))
    model.train().policy.encoder(flat(model, 64))  # moves the statistics of batch normalisation
    spec = cloudpickle.loads(
        cloudpickle.dumps(model_for(VECTOR, ACTIONS, **settings).policy_spec())
    )
    acting = spec.make()
    vector = FlatWeights(model.policy).pack()
    assert vector.dtype == np.float32
    assert vector.shape == (acting.num_weights,) == (spec.num_weights,)
    acting.load_flat(vector)
    vector[:] = 0  # it was copied
    observations = flat(model, 6)
    ours, _ = acting.parameters(observations.numpy(), acting.initial_state(6))
    with torch.no_grad():
        theirs = model.eval().policy.step(observations, torch.zeros(6, 0))[0]
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_weights_are_packed_as_they_are_now_however_they_lie_in_memory(memory_format):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).half()
    network = network.to(memory_format=memory_format)
    packer = FlatWeights(network)
    with torch.no_grad():
        for number, tensor in enumerate(network.state_dict().values()):
            values = torch.arange(tensor.numel()).reshape(tensor.shape)
            # The counter of batches is an integer and more than a half can hold.
            tensor.copy_(values + number + (0 if tensor.is_floating_point() else 100_001))
    vector = packer.pack()
    parts = [np.arange(t.numel()) + n for n, t in enumerate(network.state_dict().values())]
    parts[-1] += 100_001
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, np.concatenate(parts))


def test_weights_of_another_length_are_refused():
    acting = model_for(VECTOR, spaces.Discrete(2)).policy_spec().make()
    with pytest.raises(ShapeError, match="weights"):
        acting.load_flat(np.zeros(acting.num_weights + 1, dtype=np.float32))


def test_an_actor_names_the_environment_with_nan():
    acting = model_for(VECTOR, spaces.Discrete(2)).policy_spec().make()
    observations = np.zeros((4, 3), dtype=np.float32)
    observations[2, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"\[2\]"):
        acting.act(observations, acting.initial_state(4), np.random.default_rng(0))


def test_recorded_log_probs_are_those_the_learner_computes():
    from learner_helpers import fragment

    from rlreg_impala.heads import log_prob_and_entropy

    model = model_for(VECTOR, ACTIONS, core="lstm", core_size=4)
    starts = starts_at(7, 3, (0, 1), (3, 2), (4, 0)).numpy()
    made = fragment(model, steps=6, starts=starts)
    seen = model.unroll(
        torch.from_numpy(made.observations),
        torch.from_numpy(made.starts),
        torch.from_numpy(made.core_state),
    )
    learned, _ = log_prob_and_entropy(model.codec, seen.params, torch.from_numpy(made.actions))
    np.testing.assert_allclose(learned.detach().numpy(), made.log_probs, atol=1e-5)


def test_running_statistics_equal_those_of_all_rows_together():
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * 3 + 7
    normalizer = RunningNormalizer((4,))
    for part in rows.split([1, 99, 150, 50]):
        normalizer.update(part)
    torch.testing.assert_close(normalizer.mean, rows.mean(0))
    torch.testing.assert_close(normalizer.variance, rows.var(0, correction=0))
    assert normalizer(rows).abs().max() <= 10


@pytest.mark.parametrize("shape", [(3, 30, 30), (30, 30, 3)])
@pytest.mark.parametrize("encoder", [IMPALAResNetEncoder(), MinAtarEncoder()])
def test_image_encoders_take_channels_first_and_last(encoder, shape):
    network = encoder.create(shape)
    features = network(torch.zeros(2, *shape, dtype=torch.uint8))
    assert features.shape == (2, network.output_size)


def test_image_encoders_see_the_same_picture_in_both_orders():
    torch.manual_seed(0)
    first, last = (MinAtarEncoder().create(shape) for shape in [(4, 10, 10), (10, 10, 4)])
    last.load_state_dict(first.state_dict())
    image = torch.rand(3, 4, 10, 10)
    torch.testing.assert_close(first(image), last(image.permute(0, 2, 3, 1)))


def test_image_encoders_refuse_vectors():
    with pytest.raises(ConfigError, match="impala_resnet"):
        IMPALAResNetEncoder().create((4,))
    with pytest.raises(ConfigError, match="smaller"):
        MinAtarEncoder(kernel_size=5).create((3, 4, 4))


def test_images_have_the_statistics_of_all_their_pixels():
    images = torch.randint(80, 100, (30, *IMAGE.shape), dtype=torch.uint8)
    model = model_for(IMAGE, spaces.Discrete(2), observation_normalization="running")
    normalizer = model.policy.normalizer
    for part in images.split([1, 9, 20]):
        normalizer.update(part)
    pixels = images.float()
    torch.testing.assert_close(normalizer.mean, pixels.mean())
    torch.testing.assert_close(normalizer.variance, pixels.var(correction=0))
    expected = (pixels - pixels.mean()) / pixels.std(correction=0)
    torch.testing.assert_close(normalizer(images), expected)
    seen = []
    model.policy.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.step(images, torch.zeros(30, 0))
    torch.testing.assert_close(seen[0], expected)  # and not divided by 255 once more


@pytest.mark.parametrize(
    ("observations", "named"),
    [
        (spaces.Dict({"text": spaces.Text(4), "x": VECTOR}), "observation.text"),
        (spaces.Dict({"cam": spaces.Box(0, 255, (64, 64, 3), np.uint8), "x": VECTOR}), "cam"),
    ],
)
def test_observations_that_cannot_be_taken_name_the_leaf(observations, named):
    with pytest.raises(EnvironmentSpecError, match=named):
        TorchActorCritic.of(config(), observations, spaces.Discrete(2))


def test_rmsprop_has_its_eps_inside_the_root():
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    module = nn.ParameterList([parameter])
    optimizer = RMSpropTF(eps=0.01, alpha=0.9, momentum=0.5).create([("m", module)], 0.1)
    square, buffer, value = np.ones(2), np.zeros(2), np.array([1.0, -2.0])
    for gradient in ([0.5, 3.0], [-1.0, 0.2]):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        square = 0.9 * square + 0.1 * np.square(gradient)
        buffer = 0.5 * buffer + 0.1 * np.array(gradient) / np.sqrt(square + 0.01)
        value = value - buffer
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-6)


def test_a_player_leaves_the_mode_of_the_model_alone_and_draws_from_its_own_stream():
    model = model_for(VECTOR, spaces.Discrete(2)).train()
    state = torch.get_rng_state()
    player = Player(model, deterministic=False, seed=3)
    first = player(np.zeros((64, 3), dtype=np.float32))
    player.seed_noise(3)
    assert player(np.zeros((64, 3), dtype=np.float32)) == first
    assert model.policy.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("is_shared", [True, False])
def test_encoders_are_orthogonal_where_that_is_asked_for(is_shared):
    """Rows or columns of length sqrt(2), at right angles; heads keep their own gains."""
    encoder = {"type": "pixel", "filters": [[8, 4, 2], [8, 3, 1]], "feature_size": 32}
    options = config(
        actor_encoder_factory=encoder, critic_encoder_factory=None if is_shared else encoder,
        initialization="orthogonal",
    )  # fmt: skip
    image = spaces.Box(0, 255, (4, 20, 20), np.uint8)
    model = TorchActorCritic.of(options, image, spaces.Discrete(3))
    encoders = [model.policy.encoder, *([] if is_shared else [model.critic.encoder])]
    layers = [one for part in encoders for one in part.modules() if hasattr(one, "weight")]
    assert len(layers) == 3 * len(encoders)
    for layer in layers:
        weight = layer.weight.detach().flatten(1)
        small = weight @ weight.t() if weight.shape[0] <= weight.shape[1] else weight.t() @ weight
        torch.testing.assert_close(small, 2.0 * torch.eye(len(small)), atol=1e-5, rtol=0)
        assert not layer.bias.any()
    assert model.policy.head.linear.weight.norm(dim=1).max() < 0.011
    plain = TorchActorCritic.of(
        config(actor_encoder_factory=encoder), image, spaces.Discrete(3)
    )  # fmt: skip
    assert plain.policy.encoder.last_layers[0].bias.any()
