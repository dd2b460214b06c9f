"""V-trace of any fragment equals, row by row, V-trace of the episodes in it computed alone."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlreg_impala import vtrace as vtrace_module
from rlreg_impala.vtrace import from_importance_weights, vtrace
from rlreg_impala.vtrace_arrays import solve_in_place

INF = math.inf
CLIPS = (1.3, 0.8)
DISCOUNT = 0.97


@dataclass
class Episode:
    """Some consecutive transitions; ``final_value`` is that of the observation after the last."""

    log_rhos: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    final_value: float
    end: str  # terminated, truncated, both, or cut: goes on after the fragment

    @property
    def discounts(self):
        discounts = np.full(len(self.values), DISCOUNT)
        if self.end in ("terminated", "both"):
            discounts[-1] = 0.0
        return discounts

    def alone(self):
        """The definition as a double sum, for one column."""
        T = len(self.values)
        ratios = np.exp(self.log_rhos)
        rhos, cs = np.minimum(CLIPS[0], ratios), np.minimum(1.0, ratios)
        after = np.append(self.values[1:], self.final_value)
        deltas = rhos * (self.rewards + self.discounts * after - self.values)
        factors = self.discounts * cs
        vs = [
            self.values[s] + sum(np.prod(factors[s:t]) * deltas[t] for t in range(s, T))
            for s in range(T)
        ]
        vs_after = np.append(vs[1:], self.final_value)
        advantages = np.minimum(CLIPS[1], ratios) * (
            self.rewards + self.discounts * vs_after - self.values
        )
        return np.array(vs), advantages


@st.composite
def episodes(draw, last):
    length = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 100.0]))  # a leak from a neighbour should show
    ends = ["terminated", "truncated", "both"] + ["cut"] * last
    return Episode(
        log_rhos=rng.normal(size=length),
        rewards=rng.normal(size=length),
        values=scale * rng.normal(size=length),
        final_value=scale * rng.normal(),
        end=draw(st.sampled_from(ends)),
    )


fragments = st.tuples(st.lists(episodes(False), max_size=4), episodes(True)).map(
    lambda pair: [*pair[0], pair[1]]
)


def column(array):
    return torch.tensor(np.concatenate(array), dtype=torch.float64)[:, None]


@pytest.fixture(scope="module", params=["cpu", "accelerator"], autouse=True)
def path(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "accelerator":
            patch.setattr(vtrace_module, "_returns", vtrace_module._recursion)
        yield


def assert_rows_equal(result, expected):
    for given_rows, wanted in zip(result, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(given_rows[:, 0], np.concatenate(wanted), 1e-9, 1e-9)


@settings(max_examples=60, deadline=None)
@given(fragments, st.booleans(), st.booleans())
def test_next_step_fragment_equals_its_episodes(fragment, starts_with_reset, use_mask):
    """After an end comes a row with the last observation, an ignored action and reward 0."""
    noise = np.random.default_rng(0)
    pieces, expected = [], []

    def reset_row(value):
        # The action is ignored, so its ratio is noise where a mask says so; the flags are false.
        log_rho = noise.normal() if use_mask else -INF
        pieces.append(([log_rho], [DISCOUNT], [0.0], [value], [False]))
        expected.append((np.array([value]), np.array([0.0])))

    if starts_with_reset:
        reset_row(-50.0)
    for episode in fragment:
        length = len(episode.values)
        rows = (episode.log_rhos, episode.discounts, episode.rewards, episode.values)
        pieces.append((*rows, [True] * length))
        expected.append(episode.alone())
        if episode is not fragment[-1]:
            reset_row(episode.final_value)
    *inputs, mask = (column(parts) for parts in zip(*pieces, strict=True))
    # Whether the last episode ended or not, the observation after the last row is its own.
    bootstrap_value = torch.tensor([fragment[-1].final_value], dtype=torch.float64)
    if use_mask:
        result = vtrace(
            *inputs, bootstrap_value, rho_clip=CLIPS[0], pg_rho_clip=CLIPS[1], mask=mask.bool()
        )
    else:
        result = from_importance_weights(*inputs, bootstrap_value, *CLIPS)
    assert_rows_equal(result, expected)


@settings(max_examples=60, deadline=None)
@given(fragments, st.booleans())
def test_same_step_fragment_equals_its_episodes(fragment, by_reward):
    """After an end comes the first row of the next episode; the last observation has no row."""
    rows = [(e.log_rhos, e.discounts, e.rewards, e.values) for e in fragment]
    inputs = [column(parts) for parts in zip(*rows, strict=True)]
    lasts = np.cumsum([len(e.values) for e in fragment]) - 1
    truncations = torch.zeros(len(inputs[0]), 1, dtype=torch.bool)
    next_values = torch.full((len(inputs[0]), 1), math.nan, dtype=torch.float64)
    for row, episode in zip(lasts, fragment, strict=True):
        truncations[row] = episode.end in ("truncated", "both")
        next_values[row] = episode.final_value
    # The environment is reset at the end of the fragment too: the bootstrap is another episode's.
    last = fragment[-1]
    bootstrap = last.final_value if last.end == "cut" else 1e4
    bootstrap_value = torch.tensor([bootstrap], dtype=torch.float64)
    if by_reward:
        log_rhos, discounts, rewards, values = inputs
        rewards = rewards + torch.where(truncations, discounts * next_values, 0.0)
        discounts = torch.where(truncations, 0.0, discounts)
        result = from_importance_weights(
            log_rhos, discounts, rewards, values, bootstrap_value, *CLIPS
        )
    else:
        ends = {"truncations": truncations, "next_values": next_values}
        clips = {"rho_clip": CLIPS[0], "pg_rho_clip": CLIPS[1]}
        result = vtrace(*inputs, bootstrap_value, **clips, **ends)
    assert_rows_equal(result, [episode.alone() for episode in fragment])


@settings(max_examples=40, deadline=None)
@given(episodes(False), episodes(True), st.sampled_from([0.0, 0.5, 1.0]))
def test_two_episodes_in_one_fragment_equal_two_fragments(first, second, lambda_):
    first.end = "terminated"
    parts = [
        [column([x]) for x in (e.log_rhos, e.discounts, e.rewards, e.values)]
        for e in (first, second)
    ]
    bootstraps = [torch.tensor([e.final_value], dtype=torch.float64) for e in (first, second)]
    clips = {"rho_clip": 1.0, "pg_rho_clip": None, "lambda_": lambda_}
    whole = vtrace(*(torch.cat(pair) for pair in zip(*parts, strict=True)), bootstraps[1], **clips)
    alone = [
        vtrace(*inputs, bootstrap, **clips)
        for inputs, bootstrap in zip(parts, bootstraps, strict=True)
    ]
    for given_rows, pair in zip(whole, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(given_rows, torch.cat(pair), rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(0, 150),
    rows_alive=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_scans_solve_the_recursion(length, rows_alive, seed):
    rng = np.random.default_rng(seed)
    terms = rng.normal(size=(length, 2, 3))
    coefficients = rng.uniform(size=(length, 2, 1)) * (
        rng.uniform(size=(length, 2, 1)) < rows_alive
    )
    expected, later = terms.copy(), 0.0
    for t in reversed(range(length)):
        expected[t] += coefficients[t] * later
        later = expected[t]
    solved = vtrace_module._scan(torch.tensor(terms), torch.tensor(coefficients))
    np.testing.assert_allclose(solved, expected, 1e-9, 1e-9)
    solve_in_place(terms, coefficients)
    np.testing.assert_allclose(terms, expected, 1e-9, 1e-9)
