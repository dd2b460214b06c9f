"""Checkpoints: exact, whole or not there, and harmless whatever they hold."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import subprocess
import sys
import zipfile

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch

import rlreg
from rlreg import archive, registry
from rlreg.errors import CheckpointError, ConfigError, VersionWarning
from rlreg.runtime.checkpoint import encode, load_weights, read_checkpoint, read_header, save
from rlreg.runtime.state import flatten_state, learnable_state

OBSERVATIONS = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)


@pytest.fixture
def saved(make_tiny, tmp_path):
    learnable = make_tiny(20)
    path = tmp_path / "model.rlreg"
    learnable.save(path)
    return learnable, path


def assert_same(one, other):
    (document, tensors), (other_document, others) = (
        flatten_state(learnable_state(item)) for item in (one, other)
    )
    assert document == other_document
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


# --- exactness ----------------------------------------------------------------------------------


def test_loaded_learnable_predicts_and_trains_on_bit_for_bit(saved, arrays_data):
    learnable, path = saved
    loaded = rlreg.load(path, device="cpu")
    assert_same(learnable, loaded)
    assert np.array_equal(learnable.predict(OBSERVATIONS), loaded.predict(OBSERVATIONS))
    assert np.array_equal(learnable.sample_action(OBSERVATIONS), loaded.sample_action(OBSERVATIONS))
    for item in (learnable, loaded):
        item.fit(arrays_data, 30, 30, show_progress=False)
    assert_same(learnable, loaded)


def test_predictions_are_equal_in_a_fresh_process(saved, tmp_path, cli_env):
    learnable, path = saved
    # The local name of this process is a plugin's in the other one.
    np.save(tmp_path / "observations.npy", OBSERVATIONS)
    code = (
        "import sys, numpy as np, rlreg\n"
        f"learnable = rlreg.load({str(path)!r}, device='cpu')\n"
        f"actions = learnable.predict(np.load({str(tmp_path / 'observations.npy')!r}))\n"
        "sys.stdout.write(actions.tobytes().hex())\n"
        "assert 'pickle' not in sys.argv\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=cli_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == learnable.predict(OBSERVATIONS).tobytes().hex()


def test_equal_learnables_give_equal_bytes(make_tiny, tmp_path):
    for name in ("a.rlreg", "b.rlreg"):
        make_tiny(10).save(tmp_path / name)
    assert (tmp_path / "a.rlreg").read_bytes() == (tmp_path / "b.rlreg").read_bytes()


def test_members_are_stored_and_listed_with_their_hashes(saved):
    _, path = saved
    with zipfile.ZipFile(path) as file:
        assert set(file.namelist()) == {archive.INDEX, *archive.MEMBERS}
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist())
        index = json.loads(file.read(archive.INDEX))
        for name, digest in index["members"].items():
            assert hashlib.sha256(file.read(name)).hexdigest() == digest


def test_nothing_in_the_file_names_host_path_or_user(saved, tmp_path):
    content = saved[1].read_bytes()
    for word in (str(tmp_path), os.uname().nodename, os.path.expanduser("~")):
        if len(word) > 2:
            assert word.encode() not in content


def test_no_pickle_is_in_the_file_or_read(saved, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    rlreg.load(saved[1], device="cpu")


def test_header_is_read_without_the_weights(saved):
    header = read_header(saved[1])
    assert header.config["type"] == "tiny_bc"
    assert header.observation_space.shape == (3,)
    assert {entry.kind for entry in header.lock} == {
        "learnable",
        "encoder",
        "optimizer",
        "lr_scheduler",
    }


# --- weights alone ------------------------------------------------------------------------------


def test_weights_alone_suffice_to_predict(saved, tmp_path, tiny):
    learnable, path = saved
    learnable.save_model(tmp_path / "weights.safetensors")
    for source in (tmp_path / "weights.safetensors", path):
        fresh = rlreg.create("tiny_bc", device="cpu", seed=9)
        fresh.load_model(source)
        assert np.array_equal(fresh.predict(OBSERVATIONS), learnable.predict(OBSERVATIONS))
        assert fresh.grad_step == 0


def test_weights_of_another_shape_are_refused(saved, tmp_path):
    learnable, _ = saved
    learnable.save_model(tmp_path / "weights.safetensors")
    wider = rlreg.create(
        "tiny_bc", device="cpu", encoder_factory={"type": "vector", "hidden_units": [9]}
    )
    with pytest.raises(CheckpointError, match="expected shape"):
        wider.load_model(tmp_path / "weights.safetensors")


def test_weights_for_another_observation_space_are_refused(saved, tiny):
    other = rlreg.create("tiny_bc", device="cpu")
    box = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    other.build(box, gymnasium.spaces.Box(-2, 2, (1,), np.float32))
    with pytest.raises(CheckpointError, match="built for other spaces"):
        load_weights(other, saved[1])


def test_foreign_safetensors_are_refused(tmp_path, make_tiny):
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="no rlreg wrote them"):
        make_tiny(0).load_model(tmp_path / "x.safetensors")


# --- damaged and hostile files ------------------------------------------------------------------


def rebuild(path, change, *, fix_hashes=True, **zip_options):
    """Writes a changed copy of a checkpoint; ``change`` gets and returns the members."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members = change(dict(members))
    if fix_hashes and archive.INDEX in members:
        index = json.loads(members[archive.INDEX])
        for name in index["members"]:
            if name in members:
                index["members"][name] = hashlib.sha256(members[name]).hexdigest()
        members[archive.INDEX] = json.dumps(index).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **zip_options) as file:
        for name, content in members.items():
            file.writestr(name, content)
    target = path.with_name("changed.rlreg")
    target.write_bytes(buffer.getvalue())
    return target


def changed_json(name, update):
    def change(members):
        value = json.loads(members[name])
        update(value)
        return {**members, name: json.dumps(value).encode()}

    return change


def _swap(members):
    """Gives two tensors of one shape each other's place, as a careless tool would."""
    tensors = safetensors.torch.load(members[archive.WEIGHTS])
    first = "networks/policy/1.weight"
    tensors[first] = tensors[first] * 2
    header = json.loads(
        members[archive.WEIGHTS][8:][: int.from_bytes(members[archive.WEIGHTS][:8], "little")]
    )
    content = safetensors.torch.save(tensors, header["__metadata__"])
    return {**members, archive.WEIGHTS: content}


def test_tensors_that_were_exchanged_are_refused(saved):
    path = rebuild(saved[1], _swap, fix_hashes=False)
    with pytest.raises(CheckpointError, match="its sha256 differs"):
        rlreg.load(path, device="cpu")


def test_deflated_members_are_refused(saved):
    path = rebuild(saved[1], lambda members: members, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed, which rlreg never does"):
        rlreg.load(path, device="cpu")


def test_zip_bomb_is_refused_before_it_is_inflated(saved):
    bomb = b"\0" * (1 << 26)
    path = rebuild(
        saved[1],
        lambda members: {**members, "trainer.safetensors": bomb},
        compression=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < len(bomb) // 100
    with pytest.raises(CheckpointError, match="compressed"):
        rlreg.load(path, device="cpu")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "evil.py", "weights.safetensors/../x"])
def test_members_outside_the_fixed_list_are_refused(saved, name, tmp_path):
    path = rebuild(saved[1], lambda members: {**members, name: b"x"})
    with pytest.raises(CheckpointError, match="unknown member"):
        rlreg.load(path, device="cpu")
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_occurs_twice_is_refused(saved):
    content = saved[1].read_bytes()
    target = saved[1].with_name("twice.rlreg")
    target.write_bytes(content)
    with zipfile.ZipFile(target, "a") as file:
        file.writestr("config.json", b"{}")
    with pytest.raises(CheckpointError, match="twice"):
        rlreg.load(target, device="cpu")


@pytest.mark.parametrize("name", [archive.INDEX, *archive.MEMBERS])
def test_a_missing_member_is_refused(saved, name):
    def drop(members):
        del members[name]
        return members

    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        rlreg.load(rebuild(saved[1], drop), device="cpu")


@pytest.mark.parametrize("length", [2**63, 2**40, 10**8, 0])
def test_oversized_tensor_headers_are_refused(saved, length):
    def lie(members):
        content = members[archive.WEIGHTS]
        return {**members, archive.WEIGHTS: length.to_bytes(8, "little") + content[8:]}

    with pytest.raises(CheckpointError, match=r"weights.safetensors is damaged"):
        rlreg.load(rebuild(saved[1], lie), device="cpu")


def test_a_newer_format_says_so(saved):
    path = rebuild(
        saved[1],
        changed_json(archive.INDEX, lambda index: index.update(version="2.0", rlreg="9.1")),
    )
    with pytest.raises(CheckpointError, match=r"written by a newer rlreg \(9.1"):
        rlreg.load(path, device="cpu")


def test_a_config_that_is_not_valid_any_more_names_the_path(saved):
    path = rebuild(
        saved[1], changed_json("config.json", lambda config: config.update(learning_rate=-1))
    )
    with pytest.raises(ConfigError, match="learning_rate = -1: must be > 0"):
        rlreg.load(path, device="cpu")


def test_networks_that_do_not_fit_the_config_are_refused(saved):
    def shrink(config):
        config["encoder_factory"]["hidden_units"] = [4]

    path = rebuild(saved[1], changed_json("config.json", shrink))
    with pytest.raises(CheckpointError, match="expected shape"):
        rlreg.load(path, device="cpu")


def test_spaces_that_are_none_are_refused(saved):
    path = rebuild(
        saved[1],
        changed_json("spaces.json", lambda spaces: spaces.update(action_space={"type": "X"})),
    )
    with pytest.raises(CheckpointError, match="spaces cannot be read"):
        rlreg.load(path, device="cpu")


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all", b"\0" * 100])
def test_files_that_are_no_checkpoint_are_refused(tmp_path, content):
    path = tmp_path / "x.rlreg"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"corrupt or truncated|no rlreg checkpoint"):
        rlreg.load(path)


def test_a_file_of_another_kind_is_not_called_damaged(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text("type: tiny_bc\n")
    with pytest.raises(CheckpointError, match=r"is neither a .rlreg file nor a run folder"):
        rlreg.load(path)


def test_what_is_no_path_is_refused(tiny):
    with pytest.raises(CheckpointError, match=r"expected the path of a \.rlreg file, got 5"):
        rlreg.load(5)
    with pytest.raises(CheckpointError, match="got None"):
        rlreg.create("tiny_bc", device="cpu").load_model(None)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        rlreg.load(tmp_path / "x.rlreg")
    with pytest.raises(CheckpointError, match="is a folder"):
        rlreg.load(tmp_path)


def test_an_ordinary_zip_is_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello", "x")
    with pytest.raises(CheckpointError, match="no rlreg checkpoint"):
        rlreg.load(path)


def test_every_truncation_is_refused(saved):
    content = saved[1].read_bytes()
    cut = saved[1].with_name("cut.rlreg")
    for length in random.Random(0).sample(range(len(content)), 60):
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            rlreg.load(cut, device="cpu")


def test_changed_bytes_are_refused_or_without_effect(saved):
    learnable, path = saved
    content, chance = path.read_bytes(), random.Random(0)
    broken = path.with_name("broken.rlreg")
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 3, 30])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        broken.write_bytes(damaged)
        try:
            loaded = rlreg.load(broken, device="cpu")
        except CheckpointError:
            refused += 1
        else:  # the change hit a date or another field that means nothing
            assert_same(loaded, learnable)
    assert refused > 120


def test_random_documents_in_the_trainer_are_refused_or_fit(saved):
    _, path = saved
    chance = random.Random(1)

    def walk(value):
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items() if chance.random() > 0.02}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return chance.choice([value] * 30 + [None, -1, "x", [], {"$tensor": "x"}, {"$map": [[1]]}])

    for _ in range(80):
        changed = rebuild(
            path,
            lambda members: {
                **members,
                "trainer.json": json.dumps(walk(json.loads(members["trainer.json"]))).encode(),
            },
        )
        try:
            rlreg.load(changed, device="cpu")
        except CheckpointError:
            continue


def test_deeply_nested_json_is_refused(saved):
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    path = rebuild(saved[1], lambda members: {**members, "trainer.json": deep})
    with pytest.raises(CheckpointError):
        rlreg.load(path, device="cpu")


# --- writing is all or nothing ------------------------------------------------------------------


def test_an_unbuilt_learnable_cannot_be_saved(tiny, tmp_path):
    with pytest.raises(rlreg.RlregError, match="not built yet"):
        rlreg.create("tiny_bc", device="cpu").save(tmp_path / "x.rlreg")
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_the_old_file_and_no_other(make_tiny, tmp_path):
    learnable, path = make_tiny(5), tmp_path / "model.rlreg"
    learnable.save(path)
    before = path.read_bytes()
    learnable = make_tiny(9)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written.*unchanged"):
            learnable.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["model.rlreg"]


def test_a_folder_that_is_not_there_is_one_clear_error(make_tiny, tmp_path):
    with pytest.raises(CheckpointError, match="No such file or directory; nothing was written"):
        make_tiny(0).save(tmp_path / "no" / "model.rlreg")


def test_an_error_while_encoding_leaves_the_old_file(make_tiny, tmp_path, monkeypatch):
    learnable, path = make_tiny(0), tmp_path / "model.rlreg"
    learnable.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(learnable, "extra_state", lambda: {"f": open})
    with pytest.raises(CheckpointError, match="extra/f"):
        save(learnable, path)
    assert path.read_bytes() == before


# --- the lock -----------------------------------------------------------------------------------


def with_lock(path, **changes):
    def update(lock):
        for entry in lock["ids"]:
            if entry["kind"] == "learnable":
                entry.update(changes)

    return rebuild(path, changed_json("lock.json", update))


def test_a_missing_plugin_is_named_with_version_and_command(saved):
    path = with_lock(saved[1], id="rlreg-none/tiny_bc", version="1.4")
    with pytest.raises(CheckpointError, match=r"rlreg-none 1\.4.*pip install 'rlreg-none==1\.4'"):
        rlreg.load(path, device="cpu")


def test_a_name_registered_by_call_says_what_to_do(saved):
    registry.forget_local(["tiny_bc"])
    with pytest.raises(CheckpointError, match="import that module first"):
        rlreg.load(saved[1], device="cpu")


def test_another_version_is_a_warning_and_strictly_an_error(saved):
    path = with_lock(saved[1], schema="0" * 64)
    with pytest.warns(VersionWarning, match=r"settings of local/tiny_bc .* have changed since"):
        rlreg.load(path, device="cpu")
    with pytest.raises(CheckpointError, match="have changed since"):
        rlreg.load(path, device="cpu", strict_lock=True)


@pytest.mark.parametrize("kept", [0, 1])
def test_what_a_lock_does_not_name_is_a_warning_and_strictly_an_error(kept, saved):
    def shorten(lock):
        lock["ids"] = lock["ids"][:kept]

    path = rebuild(saved[1], changed_json("lock.json", shorten))
    with pytest.warns(VersionWarning, match=r"its lock does not name .*rlreg/"):
        rlreg.load(path, device="cpu")
    with pytest.raises(CheckpointError, match=r"its lock does not name .*rlreg/.*strict lock"):
        rlreg.load(path, device="cpu", strict_lock=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "evil'; rm -rf ~; '/tiny_bc"},
        {"id": "evil\n/tiny_bc"},
        {"id": "evil\x1b[31m/tiny_bc"},
        {"version": "1' x"},
        {"version": "1\n"},
    ],
)
def test_a_lock_puts_nothing_into_the_command_that_is_shown(changes, saved):
    path = with_lock(saved[1], **changes)
    with pytest.raises(CheckpointError, match="which nothing is called") as caught:
        rlreg.load(path, device="cpu")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("member", ["config.json", "spaces.json", "lock.json", "trainer.json"])
def test_json_that_is_nested_too_deep_is_refused(member, saved):
    deep = '{"x":[' * 200 + "]}" * 200

    def nest(members):
        content = members[member].rstrip().removesuffix(b"}")
        return {**members, member: content + f',"y":{deep}}}'.encode()}

    path = rebuild(saved[1], nest)
    with pytest.raises(CheckpointError, match=f"{member} is nested more than 100 deep"):
        rlreg.load(path, device="cpu")


BOX = {"type": "Box", "dtype": "float32", "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({**BOX, "shape": [700_000_000]}, "700,000,000 numbers in a Box"),
        ({**BOX, "shape": [10**6, 10**6]}, "1,000,000,000,000 numbers in a Box"),
        ({"type": "MultiBinary", "n": 10**11}, "100,000,000,000 bits of a MultiBinary"),
        ({"type": "Discrete", "n": 10**12}, "1,000,000,000,000 categories of a Discrete"),
        ({"type": "MultiDiscrete", "nvec": [2**62, 2**62]}, "categories of a MultiDiscrete"),
        ({"type": "Dict", "subspaces": {"a": {**BOX, "shape": [10**10]}}}, "numbers in a Box"),
    ],
)
def test_a_space_that_would_fill_the_memory_is_refused(space, said, saved):
    def enlarge(spaces):
        spaces["observation_space"] = space

    path = rebuild(saved[1], changed_json("spaces.json", enlarge))
    with pytest.raises(CheckpointError, match=f"its spaces cannot be read: .*{said}, more than"):
        rlreg.load(path, device="cpu")


def test_networks_much_larger_than_the_file_are_refused_before_they_are_made(saved):
    def enlarge(config):
        config["encoder_factory"]["hidden_units"] = [65_536, 65_536]  # 17 GB

    path = rebuild(saved[1], changed_json("config.json", enlarge))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="asks for networks of many more numbers than it"):
        rlreg.load(path, device="cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_run_state_comes_back(make_tiny, tmp_path):
    state = {"step": 3, "evaluations": [{"mean_return": 0.1}]}
    save(make_tiny(0), tmp_path / "x.rlreg", run_state=state)
    assert read_checkpoint(tmp_path / "x.rlreg").run_state == state


def test_encoding_does_not_change_the_learnable(make_tiny):
    learnable, twin = make_tiny(5), make_tiny(5)
    encode(learnable, {})
    assert_same(learnable, twin)
