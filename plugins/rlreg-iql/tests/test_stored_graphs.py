"""Compiled graphs are files, found again, and used only where they do what plain updates do."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from fast_paths import SMALL, make, numbers
from filelock import FileLock

import rlreg
import rlreg.runtime
from rlreg_iql import processor, stored_graphs
from rlreg_iql.chains import CRITICS_CHAIN, VALUE_CHAINS, LinkStep
from rlreg_iql.compiled_step import Step
from rlreg_iql.flat_step import FlatStep, Trial, form_of
from rlreg_iql.stored_graphs import StoredStep
from rlreg_iql.working_copy import WorkingCopy

CHECK = f"""
import sys
import rlreg
import torch
torch.set_num_threads(1)
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_stored_graphs import learnable_of
data = rlreg.load_dataset("rlreg/pendulum/mixed-v0")
one = learnable_of(data)
assert one.is_compiled
one.train_epoch(data, 20)
print("compiler" if "torch._dynamo" in sys.modules or "torch._inductor" in sys.modules else "none")
print(sum(p.double().sum().item() for m in one.modules().values() for p in m.parameters()))
"""


@pytest.fixture
def data(dataset):
    return rlreg.load_dataset(dataset)


# Of the form of the run in test_compiled.py, so that one of the two finds the other's graphs.
def learnable_of(data, mode="on", **settings):
    return make(data, mode, **{"batch_size": 16, **settings})


@pytest.fixture
def filled(inductor, data):
    """The cache folder, with the graphs of :func:`learnable_of`."""
    assert learnable_of(data).is_compiled
    return inductor


@pytest.fixture
def own(filled, tmp_path, monkeypatch):
    """A copy of it for one test, where the compiler refuses to make another graph."""
    shutil.copytree(filled / "graphs", tmp_path / "graphs", ignore=shutil.ignore_patterns("*.lock"))
    monkeypatch.setenv("RLREG_CACHE", str(tmp_path))

    def refuse(path, call, expected, threads):
        raise RuntimeError(f"asked for {path.name}")

    monkeypatch.setattr(stored_graphs, "_made", refuse)
    return tmp_path / "graphs"


def test_another_process_finds_the_graphs_and_needs_no_compiler(filled, data):
    here = learnable_of(data)
    here.train_epoch(data, 20)
    total = sum(p.double().sum().item() for m in here.modules().values() for p in m.parameters())
    said = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=True,
        env={**os.environ, "RLREG_CACHE": str(filled)},
    ).stdout.split()  # fmt: skip
    assert said == ["none", str(total)]


def test_found_graphs_do_what_plain_updates_do(own, data):
    plain, fast = (learnable_of(data, mode) for mode in ("off", "on"))
    assert fast.is_compiled
    one, two = plain.train_epoch(data, 20), fast.train_epoch(data, 20)
    assert one == pytest.approx(two, rel=1e-4, abs=1e-5)
    expected, found = numbers(plain.state_dict()), numbers(fast.state_dict())
    for path, value in expected.items():
        torch.testing.assert_close(value, found[path], rtol=1e-5, atol=1e-5, msg=path)


def test_a_graph_of_other_numbers_is_not_used(own, monkeypatch, data):
    """As if a name did not say everything: under each name is what was made for gamma = 0.99."""
    told = Step.identity

    def identity(step):
        return tuple(part.replace("gamma=0.5", "gamma=0.99") for part in told(step))

    monkeypatch.setattr(Step, "identity", identity)
    assert learnable_of(data).is_compiled
    other = learnable_of(data, gamma=0.5)
    assert not other.is_compiled
    assert "asked for" in other.settle_compile(data, 1000)


def test_new_code_that_computes_something_else_is_not_used(own, data, monkeypatch):
    for path in own.iterdir():
        path.unlink()
    monkeypatch.setattr(stored_graphs, "_made", MADE)
    calls = []

    def compiled(call, threads, folder):
        calls.append(call)
        return folder

    monkeypatch.setattr(stored_graphs, "_compiled", compiled)
    monkeypatch.setattr(stored_graphs, "GraphLibrary", lambda path: Wrong(calls[-1]))
    learnable = learnable_of(data)
    assert not learnable.is_compiled
    assert "something else than the plain update" in learnable.settle_compile(data, 1000)
    assert not list(own.glob("*.so"))  # and not kept


MADE = stored_graphs._made


class Wrong:
    """Does what the step does, and doubles what it returns."""

    def __init__(self, call):
        self.call, self.n_inputs = call, len(call.forms)

    def __call__(self, tensors):
        return [2 * part for part in self.call(*tensors)]


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_compiler_that_dies_of_ctrl_c_is_no_compiler_that_fails(is_heard):
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with (  # noqa: PT012  # the signal and the failure belong together
            pytest.raises(KeyboardInterrupt if is_heard else RuntimeError),
            stored_graphs._interrupts_noticed(),
        ):
            if is_heard:
                os.kill(os.getpid(), signal.SIGINT)
            raise RuntimeError("the C++ compiler is gone")
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT] * (1 + is_heard)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b"not a library"), id="something else"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:1000]), id="cut off"),
        pytest.param(lambda path: flip(path, len(path.read_bytes()) // 2), id="one bit"),
        pytest.param(lambda path: path.chmod(0o620), id="the group may write it"),
        pytest.param(lambda path: path.chmod(0o602), id="others may write it"),
        pytest.param(lambda path: path.unlink(), id="gone"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a folder"),
    ],
)
def test_a_file_that_is_no_graph_of_ours_is_made_anew(spoil, own, data):
    assert len(list(own.iterdir())) >= 4
    for path in own.iterdir():
        spoil(path)
    learnable = learnable_of(data)
    assert not learnable.is_compiled
    assert "asked for" in learnable.settle_compile(data, 1000)
    learnable.train_epoch(data, 3)


def test_one_process_makes_a_graph_while_others_wait_for_it(own, data, tmp_path):
    names = [path.name for path in own.glob("*.so")]
    for name in names:
        (own / name).rename(tmp_path / name)
    locks = [FileLock(own / name.replace(".so", ".lock")) for name in names]
    for lock in locks:
        lock.acquire()
    found = []

    def ask():
        torch.set_num_threads(1)  # a thread has a number of its own
        found.append(learnable_of(data).is_compiled)

    other = threading.Thread(target=ask)
    other.start()
    other.join(0.5)
    assert other.is_alive()
    for name in names:
        (tmp_path / name).rename(own / name)
    for lock in locks:
        lock.release()
    other.join(60)
    assert found == [True]


def test_a_folder_that_cannot_be_written_leaves_the_plain_path(
    inductor, tmp_path, monkeypatch, data
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLREG_CACHE", str(tmp_path / "file"))
    learnable = learnable_of(data)
    assert not learnable.is_compiled
    assert "could not be compiled" in learnable.settle_compile(data, 1000)


def test_a_graph_of_somebody_else_is_not_used(own, data, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert not learnable_of(data).is_compiled


def test_a_folder_that_others_may_write_is_not_trusted(own, data):
    own.chmod(0o777)
    learnable = learnable_of(data)
    assert not learnable.is_compiled
    assert f"others may write to {own}" in learnable.settle_compile(data, 1000)


def test_a_library_of_another_number_of_inputs_is_not_called(data):
    class Other:
        n_inputs = 3

    call = call_of(data)
    assert not stored_graphs._agrees(Other(), call, [])


def test_graphs_are_nobody_else_s_and_the_oldest_go(own, data, tmp_path, monkeypatch):
    paths = sorted(own.glob("*.so"))
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    for path in paths:
        os.utime(path, (1, 1))
    assert learnable_of(data).is_compiled
    links = [*CRITICS_CHAIN, *VALUE_CHAINS["d3rlpy"]]
    assert sum(path.stat().st_mtime > 1 for path in paths) == len(links)  # used just now
    monkeypatch.setattr(stored_graphs, "_MOST_FILES", 3)
    folder = tmp_path / "full"
    folder.mkdir()
    for age in range(5):
        for ending in ("so", "lock"):
            (folder / f"{age}.{ending}").write_text("")
            os.utime(folder / f"{age}.{ending}", (1000 - age, 1000 - age))
    stored_graphs._keep(b"code", folder / "new.so")
    left = {path.name for path in folder.iterdir()}
    assert left == {"0.so", "0.lock", "1.so", "1.lock", "new.so"}
    assert (folder / "new.so").read_bytes()[:4] == b"code"
    assert stored_graphs._is_whole(folder / "new.so")


# --- names --------------------------------------------------------------------------------------


def key_of(data, link=None, threads=1, **settings):
    learnable = learnable_of(data, "off", **settings)
    copy = WorkingCopy(learnable.config, *learnable._parts())
    copy.prepare()
    step = copy.step if link is None else copy.new_step(LinkStep, copy.plan, link)
    batch = learnable._draw(data, torch.Generator().manual_seed(0))
    arguments = copy.arguments(batch, torch.ones(copy.plan.num_rows, 3))
    return stored_graphs._key(step, threads, FlatStep(step, arguments).forms)


@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 0.98}, {"tau": 0.01}, {"expectile": 0.8}, {"weight_temp": 2.0},
        {"max_weight": 50.0}, {"actor_kind": "deterministic"}, {"update_rule": "paper"},
        {"n_critics": 3}, {"batch_size": 17}, {"threads": 2}, {"link": CRITICS_CHAIN[1]},
        {"actor_optim_factory": {"type": "adam", "betas": [0.8, 0.999]}},
        {"actor_optim_factory": {"type": "adam", "eps": 1e-6}},
        {"actor_optim_factory": {"type": "adam", "weight_decay": 0.1}},
        {"actor_optim_factory": {"type": "adam", "clip_grad_norm": 1.0}},
        {"value_encoder_factory": {**SMALL, "activation": "tanh"}},
        {"actor_encoder_factory": {**SMALL, "use_layer_norm": True}},
        {"actor_encoder_factory": {**SMALL, "exclude_last_activation": True}},
    ],
    ids=repr,
)  # fmt: skip
def test_the_name_says_what_is_in_the_graph(settings, data):
    assert key_of(data, **settings) != key_of(data)


def test_links_have_names_of_their_own(data):
    links = [*CRITICS_CHAIN, *VALUE_CHAINS["d3rlpy"]]
    assert len({key_of(data, link=link) for link in links}) == len(links)


@pytest.mark.parametrize(
    "settings", [{"actor_learning_rate": 1e-2}, {"critic_learning_rate": 1e-2}], ids=repr
)
def test_learning_rates_share_a_graph(settings, data):
    assert key_of(data, **settings) == key_of(data)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch, "__version__", "9.9"),
        (torch.version, "git_version", "0"),
        (processor, "prefers_onednn", lambda: "other"),
        (rlreg.runtime, "__path__", []),
    ],
    ids=["torch", "its build", "oneDNN", "sources"],
)
def test_another_torch_or_rlreg_has_other_graphs(owner, name, value, monkeypatch, data):
    here = key_of(data)
    monkeypatch.setattr(owner, name, value)
    stored_graphs._surroundings.cache_clear()
    try:
        assert key_of(data) != here
    finally:
        stored_graphs._surroundings.cache_clear()


def test_another_processor_has_other_graphs(monkeypatch, tmp_path, data):
    stored_graphs._surroundings.cache_clear()
    here = key_of(data)
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : other\nflags : sse2\n\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    stored_graphs._surroundings.cache_clear()
    try:
        assert key_of(data) != here
        assert "sse2" in processor.identity()
        (tmp_path / "cpuinfo").unlink()
        assert "sse2" not in processor.identity()
        assert not processor.prefers_onednn()
    finally:
        monkeypatch.undo()
        stored_graphs._surroundings.cache_clear()
    assert key_of(data) == here


# --- calls --------------------------------------------------------------------------------------


def test_a_batch_of_another_size_has_a_graph_of_its_own(monkeypatch):
    asked = []

    def find(step, threads, arguments):
        asked.append(tuple(arguments[4][0].shape))
        return lambda tensors: len(tensors)

    monkeypatch.setattr(stored_graphs, "_find_or_make", find)
    stored = StoredStep(object(), 1)
    lists = [[torch.zeros(2)] for _ in range(4)]
    rates = torch.ones(1, 3)
    for rows in (8, 8, 4, 8, 4):
        assert stored(*lists, [torch.zeros(rows, 3)], rates, None) == 6
    assert asked == [(8, 3), (4, 3)]
    assert stored(*lists, [torch.zeros(3, 8).t()], rates, None) == 6
    assert stored(*lists, [torch.zeros(8, 3).double()], rates, None) == 6
    assert asked == [(8, 3), (4, 3), (8, 3), (8, 3)]
    assert stored(*lists, [torch.zeros(8, 3)], rates, torch.zeros(8)) == 7
    assert len(asked) == 5
    assert stored([torch.zeros(2)], *lists[1:], [torch.zeros(8, 3)], rates, None) == 6
    assert len(asked) == 6


def call_of(data, **settings):
    learnable = learnable_of(data, "off", **settings)
    copy = WorkingCopy(learnable.config, *learnable._parts())
    copy.prepare()
    batch = learnable._draw(data, torch.Generator().manual_seed(0))
    return FlatStep(copy.step, copy.arguments(batch, torch.ones(copy.plan.num_rows, 3)))


def test_a_trial_is_the_same_every_time_and_of_the_arguments_forms(data):
    call = call_of(data)
    assert [form_of(part) for part in call.examples()] == call.forms
    assert any(strides != torch.empty(shape).stride() for shape, strides, _ in call.forms)
    with torch.no_grad():
        first, second = call.trial(), call.trial()
    assert torch.equal(first.results, second.results)
    assert first.results.isfinite().all()
    for one, two in zip(first.changes, second.changes, strict=True):
        assert torch.equal(one, two)
        assert one.any()


def test_an_expanded_tensor_stays_one(data):
    numbers = torch.ones(1).expand(16)
    step = FlatStep(None, [[], [], [], [], [numbers], torch.ones(2, 3)])
    example = step.examples()[0]
    assert example.stride() == (0,)
    assert example.isfinite().all()


@pytest.mark.parametrize("place", ["trained", "means", "squares", "targets", "results"])
def test_a_trial_sees_every_kind_of_change(place, data):
    call = call_of(data)
    sizes = call._sizes
    start = {"trained": 0, "means": 1, "squares": 2, "targets": 3}.get(place)

    def wrong(tensors):
        before = [part.clone() for part in tensors]
        results = call(*tensors)
        if start is None:
            return [1.01 * part for part in results]
        first = sum(sizes[:start])
        for new, old in zip(tensors[first:], before[first : first + sizes[start]], strict=False):
            new.copy_(old + 1.01 * (new - old))
        return results

    with torch.no_grad():
        expected = call.trial()
        assert call.trial(lambda tensors: call(*tensors)).is_like(expected)
        assert not call.trial(wrong).is_like(expected)
        assert not Trial(expected.results[:1], expected.changes).is_like(expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 0.98}, {"tau": 0.0051}, {"expectile": 0.72}, {"weight_temp": 3.1},
        {"max_weight": 1.0}, {"update_rule": "paper"},
        {"actor_optim_factory": {"type": "adam", "betas": [0.8, 0.999]}},
        {"actor_optim_factory": {"type": "adam", "betas": [0.9, 0.99]}},
        {"actor_optim_factory": {"type": "adam", "weight_decay": 0.1}},
        {"actor_optim_factory": {"type": "adam", "clip_grad_norm": 0.01}},
        {"value_encoder_factory": {**SMALL, "activation": "tanh"}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_trial_sees_other_settings(settings, data):
    with torch.no_grad():
        assert not call_of(data, **settings).trial().is_like(call_of(data).trial())
