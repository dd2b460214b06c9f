"""docs/results.md and its pictures say what the committed results say."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "benchmarks" / "evidence"


@pytest.fixture(scope="module")
def report():
    sys.path.insert(0, str(EVIDENCE))
    try:
        import report

        yield report
    finally:
        sys.path.remove(str(EVIDENCE))


def test_the_tables_of_the_page_are_those_of_the_results(report):
    tables, _ = report.render()
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.filled(page, tables) == page, "run `python benchmarks/evidence/report.py`"


def test_the_pictures_are_those_of_the_results_and_the_page_shows_each(report):
    _, pictures = report.render()
    page = report.PAGE.read_text(encoding="utf-8")
    others = {path.stem for path in report.PICTURES.glob("*.svg")} - set(pictures)
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(f"](pictures/{name}.svg)" in performance for name in others)
    for name, text in pictures.items():
        assert (report.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == text
        assert f"](pictures/{name}.svg)" in page
        ElementTree.fromstring(text)  # a browser shows nothing of one that is broken


def test_another_figure_in_the_results_changes_the_page(report, tmp_path):
    for path in report.RESULTS.glob("evidence_*.json"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    target = tmp_path / "evidence_pointmaze.json"
    document = json.loads(target.read_text(encoding="utf-8"))
    document["references"]["umaze"]["controller"] += 1
    target.write_text(json.dumps(document), encoding="utf-8")
    tables, pictures = report.render(tmp_path)
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.filled(page, tables) != page
    assert pictures["pointmaze-umaze"] != report.render()[1]["pointmaze-umaze"]


def test_the_preset_for_mazes_is_the_candidate_that_was_chosen(report):
    import rlreg

    document = json.loads((report.RESULTS / "evidence_pointmaze.json").read_text(encoding="utf-8"))
    settings = document["settings"]
    record = next(r for r in rlreg.list_presets("iql") if r.preset.id == "iql/pointmaze")
    for name, value in settings["candidates"][settings["chosen"]].items():
        assert record.preset.settings.get(f"learnable.{name}") == value, name


def test_a_peers_policy_reads_observations_in_the_order_of_rlregs_columns(report):
    import numpy as np
    import torch
    from gymnasium import spaces
    from pointmaze_task import flatten, tanh_policy

    from rlreg.runtime.spaces import FlatteningPlan

    sizes = {"observation": 4, "desired_goal": 2, "achieved_goal": 2}
    boxes = {key: spaces.Box(-np.inf, np.inf, (size,)) for key, size in sizes.items()}
    rng = np.random.default_rng(0)
    batch = {key: rng.normal(size=(5, size)) for key, size in sizes.items()}
    rows = flatten(batch)
    np.testing.assert_allclose(
        rows, FlatteningPlan.of(spaces.Dict(boxes)).flatten(batch), rtol=1e-6
    )

    layers = [torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.Tanh())
    weights = [(p.weight.detach().numpy().T, p.bias.detach().numpy()) for p in layers]
    expected = network(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(tanh_policy(weights)(batch), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("other", "meet", "inside"),
    [([1.0, 2.0, 3.0], 2, 2), ([2.5, 3.0, 4.0], 2, 0), ([9.0, 9.5, 10.0], 0, 0)],
)
def test_curves_agree_where_their_intervals_do(report, other, meet, inside):
    from report_pointmaze import agreement
    from svg_panels import curve

    def seeds(values):
        return curve("x", 0, [[(1.0, value), (2.0, value)] for value in values])

    assert agreement(seeds([1.0, 2.0, 3.0]), seeds(other)) == (meet, inside, 2)


def job_file(work, name, **document):
    document = {"versions": {"rlreg": "0.1.0"}, **document}
    (work / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def maze_run(work, name, mean_return, updates):
    final = {"mean_return": mean_return, "success_rate": 1.0}
    job = {"name": name, "kind": "bc", "maze": "umaze", "updates": updates}
    job_file(work, name, job=job, final=final, curve=[], cpu_s=1.0)


def test_runs_of_another_machine_are_added_to_the_results_and_replace_their_like(report, tmp_path):
    from pointmaze_collect import collect
    from pointmaze_jobs import HALF_HOUR

    known = json.loads((report.RESULTS / "evidence_pointmaze.json").read_text(encoding="utf-8"))
    levels = known["references"]["umaze"]
    middle = (levels["controller"] + levels["random"]) / 2
    maze_run(tmp_path, "umaze-bc-120k-0", middle, HALF_HOUR)
    maze_run(tmp_path, "umaze-bc-120k-99", middle, HALF_HOUR)
    # Another measurement of what the old scores were measured with does not move the new ones.
    job = {"name": "umaze-references", "kind": "references", "maze": "umaze"}
    job_file(tmp_path, "umaze-references", job=job, controller=1e6, random=0.0)
    together = collect(tmp_path, known)
    assert together["references"] == known["references"]
    assert together["runs"] == known["runs"]
    before = {(r["maze"], r["group"], r["seed"]): r for r in known["half_hour_runs"]}
    after = {(r["maze"], r["group"], r["seed"]): r for r in together["half_hour_runs"]}
    changed = {place for place in after if after[place] != before.get(place)}
    assert changed == {("umaze", "bc", 0), ("umaze", "bc", 99)}
    assert len(after) == len(before) + 1
    assert after["umaze", "bc", 99]["score"] == pytest.approx(50)


def test_runs_on_other_data_are_not_added(report, tmp_path):
    from pointmaze_collect import collect

    known = json.loads((report.RESULTS / "evidence_pointmaze.json").read_text(encoding="utf-8"))
    job = {"name": "umaze-data", "kind": "data", "maze": "umaze"}
    job_file(tmp_path, "umaze-data", job=job, **{**known["data"]["umaze"], "content_hash": "0"})
    with pytest.raises(SystemExit, match="rlreg/pointmaze/umaze-v0 is not the data set"):
        collect(tmp_path, known)
