"""Exported policies: what onnxruntime and torch.export give equals what the learnable predicts."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_helpers import SMALL

import rlreg
from rlreg.errors import ConfigError
from rlreg.runtime.policy_module import PolicyModule, Port, spans
from rlreg.testing import run_exported
from rlreg_impala.actions import LOG_STD_RANGE

SEEN = spaces.Box(-np.inf, np.inf, (4,), np.float32)
MIXED = spaces.Dict(
    arm=spaces.Box(np.float32([-2, 0]), np.float32([3, 10])),
    dials=spaces.MultiDiscrete([3, 2], start=[1, 0]),
    pair=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
)
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "multi_discrete": spaces.MultiDiscrete([[3, 2], [4, 2]]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.float32([-2, 0]), np.float32([3, 10])),
    "huge_box": spaces.Box(-1e6, 1e6, (2, 2), np.float32),
    "dict": MIXED,
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
}


FILES = {"onnx": "policy.onnx", "torch_export": "policy.pt2"}
both_formats = pytest.mark.parametrize("file_format", FILES)


def built(action_space, observation_space=SEEN, **settings):
    small = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    made = rlreg.create("impala", device="cpu", seed=0, **{**small, **settings})
    made.build(observation_space, action_space)
    with torch.no_grad():  # far from uniform: a wrong column would show
        made.model.policy.head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    return made


def draw(size):
    return np.random.default_rng(3).normal(size=(size, 4)).astype(np.float32)


def structured_actions(space, found, name="action"):
    """Puts named outputs back into the structure of the space."""
    if isinstance(space, spaces.Dict):
        return {k: structured_actions(s, found, f"{name}.{k}") for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(structured_actions(s, found, f"{name}[{i}]") for i, s in parts)
    return found[name][0]


@pytest.mark.parametrize(
    ("kind_of_space", "file_format"),
    [
        *((name, "onnx") for name in ACTIONS),
        ("multi_discrete", "torch_export"),
        ("dict", "torch_export"),
    ],
)
def test_a_file_gives_the_actions_of_the_learnable(tmp_path, file_format, kind_of_space):
    name = FILES[file_format]
    space = ACTIONS[kind_of_space]
    made = built(space)
    written = made.export(tmp_path / name, file_format)
    assert written.max_difference <= 1e-5
    chosen = set()
    for row in draw(7):
        found = run_exported(tmp_path / name, {"observation": row[None]})
        given, wanted = structured_actions(space, found), made.predict(row)
        assert space.contains(given)
        chosen.add(str(wanted))
        flat = spaces.flatten(space, given), spaces.flatten(space, wanted)
        scale = 1e6 if kind_of_space == "huge_box" else 10
        np.testing.assert_allclose(*flat, rtol=1e-5, atol=1e-6 * scale)
    assert len(chosen) > 1


@both_formats
def test_the_distribution_of_a_box_is_in_its_units(tmp_path, file_format):
    name = FILES[file_format]
    made = built(ACTIONS["box"], initial_log_std=-0.5)
    made.export(tmp_path / name, file_format, "distribution")
    observations = draw(5)
    found = run_exported(tmp_path / name, {"observation": observations})
    np.testing.assert_allclose(found["mean"], made.predict(observations), atol=1e-5)
    assert LOG_STD_RANGE[0] < -0.5 < LOG_STD_RANGE[1]
    half_widths = np.array([2.5, 5.0])
    spread = np.broadcast_to(np.exp(-0.5) * half_widths, (5, 2))
    np.testing.assert_allclose(found["std"], spread, rtol=1e-6)


def test_the_distribution_of_categories_is_their_logits(tmp_path):
    file_format, name = "onnx", "policy.onnx"
    observations = draw(6)
    made = built(ACTIONS["discrete"])
    made.export(tmp_path / name, file_format, "distribution")
    found = run_exported(tmp_path / name, {"observation": observations})
    assert found["logits"].shape == (6, 3)
    np.testing.assert_array_equal(found["logits"].argmax(1) + 2, made.predict(observations))
    made = built(ACTIONS["multi_discrete"])
    made.export(tmp_path / name, file_format, "distribution")
    found = run_exported(tmp_path / name, {"observation": observations})
    best = np.stack([found[f"logits_{i}"].argmax(1) for i in range(4)], axis=1)
    np.testing.assert_array_equal(best.reshape(6, 2, 2), made.predict(observations))


def test_parts_of_structured_actions_have_their_own_distributions(tmp_path):
    written = built(MIXED).export(tmp_path / "p.pt2", "torch_export", "distribution")
    assert [(port.name, port.shape) for port in written.outputs] == [
        ("mean.arm", (2,)),
        ("std.arm", (2,)),
        ("logits_0.dials", (3,)),
        ("logits_1.dials", (2,)),
        ("logits.pair[0]", (3,)),
        ("logits_0.pair[1]", (2,)),
        ("logits_1.pair[1]", (2,)),
    ]


def test_parts_of_observations_are_inputs_and_statistics_are_inside(tmp_path):
    seen = spaces.Tuple((spaces.Discrete(3), spaces.Box(-5, 5, (2,))))
    made = built(spaces.Discrete(4), seen, observation_normalization="running")
    made.model.policy.normalizer.update(torch.randn(50, 5) * 3 + 1)
    written = made.export(tmp_path / "policy.onnx")
    names = [port.name for port in written.inputs]
    assert names == ["observation[0]", "observation[1]"]
    rng = np.random.default_rng(0)
    parts = rng.integers(0, 3, 9), rng.uniform(-5, 5, (9, 2)).astype(np.float32)
    found = run_exported(tmp_path / "policy.onnx", dict(zip(names, parts, strict=True)))
    np.testing.assert_array_equal(found["action"], made.predict(parts))


@pytest.mark.parametrize("normalization", ["none", "running"])
def test_images_stay_bytes(normalization, tmp_path):
    encoder = {"type": "impala_resnet", "filters": [4], "feature_size": 8}
    images = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    made = built(
        spaces.Discrete(4), images, actor_encoder_factory=encoder, critic_encoder_factory=encoder,
        observation_normalization=normalization,
    )  # fmt: skip
    if normalization == "running":
        made.model.policy.normalizer.update(torch.randint(60, 90, (5, *images.shape)))
    written = made.export(tmp_path / "policy.onnx")
    assert written.inputs[0].dtype == "uint8"
    seen = np.random.default_rng(0).integers(0, 256, (3, *images.shape)).astype(np.uint8)
    found = run_exported(tmp_path / "policy.onnx", {"observation": seen})
    np.testing.assert_array_equal(found["action"], made.predict(seen))


@pytest.mark.parametrize("kind", ["action", "distribution"])
def test_a_policy_with_a_memory_says_why_it_cannot_be_exported(tmp_path, kind):
    made = built(spaces.Discrete(2), core="gru", core_size=4)
    with pytest.raises(ConfigError, match=r"core: gru cannot be exported: a file keeps no memory"):
        made.export(tmp_path / "policy.pt2", "torch_export", kind)
    assert not list(tmp_path.iterdir())


def test_rounding_is_judged_by_the_width_of_the_bounds():
    policy = PolicyModule(built(MIXED), "action")
    ports = [Port("action.arm", "float32", (2,)), Port("action.pair[0]", "int64", ())]
    assert spans(policy, ports[0]).tolist() == [5, 10]
    assert spans(policy, ports[1]).tolist() == 1
    policy = PolicyModule(built(ACTIONS["huge_box"]), "distribution")
    for name in ("mean", "std"):
        assert (spans(policy, Port(name, "float32", (2, 2))) == 2e6).all()


def test_a_file_holds_no_critic(tmp_path):
    made = built(spaces.Discrete(2))
    made.export(tmp_path / "policy.pt2", "torch_export")
    held = sum(part.numel() for part in torch.export.load(tmp_path / "policy.pt2").parameters())
    assert held == sum(part.numel() for part in made.model.policy.parameters())


def test_episodes_that_go_on_do_not_enter_a_file(tmp_path):
    made = built(spaces.Discrete(2))
    made.begin_episodes(2)
    made.export(tmp_path / "policy.pt2", "torch_export")
    observations = draw(5)
    found = run_exported(tmp_path / "policy.pt2", {"observation": observations})
    np.testing.assert_array_equal(found["action"], made.predict(observations))
