"""The committed table of speeds, and the guard that fails when one falls."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_says_what_the_results_say():
    done = run("report.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_guard_names_what_fell(tmp_path):
    floors = json.loads((BENCHMARKS / "floors.json").read_text(encoding="utf-8"))
    name = "IQL: update / drawing its batch"
    wanted = dict.fromkeys(floors, 0.0) | {name: 1e9}
    path = tmp_path / "floors.json"
    path.write_text(json.dumps(wanted), encoding="utf-8")
    done = run("guard.py", "--repeats", "2", "--floors", str(path))
    assert done.returncode == 3, done.stderr
    fallen = [line for line in done.stdout.splitlines() if line.endswith("FELL")]
    assert [line.startswith(name) for line in fallen] == [True]
    del wanted[name]
    path.write_text(json.dumps(wanted), encoding="utf-8")
    assert run("guard.py", "--repeats", "2", "--floors", str(path)).returncode == 2


# --- how costs grow -------------------------------------------------------------------------------


@pytest.fixture
def scripts(monkeypatch):
    """Lets benchmarks be imported, which are scripts and no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_that_power(scripts, power):
    scaling = scripts("scaling")
    sizes = [1, 3, 10, 40]
    assert scaling.exponent(sizes, [7.0 * size**power for size in sizes]) == pytest.approx(power)


def test_exponents_are_summed_up_over_rounds_and_at_the_end(scripts):
    scaling = scripts("scaling")
    # Flat, then in proportion; the second round costs twice as much and grows alike.
    found = scaling.exponents({1: [3.0, 6.0], 10: [3.0, 6.0], 100: [30.0, 60.0]})
    assert found["exponent_at_the_end"]["median"] == pytest.approx(1.0)
    # By hand: x = -1, 0, 1 and y = 0, 0, 1 in tens, slope 1/2.
    assert found["exponent"]["median"] == pytest.approx(0.5)
    assert found["exponent"]["quartile_1"] == pytest.approx(0.5)


SIMULATED = {  # timings, cluster, updates a second, bottleneck
    "one actor, learning is free": ({"fill": 0.5}, {"actors": 1, "slots": 3}, 2.0, "actors"),
    "waiting counts as acting": (
        {"fill": 0.25, "fill_wait": 0.75}, {"actors": 1, "slots": 3}, 1.0, "actors",
    ),
    "four actors, four times as fast": (
        {"fill": 0.5}, {"actors": 4, "slots": 5}, 8.0, "actors",
    ),
    "four actors on two cores": (
        {"fill": 0.5}, {"actors": 4, "slots": 5, "cores": 2}, 4.0, "actors",
    ),
    "waiting needs no core": (
        {"fill": 0.0, "fill_wait": 0.5}, {"actors": 4, "slots": 5, "cores": 1}, 8.0, "actors",
    ),
    "the learner is the limit": (
        {"fill": 0.1, "learn": 0.5}, {"actors": 8, "slots": 9}, 2.0, "learner",
    ),
    "learner and actor share one core": (  # 0.4 s side by side, then 0.1 s of the actor alone
        {"fill": 0.3, "learn": 0.2}, {"actors": 1, "slots": 3, "cores": 1}, 2.0, "actors",
    ),
    "booking is the limit": (  # get, submit, put, twice look, and look and watch for the batch
        {"fill": 0.1, "get": 0.1, "submit": 0.1, "put": 0.1, "look": 0.05, "watch": 0.05,
         "ticket": 0.05, "learn": 0.05},
        {"actors": 8, "slots": 9, "probe_every": 0.0}, None, "driver",
    ),
    "fragments fill the network": (  # eight side by side take 4 s, then 0.1 s to make the next
        {"fill": 0.1, "fragment_bytes": 1e9},
        {"actors": 8, "slots": 9, "actors_per_node": 4, "bandwidth": 2e9}, 8 / 4.1, "network",
    ),
    "weights go to each machine once": (
        {"fill": 0.001, "weight_bytes": 1e9, "learn": 0.001},
        {"actors": 4, "slots": 5, "actors_per_node": 4, "bandwidth": 1e9}, None, "network",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SIMULATED.values(), ids=SIMULATED)
def test_the_simulation_gives_what_a_hand_computes(scripts, case):
    simulated = scripts("event_simulation")
    timings, cluster, rate, bottleneck = case
    made = simulated.Simulation(simulated.Timings(**timings), simulated.Cluster(**cluster))
    outcome = made.run(2000)
    assert outcome.bottleneck == bottleneck
    if rate is not None:
        assert outcome.updates_per_s == pytest.approx(rate, rel=0.02)
    assert outcome.learning + outcome.driving + outcome.waiting == pytest.approx(1.0, abs=0.01)
    assert 0 <= outcome.network <= 1.001
    assert 0 <= outcome.actors <= 1.001


def test_a_driver_that_books_takes_the_sum_of_its_calls(scripts):
    simulated = scripts("event_simulation")
    timings, cluster, *_ = SIMULATED["booking is the limit"]
    made = simulated.Simulation(simulated.Timings(**timings), simulated.Cluster(**cluster))
    outcome = made.run(2000)
    # An update: learn, put, ticket, get, submit, two looks; a third look and a watch only where
    # the queue was empty, which it may be at any update or at none.
    least = 0.05 + 0.1 + 0.05 + 0.1 + 0.1 + 2 * 0.05
    assert 1 / (least + 0.1) <= outcome.updates_per_s <= 1 / least + 1e-9
