"""The status page in a real browser: nothing is executed, nothing breaks the layout, and everybody can read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.browser import DESK, MISSING, PHONE, chromium, colours, resize
from tests.support.status_page import HOSTILE, TIDY, grid, page, served
from tests.support.waiting import until
from tests.unit.core import REQUEST, name

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.slow]

PATHS = ("", f"pool/{TIDY}", f"template/{TIDY}", f"request/{REQUEST}", f"machine/{name(1)}", "pool/nothing")

FAINT = """
const light = colour => {
  const parts = colour.match(/[\\d.]+/g).map(Number);
  const [r, g, b] = parts.slice(0, 3).map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ground = one => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll('body *')].filter(one => [...one.childNodes].some(
    node => node.nodeType === 3 && node.textContent.trim())).map(one => {
  const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), one.textContent.trim().slice(0, 40)];
}).filter(([contrast]) => contrast < 4.5);
"""
"""Texts whose contrast is below what WCAG 2 asks for (4.5 to 1), by its formula."""

NAMELESS = """
return [...document.querySelectorAll('a, button, input:not([type=hidden]), progress, [role=img]')].filter(one =>
  !(one.textContent.trim() || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby'))
).map(one => one.outerHTML.slice(0, 80));
"""

WIDE = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(one =>
    one.getBoundingClientRect().right > edge + 1 && one.closest('thead')?.offsetWidth !== 1)
  .map(one => one.outerHTML.slice(0, 80));
"""
"""Script that finds parts beyond the right edge of the window, except heads of tables for screen readers alone."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the status page of a grid that has every kind of trouble."""
    with served(page(tmp_path_factory.mktemp("tidy"), *grid())) as url:
        yield url


def problems(driver: Chrome) -> list[dict[str, Any]]:
    """Return the browser's complaints, such as a style or a script that the policy forbids."""
    return [entry for entry in driver.get_log("browser") if "404" not in entry["message"]]


def test_each_page_is_legible_by_day_and_by_night_and_fits(browser: Chrome, site: str) -> None:
    for path in PATHS:
        browser.get(f"{site}/{path}?still")
        for scheme in ("light", "dark"):
            colours(browser, scheme)
            assert browser.execute_script(FAINT) == [], f"{path} {scheme}"
        assert browser.execute_script(NAMELESS) == [], path
        assert browser.execute_script("return document.documentElement.lang") == "en"
        fits(browser, path)
        assert problems(browser) == [], path


def fits(browser: Chrome, path: str) -> None:
    """Assert that no element of the page reaches beyond the right edge of the window, on a phone and on a desktop
    screen."""
    for size in (PHONE, DESK):
        resize(browser, size)
        assert browser.execute_script("return innerWidth") == size[0]
        assert browser.execute_script(WIDE) == [], path[:40]


def test_the_style_is_applied_and_no_script_can_be(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/?still")
    assert browser.find_element(By.CSS_SELECTOR, "section").value_of_css_property("border-radius") == "10px"
    browser.execute_script(
        "const s = document.createElement('script'); s.text = 'window.owned = 1'; document.body.append(s)"
    )
    assert browser.execute_script("return window.owned") is None
    assert "Content Security Policy" in json.dumps(browser.get_log("browser"))


def test_links_lead_from_pool_to_machine_and_filters_work(browser: Chrome, site: str) -> None:
    resize(browser, PHONE)
    browser.get(f"{site}/?still")
    browser.find_element(By.LINK_TEXT, REQUEST).click()
    assert browser.title == f"Request {REQUEST}"
    browser.find_element(By.NAME, "find").send_keys("000002\n")
    until(lambda: browser.current_url.endswith("?find=000002"), 10, what="the filter's page is there")
    browser.find_element(By.LINK_TEXT, name(2)).click()
    assert browser.title == f"Machine {name(2)}"
    browser.find_element(By.LINK_TEXT, "All pools").click()
    assert browser.title == "! demoinst: provisioner status"
    assert browser.find_elements(By.CSS_SELECTOR, "meta[http-equiv=refresh]"), "it refreshes itself"
    browser.find_element(By.LINK_TEXT, "stop").click()
    assert not browser.find_elements(By.CSS_SELECTOR, "meta[http-equiv=refresh]")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_text_and_break_nothing(browser: Chrome, tmp_path: Path, kind: str) -> None:
    word = HOSTILE[kind].replace("\ud800", "")
    at = quote(word, safe="")
    with served(page(tmp_path, *grid(word))) as url:
        for path in ("", f"pool/{at}", f"machine/{at}"):
            browser.get(f"{url}/{path}?still")
            assert "owned" not in browser.title.split("<")[0]
            assert browser.execute_script("return document.scripts.length + document.images.length") == 0
            assert problems(browser) == []
            fits(browser, path)
