"""Kinds of audio; an input that cannot be decoded is rejected and does not affect the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from dragoman.errors import DragomanError
from dragoman.runtime import CancelError, RejectedError
from dragoman.runtime.audio import LogMel
from dragoman.runtime.speech.prompts import PromptRequest
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.speech import SpeechTokens

from ...speech_models import RATE, noise
from ..conftest import SetAfter
from .conftest import Case

GOOD = noise(0.6, seed=4)


def test_paths_samples_and_features_give_the_same_tokens(
    multilingual: Case, tmp_path: Path
) -> None:
    wav, flac = tmp_path / "a.wav", tmp_path / "a b.flac"
    samples = (GOOD * 32768).astype(np.int16)
    for file in (wav, flac):
        soundfile.write(file, samples, RATE, subtype="PCM_16")
    log_mel = LogMel(bins=128, chunk_seconds=1)
    features = log_mel.chunk(samples.astype(np.float32) / np.float32(32768))
    sources: list[Any] = [wav, str(flac), samples, features, samples.astype(np.float64) / 32768]
    results = multilingual.ours.generate(sources)
    assert {result.tokens for result in results} == {results[0].tokens}
    assert results[0].tokens


def test_features_of_more_than_a_window_are_decoded_window_by_window(multilingual: Case) -> None:
    audio = noise(2.3, seed=10)
    features = LogMel(bins=128, chunk_seconds=1).whole([audio])
    from_audio, from_features = multilingual.ours.generate([audio, features])
    assert from_audio.tokens == from_features.tokens


def test_bad_inputs_among_good_ones(english: Case, tmp_path: Path) -> None:
    text, empty = tmp_path / "notes.wav", tmp_path / "empty.flac"
    text.write_text("no audio at all")
    empty.touch()
    nan = GOOD.copy()
    nan[17] = np.nan
    bad: dict[str, Any] = {
        "No such file": tmp_path / "missing.wav",
        "notes.wav": text,
        "empty.flac": empty,
        "a directory": tmp_path,
        "an empty text": "",
        "nan at 17": nan,
        "at least one sample": GOOD[:0],
        "found int": 5,
        "found NoneType": None,
        "audio: expected an audio file, intact": b"a.wav",
        "found list": [1, 2, 3],
        "dtype int64": np.arange(9),
        "of shape [81, 100]": np.zeros((81, 100), np.float32),
        "float64 of shape": np.zeros((80, 100)),
        "infinity": np.full((80, 100), np.inf, np.float32),
    }
    mixed = [
        source for pair in zip([GOOD] * len(bad), bad.values(), strict=True) for source in pair
    ]
    results = english.ours.generate(mixed)
    [alone] = english.ours.generate([GOOD])
    assert [r.tokens for r in results[::2]] == [alone.tokens] * len(bad)
    for reason, result in zip(bad, results[1::2], strict=True):
        assert result.finish_reason == "rejected"
        assert reason in (result.error or ""), result.error
        assert (result.tokens, result.segments) == ((), ())


def test_silence_and_a_single_sample_are_audio(english: Case) -> None:
    results = english.ours.generate([np.zeros(RATE // 2, np.float32), np.zeros(1, np.float32)])
    assert [r.finish_reason == "rejected" for r in results] == [False, False]
    assert results[0].segments is not None and results[0].segments[0].end == 0.5


def test_no_inputs_give_no_results(english: Case) -> None:
    assert english.ours.generate([]) == []


def test_a_stream_of_bad_or_long_audio(english: Case, tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match="No such file"):
        english.ours.stream(tmp_path / "missing.wav")
    with pytest.raises(RejectedError, match=r"at most 1 s to stream, found 2\.50 s"):
        english.ours.stream(noise(2.5, seed=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"language": "de"},
            "expected en or none, since this model transcribes English only; found 'de'",
        ),
        (
            {"task": "translate"},
            "expected transcribe or none, since this model transcribes English only; found "
            "'translate'",
        ),
        ({"source_language": "de"}, "a speech model takes language and task"),
        ({"max_new_tokens_per_source_token": 1.5}, "a speech model takes language and task"),
        ({"max_new_tokens": 30}, "expected at most 29"),
    ],
)
def test_options_that_an_english_model_does_not_take(
    english: Case, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match=message):
        english.ours.generate([GOOD], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": 5}, "language: expected a text, found 5"),
        ({"task": ["translate"]}, r"task: expected a text, found \['translate'\]"),
        (
            {"timestamps": np.array([1, 0])},
            r"timestamps: expected True, False or None, found array\(",
        ),
        ({"timestamps": "no"}, "timestamps: expected True, False or None, found 'no'"),
        ({"source_language": ""}, "a speech model takes language and task"),
        ({"end_token_id": 5, "truncate": True}, "end_token_id, truncate: for text models"),
        ({"language": ""}, "expected one of de, en, fr, haw, found ''"),
    ],
)
def test_options_of_another_kind(multilingual: Case, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DragomanError, match=message):
        multilingual.ours.generate([GOOD], **options)
    with pytest.raises(DragomanError, match=message):
        multilingual.ours.stream(GOOD, **options)


@pytest.mark.parametrize("language", ["en", "English", "<|en|>", "auto"])
def test_what_an_english_model_does_may_be_requested(english: Case, language: str) -> None:
    expected = english.ours.generate([GOOD])
    assert english.ours.generate([GOOD], language=language, task="transcribe") == expected


def test_a_language_may_be_detected_despite_a_default() -> None:
    speech = SpeechTokens(languages={"en": 5, "de": 6}, default_language="de")
    tokens = [
        PromptRequest.of(GenerationOptions(language=language), speech).language_token(speech)
        for language in (None, "en", "auto", "AUTO")
    ]
    assert tokens == [6, 5, None, None]


SHORT = [noise(0.05 * n, seed=n) for n in range(1, 20)]


def test_no_segment_is_after_the_recording(case: Case) -> None:
    """A window is a second, and there are timestamps up to its end."""
    cases = Path(__file__).parents[1] / "audio" / "cases"
    sources: list[Any] = [*SHORT, cases / "bad_8.wav", cases / "bad_loop_0.35s.wav"]
    results = case.ours.generate(sources, timestamps=True)
    for source, result in zip(sources, results, strict=True):
        file = isinstance(source, Path)
        seconds = soundfile.info(source).duration if file else len(source) / RATE
        segments = result.segments or ()
        assert segments
        times = [time for segment in segments for time in (segment.start, segment.end)]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= seconds


NO_LISTS: list[Any] = [5, None, {"a": GOOD}, {0.5}]


@pytest.mark.parametrize("sources", NO_LISTS, ids=type)
def test_what_is_no_list_of_audio(english: Case, sources: Any) -> None:
    with pytest.raises(DragomanError, match="expected a list of inputs, found "):
        english.ours.generate(sources)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "klingon"}, "expected one of de, en, fr, haw, found 'klingon'"),
        ({"task": "summarize"}, "expected one of transcribe, translate, found 'summarize'"),
    ],
)
def test_unknown_languages_and_tasks(
    multilingual: Case, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match=message):
        multilingual.ours.generate([GOOD], **options)


def test_one_path_is_not_a_list(english: Case) -> None:
    with pytest.raises(DragomanError, match="put it in a list"):
        english.ours.generate(Path("a.wav"))  # type: ignore[arg-type]


def test_at_most_a_batch_of_recordings_is_open(
    english: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features of all files are never held together."""
    from dragoman.runtime.speech import recording, transcriber, windows

    opened, most = [0], [0]
    before, result = recording.read_spectrogram, windows.Windows.transcript

    def counting(*arguments: Any, **options: Any) -> Any:
        opened[0] += 1
        most[0] = max(most[0], opened[0])
        return before(*arguments, **options)

    def closing(*arguments: Any, **options: Any) -> Any:
        opened[0] -= 1
        return result(*arguments, **options)

    monkeypatch.setattr(transcriber, "read_spectrogram", counting)
    monkeypatch.setattr(windows.Windows, "transcript", closing)
    english.ours.generate([GOOD] * 11, max_batch_size=3)
    assert (opened[0], most[0]) == (0, 3)


def test_a_call_stops_between_and_within_windows(multilingual: Case) -> None:
    """A recording of three windows and two short ones, in batches of two."""
    model, sources = multilingual.ours, [noise(2.5, seed=10), GOOD, noise(0.3, seed=2)]
    options: dict[str, Any] = {"max_batch_size": 2, "max_new_tokens": 9}
    never = SetAfter(10**9)
    expected = model.generate(sources, cancel=never, **options)
    assert expected == model.generate(sources, **options)
    assert len(expected[0].segments or ()) > 1
    kept = []
    for times in range(never.asked):
        with pytest.raises(CancelError) as stopped:
            model.generate(sources, cancel=SetAfter(times), **options)
        finished = stopped.value.finished
        assert finished == {index: expected[index] for index in finished}
        kept.append(len(finished))
    assert kept == sorted(kept)
    assert set(kept) == {0, 1, 2}
    with pytest.raises(CancelError):
        list(model.stream(GOOD, cancel=SetAfter(3)))
    pairs = [(source, [4, 5]) for source in sources[1:]]
    with pytest.raises(CancelError) as stopped:
        model.score(pairs, cancel=SetAfter(1))
    assert stopped.value.finished == {}
    assert model.generate(sources, **options) == expected
