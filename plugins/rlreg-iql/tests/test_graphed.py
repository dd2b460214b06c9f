"""Updates of a CUDA graph do what plain updates do.

On a CPU the function that a graph is made of is called itself, in the place of the graph: buffers,
streams, schedules and what is undone are then the same. The recording is seen on a GPU alone.
"""

import fast_paths
import pytest
import torch
from fast_paths import SMALL, assert_close, make, make_data

import rlreg
from rlreg.errors import ConfigError, DatasetError, NonFiniteError
from rlreg.runtime.data.replay import ReplayBuffer
from rlreg_iql import update_graph
from rlreg_iql.compiled import PAYS_FROM
from rlreg_iql.graphed import FusedStep, GraphedUpdates
from rlreg_iql.learnable import IQL
from rlreg_iql.update_graph import UPDATES_PER_GRAPH

WARMED = {"type": "adam", "lr_scheduler_factory": fast_paths.WARMUP}
VARIANTS = {
    **fast_paths.VARIANTS,
    "decay of both kinds": {
        "actor_optim_factory": {"type": "adam", "weight_decay": 0.1, "betas": [0.8, 0.99]},
        "critic_optim_factory": {"type": "adam_w", "weight_decay": 0.1, "eps": 1e-5},
    },
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """The device; on a CPU the function takes the place of the graph."""
    if request.param == "cpu":
        monkeypatch.setattr(IQL, "_uses_graph", True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("rule", ["d3rlpy", "paper"])
@pytest.mark.parametrize("name", VARIANTS)
def test_updates_of_a_graph_equal_plain_ones(rule, name, device):
    data, count = make_data(device), 2 * UPDATES_PER_GRAPH + 3
    plain, fast = (make(data, mode, update_rule=rule, **VARIANTS[name]) for mode in ("off", "on"))
    one, two = plain.train_epoch(data, count), fast.train_epoch(data, count)
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert two[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert_close(plain, fast)
    assert fast.grad_step == count


def test_every_launch_reads_the_next_batches_of_the_plain_stream(device):
    data = make_data(device)
    learnable = make(data, "on")
    graph, seen = learnable._compiled.graph, []
    launch = graph.replay

    def watched():
        seen.append([part.cpu().clone() for part in graph.batches])
        launch()

    graph.replay = watched
    stream = torch.Generator()
    stream.set_state(learnable.generator.get_state())
    learnable.train_epoch(data, 100)
    assert len(seen) == 100 // UPDATES_PER_GRAPH
    assert not any(torch.equal(seen[0][0], later[0]) for later in seen[1:])
    for launch_index, parts in enumerate(seen):
        for k in range(UPDATES_PER_GRAPH):
            expected = learnable._draw(data, stream).values()
            for part, other in zip(parts, expected, strict=True):
                assert torch.equal(part[k], other.cpu()), (launch_index, k)
    assert torch.equal(stream.get_state(), learnable.generator.get_state())


@pytest.mark.gpu
def test_on_a_gpu_it_is_a_graph():
    data = make_data("cuda")
    learnable = make(data, "on")
    assert isinstance(learnable._compiled.graph.replay.__self__, torch.cuda.CUDAGraph)


def test_plain_updates_and_those_of_a_graph_take_turns(device):
    data = make_data(device)
    plain, mixed = (make(data, mode, actor_optim_factory=WARMED) for mode in ("off", "on"))
    kept = mixed._compiled
    for is_fast in (False, True, False, True):
        mixed._compiled = kept if is_fast else None
        plain.train_epoch(data, 12)
        mixed.train_epoch(data, 12)
    assert_close(plain, mixed)


def test_what_was_saved_goes_on_as_the_plain_run_does(device, tmp_path):
    data = make_data(device)
    settings = {"actor_optim_factory": WARMED, "critic_optim_factory": VARIANTS[
        "clipped and scheduled"]["critic_optim_factory"]}  # fmt: skip
    plain, fast = (make(data, mode, **settings) for mode in ("off", "on"))
    plain.train_epoch(data, 75)
    fast.train_epoch(data, 55)
    fast.save(tmp_path / "saved.rlreg")
    loaded = rlreg.load(tmp_path / "saved.rlreg", device=device)
    loaded.train_epoch(data, 20)
    assert_close(plain, loaded)


def test_a_restored_state_is_what_goes_on(device):
    data = make_data(device)
    first, second = (make(data, "on") for _ in range(2))
    first.train_epoch(data, 60)
    second.train_epoch(data, 7)
    second.load_state_dict(first.state_dict())
    for learnable in (first, second):
        learnable.train_epoch(data, 60)
    assert_close(first, second, 0.0)


@pytest.mark.parametrize("rule", ["d3rlpy", "paper"])
def test_a_number_that_is_not_finite_raises_as_the_plain_path_does(rule, device):
    data = make_data(device, bad_row=7)
    settings = {"update_rule": rule, "critic_optim_factory": WARMED}
    plain, fast = (make(data, mode, **settings) for mode in ("off", "on"))
    errors = []
    for learnable in (plain, fast):
        with pytest.raises(NonFiniteError, match=r"update \d+: .*rewards are not finite") as caught:
            learnable.train_epoch(data, 200)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert_close(plain, fast, 0.0)


def test_warming_up_changes_nothing(device, snapshot):
    take, assert_same = snapshot
    data = make_data(device)
    learnable = make(data, "off", actor_optim_factory=WARMED)
    before, stream = take(learnable), learnable.generator.get_state()
    rate = learnable.actor_optim.param_groups[0]["lr"]
    learnable.compile = "on"
    learnable.settle_compile(data, 1000)
    assert learnable.is_compiled
    assert_same(before["networks"], take(learnable)["networks"])
    assert not learnable.actor_optim.state
    assert torch.equal(stream, learnable.generator.get_state())
    learnable.actor_optim.prepare()
    assert learnable.actor_optim.param_groups[0]["lr"] == pytest.approx(rate / 7)


def test_settings_changed_by_hand_are_followed(device):
    data = make_data(device)
    plain, fast = (make(data, mode) for mode in ("off", "on"))
    for learnable in (plain, fast):
        learnable.train_epoch(data, 10)
        for group in learnable.actor_optim.param_groups:
            group["eps"], group["betas"], group["lr"] = 1e-3, (0.5, 0.9), 1e-2
        learnable.train_epoch(data, 10)
    assert_close(plain, fast)


def test_other_data_and_scalers_fitted_anew_are_followed(device):
    data, other = make_data(device), make_data(device, seed=1)
    scaled = {"observation_scaler": {"type": "standard"}}
    plain, fast = (make(data, mode, **scaled) for mode in ("off", "on"))
    for learnable in (plain, fast):
        learnable.train_epoch(data, 10)
        learnable.observation_scaler.fill("mean", [1.0, 2.0, 3.0])
        learnable.train_epoch(other, 10)
    assert_close(plain, fast)


def test_a_closed_data_set_raises_and_leaves_nothing(device, snapshot):
    take, assert_same = snapshot
    data = make_data(device)
    learnable = make(data, "on", critic_optim_factory=WARMED)
    learnable.train_epoch(data, 3)
    before, stream = take(learnable), learnable.generator.get_state()
    data.close()
    with pytest.raises(DatasetError, match="closed"):
        learnable.train_epoch(data, 50)
    assert_same(before, take(learnable))
    assert torch.equal(stream, learnable.generator.get_state())


# --- the choice ---------------------------------------------------------------------------------


def fail(function, device):
    raise RuntimeError("no graph of this\nand more")


def freeze(read):
    """Makes a graph that reads what was in a buffer when it was recorded."""

    def record(function, device):
        def replay():
            read(function.__self__).fill_(1)
            function()

        return replay

    return record


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        pytest.param(fail, "no graph of this", id="cannot be recorded"),
        pytest.param(
            freeze(lambda graph: graph.batches[2]), "it does not do what", id="old rewards"
        ),
        pytest.param(
            freeze(lambda graph: graph.numbers), "it does not do what", id="old learning rates"
        ),
        pytest.param(lambda *_: lambda: None, "it does not do what", id="does nothing"),
    ],
)
def test_a_graph_that_fails_is_an_error_or_with_auto_left_out(record, reason, device, monkeypatch):
    data = make_data(device)
    plain, learnable = make(data, "off"), make(data, "off")
    monkeypatch.setattr(update_graph, "record", record)
    learnable.compile = "on"
    with pytest.raises(ConfigError, match=f"compile = 'on': 10 updates .* a graph: {reason}"):
        learnable.settle_compile(data, 1000)
    assert not learnable.is_compiled
    learnable.compile = "auto"
    assert reason in learnable.settle_compile(data, PAYS_FROM)
    assert not learnable.is_compiled
    plain.train_epoch(data, 12)
    learnable.train_epoch(data, 12)
    assert_close(plain, learnable, 0.0)


@pytest.mark.gpu
def test_a_recording_that_the_driver_refuses_leaves_a_device_that_works(monkeypatch):
    data = make_data("cuda")
    plain, learnable = make(data, "off"), make(data, "off")
    original = FusedStep.__call__

    def waiting(self, *arguments):
        metrics = original(self, *arguments)
        float(metrics.sum())  # waits for the device, which nothing may while it is recorded
        return metrics

    monkeypatch.setattr(FusedStep, "__call__", waiting)
    learnable.compile = "auto"
    own = torch.cuda.current_stream()
    assert "could not be made a graph" in learnable.settle_compile(data, PAYS_FROM)
    assert torch.cuda.current_stream() == own
    plain.train_epoch(data, 12)
    learnable.train_epoch(data, 12)
    assert_close(plain, learnable)


def test_a_recording_that_fails_in_a_run_is_never_replaced_by_an_older_one(device, monkeypatch):
    data = make_data(device)
    learnable = make(data, "on")
    monkeypatch.setattr(update_graph, "record", fail)
    learnable.actor_optim.param_groups[0]["eps"] = 1e-3
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no graph"):
            learnable.train_epoch(data, 10)
    assert learnable.grad_step == 0


def test_auto_goes_by_the_length_of_the_run(device):
    data = make_data(device)
    learnable = make(data, "off")
    learnable.compile = "auto"
    assert "20,000" in learnable.settle_compile(data, PAYS_FROM - 1)
    assert not learnable.is_compiled
    assert "pay" in learnable.settle_compile(data, PAYS_FROM)
    assert isinstance(learnable._compiled, GraphedUpdates)


def test_what_a_graph_cannot_do_runs_plain_and_says_why(device):
    data = make_data(device)
    learnable = make(data, "off", actor_encoder_factory={**SMALL, "dropout_rate": 0.1})
    learnable.compile = "on"
    assert "dropout" in learnable.settle_compile(data, 1000)
    plain = make(data, "off")
    plain.compile = "on"
    assert "no buffer that grows" in plain.settle_compile(ReplayBuffer(dataset=data), 1000)
    assert not plain.is_compiled


def test_on_a_cpu_nothing_is_a_graph():
    assert not isinstance(make(make_data("cpu"), "off")._compiled, GraphedUpdates)
    assert not rlreg.create("iql", device="cpu")._uses_graph
