"""Products of stacked matrices by oneDNN: the same numbers, and only where it is worth it."""

from __future__ import annotations

import pytest
import torch

from rlreg.runtime import products
from rlreg.runtime.torch_threads import torch_threads

pytestmark = pytest.mark.skipif(not products.has_onednn(), reason="this torch has no oneDNN")


def matrices(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of oneDNN."""
    found = []
    plain = products.onednn_product

    def counted(*given):
        found.append(given)
        return plain(*given)

    monkeypatch.setattr(products, "onednn_product", counted)
    return found


def test_onednn_multiplies_as_the_other_library_does():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 96, generator=generator) for _ in range(2))
    bias = torch.randn(64, generator=generator)
    for a, b in ((left, right.t()), (left.t(), right), (right.t(), left)):
        result = products.onednn_product(a, b, None, "none")
        torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)
    expected = left @ right.t() + bias
    for activation, wanted in (("none", expected), ("relu", expected.relu())):
        result = products.onednn_product(left, right.t(), bias, activation)
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
def test_products_of_all_layouts_are_those_of_double_precision(transposed, calls):
    left, right = matrices(3, 80, 96), matrices(3, 96, 72)
    if transposed in ("left", "both"):
        left = left.transpose(1, 2).contiguous().transpose(1, 2)
    if transposed in ("right", "both"):
        right = right.transpose(1, 2).contiguous().transpose(1, 2)
    with products.OneDNNStacks():
        found = torch.bmm(left, right)
    assert len(calls) == 3
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=1e-5, atol=1e-4)


def test_gradients_of_a_vectorised_layer_go_the_same_way(calls):
    weights, biases = matrices(2, 70, 66).requires_grad_(), matrices(2, 70).requires_grad_()
    inputs = matrices(2, 100, 66)

    def loss():
        layer = torch.vmap(torch.nn.functional.linear)
        return layer(inputs, weights, biases).square().mean()

    wanted = torch.autograd.grad(loss(), [weights, biases])
    assert not calls
    with products.OneDNNStacks():
        found = torch.autograd.grad(loss(), [weights, biases])
    assert len(calls) == 2 * 2  # forwards, and for the weights
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "dtype"),
    [
        (63, 96, 96, torch.float32),
        (96, 7, 96, torch.float32),
        (96, 96, 1, torch.float32),
        (96, 96, 96, torch.float64),
    ],
)
def test_small_and_wide_numbers_are_left_to_torch(rows, inner, columns, dtype, calls):
    left, right = matrices(2, rows, inner, dtype=dtype), matrices(2, inner, columns, dtype=dtype)
    with products.OneDNNStacks():
        found = torch.bmm(left, right)
    assert not calls
    assert torch.equal(found, torch.bmm(left, right))


def test_no_matrices_give_no_matrices(calls):
    with products.OneDNNStacks():
        assert torch.bmm(torch.empty(0, 96, 96), torch.empty(0, 96, 96)).shape == (0, 96, 96)


def test_what_does_not_fit_is_refused_by_torch(calls):
    with products.OneDNNStacks():
        with pytest.raises(RuntimeError, match=r"batch|size"):
            torch.bmm(matrices(2, 96, 96), matrices(3, 96, 96))
        with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
            torch.bmm(matrices(2, 96, 96), matrices(2, 96, 96, dtype=torch.float64))
        elsewhere = torch.empty(2, 96, 96, device="meta")
        assert torch.bmm(elsewhere, elsewhere).shape == (2, 96, 96)
    assert not calls


@pytest.mark.parametrize("is_preferred", [False, True])
@pytest.mark.parametrize("work", [products.LEAST_WORK - 1, products.LEAST_WORK])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_processor_work_and_threads_decide(is_preferred, work, num_threads, monkeypatch, calls):
    monkeypatch.setattr(products, "prefers_onednn", lambda: is_preferred)
    with torch_threads(num_threads), products.fast_stacks(work):
        torch.bmm(matrices(2, 96, 96), matrices(2, 96, 96))
    is_expected = is_preferred and work == products.LEAST_WORK and num_threads == 1
    assert len(calls) == 2 * is_expected


def test_work_is_that_of_the_wide_layers_of_large_batches():
    network = torch.nn.Sequential(
        torch.nn.Linear(17, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.Linear(64, 1)
    )
    assert products.work_of([network], 100) == 100 * (17 * 128 + 128 * 64)
    assert products.work_of([network, network], 100) == 2 * 100 * (17 * 128 + 128 * 64)
    assert products.work_of([network], 63) == 0
    assert products.work_of([torch.nn.Linear(7, 128), torch.nn.Linear(128, 63)], 100) == 0
    assert products.work_of([torch.nn.Linear(96, 96, device="meta")], 100) == 0
