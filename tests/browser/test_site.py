"""The reference in a real browser: accessible, readable on a phone, and nothing from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "builder/node_modules/axe-core/axe.min.js"
PAGES = [
    "index",
    "run",
    "builder",
    "learnables/iql",
    "learnables/impala",
    "components/encoder.vector",
    "components/logger.jsonl",
    "kinds/encoder",
    "guides/architecture",
    "guides/rlreg-iql",
]


def violations(browser) -> list[str]:
    """Runs axe in the page; every rule that it has counts."""
    assert AXE.exists(), "run `make test-browser`: it installs axe-core"
    # A page's policy forbids foreign scripts; the debugger may still run one.
    browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
    found = browser.driver.execute_async_script(
        "const [done] = arguments;"
        "axe.run({preload: false}).then(result => done(result.violations), e => done(String(e)))"
    )
    assert isinstance(found, list), found
    return [
        f"{item['id']}: {node['html'][:200]} {node['failureSummary']}"
        for item in found
        for node in item["nodes"]
    ]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_pages_are_accessible_and_fit(browser, site, page, width, dark):
    browser.resize(width, 900, dark=dark)
    browser.open(site / f"{page}.html")
    if page == "builder":
        browser.find("#root_learnable_gamma")
        browser.run("document.querySelectorAll('details').forEach(item => { item.open = true })")
    assert violations(browser) == []
    assert not browser.is_too_wide()


@pytest.mark.parametrize(("width", "is_beside"), [(1280, True), (400, False)])
def test_the_list_of_sections_stands_beside_or_above_the_text(browser, site, width, is_beside):
    browser.resize(width, 900)
    browser.open(site / "guides/tutorial-practitioner.html")
    nav, text = browser.run(
        "return ['.contents', '.article'].map(css => document.querySelector(css)"
        ".getBoundingClientRect().toJSON())"
    )
    assert (nav["left"] >= text["right"]) is is_beside
    assert (nav["bottom"] <= text["top"]) is not is_beside
    browser.run("document.querySelector('.contents a:last-child').click()")
    assert browser.run("return location.hash") == "#look-around"


def test_the_builder_is_accessible_when_something_is_wrong(browser, site):
    browser.open(site / "builder.html", "#iql")
    browser.find("#root_learnable_n_critics").send_keys("000")
    browser.wait_for("#problems", lambda text: "n_critics" in text)
    assert violations(browser) == []


def test_equations_are_set_by_the_browser(browser, site):
    browser.open(site / "learnables/iql.html")
    heights = browser.run(
        "return [...document.querySelectorAll('math')].map(item => item.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(heights) >= 3
    assert all(width > 5 and height > 5 for width, height in heights)
    assert "\\left" not in browser.run("return document.querySelector('main').innerText")


PICTURES = [
    "index",
    "learnables/iql",
    "learnables/impala",
    "run",
    "guides/tutorial-practitioner",
]


@pytest.mark.parametrize("page", PICTURES)
@pytest.mark.parametrize("width", [1280, 400])
def test_pictures_of_the_site(browser, site, pictures, page, width):
    browser.resize(width, 900)
    browser.open(site / f"{page}.html")
    name = f"{page.replace('/', '-')}-{width}.png"
    browser.picture(pictures / name)
    assert os.path.getsize(pictures / name) > 10_000
