"""Only what is speech is decoded, and times are those of the whole recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime.audio import voice_activity as module
from dragoman.runtime.audio.voice_activity import VoiceFilter

from ...speech_models import RATE, noise
from .conftest import Case

SPANS = ((0.5, 1.1), (3.0, 3.7), (5.0, 6.9))
AUDIO = noise(8.2, 3)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speech in `SPANS`, whatever the detector would hear in noise."""
    spans = [(round(begin * RATE), round(end * RATE)) for begin, end in SPANS]

    def kept(self: VoiceFilter, blocks: Any) -> Iterator[NDArray[np.float32]]:
        signal = np.concatenate(list(blocks))
        for begin, end in spans:
            if end <= len(signal):
                self.spans.append((begin, end))
                yield signal[begin:end]

    monkeypatch.setattr(VoiceFilter, "kept", kept)


def spoken() -> NDArray[np.float32]:
    return np.concatenate([AUDIO[round(b * RATE) : round(e * RATE)] for b, e in SPANS])


def test_the_rest_is_not_decoded(case: Case, heard: None) -> None:
    (expected,) = case.ours.generate([spoken()], word_timestamps=True)
    (found,) = case.ours.generate([AUDIO], vad=True, word_timestamps=True)
    assert found.tokens == expected.tokens and found.text == expected.text
    assert found.voice == SPANS and expected.voice is None
    assert found.segments is not None and expected.segments is not None
    for one, other in zip(found.segments, expected.segments, strict=True):
        assert [w.text for w in one.words or ()] == [w.text for w in other.words or ()]
        for word, short in zip(one.words or (), other.words or (), strict=True):
            within = [b for b, e in SPANS if b - 1e-3 <= word.start <= e + 1e-3]
            assert within and word.start <= word.end
            before = sum(e - b for b, e in SPANS if b < within[-1])
            assert word.start == pytest.approx(short.start - before + within[-1], abs=0.11)


def test_without_timestamps_the_segment_is_the_recording(case: Case, heard: None) -> None:
    (found,) = case.ours.generate([AUDIO[: round(1.3 * RATE)]], vad=True, timestamps=False)
    (segment,) = found.segments or ()
    assert (segment.start, segment.end) == (0.0, 1.3)


def test_a_recording_without_speech_is_empty(english: Case, heard: None) -> None:
    quiet = AUDIO[: RATE // 2]
    found = english.ours.generate([quiet, AUDIO, quiet], vad=True)
    assert [r.finish_reason for r in found] == ["empty", found[1].finish_reason, "empty"]
    assert found[0].text == "" and found[0].tokens == () and found[0].segments == ()
    assert found[0].voice == () and found[0].error is None
    assert list(english.ours.stream(quiet, vad=True)) == []


def test_what_cannot_be_filtered(english: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = english.ours.generate([np.zeros((80, 100), np.float32)], vad=True)
    assert found.error == "vad: expected audio, found features"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    (found,) = english.ours.generate([AUDIO], vad=True)
    assert found.error is not None and "pip install 'dragoman[vad]'" in found.error
    with pytest.raises(DragomanError, match="vad: expected True, False or None"):
        english.ours.generate([AUDIO], vad="yes")  # type: ignore[arg-type]
