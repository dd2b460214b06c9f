"""V-trace against golden cases, against an O(T^2) oracle, and its contract."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from rlreg.errors import ConfigError, DeviceError, RlregError, ShapeError
from rlreg_impala import vtrace as vtrace_module
from rlreg_impala.vtrace import (
    VTraceFromLogitsReturns,
    VTraceReturns,
    from_distributions,
    from_importance_weights,
    from_logits,
    vtrace,
)

CASES = json.loads((Path(__file__).parent / "data" / "vtrace.json").read_text())["cases"]
NAMES = ("log_rhos", "discounts", "rewards", "values", "bootstrap_value")
INF, NAN = math.inf, math.nan


def by_name(case):
    return case["name"]


def floats(nested):
    return [floats(item) for item in nested] if isinstance(nested, list) else float(nested)


def golden_inputs(case, dtype):
    return [
        torch.tensor(floats(case["inputs"][name]), dtype=dtype).reshape(case["shapes"][name])
        for name in NAMES
    ]


def oracle(
    log_rhos, discounts, rewards, values, bootstrap_value, rho_clip, pg_rho_clip, c_clip=1.0
):
    """The definition as it stands in the paper: a sum of products for each row, in float64."""
    full = [np.asarray(x, dtype=np.float64) for x in (log_rhos, discounts, rewards, values)]
    log_rhos, discounts, rewards, values = np.broadcast_arrays(*full)
    bootstrap_value = np.broadcast_to(np.asarray(bootstrap_value, np.float64), values.shape[1:])
    T = len(values)
    ratios = np.exp(log_rhos)
    rhos, pg_rhos, cs = (
        ratios if clip is None else np.minimum(ratios, clip)
        for clip in (rho_clip, pg_rho_clip, c_clip)
    )
    values_after = [*values[1:], bootstrap_value]
    vs = np.array(values)
    for s in range(T):
        for t in range(s, T):
            product = np.prod(discounts[s:t] * cs[s:t], axis=0)
            delta = rhos[t] * (rewards[t] + discounts[t] * values_after[t] - values[t])
            vs[s] += product * delta
    vs_after = [*vs[1:], bootstrap_value]
    advantages = np.zeros_like(vs)
    for s in range(T):
        advantages[s] = pg_rhos[s] * (rewards[s] + discounts[s] * vs_after[s] - values[s])
    return vs, advantages


def random_inputs(T, B, *extra, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    discounts = torch.rand(T, B, *extra, generator=generator, dtype=torch.float64)
    discounts = discounts * (torch.rand(T, B, *extra, generator=generator) > 0.2)
    return [
        normal(T, B, *extra),
        discounts.to(dtype),
        normal(T, B, *extra),
        3 * normal(T, B, *extra),
        3 * normal(B, *extra),
    ]


def assert_close(result, expected, rtol=1e-10, atol=1e-10):
    for given, wanted in zip(result[:2], expected[:2], strict=True):
        wanted = torch.as_tensor(wanted)
        torch.testing.assert_close(given.double(), wanted.double(), rtol=rtol, atol=atol)


@pytest.fixture(params=["cpu", "accelerator"])
def path(request, monkeypatch):
    """Runs a test on the path for CPU memory and on the one for everything else."""
    if request.param == "accelerator":
        monkeypatch.setattr(vtrace_module, "_returns", vtrace_module._recursion)
    return request.param


# Golden cases


@pytest.mark.parametrize("case", [c for c in CASES if "expected" in c], ids=by_name)
def test_golden_case(case, path):
    dtype = getattr(torch, case["dtype"])
    thresholds = case["clip_rho_threshold"], case["clip_pg_rho_threshold"]
    result = from_importance_weights(*golden_inputs(case, dtype), *thresholds)
    whole = [torch.tensor(floats(case["expected"][k]), dtype=torch.float64) for k in result._fields]
    assert [tensor.dtype for tensor in result] == [dtype, dtype]
    assert_close(result, whole, case["rtol"], case["atol"])
    for part in case.get("parts", []):
        start, stop = part["rows"]
        alone = from_importance_weights(*golden_inputs(part, dtype), *thresholds)
        assert_close(alone, [tensor[start:stop] for tensor in whole], case["rtol"], case["atol"])


@pytest.mark.parametrize("case", [c for c in CASES if c.get("error")], ids=by_name)
def test_golden_case_is_refused(case):
    thresholds = case["clip_rho_threshold"], case["clip_pg_rho_threshold"]
    with pytest.raises(ShapeError):
        from_importance_weights(*golden_inputs(case, torch.float64), *thresholds)


# The formula


@pytest.mark.parametrize("clips", [(1.0, 1.0), (3.7, 2.2), (0.5, 2.0), (0.0, 1.0), (None, None)])
@pytest.mark.parametrize("T", [1, 2, 3, 5, 8, 33])
def test_equals_the_oracle(T, clips, path):
    inputs = random_inputs(T, 4, seed=T)
    assert_close(from_importance_weights(*inputs, *clips), oracle(*inputs, *clips))


def test_long_fragment_equals_the_oracle(path):
    inputs = random_inputs(300, 2, seed=1)
    inputs[1] = torch.full_like(inputs[1], 0.99)
    assert_close(from_importance_weights(*inputs, 1.0, 1.0), oracle(*inputs, 1.0, 1.0))
    single = [tensor.float() for tensor in inputs]
    result = from_importance_weights(*single, 1.0, 1.0)
    assert_close(result, oracle(*inputs, 1.0, 1.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("c_clip", [0.5, 1.0, 2.0, None])
def test_c_clip_bounds_the_traces(c_clip, path):
    inputs = random_inputs(9, 3, seed=2)
    result = vtrace(*inputs, rho_clip=1.5, pg_rho_clip=1.0, c_clip=c_clip)
    assert_close(result, oracle(*inputs, 1.5, 1.0, c_clip))


def test_lambda_zero_gives_one_step_targets(path):
    inputs = random_inputs(6, 3, seed=3)
    _, discounts, rewards, values, bootstrap_value = inputs
    result = vtrace(*inputs, rho_clip=0.0, pg_rho_clip=1.0, lambda_=0.0)
    torch.testing.assert_close(result.vs, values)
    inputs[0] = torch.zeros_like(values)
    result = vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, lambda_=0.0)
    after = torch.cat([values[1:], bootstrap_value[None]])
    torch.testing.assert_close(result.vs, rewards + discounts * after)


def test_lambda_scales_the_traces(path):
    inputs = random_inputs(6, 3, seed=4)
    inputs[0] = -inputs[0].abs() - 0.1  # unclipped traces: lambda * c is what a lower ratio gives
    result = vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, lambda_=0.5)
    _, discounts, rewards, values, bootstrap_value = (tensor.numpy() for tensor in inputs)
    ratios = np.exp(inputs[0].numpy())
    after, later = bootstrap_value, np.zeros(3)
    for t in reversed(range(6)):
        later = ratios[t] * (rewards[t] + discounts[t] * after - values[t]) + (
            discounts[t] * 0.5 * ratios[t] * later
        )
        np.testing.assert_allclose(result.vs[t].numpy(), values[t] + later)
        after = values[t]


def test_advantages_use_their_own_clip(path):
    inputs = random_inputs(5, 3, seed=5)
    low, high = (from_importance_weights(*inputs, 1.0, clip) for clip in (0.5, 5.0))
    torch.testing.assert_close(low.vs, high.vs)
    assert (high.pg_advantages.abs() > low.pg_advantages.abs()).any()


# Episodes inside a fragment


def test_advantage_at_a_truncation_ignores_the_next_episode(path):
    # One row of an episode with V = 1 that is truncated, then an episode with V = 100.
    log_rhos, rewards = torch.zeros(2, 1), torch.zeros(2, 1)
    discounts, values = torch.ones(2, 1), torch.tensor([[1.0], [100.0]])
    result = vtrace(
        log_rhos,
        discounts,
        rewards,
        values,
        torch.tensor([100.0]),
        rho_clip=1.0,
        pg_rho_clip=1.0,
        truncations=torch.tensor([[True], [False]]),
        next_values=torch.tensor([[1.0], [NAN]]),
    )
    assert result.pg_advantages.tolist() == [[0.0], [0.0]]
    assert result.vs.tolist() == [[1.0], [100.0]]


def test_termination_wins_over_truncation(path):
    inputs = random_inputs(3, 2, seed=6)
    inputs[1][1] = 0.0
    plain = from_importance_weights(*inputs)
    flags = torch.zeros(3, 2, dtype=torch.bool)
    flags[1] = True
    ends = {"truncations": flags, "next_values": torch.full((3, 2), 1e6, dtype=torch.float64)}
    assert_close(vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, **ends), plain, atol=0, rtol=0)


def test_masked_row_is_a_row_with_log_rho_minus_infinity(path):
    inputs = random_inputs(5, 2, seed=7)
    mask = torch.ones(5, 2, dtype=torch.bool)
    mask[2, 0] = False
    masked = vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, mask=mask)
    inputs[0][2, 0] = -INF
    assert_close(masked, from_importance_weights(*inputs), atol=0, rtol=0)
    assert masked.vs[2, 0] == inputs[3][2, 0]
    assert masked.pg_advantages[2, 0] == 0


def test_flags_of_rank_two_apply_to_all_value_heads(path):
    inputs = random_inputs(4, 2, 3, seed=8)
    mask = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1]]).bool()
    ends = {"truncations": mask.roll(1, 0), "next_values": inputs[3] + 1}
    whole = vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, mask=mask, **ends)
    for head in range(3):
        ends["next_values"] = inputs[3][..., head] + 1
        one = [tensor[..., head] for tensor in inputs]
        alone = vtrace(*one, rho_clip=1.0, pg_rho_clip=1.0, mask=mask, **ends)
        assert_close([tensor[..., head] for tensor in whole], alone)


# Numbers that are not finite


def test_huge_ratio_is_clipped(path):
    inputs = random_inputs(4, 2, seed=9, dtype=torch.float32)
    inputs[0][1] = 0.0
    expected = from_importance_weights(*inputs)
    for log_rho in (100.0, 1e30, INF):
        inputs[0][1] = log_rho
        assert_close(from_importance_weights(*inputs), expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinite_ratio_without_threshold_is_never_nan(dtype, path):
    inputs = random_inputs(4, 2, seed=10, dtype=dtype)
    inputs[0][1] = INF
    inputs[0][2] = 1e30
    inputs[2][2] = inputs[3][2]
    inputs[1][2] = 0.0  # a temporal difference of exactly 0 times the largest ratio
    for tensor in from_importance_weights(*inputs, None, None):
        assert tensor.isfinite().all()


def test_row_that_is_no_transition_is_not_read(path):
    inputs = random_inputs(5, 2, seed=11)
    inputs[0][2] = -INF
    expected = from_importance_weights(*inputs)
    inputs[1][2], inputs[2][2] = INF, NAN
    assert_close(from_importance_weights(*inputs), expected)


def test_nothing_beyond_a_termination_is_read(path):
    inputs = random_inputs(5, 2, seed=12)
    inputs[1][1] = 0.0
    expected = from_importance_weights(*inputs)
    for index in (2, 3):
        inputs[index][2:] = NAN
    inputs[0][3] = INF
    inputs[4][:] = INF
    result = from_importance_weights(*inputs)
    assert_close([tensor[:2] for tensor in result], [tensor[:2] for tensor in expected])


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_nan_is_passed_on_to_its_own_column_and_no_other(index, path):
    inputs = random_inputs(5, 3, seed=13)
    inputs[1][:] = 0.9
    expected = from_importance_weights(*inputs)
    inputs[index][2, 1] = NAN
    result = from_importance_weights(*inputs)
    for given, wanted in zip(result, expected, strict=True):
        assert given[2, 1].isnan()
        torch.testing.assert_close(given[:, [0, 2]], wanted[:, [0, 2]])
        torch.testing.assert_close(given[3:], wanted[3:])
    assert result.vs[:3, 1].isnan().all()


@pytest.mark.parametrize("B", [3, 3000])
def test_results_whose_products_overflow_are_not_lost(B, path):
    inputs = random_inputs(3, B, seed=15, dtype=torch.float32)
    for which in (2, 3, 4):
        inputs[which] *= 1e25
    result = from_importance_weights(*inputs)
    wanted = oracle(*inputs, 1.0, 1.0)
    for given, expected in zip(result, wanted, strict=True):
        torch.testing.assert_close(given.double(), torch.as_tensor(expected), rtol=1e-4, atol=1e20)


@pytest.mark.parametrize("B", [3, 3000])
def test_nan_of_zero_times_infinity_is_found_in_few_rows_and_in_many(B, path):
    inputs = random_inputs(4, B, seed=16)
    inputs[0][1, B - 1] = -INF
    inputs[2][1, B - 1] = INF
    result = from_importance_weights(*inputs)
    assert result.vs[1, B - 1] == inputs[3][1, B - 1]
    assert result.pg_advantages[1, B - 1] == 0
    assert torch.isfinite(torch.stack(result)).all()


def test_infinite_reward_does_not_warn_and_stays_visible(path):
    inputs = random_inputs(3, 2, seed=14)
    inputs[1][:] = 0.9
    inputs[2][1, 0] = INF
    assert from_importance_weights(*inputs).vs[0, 0] == INF


# Shapes


def test_extra_dimensions_broadcast(path):
    log_rhos, discounts, *_ = random_inputs(4, 2, 1, seed=15)
    _, _, rewards, values, bootstrap_value = random_inputs(4, 2, 3, seed=16)
    inputs = (log_rhos, discounts, rewards, values, bootstrap_value)
    result = from_importance_weights(*inputs, 3.7, 2.2)
    assert result.vs.shape == result.pg_advantages.shape == (4, 2, 3)
    assert_close(result, oracle(*inputs, 3.7, 2.2))


def test_every_input_may_be_the_narrow_one(path):
    wide = random_inputs(3, 2, 4, 5, seed=17)
    for narrow in range(5):
        inputs = list(wide)
        inputs[narrow] = inputs[narrow][..., :1, :]
        result = from_importance_weights(*inputs)
        assert result.vs.shape == (3, 2, 4, 5)
        assert_close(result, oracle(*inputs, 1.0, 1.0))


def test_only_the_bootstrap_is_wide(path):
    inputs = random_inputs(3, 2, 1, seed=18)
    inputs[4] = random_inputs(3, 2, 4, seed=19)[4]
    result = from_importance_weights(*inputs)
    assert_close(result, oracle(*(tensor.expand(*tensor.shape[:-1], 4) for tensor in inputs), 1, 1))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0), (0, 3, 2), (4, 3, 0)])
def test_empty_inputs_give_empty_results(shape, path):
    rows = torch.zeros(shape)
    result = from_importance_weights(rows, rows, rows, rows, torch.zeros(shape[1:]))
    assert result.vs.shape == result.pg_advantages.shape == shape


@pytest.mark.parametrize(
    ("name", "shape", "rank"),
    [
        ("rewards", (4, 3), 2),  # unequal T
        ("log_rhos", (1, 3), 2),  # T that would broadcast
        ("discounts", (5, 1), 2),  # B that would broadcast
        ("values", (5, 4), 2),
        ("values", (6, 3), 2),  # as long as with the bootstrap appended
        ("rewards", (5, 3, 1), 2),
        ("discounts", (3,), 2),  # a rank that would broadcast
        ("discounts", (), 2),
        ("bootstrap_value", (1, 3), 1),
        ("bootstrap_value", (1,), 1),
        ("bootstrap_value", (), 1),
        ("bootstrap_value", (4,), 1),
    ],
)
def test_wrong_shape_is_refused_by_name(name, shape, rank):
    inputs = dict(zip(NAMES, random_inputs(5, 3), strict=True))
    wanted = list(inputs[name].shape)
    inputs[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ShapeError) as caught:
        from_importance_weights(**inputs)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert f"{wanted} (must have rank {rank}), got {list(shape)}" in message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bootstrap_value", (2,)),
        ("log_rhos", (4, 2)),
        ("rewards", (4, 2, 2)),
        ("values", (4, 1, 3)),
    ],
)
def test_wrong_shape_with_extra_dimensions_is_refused_by_name(name, shape):
    inputs = dict(zip(NAMES, random_inputs(4, 2, 3), strict=True))
    inputs[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ShapeError, match=f"^{name}: .* \\(must have rank "):
        from_importance_weights(**inputs)


def test_missing_batch_dimension_is_refused():
    rows = torch.zeros(5)
    with pytest.raises(ShapeError, match="rank 2"):
        from_importance_weights(rows, rows, rows, rows, torch.zeros(()))


@pytest.mark.parametrize(
    ("name", "shape"), [("mask", (4, 3)), ("truncations", (5,)), ("next_values", (5, 3, 2))]
)
def test_wrong_shape_of_an_episode_end_is_refused_by_name(name, shape):
    ends = {"truncations": torch.ones(5, 3).bool(), "next_values": torch.ones(5, 3)}
    ends[name] = torch.ones(shape)
    with pytest.raises(ShapeError, match=f"^{name}: "):
        vtrace(*random_inputs(5, 3), rho_clip=1.0, pg_rho_clip=1.0, **ends)


def test_flags_wider_than_the_results_are_refused():
    mask = torch.ones(5, 3, 4)
    with pytest.raises(ShapeError, match=r"^mask: "):
        vtrace(*random_inputs(5, 3, 1), rho_clip=1.0, pg_rho_clip=1.0, mask=mask)


@pytest.mark.parametrize("name", ["truncations", "next_values"])
def test_truncations_and_next_values_come_together(name):
    with pytest.raises(ShapeError, match="both or neither"):
        vtrace(*random_inputs(5, 3), rho_clip=1.0, pg_rho_clip=1.0, **{name: torch.ones(5, 3)})


# Thresholds


@pytest.mark.parametrize("make", [float, torch.tensor, np.float64, torch.nn.Parameter])
def test_threshold_may_be_a_number_or_a_tensor(make, path):
    threshold = make(torch.tensor(1.5)) if make is torch.nn.Parameter else make(1.5)
    inputs = random_inputs(5, 3)
    result = from_importance_weights(*inputs, threshold, threshold)
    assert_close(result, oracle(*inputs, 1.5, 1.5))
    assert not result.vs.requires_grad


def test_thresholds_default_to_one(path):
    inputs = random_inputs(5, 3)
    assert_close(from_importance_weights(*inputs), oracle(*inputs, 1.0, 1.0))


@pytest.mark.parametrize("threshold", [-0.1, NAN, torch.tensor(-1.0)])
@pytest.mark.parametrize("name", ["clip_rho_threshold", "clip_pg_rho_threshold"])
def test_impossible_threshold_is_refused_by_name(name, threshold):
    with pytest.raises(ConfigError, match=name):
        from_importance_weights(*random_inputs(5, 3), **{name: threshold})


def test_threshold_with_a_dimension_is_refused():
    with pytest.raises(ShapeError, match="clip_rho_threshold"):
        from_importance_weights(*random_inputs(5, 3), torch.ones(1))


# Dtype, device, gradient, memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype, path):
    inputs = random_inputs(5, 3, dtype=dtype)
    result = from_importance_weights(*inputs, 1.0, 1.0)
    assert [tensor.dtype for tensor in result] == [dtype, dtype]
    tolerance = 4 * torch.finfo(dtype).eps
    expected = oracle(*(tensor.double().numpy() for tensor in inputs), 1.0, 1.0)
    assert_close(result, expected, rtol=tolerance, atol=4 * tolerance)


def test_half_precision_is_computed_in_single_precision(path):
    # 2048 + 1 is 2048 in float16: a sum kept in float16 would stand still.
    rows = torch.ones(4096, 1, dtype=torch.float16)
    inputs = (0 * rows, rows, rows, 0 * rows, torch.zeros(1, dtype=torch.float16))
    assert from_importance_weights(*inputs).vs[0] == 4096


def test_mixed_dtypes_promote(path):
    inputs = random_inputs(5, 3)
    inputs[0] = inputs[0].bfloat16()
    inputs[1] = inputs[1] > 0.5
    inputs[2] = inputs[2].long()
    inputs[3] = inputs[3].float()
    inputs[4] = inputs[4].half()
    result = from_importance_weights(*inputs)
    assert result.vs.dtype == torch.float32
    expected = oracle(*(tensor.double().numpy() for tensor in inputs), 1.0, 1.0)
    assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_integers_give_the_default_dtype(path):
    rows = torch.ones(3, 2, dtype=torch.int64)
    result = from_importance_weights(rows, rows, rows, rows, rows[0])
    assert result.vs.dtype == torch.get_default_dtype()


def test_no_gradient_comes_out_and_no_input_changes(path):
    inputs = [tensor.requires_grad_() for tensor in random_inputs(5, 3)]
    before = [tensor.detach().clone() for tensor in inputs]
    mask = torch.tensor([[1], [0], [1], [1], [1]]).expand(5, 3)
    ends = {"truncations": mask, "next_values": inputs[3], "mask": mask}
    for result in (
        from_importance_weights(*inputs),
        vtrace(*inputs, rho_clip=1.0, pg_rho_clip=1.0, **ends),
    ):
        assert not result.vs.requires_grad
        assert not result.pg_advantages.requires_grad
        result.vs.zero_()
        result.pg_advantages.fill_(7.0)
    for tensor, copy in zip(inputs, before, strict=True):
        assert torch.equal(tensor.detach(), copy)
        assert tensor.grad is None


def test_results_share_no_memory_with_inputs(path):
    inputs = random_inputs(1, 3)
    inputs[0][:] = -INF
    values = inputs[3].clone()
    from_importance_weights(*inputs).vs.add_(1)
    assert torch.equal(inputs[3], values)


def test_memory_layout_does_not_matter(path):
    inputs = random_inputs(6, 4, seed=20)
    expected = from_importance_weights(*inputs)
    transposed = [tensor.t().contiguous().t() for tensor in inputs[:4]]
    strided = [tensor.repeat_interleave(2, -1)[..., ::2] for tensor in inputs]
    assert_close(from_importance_weights(*transposed, inputs[4]), expected)
    assert_close(from_importance_weights(*strided), expected)
    expanded = inputs[1][:, :1].expand(6, 4)
    inputs[1] = expanded
    assert_close(from_importance_weights(*inputs), oracle(*inputs, 1.0, 1.0))


def test_parameters_and_inference_tensors_are_taken():
    inputs = random_inputs(3, 2)
    expected = from_importance_weights(*inputs)
    with torch.inference_mode():
        inference = [tensor.clone() for tensor in inputs]
        assert_close(from_importance_weights(*inference), expected)
    assert_close(from_importance_weights(*inference), expected)
    inputs[3] = torch.nn.Parameter(inputs[3])
    assert_close(from_importance_weights(*inputs), expected)


def test_numpy_arrays_are_taken():
    inputs = random_inputs(3, 2)
    arrays = [tensor.numpy()[::-1].copy()[::-1] for tensor in inputs]
    for array in arrays:
        array.flags.writeable = False
    assert_close(from_importance_weights(*arrays), from_importance_weights(*inputs))


def test_device_is_kept_and_mixed_devices_are_refused():
    inputs = dict(zip(NAMES, random_inputs(3, 2), strict=True))
    meta = {name: tensor.to("meta") for name, tensor in inputs.items()}
    result = from_importance_weights(**meta)
    assert [tensor.device.type for tensor in result] == ["meta", "meta"]
    with pytest.raises(DeviceError, match=r"^rewards: expected device cpu as for values, got meta"):
        from_importance_weights(**{**inputs, "rewards": meta["rewards"]})


@pytest.mark.gpu
def test_cuda_equals_cpu():
    inputs = random_inputs(33, 4, seed=21)
    inputs[0][5] = -INF
    expected = from_importance_weights(*inputs)
    result = from_importance_weights(*(tensor.cuda() for tensor in inputs), torch.tensor(1.0))
    assert result.vs.is_cuda
    assert_close([tensor.cpu() for tensor in result], expected)


def test_compiles_without_graph_breaks():
    inputs = random_inputs(9, 2)
    compiled = torch.compile(from_importance_weights, backend="eager", fullgraph=True)
    assert_close(compiled(*inputs, 1.0, 1.0), oracle(*inputs, 1.0, 1.0))


# Logits and distributions


def categorical_log_probs(logits, actions):
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(log_probs, np.asarray(actions)[..., None], -1)[..., 0]


@pytest.mark.parametrize("B", [1, 2])
def test_from_logits_equals_importance_weights(B):
    T, K = 5, 3
    generator = torch.Generator().manual_seed(B)
    behaviour, target = torch.randn(2, T, B, K, generator=generator, dtype=torch.float64)
    actions = torch.randint(K, (T, B), generator=generator)
    _, *rest = random_inputs(T, B, seed=B)
    result = from_logits(behaviour, target, actions, *rest, None, None)
    expected_behaviour = categorical_log_probs(behaviour, actions)
    expected_target = categorical_log_probs(target, actions)
    np.testing.assert_allclose(result.behaviour_action_log_probs, expected_behaviour)
    np.testing.assert_allclose(result.target_action_log_probs, expected_target)
    np.testing.assert_allclose(result.log_rhos, expected_target - expected_behaviour, atol=1e-12)
    assert_close(result, oracle(expected_target - expected_behaviour, *rest, None, None))
    assert isinstance(result, VTraceFromLogitsReturns)
    assert result._fields == (
        *VTraceReturns._fields,
        "log_rhos",
        "behaviour_action_log_probs",
        "target_action_log_probs",
    )


def test_multi_discrete_ratio_is_the_product_over_heads():
    nvec = [2, 3, 4]
    generator = torch.Generator().manual_seed(0)
    behaviour, target = torch.randn(2, 5, 3, sum(nvec), generator=generator, dtype=torch.float64)
    actions = torch.stack([torch.randint(n, (5, 3), generator=generator) for n in nvec], -1)
    _, *rest = random_inputs(5, 3)
    log_rhos = sum(
        categorical_log_probs(t, a) - categorical_log_probs(b, a)
        for b, t, a in zip(
            behaviour.split(nvec, -1), target.split(nvec, -1), actions.unbind(-1), strict=True
        )
    )
    expected = oracle(log_rhos, *rest, 1.0, 1.0)
    heads = [tuple(behaviour.split(nvec, -1)), list(target.split(nvec, -1))]
    assert_close(from_logits(behaviour, target, actions, *rest, nvec=nvec), expected)
    assert_close(from_logits(behaviour, target, actions, *rest, nvec=np.array(nvec)), expected)
    assert_close(from_logits(*heads, actions, *rest), expected)
    assert_close(from_logits(*heads, actions.unbind(-1), *rest), expected)


def test_only_the_target_log_probs_carry_a_gradient():
    behaviour = torch.randn(4, 2, 3, requires_grad=True)
    target = torch.randn(4, 2, 3, requires_grad=True)
    actions = torch.zeros(4, 2, dtype=torch.int64)
    inputs = [tensor.requires_grad_() for tensor in random_inputs(4, 2, dtype=torch.float32)[1:]]
    result = from_logits(behaviour, target, actions, *inputs)
    assert [tensor.requires_grad for tensor in result] == [False, False, False, False, True]
    (result.pg_advantages * result.target_action_log_probs).sum().backward()
    assert target.grad is not None
    assert behaviour.grad is None
    assert all(tensor.grad is None for tensor in inputs)


def test_one_ratio_serves_all_value_heads():
    logits = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    actions = torch.zeros(4, 2, dtype=torch.int64)
    _, *rest = random_inputs(4, 2, 5)
    result = from_logits(*logits, actions, *rest)
    assert result.log_rhos.shape == (4, 2)
    assert_close(result, oracle(result.log_rhos[..., None], *rest, 1.0, 1.0))


def test_half_precision_logits_keep_small_ratios():
    logits = torch.tensor([0.0, 10.0, 20.0]).expand(3, 2, 3).bfloat16()
    shifted = logits.clone()
    shifted[..., 0] = 0.0625
    _, *rest = random_inputs(3, 2, dtype=torch.float32)
    result = from_logits(logits, shifted, torch.zeros(3, 2, dtype=torch.int64), *rest)
    torch.testing.assert_close(result.log_rhos, torch.full((3, 2), 0.0625), rtol=1e-3, atol=0)


def test_action_that_a_policy_forbids_has_ratio_zero_or_clipped():
    free, forbidden = torch.zeros(3, 2, 2), torch.tensor([-INF, 0.0]).expand(3, 2, 2)
    actions = torch.zeros(3, 2, dtype=torch.int64)
    _, *rest = random_inputs(3, 2, dtype=torch.float32)
    result = from_logits(free, forbidden, actions, *rest)
    torch.testing.assert_close(result.vs, rest[2])
    assert from_logits(forbidden, free, actions, *rest).vs.isfinite().all()


@pytest.mark.parametrize("reinterpreted", [False, True])
def test_box_ratio_is_summed_over_action_dimensions(reinterpreted):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(2, 4, 3, 2, 5, generator=generator, dtype=torch.float64)
    actions = torch.randn(4, 3, 2, 5, generator=generator, dtype=torch.float64)
    scales = torch.tensor([0.5, 0.7], dtype=torch.float64)
    policies = [Normal(mean, scale) for mean, scale in zip(means, scales, strict=True)]
    if reinterpreted:
        policies = [Independent(policy, 2) for policy in policies]
    _, *rest = random_inputs(4, 3)
    result = from_distributions(*policies, actions, *rest)
    z = [((actions - m) / s).numpy() for m, s in zip(means, scales, strict=True)]
    log_rhos = ((z[0] ** 2 - z[1] ** 2) / 2 + math.log(0.5 / 0.7)).sum((-1, -2))
    np.testing.assert_allclose(result.log_rhos, log_rhos, atol=1e-10)
    assert_close(result, oracle(log_rhos, *rest, 1.0, 1.0))


def test_dict_ratio_is_the_product_over_its_parts():
    generator = torch.Generator().manual_seed(0)

    def policy():
        a, b, c = (torch.randn(4, 3, 2, generator=generator) for _ in range(3))
        return {
            "move": Normal(a, 1.0),
            "keys": (Categorical(logits=b), {"inner": Categorical(logits=c)}),
        }

    behaviour, target = policy(), policy()
    pressed, inner = torch.randint(2, (2, 4, 3), generator=generator)
    actions = {"keys": (pressed, {"inner": inner}), "move": torch.randn(4, 3, 2)}

    def log_prob(p):
        return (
            p["move"].log_prob(actions["move"]).sum(-1)
            + p["keys"][0].log_prob(pressed)
            + p["keys"][1]["inner"].log_prob(inner)
        )

    _, *rest = random_inputs(4, 3, dtype=torch.float32)
    result = from_distributions(behaviour, target, actions, *rest)
    torch.testing.assert_close(result.target_action_log_probs, log_prob(target))
    torch.testing.assert_close(result.log_rhos, log_prob(target) - log_prob(behaviour))


def test_mask_reaches_from_logits_and_from_distributions():
    logits = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    logits[:, 1] = NAN
    actions = torch.zeros(4, 2, dtype=torch.int64)
    mask = torch.tensor([True, False, True, True])[:, None].expand(4, 2)
    _, *rest = random_inputs(4, 2)
    result = from_logits(*logits, actions, *rest, mask=mask)
    assert (result.log_rhos[1] == -INF).all()
    assert_close(result, oracle(result.log_rhos, *rest, 1.0, 1.0))


@pytest.mark.parametrize(
    ("policies", "actions"),
    [
        (Normal(torch.zeros(4, 3, 1), 1.0), torch.zeros(4, 3)),  # would broadcast
        (Normal(torch.zeros(4, 3), 1.0), torch.zeros(4, 3, 1)),
        (Normal(torch.zeros(4), 1.0), torch.zeros(4)),
        (Normal(torch.zeros(4, 3), 1.0), torch.zeros(())),
        (Normal(torch.zeros(4, 3), 1.0), {"a": torch.zeros(4, 3)}),
        ({"a": Normal(torch.zeros(4, 3), 1.0)}, {"b": torch.zeros(4, 3)}),
        ({"a": Normal(torch.zeros(4, 3), 1.0)}, torch.zeros(4, 3)),
        ([Normal(torch.zeros(4, 3), 1.0)], torch.zeros(4, 3, 2)),
        ([Normal(torch.zeros(4, 3), 1.0)], {"a": torch.zeros(4, 3)}),
    ],
)
def test_action_that_does_not_fit_its_policy_is_refused(policies, actions):
    _, *rest = random_inputs(4, 3)
    with pytest.raises(ShapeError, match=r"^actions: "):
        from_distributions(policies, policies, actions, *rest)


def test_logits_that_do_not_fit_are_refused():
    _, *rest = random_inputs(4, 3)
    logits, actions = torch.zeros(4, 3, 5), torch.zeros(4, 3, 2, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"^behaviour_logits: .*sum of nvec"):
        from_logits(logits, logits, actions, *rest, nvec=[2, 2])
    with pytest.raises(ShapeError, match=r"^actions: "):
        from_logits(logits, logits, actions, *rest)
    with pytest.raises(RlregError):
        from_logits((), (), actions, *rest)
