"""A real headless Chromium, and the site it looks at."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
REPOSITORY = Path(__file__).parents[2]
BUNDLE = REPOSITORY / "rlreg/reference/builder_dist/builder.js"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site that `make docs` makes, with the builder."""
    from rlreg.reference.build import build_reference

    assert BUNDLE.exists(), "run `make test-browser`: it makes the builder"
    folder = tmp_path_factory.mktemp("site") / "site"
    guides = ["docs", "README.md", "plugins/rlreg-iql/README.md", "plugins/rlreg-impala/README.md"]
    build_reference(folder, guides=[REPOSITORY / guide for guide in guides])
    return folder


@pytest.fixture(scope="session")
def pictures():
    """Where screenshots go, for people to look at: `site-pictures/`, which git ignores."""
    folder = REPOSITORY / "site-pictures"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One browser for all tests, in a profile of its own."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "run `make test-browser`: it installs chromium"
    assert driver, "run `make test-browser`: it installs chromium-driver"
    # Imported late: whoever collects all tests need not have selenium.
    from pictures import Browser

    browser = Browser(program, driver, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium):
    """The browser, at 1280 x 900; no page may ask for anything but files of the site."""
    chromium.resize(1280, 900)
    chromium.requests()
    chromium.driver.get("about:blank")
    yield chromium
    foreign = [url for url in chromium.requests() if not url.startswith(("file://", "data:"))]
    assert foreign == []
    errors = [json.dumps(entry) for entry in chromium.driver.get_log("browser")
              if entry["level"] == "SEVERE"]  # fmt: skip
    assert errors == []
