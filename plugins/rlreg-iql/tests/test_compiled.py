"""Compiled updates do what plain updates do.

Most tests run the step as it is handed to the compiler, without compiling it, which is the same
computation; the slow half of the truth, the compiler's own code, is in the tests that ask for
``inductor``.
"""

import warnings
import zipfile

import fast_paths
import numpy as np
import pytest
import torch
from fast_paths import (
    COSINE,
    NORMED,
    SMALL,
    WARMUP,
    assert_close,
    make,
    make_data,
    numbers,
)
from torch.fx.experimental.proxy_tensor import make_fx

import rlreg
from rlreg.errors import NonFiniteError
from rlreg_iql import compiled, stored_graphs
from rlreg_iql.compiled import PAYS_FROM, CompiledUpdates
from rlreg_iql.compiled_step import NotCompiledError
from rlreg_iql.working_copy import WorkingCopy

VARIANTS = {
    **fast_paths.VARIANTS,
    "paper": {"update_rule": "paper"},
    "one critic": {"n_critics": 1},
    "other encoders": {
        "actor_encoder_factory": NORMED,
        "value_encoder_factory": {"type": "vector", "hidden_units": [5], "activation": "tanh"},
    },
    "paper, own optimizers": {
        "update_rule": "paper",
        "value_optim_factory": {"type": "adam", "betas": [0.8, 0.99], "eps": 1e-5},
        "critic_optim_factory": {"type": "adam_w", "weight_decay": 0.1},
    },
    "weight decay": {"critic_optim_factory": {"type": "adam", "weight_decay": 0.1}},
}


@pytest.fixture
def uncompiled(monkeypatch):
    """Calls the step itself where the compiled one would be called."""
    monkeypatch.setattr(compiled, "_compile", lambda step, threads: step)


@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_updates_equal_plain_ones(name, uncompiled):
    data = make_data()
    plain, fast = (make(data, mode, **VARIANTS[name]) for mode in ("off", "on"))
    assert (plain.is_compiled, fast.is_compiled) == (False, True)
    one, two = plain.train_epoch(data, 20), fast.train_epoch(data, 20)
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert two[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert_close(plain, fast)
    assert fast.grad_step == 20


# Wide enough for oneDNN where the processor prefers it.
WIDE = {
    "batch_size": 256,
    **{f"{name}_encoder_factory": {"type": "default"} for name in ("actor", "critic", "value")},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(VARIANTS["paper, own optimizers"], id="paper, own optimizers"),
        pytest.param(VARIANTS["clipped and scheduled"], id="clipped and scheduled"),
        pytest.param(VARIANTS["five critics"], id="geglu and layer norm"),
        pytest.param(WIDE, id="wide"),
        pytest.param({**WIDE, "update_rule": "paper"}, id="wide, paper"),
    ],
)
def test_the_compiler_s_code_equals_plain_updates(settings, inductor):
    data = make_data()
    plain, fast = (make(data, mode, **settings) for mode in ("off", "on"))
    assert fast.is_compiled
    one, two = plain.train_epoch(data, 20), fast.train_epoch(data, 20)
    assert one == pytest.approx(two, rel=1e-4, abs=1e-5)
    assert_close(plain, fast)


def test_plain_and_compiled_updates_take_turns(uncompiled):
    data = make_data()
    plain, mixed = (make(data, mode) for mode in ("off", "on"))
    kept = mixed._compiled
    for is_fast in (False, True, False, True):
        mixed._compiled = kept if is_fast else None
        plain.train_epoch(data, 7)
        mixed.train_epoch(data, 7)
    assert_close(plain, mixed)


def test_a_restored_state_is_what_goes_on(uncompiled):
    data = make_data()
    first, second = (make(data, "on") for _ in range(2))
    first.train_epoch(data, 60)
    second.train_epoch(data, 7)
    second.load_state_dict(first.state_dict())
    for learnable in (first, second):
        learnable.train_epoch(data, 60)
    one, two = numbers(first.state_dict()), numbers(second.state_dict())
    assert all(torch.equal(value, two[path]) for path, value in one.items())


# --- not finite ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["d3rlpy", "paper"])
def test_a_number_that_is_not_finite_raises_as_the_plain_path_does(rule, uncompiled):
    data = make_data(bad_row=7)
    settings = {
        "update_rule": rule,
        "critic_optim_factory": {"type": "adam", "lr_scheduler_factory": WARMUP},
    }
    plain, fast = (make(data, mode, **settings) for mode in ("off", "on"))
    errors = []
    for learnable in (plain, fast):
        with pytest.raises(NonFiniteError, match=r"update \d+: .*rewards are not finite") as caught:
            learnable.train_epoch(data, 200)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert plain.grad_step == fast.grad_step
    assert_close(plain, fast, 0.0)


def test_an_overflow_at_the_first_update_leaves_nothing(uncompiled, snapshot):
    take, assert_same = snapshot
    data = make_data()
    learnable = make(data, "on")
    with torch.no_grad():
        learnable.critics.head.weight.fill_(1e25)
    before = take(learnable)
    with pytest.raises(NonFiniteError, match="update 1: "):
        learnable.train_epoch(data, 10)
    assert_same(before, take(learnable))


def test_an_error_of_the_data_leaves_nothing(uncompiled, snapshot):
    take, assert_same = snapshot
    data = make_data()
    learnable = make(data, "on", critic_optim_factory={
        "type": "adam", "lr_scheduler_factory": WARMUP,
    })  # fmt: skip
    learnable.train_epoch(data, 3)
    before, stream = take(learnable), learnable.generator.get_state()
    draws = iter(range(5))

    class Failing:
        def sample(self, size, generator):
            if next(draws) == 4:
                raise RuntimeError("the disk is gone")
            return data.sample(size, generator)

    with pytest.raises(RuntimeError, match="disk"):
        learnable.train_epoch(Failing(), 50)
    assert_same(before, take(learnable))
    assert torch.equal(stream, learnable.generator.get_state())


@pytest.fixture
def onednn():
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    from rlreg_iql import products

    return products


def test_onednn_multiplies_as_the_other_library_does(onednn):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 96, generator=generator) for _ in range(2))
    bias = torch.randn(64, generator=generator)
    for a, b in ((left, right.t()), (left.t(), right), (right.t(), left)):
        result = onednn._product(a, b, None, "none")
        torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)
    expected = left @ right.t() + bias
    for activation, wanted in (("none", expected), ("relu", expected.relu())):
        result = onednn._product(left, right.t(), bias, activation)
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def linear(x, w, b):
    return torch.ops.aten.addmm.default(b, x, torch.ops.aten.permute.default(w, [1, 0]))


def read_twice(x, w, b):
    result = linear(x, w, b)
    return result, torch.ops.aten.relu.default(result)


def in_parts(x, w, b):
    kept, gate = torch.ops.aten.split.Tensor(torch.ops.aten.mm.default(x, w), 64, 1)
    return kept * gate + b


def gradient(x, y):
    return torch.ops.aten.mm.default(torch.ops.aten.permute.default(y, [1, 0]), x)


@pytest.mark.parametrize(
    ("function", "shapes", "calls"),
    [
        pytest.param(linear, [(256, 17), (64, 17), (64,)], 1, id="linear"),
        pytest.param(
            lambda *parts: torch.ops.aten.relu.default(linear(*parts)),
            [(256, 64), (64, 64), (64,)], 1, id="linear, relu",
        ),
        pytest.param(read_twice, [(256, 64), (64, 64), (64,)], 1, id="read twice"),
        pytest.param(gradient, [(256, 64), (256, 80)], 1, id="gradient"),
        pytest.param(in_parts, [(256, 64), (64, 128), (64,)], 1, id="several results"),
        pytest.param(gradient, [(256, 17), (256, 64)], 1, id="narrow gradient"),
        pytest.param(gradient, [(1, 64), (1, 80)], 0, id="outer product"),
        pytest.param(gradient, [(256, 64), (256, 1)], 0, id="one row"),
        pytest.param(linear, [(256, 64), (6, 64), (6,)], 0, id="narrow head"),
    ],
)  # fmt: skip
def test_a_rewritten_graph_computes_the_same(function, shapes, calls, onednn):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(shape, generator=generator) for shape in shapes]
    module = make_fx(function, tracing_mode="fake")(*parts)
    onednn.OneDNNProducts()(module.graph)
    module.recompile()
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(torch.ops.rlreg_iql.product.default) == calls
    torch.testing.assert_close(module(*parts), function(*parts), rtol=1e-4, atol=1e-4)


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"critic_encoder_factory": {**SMALL, "dropout_rate": 0.1}}, "dropout"),
        ({"actor_encoder_factory": {**SMALL, "use_batch_norm": True}}, "batch normalisation"),
        ({"critic_encoder_factory": {**SMALL, "use_batch_norm": True}}, "encoders"),
        ({"value_encoder_factory": {"type": "simba", "feature_size": 8}}, "encoders"),
        ({"actor_optim_factory": {"type": "sgd"}}, "'adam' and 'adam_w'"),
        ({"actor_optim_factory": {"type": "adam", "amsgrad": True}}, "no variant of Adam"),
        ({"n_critics": 9}, "at most 8 critics"),
    ],
)
def test_what_cannot_be_compiled_runs_plain_and_says_why(settings, reason, uncompiled):
    data = make_data()
    learnable = make(data, "on", **settings)
    assert not learnable.is_compiled
    assert reason in learnable.settle_compile(data, 1000)
    learnable.train_epoch(data, 3)


def test_categories_are_not_compiled(uncompiled):
    data = rlreg.TransitionDataset.from_arrays(
        np.zeros((40, 3), np.float32), np.arange(40) % 2, np.zeros(40), np.arange(40) == 39
    )
    learnable = make(data, "on")
    assert "continuous" in learnable.settle_compile(data, 1000)


def test_auto_goes_by_the_length_of_the_run(uncompiled):
    data = make_data()
    learnable = make(data, "auto", n_steps=PAYS_FROM - 1)
    assert not learnable.is_compiled
    assert "20,000" in learnable.settle_compile(data, PAYS_FROM - 1)
    assert "pay" in learnable.settle_compile(data, PAYS_FROM)
    assert learnable.is_compiled
    learnable.settle_compile(data, 100)
    assert not learnable.is_compiled


def test_off_is_off_and_fit_settles_it(uncompiled):
    data = make_data()
    assert not make(data, "off", n_steps=10**6).is_compiled
    learnable = rlreg.create("iql", device="cpu", compile="on", batch_size=8)
    learnable.fit(data, 3, 3, show_progress=False)
    assert learnable.is_compiled


def fail(*arguments):
    raise RuntimeError("no compiler here\nand more")


def test_a_compiler_that_fails_leaves_the_plain_path(monkeypatch, tmp_path):
    monkeypatch.setenv("RLREG_CACHE", str(tmp_path))
    monkeypatch.setattr(stored_graphs, "_made", fail)
    data = make_data()
    learnable = make(data, "on")
    reason = learnable.settle_compile(data, 1000)
    assert reason == "the update could not be compiled: no compiler here"
    learnable.train_epoch(data, 3)
    updates = CompiledUpdates(WorkingCopy(learnable.config, *learnable._parts()))
    with pytest.raises(NotCompiledError):
        updates.warm_up(learnable._draw(data, torch.Generator()))


def test_a_compiler_that_fails_later_leaves_the_plain_path(monkeypatch, tmp_path):
    """Settings changed by hand need another graph in the middle of a run."""
    data = make_data()
    plain, fast = make(data, "off"), make_with_steps(data, monkeypatch)
    for learnable in (plain, fast):
        learnable.train_epoch(data, 5)
    monkeypatch.undo()
    monkeypatch.setenv("RLREG_CACHE", str(tmp_path))
    monkeypatch.setattr(stored_graphs, "_made", fail)
    for learnable in (plain, fast):
        learnable.actor_optim.param_groups[0]["betas"] = (0.5, 0.9)
    plain.train_epoch(data, 5)
    with pytest.warns(UserWarning, match="plain from here on: .*: no compiler here$"):
        fast.train_epoch(data, 5)
    for learnable in (plain, fast):
        learnable.train_epoch(data, 5)
    assert_close(plain, fast)


def make_with_steps(data, monkeypatch):
    """Compiles with the step itself in the compiled one's place."""
    monkeypatch.setattr(compiled, "_compile", lambda step, threads: step)
    return make(data, "on")


def test_warming_up_changes_nothing(uncompiled, snapshot):
    take, assert_same = snapshot
    data = make_data()
    learnable = make(data, "off")
    before, stream = take(learnable), learnable.generator.get_state()
    learnable.compile = "on"
    learnable.settle_compile(data, 1000)
    assert_same(before, take(learnable))
    assert torch.equal(stream, learnable.generator.get_state())


def test_settings_changed_by_hand_are_followed(uncompiled):
    data = make_data()
    plain, fast = (make(data, mode) for mode in ("off", "on"))
    for learnable in (plain, fast):
        learnable.train_epoch(data, 5)
        for group in learnable.actor_optim.param_groups:
            group["eps"], group["betas"], group["lr"] = 1e-3, (0.5, 0.9), 1e-2
        learnable.train_epoch(data, 5)
    assert_close(plain, fast)


# --- runs ---------------------------------------------------------------------------------------


def run_of(dataset, mode, n_steps=240):
    encoders = {f"{name}_encoder_factory": SMALL for name in ("actor", "critic", "value")}
    scheduled = {"type": "adam", "lr_scheduler_factory": COSINE}
    return {
        "learnable": {
            "type": "iql", "batch_size": 16, "actor_optim_factory": scheduled, **encoders,
        },
        "dataset": dataset,
        "device": "cpu",
        "compile": mode,
        "train": {"n_steps": n_steps, "n_steps_per_epoch": 120},
        "evaluation": {"n_episodes": 1, "baselines": []},
    }  # fmt: skip


def members_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_an_interrupted_compiled_run_ends_like_the_undisturbed_one(dataset, tmp_path, inductor):
    run = run_of(dataset, "on")
    rlreg.train(run, out=tmp_path / "whole", show_progress=False)
    asked = iter(range(10**6))
    result = rlreg.train(
        run, out=tmp_path / "r", show_progress=False, should_stop=lambda: next(asked) == 1
    )
    assert result.status == "interrupted"
    assert result.learnable.is_compiled
    assert rlreg.resume(tmp_path / "r", show_progress=False).status == "finished"
    assert members_of(tmp_path / "r/last.rlreg") == members_of(tmp_path / "whole/last.rlreg")


def test_the_choice_is_written_down_and_kept(dataset, tmp_path, uncompiled, monkeypatch):
    monkeypatch.setattr("rlreg_iql.learnable.PAYS_FROM", 200)
    asked = iter(range(10**6))
    result = rlreg.train(
        run_of(dataset, "auto"), out=tmp_path / "r", show_progress=False,
        should_stop=lambda: next(asked) == 1,
    )  # fmt: skip
    assert result.learnable.is_compiled
    assert 'compile: "on"  # 240 updates pay for it\n' in (tmp_path / "r/run.yaml").read_text()
    monkeypatch.setattr("rlreg_iql.learnable.PAYS_FROM", 10**6)
    assert rlreg.resume(tmp_path / "r", show_progress=False).learnable.is_compiled
    short = rlreg.train(run_of(dataset, "auto"), out=tmp_path / "short", show_progress=False)
    assert not short.learnable.is_compiled
    assert 'compile: "off"  # ' in (tmp_path / "short/run.yaml").read_text()


@pytest.mark.slow
def test_many_compiled_learnables_live_in_one_process(inductor):
    data = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learnables = [make(data, "on", tau=0.1 + index / 100) for index in range(2)]
    assert all(learnable.is_compiled for learnable in learnables)
