"""Files of d3rlpy: read without running them, refused when they are not what they say."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from rlreg.errors import CheckpointError, ConfigError, FileFormatError, RlregError
from rlreg_iql.d3rlpy_import import convert_d3rlpy, import_d3rlpy, load_weights, read_d3rlpy

MODEL = Path(__file__).parent / "data" / "iql_parity" / "default" / "model.d3"


class Trap:
    """Creates a file when it is unpickled the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def content_of_model():
    return pickle.loads(MODEL.read_bytes())  # our own fixture, plain data


def write(path, content):
    path.write_bytes(pickle.dumps(content))
    return path


@pytest.mark.parametrize("place", ["top", "config", "torch", "extra", "inner"])
def test_a_malicious_file_runs_nothing(place, tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / "model.d3"
    content = content_of_model()
    if place == "top":
        path.write_bytes(pickle.dumps(Trap(trap)))
    elif place == "inner":
        buffer = io.BytesIO()
        torch.save({"policy": Trap(trap)}, buffer)
        write(path, {**content, "torch": buffer.getvalue()})
    else:
        write(path, {**content, place: Trap(trap)})
    with pytest.raises(CheckpointError):
        import_d3rlpy(path)
    assert not trap.exists()
    if place != "inner":
        pickle.loads(path.read_bytes())
        assert trap.exists()  # the trap works


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_in_every_protocol(protocol, tmp_path):
    path = tmp_path / "model.d3"
    content = content_of_model()
    content["torch"] = bytes(content["torch"])
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    if protocol < 3:  # pickle writes bytes as a call to codecs.encode, which is code
        with pytest.raises(CheckpointError, match="nothing was run"):
            import_d3rlpy(path)
    else:
        assert import_d3rlpy(path)[0] == import_d3rlpy(MODEL)[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_a_checkpoint_error(share, tmp_path):
    path = tmp_path / "model.d3"
    data = MODEL.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError):
        import_d3rlpy(path)


@pytest.mark.parametrize("content", [[], {}, {"torch": b"x"}, {"torch": b"x", "config": "{}"}, 3])
def test_another_pickle_is_a_checkpoint_error(content, tmp_path):
    with pytest.raises(CheckpointError):
        import_d3rlpy(write(tmp_path / "model.d3", content))


def test_compressed_tensors_are_refused(tmp_path):
    content = content_of_model()
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content["torch"])) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    path = write(tmp_path / "model.d3", {**content, "torch": packed.getvalue()})
    with pytest.raises(CheckpointError, match="compressed"):
        import_d3rlpy(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileFormatError, match="nowhere"):
        import_d3rlpy(tmp_path / "nowhere.d3")


def with_settings(tmp_path, **changes):
    text = json.loads((MODEL.parent / "params.json").read_text())
    text["config"]["params"].update(changes)
    path = tmp_path / "params.json"
    path.write_text(json.dumps(text))
    return path


def component(tag, **settings):
    return {"type": tag, "params": settings}


def test_components_become_ours(tmp_path):
    none = component("none")
    path = with_settings(
        tmp_path,
        observation_scaler=component("standard", mean=[1, 2, 3, 4, 5], std=[1] * 5, eps=0.01),
        action_scaler=component("min_max", minimum=[-2, -2], maximum=[2, 3]),
        reward_scaler=component("shift", shift=-1, multiplier=2.0, multiply_first=True),
        actor_optim_factory=component(
            "adam",
            clip_grad_norm=0.5,
            lr_scheduler_factory=component("cosine_annealing", T_max=10, eta_min=0, last_epoch=-1),
        ),
        critic_optim_factory=component("rmsprop", lr_scheduler_factory=none, centered=False),
        critic_encoder_factory=component("simba", feature_size=8, hidden_size=9, n_blocks=2),
    )
    config, _ = import_d3rlpy(path)
    assert config.observation_scaler.mean == (1, 2, 3, 4, 5)
    assert config.action_scaler.maximum == (2, 3)
    assert config.reward_scaler.shift == -1
    assert config.actor_optim_factory.clip_grad_norm == 0.5
    assert config.actor_optim_factory.lr_scheduler_factory.T_max == 10
    assert config.critic_optim_factory.lr_scheduler_factory is None
    assert config.critic_encoder_factory.n_blocks == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_optim_factory": component("gpt_adam_w")}, "gpt_adam_w"),
        ({"observation_scaler": component("tuple", observation_scalers=[])}, "tuple"),
        ({"expectile": 3}, "expectile"),
        ({"alpha": 1}, "alpha"),
    ],
)
def test_what_rlreg_lacks_is_a_config_error(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        import_d3rlpy(with_settings(tmp_path, **changes))


def test_another_algorithm_is_named(tmp_path):
    text = json.loads((MODEL.parent / "params.json").read_text())
    text["config"]["type"] = "cql"
    path = tmp_path / "params.json"
    path.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match="cql"):
        import_d3rlpy(path)


def test_params_alone_have_no_weights(tmp_path):
    with pytest.raises(CheckpointError, match="no weights"):
        convert_d3rlpy(MODEL.parent / "params.json")


def test_scalers_of_the_file_are_used_in_predictions(tmp_path):
    """The action scaler of the file stretches the actions, the observation scaler shifts inputs."""
    content = content_of_model()
    text = json.loads(content["config"])
    text["config"]["params"] |= {
        "observation_scaler": component("standard", mean=[1.0] * 5, std=[2.0] * 5, eps=0.0),
        "action_scaler": component("min_max", minimum=[-2.0, 0.0], maximum=[2.0, 1.0]),
    }
    path = write(tmp_path / "model.d3", {**content, "config": json.dumps(text)})
    plain, scaled = convert_d3rlpy(MODEL), convert_d3rlpy(path)
    observations = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    expected = plain.predict((observations - 1) / 2)
    expected = (expected + 1) / 2 * np.array([4.0, 1.0]) + np.array([-2.0, 0.0])
    np.testing.assert_allclose(scaled.predict(observations), expected, atol=1e-6)


def test_weights_that_do_not_fit_change_nothing(make_iql):
    model = read_d3rlpy(MODEL)
    other = make_iql()
    before = {name: value.clone() for name, value in other.policy.state_dict().items()}
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(other, model.weights)
    assert all(torch.equal(value, other.policy.state_dict()[n]) for n, value in before.items())


def test_weights_that_are_not_finite_are_refused():
    model = read_d3rlpy(MODEL)
    learnable = convert_d3rlpy(MODEL)
    model.weights["value_func"]["_fc.bias"] = torch.tensor([float("nan")])
    with pytest.raises(CheckpointError, match="not finite"):
        load_weights(learnable, model.weights)


def test_a_converted_model_trains_on_and_survives_a_checkpoint(tmp_path):
    import rlreg

    learnable = convert_d3rlpy(MODEL)
    learnable.save(tmp_path / "model.rlreg")
    loaded = rlreg.load(tmp_path / "model.rlreg", device="cpu")
    observations = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(observations), learnable.predict(observations))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: [], "not a configuration of d3rlpy: it is no mapping"),
        (lambda c: {**c, "config": None}, "config is no mapping"),
        (lambda c: {**c, "config": {"type": "iql", "params": "x"}}, "config.params is no mapping"),
        (lambda c: {**c, "config": {"type": "iql"}}, "it has no 'params'"),
        (lambda c: {**c, "config": {"type": "iql", "params": {"gamma": 5}}}, "gamma = 5: must be"),
        (
            lambda c: {**c, "config": {"type": "iql", "params": {"gama": 1}}},
            "gama: no such key; did you mean 'gamma'",
        ),
    ],
)
def test_a_bad_params_json_is_named_with_its_fault(change, message, tmp_path):
    content = json.loads((MODEL.parent / "params.json").read_text())
    path = tmp_path / "params.json"
    path.write_text(json.dumps(change(content)))
    with pytest.raises(RlregError, match=message) as caught:
        convert_d3rlpy(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_params_json_that_nests_without_end_says_so(tmp_path):
    path = tmp_path / "params.json"
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(CheckpointError, match="not a configuration of d3rlpy: it nests too deep"):
        convert_d3rlpy(path)
