"""A report in a real browser: readable on a phone, accessible, and nothing from elsewhere."""

from __future__ import annotations

import os

import pytest
from test_site import violations

pytestmark = pytest.mark.browser

SETTINGS = [
    "train.n_steps=150", "train.n_steps_per_epoch=50", "evaluation.n_episodes=2",
    "evaluation.every=50", "batch_size=64", "compile=off",
]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two seeds with one setting and one run with another, on a small data set."""
    import rlreg
    from rlreg.runtime.data.generate import generate
    from rlreg.runtime.report import write_report

    folder = tmp_path_factory.mktemp("report")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "datasets")
    generate("rlreg/pendulum/mixed-v0", n_steps=2000)
    for name, override in {
        "cautious/seed-0": "seed=0", "cautious/seed-1": "seed=1", "greedy": "expectile=0.95",
    }.items():  # fmt: skip
        overrides = [*SETTINGS, override]
        rlreg.train("iql", out=folder / name, overrides=overrides, show_progress=False)
    runs = [folder / "cautious/seed-0", folder / "cautious/seed-1", folder / "greedy"]
    yield write_report(runs, folder / "report.html")
    if before is None:
        del os.environ["MINARI_DATASETS_PATH"]
    else:
        os.environ["MINARI_DATASETS_PATH"] = before


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_the_report_is_accessible_and_fits(browser, report, pictures, width, dark):
    browser.resize(width, 900, dark=dark)
    browser.open(report)
    assert violations(browser) == []
    assert not browser.is_too_wide()
    name = f"report-{width}{'-dark' if dark else ''}.png"
    browser.picture(pictures / name)
    assert os.path.getsize(pictures / name) > 30_000


def test_curves_stand_inside_their_frame_and_can_be_told_apart(browser, report):
    browser.open(report)
    boxes = browser.run(
        "return [...document.querySelectorAll('svg.chart')].map(chart => {"
        "const outer = chart.getBoundingClientRect();"
        "return [...chart.querySelectorAll('polyline, polygon')].every(line => {"
        "const box = line.getBoundingClientRect();"
        "return box.left >= outer.left && box.right <= outer.right"
        " && box.top >= outer.top - 1 && box.bottom <= outer.bottom })})"
    )
    assert len(boxes) > 5
    assert all(boxes)
    colors = browser.run(
        "return [...document.querySelectorAll('svg.chart')[0].querySelectorAll('.middle')]"
        ".map(line => getComputedStyle(line).stroke)"
    )
    assert len(set(colors)) == 2


def test_the_policies_move_and_numbers_can_be_opened(browser, report):
    browser.open(report)
    sizes = browser.run(
        "return [...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    assert sizes == [[True, 240], [True, 240]]
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true })")
    assert violations(browser) == []
