"""The page for a speech model: files that are chosen or dropped, and a microphone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from dragoman.runtime import Model
from dragoman.runtime.audio.reading import read_audio

from ..chromium import chromium
from ..speech_models import RATE, noise
from .opened_page import Pages, listed, pages_of, run

pytestmark = pytest.mark.browser

MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""One that beeps."""
Models = Callable[[str], Model]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(*MICROPHONE) as opened:
        yield opened


@pytest.fixture
def pages(browser: Any, bundle: Callable[[str], Path]) -> Iterator[Pages]:
    with pages_of(browser, {"speech": bundle("speech"), "letters": bundle("letters")}) as opened:
        yield opened


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Of three windows."""
    path = tmp_path / "clip.wav"
    soundfile.write(path, noise(2.5, 4), RATE, subtype="FLOAT")
    return path


def chosen(page: Any, path: Path) -> Any:
    page.set_input_files("#file", path)
    page.wait_for_selector(f"#audio-status:has-text('{path.name}, ')")
    return page


def test_a_file_is_transcribed(pages: Pages, model: Models, clip: Path) -> None:
    page = chosen(listed(pages.open(), "speech"), clip)
    assert page.is_visible("#record") and page.is_hidden("#source")
    assert page.is_hidden("#alternatives")
    page.select_option("#language", "de")
    run(page)
    (expected,) = model("speech").generate([clip], num_beams=1, do_sample=False, language="de")
    assert page.inner_text("#text").split() == (expected.text or "").split()
    times = page.locator("#segments tbody button").all_inner_texts()
    assert expected.segments is not None
    assert times == [f"0:{s.start:05.2f} \u2013 0:{s.end:05.2f}" for s in expected.segments]
    texts = page.locator("#segments tbody td:nth-child(2)").all_inner_texts()
    assert texts == [(s.text or "").strip() for s in expected.segments]
    assert "Language" in page.inner_text("#figures")


def test_words_are_marked_while_they_are_spoken(pages: Pages, model: Models, clip: Path) -> None:
    page = chosen(listed(pages.open(), "speech"), clip)
    page.click("#more summary")
    page.check("#word-timestamps")
    run(page)
    (expected,) = model("speech").generate(
        [clip], num_beams=1, do_sample=False, word_timestamps=True
    )
    words = [word for segment in expected.segments or () for word in segment.words or ()]
    shown = page.locator("#segments .spoken span")
    assert shown.all_text_contents() == [word.text for word in words]
    long = next(n for n, word in enumerate(words) if word.end > word.start)
    shown.nth(long).click()
    page.wait_for_selector("#segments .now")
    marked = page.locator("#segments .now").all_text_contents()
    now = words[long].start
    assert marked == [word.text for word in words if word.start <= now < word.end]
    page.evaluate(
        """() => new Promise(ended => {
          const player = document.getElementById("player");
          player.addEventListener("ended", ended, {once: true});
          player.play();
        })"""
    )
    last = [word.text for word in words if word.start <= 2.5 < word.end]
    assert page.locator("#segments .now").all_text_contents() == last


def test_beams_of_speech(pages: Pages, model: Models, clip: Path) -> None:
    page = chosen(listed(pages.open(), "speech"), clip)
    page.check("#beams", force=True)
    assert page.is_hidden("#best")
    run(page)
    (expected,) = model("speech").generate([clip], num_beams=4, do_sample=False)
    assert page.inner_text("#text").strip() == (expected.text or "").strip()


def test_a_file_can_be_dropped(pages: Pages, clip: Path) -> None:
    page = listed(pages.open(), "speech")
    content = base64.b64encode(clip.read_bytes()).decode()
    script = """content => {
      const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], "dropped.wav"));
      return transfer;
    }"""
    transfer = page.evaluate_handle(script, content)
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    page.wait_for_selector("#audio-status:has-text('dropped.wav, ')")
    with page.expect_request("**/v1/generate") as waiting:
        run(page)
    assert json.loads(waiting.value.post_data)["audio"] == content


def test_a_microphone_is_recorded(pages: Pages) -> None:
    """As WAV of one channel, whatever the browser records in."""
    page = listed(pages.open(permissions=["microphone"]), "speech")
    page.click("#record")
    page.wait_for_selector("#audio-status:has-text('Recording: 1 s')")
    page.click("#record:text-is('Stop recording')")
    page.wait_for_selector("#audio-status:has-text('recording, ')")
    with page.expect_request("**/v1/generate") as waiting:
        run(page)
    sent = base64.b64decode(json.loads(waiting.value.post_data)["audio"])
    samples = read_audio(sent, RATE)
    assert len(samples) > RATE // 2 and np.abs(samples).max() > 0.01
    assert page.is_visible("#player")


def test_nothing_is_sent_without_audio(pages: Pages, tmp_path: Path) -> None:
    page = listed(pages.open(), "speech")
    page.click("#run")
    page.wait_for_selector("#error:has-text('choose an audio file')")
    wrong = tmp_path / "notes.txt"
    wrong.write_text("no audio")
    page.set_input_files("#file", wrong)
    page.wait_for_selector("#error:has-text('cannot read this file: expected audio')")
    page.select_option("#bundle", "letters")
    assert page.is_hidden("#error") and page.is_hidden("#drop") and page.is_visible("#source")


@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_scrolls_sideways(pages: Pages, clip: Path, width: int) -> None:
    page = run(chosen(listed(pages.open(width), "speech"), clip))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
