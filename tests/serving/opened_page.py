"""The server's page, opened in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..chromium import PATIENCE
from .conftest import serving


class Pages:
    """Opens the page; whatever it asks others for, or complains of, is noted.

    Args:
        base: the address of the server
    """

    def __init__(self, browser: Any, base: str) -> None:
        self._browser, self.base = browser, base
        self._contexts: list[Any] = []
        self._complaints: list[str] = []

    def open(self, width: int = 1200, scheme: str = "light", **options: Any) -> Any:
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            **options,
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("request", self._note)
        page.on("console", lambda message: self._complaints.append(message.text))
        page.on("pageerror", lambda error: self._complaints.append(f"error: {error}"))
        page.goto(self.base)
        return page

    def close(self, *allowed: str) -> None:
        """
        Args:
            allowed: beginnings of complaints that are expected
        """
        for context in self._contexts:
            context.close()
        assert [one for one in self._complaints if not one.startswith(allowed)] == []

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", f"blob:{self.base}")):
            self._complaints.append(f"request: {request.url}")


@contextmanager
def pages_of(
    browser: Any, directories: dict[str, Path], *allowed: str, **options: Any
) -> Iterator[Pages]:
    """Pages of a server with bundles.

    Args:
        allowed: see `Pages.close`
        options: of the server
    """
    with serving(directories, **options) as client:
        pages = Pages(browser, str(client.base_url).rstrip("/"))
        try:
            yield pages
        finally:
            pages.close(*allowed)


def listed(page: Any, name: str | None = None) -> Any:
    """The page once it shows its bundles, with one of them chosen."""
    page.wait_for_selector("#about:not(:empty)")
    if name is not None:
        page.select_option("#bundle", name)
    return page


def run(page: Any, text: str | None = None) -> Any:
    """The page once it shows the whole output for a text; None: the text that it shows already."""
    if text is not None:
        page.fill("#source", text)
    page.click("#run")
    return done(page)


def done(page: Any) -> Any:
    page.wait_for_selector("#status:text-is('Done')")
    return page
