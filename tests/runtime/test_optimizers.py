"""Optimizers: parameter order, clipping, schedules, their state, and taking steps back."""

import copy
import math

import pytest
import torch
from torch import nn

from rlreg.components import (
    SGD,
    Adam,
    AdamW,
    CosineAnnealingScheduler,
    LinearScheduler,
    RMSprop,
    WarmupScheduler,
)
from rlreg.errors import CheckpointError, ConfigError, NonFiniteError
from rlreg.runtime.guard import Undo, check_step
from rlreg.runtime.optimizers import parameters_in, set_learning_rate, trainable_parameters


class Net(nn.Module):
    """A parameter of its own stands before those of its children."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        return self.layer(x) * self.scale


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def step(net, optimizer, factor=1.0):
    optimizer.zero_grad()
    (net(torch.ones(3, 2)).square().mean() * factor).backward()
    optimizer.step()


def rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def test_parameters_come_once_in_the_order_of_the_modules(net):
    other = nn.Linear(1, 1)
    pairs = [*net.named_modules(), *other.named_modules()]
    expected = [net.scale, net.layer.weight, net.layer.bias, other.weight, other.bias]
    assert [id(p) for p in trainable_parameters(pairs)] == [id(p) for p in expected]
    assert [id(p) for p in parameters_in(Adam().create(pairs, 1e-3))] == [id(p) for p in expected]


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (Adam(betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1, amsgrad=True), torch.optim.Adam),
        (AdamW(weight_decay=0.1), torch.optim.AdamW),
        (SGD(momentum=0.9, nesterov=True, weight_decay=0.1), torch.optim.SGD),
        (RMSprop(momentum=0.5), torch.optim.RMSprop),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_steps_equal_those_of_torch(config, reference, net):
    twin = copy.deepcopy(net)
    options = {
        name: getattr(config, name)
        for name in type(config).model_fields
        if name not in ("type", "clip_grad_norm", "lr_scheduler_factory")
    }
    ours = config.create(net.named_modules(), 0.01)
    theirs = reference([p for p in twin.parameters() if p.requires_grad], lr=0.01, **options)
    assert isinstance(ours, reference)
    for _ in range(10):
        step(net, ours)
        step(twin, theirs)
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_gradients_are_clipped_together_before_the_step(net):
    before = [p.detach().clone() for p in parameters_in(SGD().create(net.named_modules(), 1.0))]
    optimizer = SGD(clip_grad_norm=0.5).create(net.named_modules(), 1.0)
    step(net, optimizer, factor=1e4)
    change = [b - p.detach() for b, p in zip(before, parameters_in(optimizer), strict=True)]
    norm = math.sqrt(sum(float(part.square().sum()) for part in change))
    assert norm == pytest.approx(0.5, rel=1e-4)


def test_settings_that_contradict_each_other_are_a_config_error(net):
    with pytest.raises(ConfigError, match="sgd"):
        SGD(nesterov=True).create(net.named_modules(), 0.1)


# --- schedules ----------------------------------------------------------------------------------


def rates_of(schedule, net, steps, total=None, base=0.1):
    """The rate used by each update."""
    optimizer = SGD(lr_scheduler_factory=schedule).create(net.named_modules(), base)
    if total is not None:
        optimizer.set_total_steps(total)
    used = []
    for _ in range(steps):
        optimizer.prepare()
        used.append(rate(optimizer))
        step(net, optimizer)
    return used


def test_warmup_grows_to_the_full_rate(net):
    used = rates_of(WarmupScheduler(warmup_steps=4), net, 6)
    assert used == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_warmup_equals_torchs_lambda_schedule(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    reference = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min((k + 1) / 4, 1))
    expected = []
    for _ in range(6):
        expected.append(rate(optimizer))
        optimizer.step()
        reference.step()
    assert rates_of(WarmupScheduler(warmup_steps=4), net, 6) == pytest.approx(expected)


def test_cosine_with_a_period_equals_torchs_also_beyond_it(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8, eta_min=0.01)
    expected = []
    for _ in range(20):
        expected.append(rate(optimizer))
        optimizer.step()
        reference.step()
    given = rates_of(CosineAnnealingScheduler(T_max=8, eta_min=0.01), net, 20, total=5)
    assert given == pytest.approx(expected)


def test_cosine_bound_to_the_run_ends_with_it_and_stays_down(net):
    used = rates_of(CosineAnnealingScheduler(), net, 7, total=4)
    half = 0.1 * (1 + math.cos(math.pi / 4)) / 2
    assert used == pytest.approx([0.1, half, 0.05, 0.1 - half, 0, 0, 0], abs=1e-12)


def test_linear_moves_to_its_end_factor(net):
    used = rates_of(LinearScheduler(end_factor=0.5), net, 6, total=4)
    assert used == pytest.approx([0.1, 0.0875, 0.075, 0.0625, 0.05, 0.05])
    assert rates_of(LinearScheduler(total_steps=2), net, 4) == pytest.approx([0.1, 0.05, 0, 0])


@pytest.mark.parametrize("schedule", [CosineAnnealingScheduler(), LinearScheduler()])
def test_a_schedule_over_a_run_of_unknown_length_is_a_config_error(schedule, net):
    optimizer = Adam(lr_scheduler_factory=schedule).create(net.named_modules(), 0.1)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(ConfigError, match="length"):
        step(net, optimizer)
    assert all(torch.equal(one, two) for one, two in zip(before, net.parameters(), strict=True))
    optimizer.set_total_steps(3)
    step(net, optimizer)


def test_a_longer_run_stretches_the_schedule(net):
    optimizer = SGD(lr_scheduler_factory=LinearScheduler()).create(net.named_modules(), 0.1)
    optimizer.set_total_steps(4)
    step(net, optimizer)
    step(net, optimizer)
    assert rate(optimizer) == pytest.approx(0.05)
    optimizer.set_total_steps(8)
    assert rate(optimizer) == pytest.approx(0.075)


def test_parameters_may_have_a_rate_of_their_own_under_one_schedule(net):
    other = nn.Linear(1, 1)
    pairs = [*net.named_modules(), *other.named_modules()]
    optimizer = Adam(lr_scheduler_factory=LinearScheduler()).create(pairs, 0.1)
    order = [id(p) for p in parameters_in(optimizer)]
    set_learning_rate(optimizer, other.parameters(), 0.4)
    assert [id(p) for p in parameters_in(optimizer)] == order
    optimizer.set_total_steps(2)
    step(net, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.2])


def test_state_restores_moments_and_schedule_bit_for_bit(net):
    config = Adam(lr_scheduler_factory=CosineAnnealingScheduler(), clip_grad_norm=0.3)
    whole, parts = net, copy.deepcopy(net)
    undisturbed = config.create(whole.named_modules(), 0.1)
    undisturbed.set_total_steps(10)
    for _ in range(10):
        step(whole, undisturbed)
    first = config.create(parts.named_modules(), 0.1)
    first.set_total_steps(10)
    for _ in range(4):
        step(parts, first)
    saved = copy.deepcopy(first.state_dict())
    second = config.create(parts.named_modules(), 0.1)
    second.load_state_dict(saved)
    assert rate(second) == rate(first)
    for _ in range(6):
        step(parts, second)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True)
    )
    assert second.state_dict()["schedule"] == undisturbed.state_dict()["schedule"]


def test_a_state_with_a_schedule_does_not_fit_an_optimizer_without(net):
    with_schedule = Adam(lr_scheduler_factory=WarmupScheduler()).create(net.named_modules(), 0.1)
    without = Adam().create(net.named_modules(), 0.1)
    with pytest.raises(CheckpointError, match="schedule"):
        without.load_state_dict(with_schedule.state_dict())
    with pytest.raises(CheckpointError, match="warmup"):
        with_schedule.load_state_dict(without.state_dict())


def test_an_authors_schedule_is_made_with_the_length_of_the_run(net):
    made = []

    class Author:
        type = "author"

        def create(self, optimizer, total_steps):
            made.append(total_steps)
            return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    optimizer = Adam().create(net.named_modules(), 0.1)
    optimizer.configure(None, Author())
    optimizer.set_total_steps(7)
    step(net, optimizer)
    step(net, optimizer)
    assert made == [7]
    assert rate(optimizer) == pytest.approx(0.025)


# --- whole or not at all ------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Adam(), SGD(momentum=0.9), RMSprop(momentum=0.5)])
@pytest.mark.parametrize("warm", [0, 3])
def test_undo_restores_parameters_moments_rates_and_schedule(config, warm, net):
    settings = config.model_dump() | {"lr_scheduler_factory": {"type": "warmup", "warmup_steps": 9}}
    optimizer = type(config)(**settings).create(net.named_modules(), 0.1)
    optimizer.prepare()
    for _ in range(warm):
        step(net, optimizer)
    undo, twin = Undo([optimizer]), copy.deepcopy(net)
    before = copy.deepcopy(optimizer.state_dict())

    def interrupted():
        with undo.guard():
            step(net, optimizer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert str(optimizer.state_dict()) == str(before)
    pairs = zip(net.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    with undo.guard():
        step(net, optimizer)
    assert not torch.equal(net.scale, twin.scale)


def test_undo_restores_rates_that_an_author_changes_by_hand(net):
    optimizer = SGD().create(net.named_modules(), 0.1)
    undo = Undo([optimizer])

    def failure():
        with undo.guard():
            optimizer.param_groups[0].update(lr=5.0, own="mark")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failure()
    assert rate(optimizer) == 0.1
    assert "own" not in optimizer.param_groups[0]


def test_after_commit_nothing_is_taken_back(net):
    optimizer = SGD().create(net.named_modules(), 0.1)
    undo, before = Undo([optimizer]), net.scale.detach().clone()

    def late_failure():
        with undo.guard():
            undo.commit()
            step(net, optimizer)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        late_failure()
    assert not torch.equal(net.scale, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e25])
def test_check_step_names_the_gradient(value, net):
    optimizer = Adam().create(net.named_modules(), 0.1)
    net(torch.ones(1, 2)).sum().backward()
    check_step("loss", torch.zeros(()), optimizer)
    net.layer.bias.grad.fill_(value)
    with pytest.raises(NonFiniteError, match=r"shape \[1\]"):
        check_step("loss", torch.zeros(()), optimizer)
    with pytest.raises(NonFiniteError, match="loss is nan"):
        check_step("loss", torch.tensor(math.nan), optimizer)


WITHOUT_COMPILER = """
import sys
import torch
from torch import nn
from rlreg.components import SGD, Adam, AdamW, CosineAnnealingScheduler, RMSprop
from rlreg.runtime.optimizers import set_learning_rate
from rlreg_impala.components import RMSpropTF

FACTORIES = (SGD(momentum=0.9), Adam(), AdamW(weight_decay=0.1), RMSprop(), RMSpropTF())

def bits(factory):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    make = lambda: factory.create(net.named_modules(), 1e-2)
    optimizer = make()
    set_learning_rate(optimizer, net[2].parameters(), 3e-2)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    inputs = torch.linspace(-1, 1, 15).view(5, 3)
    for step in range(6):
        if step == 3:  # as a checkpoint would
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in net.parameters())
        net(inputs).square().mean().backward()
        optimizer.step()
    assert calls == ["before", "after"] * 6, calls
    assert torch.is_grad_enabled()
    assert all(p.is_leaf and p.grad_fn is None for p in net.parameters())
    return [p.detach().clone() for p in net.parameters()]

plain = [bits(factory) for factory in FACTORIES]
assert "torch._dynamo" not in sys.modules
import torch._dynamo
again = [bits(factory) for factory in FACTORIES]
for one, other in zip(plain, again):
    assert all(torch.equal(a, b) for a, b in zip(one, other))
print("same")
"""


def test_stepping_imports_no_compiler_and_gives_the_same_bits_as_with_it(run_python):
    pytest.importorskip("rlreg_impala")
    assert run_python(WITHOUT_COMPILER, env={"OMP_NUM_THREADS": "1"}) == "same\n"


TRAIN_AND_SAVE = """
import sys
import numpy as np
import rlreg
rng = np.random.default_rng(0)
n = 64
dataset = rlreg.TransitionDataset.from_arrays(
    rng.standard_normal((n, 3), dtype=np.float32),
    rng.uniform(-1, 1, (n, 2)).astype(np.float32),
    rng.standard_normal(n, dtype=np.float32),
    np.zeros(n, bool),
    np.arange(n) % 8 == 7,
)
learnable = rlreg.create("iql", device="cpu", compile="off", batch_size=8)
learnable.fit(dataset, 2, show_progress=False)
learnable.save(PATH)
rlreg.load(PATH, device="cpu").fit(dataset, 1, show_progress=False)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_training_that_is_not_compiled_imports_no_compiler(run_python, tmp_path):
    pytest.importorskip("rlreg_iql")
    code = f"PATH = {str(tmp_path / 'iql.rlreg')!r}\n{TRAIN_AND_SAVE}"
    assert run_python(code, env={"OMP_NUM_THREADS": "1"}) == "[]\n"
