"""Driving Chromium: sizes, screenshots, the clipboard, and every request it makes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
]  # fmt: skip


class Browser:
    """A headless Chromium, driven by Debian's chromedriver."""

    def __init__(self, program: str, driver: str, profile: Path):
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.execute_cdp_cmd(
            "Browser.grantPermissions",
            {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
        )

    def open(self, path: Path, fragment: str = ""):
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + fragment)

    def resize(self, width: int, height: int, *, dark: bool = False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def picture(self, path: Path, *, full: bool = True):
        """Takes a screenshot, of the whole page by default."""
        options = {"captureBeyondViewport": full}
        if full:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            height = min(size["height"], 6000)
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Returns the address of every request since the last call."""
        messages = [json.loads(item["message"])["message"]
                    for item in self.driver.get_log("performance")]  # fmt: skip
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    # --- elements -------------------------------------------------------------------------------

    def find(self, css: str):
        wait = WebDriverWait(self.driver, 20)
        return wait.until(lambda driver: driver.find_element(By.CSS_SELECTOR, css))

    def text(self, css: str) -> str:
        return self.find(css).get_property("textContent")

    def wait_for(self, css: str, is_wanted):
        """Waits until the text of an element satisfies a condition."""
        try:
            WebDriverWait(self.driver, 10).until(lambda _: is_wanted(self.text(css)))
        except TimeoutException:
            raise AssertionError(f"{css} stays {self.text(css)!r}") from None

    def write(self, css: str, text: str):
        """Replaces the text of an input, as a person would."""
        element = self.find(css)
        element.send_keys(Keys.CONTROL, "a")
        element.send_keys(text)

    def choose(self, css: str, label: str):
        Select(self.find(css)).select_by_visible_text(label)

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def is_too_wide(self) -> bool:
        """Whether the page as a whole scrolls sideways."""
        return self.run("return document.documentElement.scrollWidth > window.innerWidth")
