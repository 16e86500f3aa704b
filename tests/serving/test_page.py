"""The page for texts in headless Chromium, without any other server: `make test-browser`."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import Model
from dragoman.runtime.decoding.results import Result, Token
from dragoman.runtime.serving.models import ServedModel
from dragoman.runtime.serving.service import Service
from dragoman.settings.generation import GenerationOptions

from ..chromium import CONTRASTS, PATIENCE, chromium
from .opened_page import Pages, done, listed, pages_of, run

pytestmark = pytest.mark.browser

WORD = "dragoman"
GREEDY = {"num_beams": 1, "do_sample": False, "alternatives": 5}
BAD_REQUEST = "Failed to load resource: the server responded with a status of 400"
UNAUTHORIZED = "Failed to load resource: the server responded with a status of 401"
Models = Callable[[str], Model]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def pages(browser: Any, bundle: Callable[[str], Path]) -> Iterator[Pages]:
    directories = {"letters": bundle("letters"), "again": bundle("letters")}
    with pages_of(browser, directories, BAD_REQUEST) as opened:
        yield opened


def generated(model: Models, text: str = WORD, **options: Any) -> Any:
    (result,) = model("letters").generate([text], **GREEDY | options)
    return result


def test_bundles_and_fields_are_listed(pages: Pages) -> None:
    page = listed(pages.open())
    assert page.title() == page.locator("h1").inner_text() == "Dragoman"
    assert page.locator("#bundle option").all_inner_texts() == ["letters", "again"]
    assert page.inner_text("#about") == "turns texts into texts, fp32, for cpu"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    unnamed = (
        "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length)"
    )
    assert page.evaluate(f"{unnamed}.map(e => e.id)") == []
    resources = page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert resources and all(name.startswith(pages.base) for name in resources)


def test_a_text_is_streamed(pages: Pages, model: Models) -> None:
    page = listed(pages.open())
    with page.expect_request("**/v1/generate") as waiting:
        run(page, WORD)
    body = json.loads(waiting.value.post_data)
    assert (body["stream"], body["source"], body["model"]) == (True, WORD, "letters")
    expected = generated(model)
    assert page.inner_text("#text") == expected.text
    assert page.locator("#text > span").count() == len(expected.tokens)
    assert page.get_attribute("#text", "aria-live") == "polite"
    figures = page.inner_text("#figures")
    for name in ("First token", "Total", "Tokens per second"):
        assert name in figures
    assert f"{expected.score:.3f}".replace("-", "\u2212") in figures


@pytest.mark.parametrize("how", ["button", "key"])
def test_a_running_request_can_be_stopped(
    pages: Pages, model: Models, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The output stays at two tokens until the browser disconnects, and shows them before."""
    given_up, whole = threading.Event(), Service.stream

    async def slow(
        self: Service, served: ServedModel, source: Any, options: GenerationOptions, **more: Any
    ) -> AsyncIterator[Token | Result]:
        count = 0
        async for item in whole(self, served, source, options, **more):
            if count == 2:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    given_up.set()
            count += 1
            yield item

    monkeypatch.setattr(Service, "stream", slow)
    page = listed(pages.open())
    page.fill("#source", WORD)
    page.click("#run")
    page.wait_for_selector("#text > span:nth-child(2)")
    assert page.is_disabled("#run")
    if how == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    page.wait_for_selector("#status:text-is('Stopped')")
    assert given_up.wait(PATIENCE / 1000)
    first = model("letters").detokenize(generated(model).tokens[:2])
    assert page.inner_text("#text") == first
    assert page.is_disabled("#stop") and page.is_hidden("#error")
    monkeypatch.undo()
    run(page)
    assert page.inner_text("#text") == generated(model).text


def test_errors_are_shown(pages: Pages, model: Models) -> None:
    page = listed(pages.open())
    run(page, "!")
    alert = page.locator("[role=alert]")
    assert "'!'" in alert.inner_text()
    assert page.is_hidden("#text") and "Score" not in page.inner_text("#figures")
    page.click("#more summary")
    page.fill("#max-new-tokens", "9999")
    page.click("#run")
    page.wait_for_selector("#error:has-text('max_new_tokens: expected at most')")
    page.fill("#max-new-tokens", "")
    run(page, WORD)
    assert alert.is_hidden() and page.inner_text("#text") == generated(model).text


def test_an_unreachable_server(browser: Any, bundle: Callable[[str], Path]) -> None:
    allowed = "Failed to load resource: net::"
    with pages_of(browser, {"letters": bundle("letters")}, allowed) as pages:
        page = listed(pages.open())
        page.context.set_offline(True)
        page.fill("#source", WORD)
        page.click("#run")
        page.wait_for_selector("#error:has-text('cannot be reached')")
        page.context.set_offline(False)
        run(page)


def test_the_keyboard_is_enough(pages: Pages, model: Models) -> None:
    page = listed(pages.open())
    page.focus("#bundle")
    page.keyboard.press("Tab")
    page.keyboard.type(WORD)
    page.keyboard.press("Control+Enter")
    done(page)
    assert page.inner_text("#text") == generated(model).text
    page.keyboard.press("Tab")  # to the strategies
    assert page.evaluate("document.activeElement.id") == "greedy"
    page.keyboard.press("ArrowRight")
    assert page.is_checked("#beams") and page.is_visible("#num-beams")
    assert page.evaluate("getComputedStyle(document.querySelector('#beams + label')).outlineStyle")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("#sampling") and page.is_hidden("#num-beams")
    page.focus("#tokens button")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").split(",")[1] == (
        " token 2"
    )
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("End")
    assert page.locator("#tokens [tabindex='0']").count() == 1


def test_alternatives_of_a_token(pages: Pages, model: Models) -> None:
    """Of what is pointed at, and of what has the focus."""
    page = run(listed(pages.open()), WORD)
    (hypothesis,) = generated(model).hypotheses
    tokens = page.locator("#tokens button")
    assert tokens.count() == len(hypothesis.token_log_probabilities)
    for n, reach in ((1, "hover"), (2, "focus")):
        getattr(tokens.nth(n), reach)()
        shown = page.locator("#token tbody tr")
        shares = [math.exp(a.log_probability) * 100 for a in hypothesis.alternatives[n]]
        found = [float(text.rstrip(" %")) for text in shown.locator("td.n").all_inner_texts()]
        np.testing.assert_allclose(found, shares, atol=0.06)
        chosen = hypothesis.alternatives[n][0]
        assert shown.first.locator("th").inner_text() == (chosen.text or f"#{chosen.token}")


def test_beams_and_their_hypotheses(pages: Pages, model: Models) -> None:
    page = listed(pages.open())
    page.check("#beams", force=True)
    run(page, WORD)
    expected = generated(model, num_beams=4, num_return_sequences=3).hypotheses
    rows = page.locator("#hypotheses tbody tr")
    assert rows.locator("button").all_inner_texts() == [h.text for h in expected]
    scores = [f"{h.score:.3f}".replace("-", "\u2212") for h in expected]
    assert rows.locator("td:nth-child(3)").all_inner_texts() == scores
    rows.nth(1).locator("button").click()
    assert page.inner_text("#text") == expected[1].text
    pieces = page.locator("#tokens button:not(.end)").all_inner_texts()
    assert " ".join(pieces) == expected[1].text
    assert rows.nth(1).locator("button").get_attribute("aria-pressed") == "true"


def test_samples(pages: Pages, model: Models) -> None:
    page = listed(pages.open())
    page.check("#sampling", force=True)
    page.fill("#seed", "7")
    page.fill("#temperature", "1.5")
    page.fill("#samples", "2")
    run(page, WORD)
    expected = generated(
        model, do_sample=True, seed=7, temperature=1.5, num_return_sequences=2
    ).hypotheses
    assert page.locator("#hypotheses button").all_inner_texts() == [h.text for h in expected]


def test_attention_is_drawn_and_described(pages: Pages, model: Models) -> None:
    page = run(listed(pages.open()), WORD)
    result = generated(model)
    ended = result.end_token is not None
    expected = model("letters").attention(WORD, list(result.tokens), end_token=ended)
    page.click("#attend")
    canvas = page.wait_for_selector("#attention canvas")
    size = canvas.evaluate("e => [e.height, e.width]")
    assert size == [len(expected.target), len(expected.source)]
    # The strongest weight has the strongest colour, in the light.
    drawn = canvas.evaluate(
        "e => [...e.getContext('2d').getImageData(0, 0, e.width, e.height).data]"
    )
    reds = np.array(drawn).reshape(*size, 4)[:, :, 0]
    assert reds.flat[expected.aligning.argmax()] == reds.min() < reds.max()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    told = page.inner_text("#attention .readout")
    assert told.startswith(f"\u201c{expected.target[1]}\u201d attends to \u201c{WORD[1]}\u201d: ")
    share = float(told.rpartition(": ")[2].rstrip(" %"))
    assert share == pytest.approx(expected.aligning[1, 1] * 100, abs=0.06)
    page.click("#attention summary")
    assert page.locator("#attention li").count() == len(expected.target)


def test_a_key_is_asked_for(browser: Any, bundle: Callable[[str], Path]) -> None:
    letters = {"letters": bundle("letters")}
    with pages_of(browser, letters, UNAUTHORIZED, api_keys=("sesame",)) as pages:
        page = pages.open()
        page.wait_for_selector("#key-form:visible")
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#error:has-text('This key is not valid')")
        page.fill("#key", "sesame")
        page.keyboard.press("Enter")
        run(listed(page), WORD)
        assert page.is_hidden("#key-form") and page.is_hidden("#error")
        assert page.url == f"{pages.base}/"
        page.reload()
        listed(page)  # it is kept
        page.click("#forget")
        page.fill("#source", WORD)
        page.click("#run")
        page.wait_for_selector("#key-form:visible")
        page.fill("#key", "sesame")
        page.keyboard.press("Enter")
        done(page)  # what waited for it


@pytest.mark.parametrize("width", [320, 360, 768, 1200])
def test_nothing_scrolls_sideways(pages: Pages, width: int) -> None:
    page = listed(pages.open(width))
    page.click("#more summary")
    page.check("#beams", force=True)
    run(page, WORD)
    page.locator("#tokens button").first.focus()
    page.click("#attend")
    page.wait_for_selector("#attention canvas")
    page.click("#attention summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = "[...document.querySelectorAll('input, select, textarea, button, .panel')]"
    right += ".filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right)"
    assert max(page.evaluate(right)) <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_contrast(pages: Pages, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG asks of small texts; but for a button that cannot be pressed."""
    page = listed(pages.open(scheme=scheme))
    page.check("#beams", force=True)
    run(page, WORD)
    page.locator("#tokens button").first.focus()
    page.evaluate("document.getElementById('stop').disabled = false")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 40
    assert [entry for entry in found if entry[1] < 4.5] == []
