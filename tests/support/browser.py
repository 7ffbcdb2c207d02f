"""Debian's Chromium without a screen, driven by its own chromedriver; nothing is downloaded."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

MISSING = "" if CHROMIUM and DRIVER else "needs chromium: Debian's packages chromium and chromium-driver"
"""Reason why a test cannot have a browser; empty if it can."""

PHONE, DESK = (360, 740), (1280, 900)
"""Width and height of a small phone and of a screen, in CSS pixels."""


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """Yield a new browser. It keeps its files in ``profile`` and records the log messages of pages."""
    options = Options()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "headless=new",
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{argument}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses to be root's
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Chrome, size: tuple[int, int]) -> None:
    """Set the size of the page in CSS pixels. It may be a phone's size, although no desktop window can be so narrow."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def colours(driver: Chrome, scheme: str) -> None:
    """Set the colour scheme that the browser's user prefers: ``dark`` or ``light``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def picture(driver: Chrome) -> bytes:
    """Return the whole page as PNG."""
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    return base64.b64decode(shot["data"])
