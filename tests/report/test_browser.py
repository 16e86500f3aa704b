"""The page in headless Chromium, without a network: `make test-browser`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.verification.report.page import render

from ..chromium import CONTRASTS, PATIENCE, chromium
from .test_page import several

pytestmark = pytest.mark.browser

A4_PIXELS = 794
"""The width of a sheet at 96 pixels an inch."""

BOXES = """() => [...document.querySelectorAll("svg.chart")].map(svg => {
  const outer = svg.getBoundingClientRect();
  const inside = [...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect());
  const drawn = [...svg.querySelectorAll("path, use, image")].map(p => p.getBoundingClientRect());
  return {
    label: svg.getAttribute("aria-label"), width: outer.width, height: outer.height,
    drawn: drawn.filter(b => b.width + b.height > 4).length,
    texts: inside.length,
    outside: inside.filter(b => b.left < outer.left - 2 || b.right > outer.right + 2
      || b.top < outer.top - 2 || b.bottom > outer.bottom + 2).length,
  };
})"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "report.html"
    path.write_text(render(several()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Open]:
    """The page, opened without a network; whatever it asks for or complains of fails the test."""
    contexts, complaints = [], []

    def note(request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            complaints.append(f"request: {request.url}")

    def opened(width: int = 1200, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, **options
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("request", note)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.goto(page_file.absolute().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def test_it_opens_without_a_network(open_page: Open) -> None:
    page = open_page()
    assert page.title() == "Deployment report: g2p-int8, failed, unknown"
    assert page.locator("h1").inner_text() == page.title()
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_it_can_be_read_without_scripts(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    text = page.inner_text("main")
    assert "g2p-int8: passed" in text and "failed: failed" in text
    assert "alert(1)" in text  # of a source, as text


def test_the_data_can_be_read_and_downloaded(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    inside = page.evaluate("JSON.parse(document.getElementById('report').textContent)")
    with page.expect_download() as waiting:
        page.click("a[download]")
    waiting.value.save_as(tmp_path / "report.json")
    assert waiting.value.suggested_filename == "report.json"
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == inside
    assert len(inside["bundles"]) == 3


@pytest.mark.parametrize("width", [320, 360, 600, 1200])
def test_nothing_scrolls_sideways_but_tables(open_page: Open, width: int) -> None:
    page = open_page(width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.scrollWidth") <= width
    boxes = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map(e => e.getBoundingClientRect().right)"
    )
    assert boxes and max(boxes) <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_contrast(open_page: Open, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG asks of small texts."""
    page = open_page(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 300
    assert [entry for entry in found if entry[1] < 4.5] == []


def test_dark_is_dark(open_page: Open) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(scheme=scheme).evaluate(colour) for scheme in ("light", "dark"))
    assert light == "rgb(255, 255, 255)"
    assert max(int(x) for x in dark.removeprefix("rgb(").rstrip(")").split(",")) < 60


@pytest.mark.parametrize("width", [360, 1200])
def test_charts_are_visible(open_page: Open, width: int) -> None:
    charts = open_page(width).evaluate(BOXES)
    # Speed, and of two bundles margins, three of sensitivity, attention.
    assert len(charts) == 4 + 2 * 5
    for chart in charts:
        assert chart["width"] > 150 and chart["height"] > 80, chart
        assert chart["drawn"] > 3 and chart["texts"] > 3, chart
        assert chart["outside"] == 0, chart


def test_marks_of_charts_contrast(open_page: Open) -> None:
    """Curves and bars stand out from the page, 3 to 1."""
    script = """scheme => {
      const style = getComputedStyle(document.documentElement);
      const light = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
      const paper = light(style.getPropertyValue("--paper").trim());
      return [1, 2, 3, 4, 5, 6].map(n => {
        const own = light(style.getPropertyValue("--series-" + n).trim());
        return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05);
      });
    }"""
    for scheme in ("light", "dark"):
        assert min(open_page(scheme=scheme).evaluate(script)) >= 3


def test_it_prints(open_page: Open, tmp_path: Path) -> None:
    page = open_page(scheme="dark")
    page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF") and data.count(b"/Type /Page\n") > 2
    page.emulate_media(media="print")
    page.set_viewport_size({"width": A4_PIXELS, "height": 1100})
    assert page.locator(".signature").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    refusals = page.get_by_text("the vocabulary of 42 is small").first
    assert refusals.is_visible()  # of a closed section
    assert page.evaluate("document.documentElement.scrollWidth") <= A4_PIXELS
    cut = "e => e.scrollWidth > e.clientWidth + 1"
    assert page.evaluate(f"[...document.querySelectorAll('table')].filter({cut}).length") == 0
    right = "[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)"
    assert max(page.evaluate(right)) <= A4_PIXELS


def test_it_can_be_read_with_the_keyboard(open_page: Open) -> None:
    """Boxes that scroll can be reached, and have names."""
    page = open_page(360)
    boxes = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map("
        "e => [e.tabIndex, e.getAttribute('role'), e.getAttribute('aria-label')])"
    )
    assert all(box[:2] == [0, "region"] and box[2] for box in boxes)
