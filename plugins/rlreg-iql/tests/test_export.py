"""Exported policies: what onnxruntime and torch.export give equals what the learnable predicts."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg.errors import ConfigError, MissingExtraError
from rlreg.runtime.export import ExportError
from rlreg.runtime.learnable import NotBuiltError
from rlreg.testing import run_exported

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
UNEVEN = spaces.Box(np.float32([-2, 0]), np.float32([3, 10]))
MIXED = spaces.Dict(
    goal=spaces.Box(-1, 1, (2,), np.float64),
    lamp=spaces.Discrete(3, start=1),
    dials=spaces.MultiDiscrete([2, 3]),
    flags=spaces.MultiBinary(2),
    pair=spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Box(0, 255, (2, 2), np.uint8))),
)
IMAGES = spaces.Box(0, 255, (3, 36, 36), np.uint8)


FILES = {"onnx": "policy.onnx", "torch_export": "policy.pt2"}
both_formats = pytest.mark.parametrize("file_format", FILES)


def draw(size, seed=3):
    return np.random.default_rng(seed).normal(size=(size, 4)).astype(np.float32)


@both_formats
def test_a_file_gives_the_actions_of_the_learnable_in_their_units(make_iql, tmp_path, file_format):
    name = FILES[file_format]
    learnable = make_iql(BOX, UNEVEN)
    learnable.export(tmp_path / name, file_format)
    for size in (1, 7, 64):
        observations = draw(size)
        found = run_exported(tmp_path / name, {"observation": observations})["action"]
        assert found.shape == (size, 2)
        np.testing.assert_allclose(found, learnable.predict(observations), atol=1e-5)
        assert (found >= UNEVEN.low).all()
        assert (found <= UNEVEN.high).all()


@both_formats
def test_scalers_are_folded_in(make_iql, tmp_path, file_format):
    name = FILES[file_format]
    learnable = make_iql(
        BOX,
        UNEVEN,
        observation_scaler={"type": "standard", "mean": [1, 2, 3, 4], "std": [2, 2, 1, 1]},
        action_scaler={"type": "min_max", "minimum": [-1, 1], "maximum": [2, 4]},
    )
    learnable.export(tmp_path / name, file_format, "action")
    learnable.export(tmp_path / f"d-{name}", file_format, "distribution")
    observations = draw(5) * 4
    found = run_exported(tmp_path / name, {"observation": observations})["action"]
    np.testing.assert_allclose(found, learnable.predict(observations), atol=1e-5)
    scaled = (observations - [1, 2, 3, 4]) / (np.array([2, 2, 1, 1]) + 1e-3)
    means, log_stds = learnable.policy(torch.from_numpy(scaled.astype(np.float32)))
    both = run_exported(tmp_path / f"d-{name}", {"observation": observations})
    expected = (means.detach().numpy() + 1) / 2 * 3 + [-1, 1]
    np.testing.assert_allclose(both["mean"], expected, atol=1e-5)
    spread = np.broadcast_to(log_stds.exp().detach().numpy() * 1.5, (5, 2))
    np.testing.assert_allclose(both["std"], spread, atol=1e-5)


@both_formats
def test_parts_of_a_dict_are_inputs_of_their_names(make_iql, tmp_path, file_format):
    name = FILES[file_format]
    learnable = make_iql(MIXED, spaces.MultiDiscrete([3, 2], start=[1, 0]))
    written = learnable.export(tmp_path / name, file_format)
    assert [(port.name, port.dtype) for port in written.inputs] == [
        ("observation.goal", "float32"),
        ("observation.lamp", "int64"),
        ("observation.dials", "int64"),
        ("observation.flags", "float32"),
        ("observation.pair[0]", "float32"),
        ("observation.pair[1]", "uint8"),
    ]
    rng = np.random.default_rng(0)
    observation = {
        "goal": rng.uniform(-1, 1, (6, 2)).astype(np.float32),
        "lamp": rng.integers(1, 4, 6),
        "dials": rng.integers(0, 2, (6, 2)),
        "flags": rng.integers(0, 2, (6, 2)).astype(np.float32),
        "pair": (
            rng.random((6, 1)).astype(np.float32),
            rng.integers(0, 256, (6, 2, 2)).astype(np.uint8),
        ),
    }
    flat = [*list(observation.values())[:4], *observation["pair"]]
    inputs = dict(zip([port.name for port in written.inputs], flat, strict=True))
    found = run_exported(tmp_path / name, inputs)["action"]
    np.testing.assert_array_equal(found, learnable.predict(observation))
    assert found.min() >= 0


@pytest.mark.parametrize(
    ("file_format", "kind"), [("onnx", "action"), ("torch_export", "distribution")]
)
def test_images_stay_bytes_and_categories_start_where_the_space_does(
    make_iql, tmp_path, file_format, kind
):
    name = FILES[file_format]
    encoder = {"type": "pixel", "filters": [[4, 8, 4]], "feature_size": 8}
    settings = {f"{part}_encoder_factory": encoder for part in ("actor", "critic", "value")}
    learnable = make_iql(IMAGES, spaces.Discrete(4, start=5), **settings)
    learnable.export(tmp_path / name, file_format, kind)
    images = np.random.default_rng(0).integers(0, 256, (3, *IMAGES.shape)).astype(np.uint8)
    found = run_exported(tmp_path / name, {"observation": images})
    if kind == "action":
        np.testing.assert_array_equal(found["action"], learnable.predict(images))
        assert found["action"].min() >= 5
    else:
        np.testing.assert_array_equal(found["logits"].argmax(1) + 5, learnable.predict(images))


@pytest.mark.parametrize("actor_kind", ["normal_state_dependent", "deterministic"])
def test_every_kind_of_policy_exports_its_action(make_iql, tmp_path, actor_kind):
    learnable = make_iql(actor_kind=actor_kind)
    written = learnable.export(tmp_path / "policy.pt2", "torch_export")
    assert written.max_difference <= 1e-5


def test_dropout_and_batch_norm_are_off_in_a_file(make_iql, tmp_path):
    encoder = {"type": "vector", "hidden_units": [8], "dropout_rate": 0.5, "use_batch_norm": True}
    learnable = make_iql(actor_encoder_factory=encoder)
    learnable.train_mode(True)
    learnable.export(tmp_path / "policy.onnx")
    observations = draw(4)
    found = run_exported(tmp_path / "policy.onnx", {"observation": observations})["action"]
    np.testing.assert_allclose(found, learnable.predict(observations), atol=1e-5)


def test_a_point_has_no_distribution(make_iql, tmp_path):
    with pytest.raises(ConfigError, match="deterministic"):
        make_iql(actor_kind="deterministic").export(tmp_path / "p.onnx", kind="distribution")
    assert not list(tmp_path.iterdir())


def test_critics_stay_out_of_the_file(make_iql, tmp_path):
    make_iql(n_critics=50).export(tmp_path / "policy.pt2", "torch_export")
    names = torch.export.load(tmp_path / "policy.pt2").state_dict
    assert names
    assert not [name for name in names if "critic" in name or "value" in name]


def test_the_file_states_what_it_is(make_iql, tmp_path):
    import onnx

    make_iql(BOX, UNEVEN).export(tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    stated = json.loads({prop.key: prop.value for prop in model.metadata_props}["rlreg"])
    assert stated["learnable"] == "iql"
    assert stated["inputs"] == [{"name": "observation", "dtype": "float32", "shape": [4]}]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    extra = {"rlreg": ""}
    make_iql(BOX, UNEVEN).export(tmp_path / "policy.pt2", "torch_export")
    torch.export.load(tmp_path / "policy.pt2", extra_files=extra)
    assert json.loads(extra["rlreg"]) == stated


# --- what goes wrong ----------------------------------------------------------------------------


@both_formats
def test_a_file_that_differs_is_refused_and_the_old_one_stays(
    make_iql, tmp_path, monkeypatch, file_format
):
    learnable, path = make_iql(), tmp_path / "policy"
    path.write_text("old")
    original = learnable.predict
    monkeypatch.setattr(learnable, "predict", lambda given: original(given) + 1e-4)
    with pytest.raises(ExportError, match="differs"):
        learnable.export(path, file_format)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]


def test_an_act_that_cannot_be_traced_is_an_error_that_leaves_nothing(
    make_iql, tmp_path, monkeypatch
):
    learnable = make_iql()
    original = learnable.act
    monkeypatch.setattr(
        learnable, "act", lambda given, best: original(given, best) * float(given.sum() > 0)
    )
    with pytest.raises(ExportError, match=r"x.shape\[0\]"):
        learnable.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(make_iql, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"rlreg\[export\]"):
        make_iql().export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_an_unbuilt_or_unfitted_learnable_is_a_named_error(make_iql, tmp_path):
    with pytest.raises(NotBuiltError):
        rlreg.create("iql", device="cpu").export(tmp_path / "policy.onnx")
    with pytest.raises(ConfigError, match="observation scaler"):
        make_iql(observation_scaler={"type": "standard"}).export(tmp_path / "policy.onnx")
    with pytest.raises(ConfigError, match="torch_export"):
        make_iql().export(tmp_path / "policy.onnx", "tflite")
    with pytest.raises(ExportError, match="nowhere"):
        make_iql().export(tmp_path / "nowhere" / "policy.pt2", "torch_export")


def test_exporting_changes_nothing_in_the_learnable(make_iql, make_batch, tmp_path, snapshot):
    copy_state, assert_same = snapshot
    learnable = make_iql()
    before, streams = copy_state(learnable), learnable.rng_state()
    learnable.export(tmp_path / "policy.pt2", "torch_export")
    assert all(p.requires_grad for p in learnable.policy.parameters())
    assert_same(before, copy_state(learnable))
    for name, stream in learnable.rng_state().items():
        assert torch.equal(stream, streams[name])
    learnable.update(make_batch(learnable))


def test_a_learnable_on_another_device_is_exported_from_a_copy_on_the_cpu(
    make_iql, make_batch, tmp_path
):
    learnable = make_iql()
    for seed in range(3):
        learnable.update(make_batch(learnable, seed=seed))
    learnable.device = torch.device("cuda:0")  # as far as export can tell
    learnable.export(tmp_path / "policy.pt2", "torch_export")
    learnable.device = torch.device("cpu")
    observations = draw(5)
    found = run_exported(tmp_path / "policy.pt2", {"observation": observations})["action"]
    np.testing.assert_allclose(found, learnable.predict(observations), atol=1e-5)
