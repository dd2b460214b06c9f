"""What docs/results.md says of IMPALA is computed from the results as its columns say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EVIDENCE = Path(__file__).resolve().parents[2] / "benchmarks" / "evidence"


@pytest.fixture(scope="module", autouse=True)
def evidence():
    sys.path.insert(0, str(EVIDENCE))
    yield
    sys.path.remove(str(EVIDENCE))


def cells(text):
    """The body of a Markdown table as lists of cells."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def peer(seed, *, reached, transitions, wall, evaluated=500.0):
    return {
        "seed": seed, "reached": reached, "transitions": transitions, "wall_s": wall,
        "with_start_s": wall + 2, "evaluated": evaluated, "version": "p 1",
    }  # fmt: skip


def test_a_program_is_summed_up_over_the_seeds_that_get_there():
    from report_impala_peers import peers_table

    runs = [
        peer(0, reached=True, transitions=100_000, wall=10.0),
        peer(1, reached=True, transitions=300_000, wall=20.0),
        peer(2, reached=True, transitions=160_000, wall=16.0),
        peer(3, reached=False, transitions=900_000, wall=75.0, evaluated=100.0),
    ]
    assert cells(peers_table({"P": {"runs": runs}})) == [
        ["P", "3 of 4", "160 (100 to 300)", "16.0 (10.0 to 20.0)", "18.0 (12.0 to 22.0)",
         "11,000", "400 (100 to 500)", "p 1"],
    ]  # fmt: skip


def test_a_program_that_never_gets_there_has_no_time_to_the_goal():
    from report_impala_peers import peers_table

    runs = [peer(0, reached=False, transitions=150_000, wall=75.0, evaluated=9.0)]
    assert cells(peers_table({"P": {"runs": runs}})) == [
        ["P", "0 of 1", "", "", "", "2,000", "9", "p 1"]
    ]


def test_engines_are_compared_with_the_sequential_one():
    from report_impala_engines import curves_of, engines_table

    def runs(values):
        return [
            {"seed": seed, "lag": 0.5, "curve": [[10, value], [20, value]]}
            for seed, value in enumerate(values)
        ]

    engines = {"sequential": runs([1.0, 2.0, 3.0]), "process": runs([1.5, 2.0, 2.5]),
               "ray": runs([9.0, 9.5, 10.0])}  # fmt: skip
    tasks = {"t": {"env": "E-v0", "engines": engines}}
    rows = cells(engines_table(tasks, {"t": curves_of(tasks["t"])}))
    assert [row[1:3] + row[-2:] for row in rows] == [
        ["sequential", "3", "", ""],
        ["process", "3", "2 of 2", "2 of 2"],
        ["ray", "3", "0 of 2", "0 of 2"],
    ]


def test_lags_of_a_swinging_policy_stand_beside_each_other_by_correction():
    from report_impala import swing_table

    def runs(*errors):
        return [{"seed": seed, "error": error} for seed, error in enumerate(errors)]

    table = swing_table(
        {
            "lag 0, clipped": runs(0.2),
            "lag 16, clipped": runs(1.1, 1.3),
            "lag 16, none": runs(1.6),
            "lag 4, clipped": runs(0.4),
            "lag 4, none": runs(0.5),
        }
    )
    assert cells(table) == [
        ["0", "0.20", "0.20"],
        ["4", "0.40", "0.50"],
        ["16", "1.20 (1.10 to 1.30)", "1.60"],
    ]


def test_a_row_of_the_tasks_names_what_differs_from_the_preset():
    from report_impala import settings_of

    row = {
        "preset": "impala/small",
        "settings": {"reward_scale": 0.1, "critic_encoder_factory": None},
        "engine": {"num_envs": 16},
    }
    assert settings_of(row) == (
        "`impala/small`, `reward_scale: 0.1`, `critic_encoder_factory: null`, `num_envs: 16`"
    )


@pytest.mark.parametrize(("bar", "value"), [(1.0, 5.0), (2.0, 20 / 3), (4.0, 8.0), (None, 8.0)])
def test_the_value_between_two_policies_is_that_of_the_paper(bar, value):
    # By hand: min(bar * 0.8, 0.2) and min(bar * 0.2, 0.8) for the two actions, of which the second
    # pays 1, over 1 - 0.9.
    from impala_offpolicy import of_acting_policy, true_value

    assert true_value(bar) == pytest.approx(value)
    assert of_acting_policy() == pytest.approx(2.0)


def test_a_reward_at_the_end_of_a_fragment_is_lost_with_the_last_row():
    from impala_ablations import DropsLastRow, late_reward

    kept = late_reward(5, 0)
    assert kept["true"] == pytest.approx(0.9**4)
    assert kept["value"] == pytest.approx(kept["true"], abs=0.01)
    assert late_reward(5, 0, DropsLastRow)["value"] < 0.4
