"""The streams that are lent to torch's global generators.

On a CPU, a second CPU generator stands for the global one of a GPU: what is lent, given back, saved
and restored is then the same.
"""

import pytest
import torch
from gymnasium import spaces
from torch.nn import functional

import rlreg
from rlreg.runtime import private_noise
from rlreg.runtime.private_noise import PrivateNoise, device_generator

CPU = torch.device("cpu")


@pytest.fixture
def second(monkeypatch):
    """The generator that stands for a GPU's."""
    generator = torch.Generator().manual_seed(99)
    monkeypatch.setattr(private_noise, "device_generator", lambda device: generator)
    return generator


def draw(noise, generator):
    with noise.lend():
        return torch.rand(4, generator=generator)


def test_on_a_cpu_there_is_one_stream_and_the_state_says_so():
    assert device_generator(CPU) is None
    assert set(PrivateNoise(CPU, 3).states()) == {"noise"}
    assert set(rlreg.create("iql", device="cpu").rng_state()) == {"sampling", "noise"}


def test_what_a_device_draws_is_lent_and_given_back(second):
    outer = second.get_state()
    noise, again = PrivateNoise(CPU, 3), PrivateNoise(CPU, 3)
    first, next_one = draw(noise, second), draw(noise, second)
    assert torch.equal(second.get_state(), outer)
    assert not torch.equal(first, next_one)
    torch.rand(5, generator=second)  # by somebody else
    assert torch.equal(draw(again, second), first)
    assert torch.equal(draw(again, second), next_one)
    assert not torch.equal(draw(PrivateNoise(CPU, 4), second), first)


def test_an_error_inside_gives_both_generators_back(second):
    outer, device_outer = torch.get_rng_state(), second.get_state()
    noise = PrivateNoise(CPU, 3)

    def fail():
        with noise.lend():
            torch.rand(1), torch.rand(1, generator=second)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(torch.get_rng_state(), outer)
    assert torch.equal(second.get_state(), device_outer)


def test_a_state_continues_both_streams(second):
    noise, other = PrivateNoise(CPU, 3), PrivateNoise(CPU, 4)
    draw(noise, second)
    states = noise.states()
    assert set(states) == {"noise", "device_noise"}
    expected = draw(noise, second)
    other.load(states)
    assert torch.equal(draw(other, second), expected)
    other.seed(3)
    assert torch.equal(draw(other, second), draw(PrivateNoise(CPU, 3), second))


def test_a_state_of_a_cpu_gives_a_device_one_and_the_same_stream(second):
    saved = {"noise": torch.Generator().manual_seed(5).get_state()}
    one, two = PrivateNoise(CPU, 3), PrivateNoise(CPU, 4)
    one.load(saved)
    two.load(saved)
    assert torch.equal(one.states()["noise"], saved["noise"])
    assert torch.equal(draw(one, second), draw(two, second))


def test_a_checkpoint_of_a_cpu_is_taken_where_there_are_two_streams(second, monkeypatch):
    space = spaces.Box(-1, 1, (2,))
    learnable = rlreg.create("iql", device="cpu")
    learnable.build(space, space)
    state = learnable.state_dict()
    assert "device_noise" in state["rng"]
    del state["rng"]["device_noise"]
    learnable.load_state_dict(state)
    monkeypatch.undo()
    plain = rlreg.create("iql", device="cpu")
    plain.build(space, space)
    plain.load_state_dict(learnable.state_dict())
    assert set(plain.rng_state()) == {"sampling", "noise"}


@pytest.mark.gpu
def test_dropout_on_a_gpu_is_that_of_the_seed():
    ones = torch.ones(64, device="cuda")
    outer = torch.cuda.get_rng_state()
    learnables = [rlreg.create("iql", device="cuda", seed=seed) for seed in (0, 0, 1)]
    masks = []
    for learnable in learnables:
        torch.cuda.manual_seed(len(masks))
        with learnable.private_rng():
            masks.append(functional.dropout(ones))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    learnables[2].load_rng_state(learnables[0].rng_state())
    for learnable in (learnables[0], learnables[2]):
        with learnable.private_rng():
            masks.append(functional.dropout(ones))
    assert torch.equal(masks[3], masks[4])
    assert not torch.equal(masks[0], masks[3])
    torch.cuda.set_rng_state(outer)
    with learnables[0].private_rng():
        functional.dropout(ones)
    assert torch.equal(torch.cuda.get_rng_state(), outer)
