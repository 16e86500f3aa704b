"""Headless Chromium, for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--disable-gpu", "--no-first-run", "--no-sandbox", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE = 300_000
"""Milliseconds until a machine that has other work is given up on."""

CONTRASTS = """() => {
  const scale = text => text.startsWith("color(srgb") ? 255 : 1;
  const number = text => (text.match(/[\\d.]+/g) || []).map(x => x * scale(text));
  const light = ([r, g, b]) => [r, g, b]
    .map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = number(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const own = element => [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  return [...document.body.querySelectorAll("*")]
    .filter(e => own(e) && e.tagName !== "SCRIPT" && e.checkVisibility())
    .map(e => {
      const style = getComputedStyle(e), svg = e instanceof SVGElement;
      const a = light(number(svg ? style.fill : style.color)), b = light(behind(e));
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return [e.tagName + "." + e.getAttribute("class") + " " + e.textContent.slice(0, 30), ratio];
    });
}"""
"""Of every element with text of its own: which it is, and its contrast (WCAG 2.2)."""


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """A browser, with flags beside the usual ones."""
    from playwright.sync_api import sync_playwright

    name = os.environ.get("DRAGOMAN_BROWSER") or next(filter(shutil.which, NAMES), None)
    assert name, "expected Chromium, found none: apt-get install chromium, or DRAGOMAN_BROWSER=path"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which(name), args=[*FLAGS, *flags], timeout=PATIENCE
        )
        yield opened
        opened.close()
