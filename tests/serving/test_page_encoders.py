"""The page for encoder-only models, and for a bundle without tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import Model, load

from ..chromium import CONTRASTS, chromium
from ..small_bundle import small_bundle
from .bert_bundles import make_berts
from .opened_page import Pages, listed, pages_of, run

pytestmark = pytest.mark.browser

TEXT = "the man eats food in paris."


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small BERT with each head, and a model of token ids."""
    root = tmp_path_factory.mktemp("bundles")
    found = make_berts(root)
    (root / "ids").mkdir()
    return found | {"ids": small_bundle(root / "ids", 8)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(browser: Any, directories: dict[str, Path]) -> Iterator[Pages]:
    with pages_of(browser, directories) as opened:
        yield opened


@pytest.fixture
def model(directories: dict[str, Path]) -> Callable[[str], Model]:
    return lambda name: load(directories[name], threads=1)


Models = Callable[[str], Model]


def shares(page: Any) -> list[float]:
    texts = page.locator("#found .shares td.n").all_inner_texts()
    return [float(text.rstrip(" %")) / 100 for text in texts]


def names(page: Any) -> list[str]:
    return [str(name) for name in page.locator("#found .shares th").all_inner_texts()]


def test_embeddings_are_compared(pages: Pages, model: Models) -> None:
    page = run(listed(pages.open(), "vectors"), f"{TEXT}\nfood\n\nparis is in france.")
    vectors = model("vectors").encode([TEXT, "food", "paris is in france."])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cells = page.locator("#found td.heat").all_inner_texts()
    found = [float(cell.replace("\u2212", "-")) for cell in cells]
    np.testing.assert_allclose(found, (unit @ unit.T).ravel(), atol=0.006)
    assert page.locator("#found article").count() == 3
    assert page.is_hidden("#text") and page.is_hidden("#decoding")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_contrast(pages: Pages, scheme: str) -> None:
    for name, text in (("vectors", f"{TEXT}\nfood"), ("tags", TEXT)):
        page = run(listed(pages.open(scheme=scheme), name), text)
        page.evaluate("document.getElementById('stop').disabled = false")
        assert [entry for entry in page.evaluate(CONTRASTS) if entry[1] < 4.5] == []


def test_labels(pages: Pages, model: Models) -> None:
    page = run(listed(pages.open(), "classes"), TEXT)
    (expected,) = model("classes").classify([TEXT])
    assert names(page) == [label.label for label in expected.labels]
    np.testing.assert_allclose(shares(page), [label.score for label in expected.labels], atol=6e-4)
    run(page, f"{TEXT}\nfood")  # a pair
    (expected,) = model("classes").classify([(TEXT, "food")])
    np.testing.assert_allclose(shares(page), [label.score for label in expected.labels], atol=6e-4)


def test_tags(pages: Pages, model: Models) -> None:
    page = run(listed(pages.open(), "tags"), TEXT)
    (expected,) = model("tags").tag([TEXT])
    assert names(page) == [f"{word.text} {word.label}" for word in expected.words]
    marks = page.evaluate("[...document.querySelectorAll('mark')].map(e => e.firstChild.data)")
    assert marks == [word.text for word in expected.words]


def test_masks(pages: Pages, model: Models) -> None:
    page = run(listed(pages.open(), "masks"), "the man eats [MASK].")
    (expected,) = model("masks").fill(["the man eats [MASK]."])
    np.testing.assert_allclose(shares(page), [c.probability for c in expected.masks[0]], atol=6e-4)
    assert page.inner_text("#found .text") == expected.text
    run(page, "the man")
    assert "expected a mask ([MASK]), found none" in page.inner_text("#error")


def test_answers(pages: Pages, model: Models) -> None:
    page = listed(pages.open(), "answers")
    page.fill("#second", "is paris in france")
    run(page, TEXT)
    (expected,) = model("answers").answer([("is paris in france", TEXT)])
    assert page.inner_text("#found .text") == expected.text == page.inner_text("mark")
    page.click("#attend")
    canvas = page.wait_for_selector("#attention canvas")
    attention = model("answers").attention(("is paris in france", TEXT))
    assert canvas.evaluate("e => [e.height, e.width]") == [len(attention.source)] * 2


def test_token_ids(pages: Pages, model: Models) -> None:
    page = listed(pages.open(), "ids")
    page.fill("#source", "3, four")
    page.click("#run")
    page.wait_for_selector("#error:has-text('Expected numbers, found four')")
    run(page, "3, 4 5")
    (expected,) = model("ids").generate([[3, 4, 5]], num_beams=1)
    assert page.inner_text("#text").split() == [str(token) for token in expected.tokens]


@pytest.mark.parametrize("name", ["vectors", "tags", "answers"])
def test_nothing_scrolls_sideways(pages: Pages, name: str) -> None:
    page = listed(pages.open(320), name)
    if name == "answers":
        page.fill("#second", "is paris in france")
    run(page, "\n".join([TEXT] * 9) if name == "vectors" else TEXT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
