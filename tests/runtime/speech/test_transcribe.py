"""Recordings whose segments arrive window by window: updates, defaults, parts and journals."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime import (
    AbilityError,
    BackendError,
    CancelError,
    GenerationOptions,
    Result,
    Segment,
    TranscriptUpdate,
)
from dragoman.runtime.audio import LogMel
from dragoman.runtime.audio import voice_activity as module
from dragoman.runtime.audio.voice_activity import SHORT_PAUSE, Voice, VoiceFilter
from dragoman.runtime.decoding.logits_processors import Row
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.runtime.model import parts_of
from dragoman.runtime.speech.journal import Journal, JournalError
from dragoman.runtime.speech.plan import greedy_transcription, transcription_defaults
from dragoman.runtime.speech.recording import Recording, Spectrogram
from dragoman.runtime.speech.recording import parts_of as divided

from ...speech_models import RATE, Vocabulary, extractor, noise
from .conftest import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LONG = [noise(seconds, seed) for seed, seconds in enumerate((3.3, 0.4, 4.13), start=10)]
ONCE: dict[str, Any] = {
    "num_beams": 1,
    "fallback": False,
    "condition_on_previous_text": False,
    "vad": False,
    "max_new_tokens": 9,
}
PAUSES = ((0.52, 0.3), (1.2, 0.4), (1.36, 0.5), (3.2, 2.0), (5.5, 0.3))
"""Pauses of a recording of 6.1 s: their middles and lengths."""


def collected(updates: Iterator[TranscriptUpdate]) -> dict[int, list[TranscriptUpdate]]:
    found: dict[int, list[TranscriptUpdate]] = {}
    for update in updates:
        found.setdefault(update.index, []).append(update)
    return found


def result_of(updates: list[TranscriptUpdate]) -> Result:
    *before, last = updates
    assert all(update.result is None for update in before)
    assert last.result is not None and last.done == 1.0
    assert tuple(s for update in updates for s in update.segments) == last.result.segments
    assert all(one.done <= other.done for one, other in pairwise(updates))
    return last.result


@pytest.mark.parametrize("timestamps", [False, True])
def test_segments_arrive_window_by_window(case: Case, timestamps: bool) -> None:
    sources = [*LONG, np.zeros((3, 3), np.float32)]
    expected = case.ours.generate(sources, timestamps=timestamps, **ONCE)
    found = collected(case.ours.transcribe(sources, timestamps=timestamps, **ONCE))
    assert [result_of(found[index]) for index in range(len(sources))] == expected
    assert len(found[0]) > 2  # longer than a window
    assert expected[3].error is not None and found[3][0].segments == ()


def test_what_is_left_open_is_as_published(multilingual: Case) -> None:
    """Five beams, fallback, the text before as condition, times, and no silence."""
    manifest = multilingual.ours.manifest
    assert transcription_defaults(GenerationOptions(), manifest) == GenerationOptions(
        num_beams=5, fallback=True, condition_on_previous_text=True, timestamps=True, vad=True
    )
    given = GenerationOptions(
        num_beams=2, fallback=False, condition_on_previous_text=False, timestamps=False, vad=False
    )
    assert transcription_defaults(given, manifest) == given
    sampled = transcription_defaults(GenerationOptions(do_sample=True), manifest)
    assert (sampled.num_beams, sampled.fallback) == (None, False)
    assert transcription_defaults(GenerationOptions(temperature=0.0), manifest).num_beams is None
    few = GenerationOptions(max_batch_size=3)
    assert transcription_defaults(few, manifest).num_beams == 3
    assert transcription_defaults(GenerationOptions(), manifest, rows=2).num_beams == 2
    cut = transcription_defaults(GenerationOptions(cut_at_silence=True), manifest)
    assert (cut.vad, cut.condition_on_previous_text) == (True, False)
    once = greedy_transcription(GenerationOptions(word_timestamps=True), manifest)
    assert (once.num_beams, once.vad, once.fallback, once.timestamps) == (1, False, False, None)


def test_without_a_detector_silence_is_decoded(
    english: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert transcription_defaults(GenerationOptions(), english.ours.manifest).vad is False
    (updates,) = collected(english.ours.transcribe([LONG[1]], max_new_tokens=5)).values()
    assert result_of(updates).voice is None


def test_a_transcription_is_what_its_options_give(case: Case) -> None:
    found = collected(case.ours.transcribe(LONG, vad=False, max_new_tokens=9))
    expected = case.ours.generate(
        LONG,
        num_beams=5,
        fallback=True,
        condition_on_previous_text=True,
        timestamps=True,
        max_new_tokens=9,
    )
    assert [result_of(found[index]) for index in range(len(LONG))] == expected


def test_a_last_window_without_speech(case: Case) -> None:
    """It has no segments, and those before arrive once."""
    left_out = 0
    judged = ONCE | {"fallback": True, "compression_ratio_threshold": None}
    judged |= {"log_probability_threshold": None, "no_speech_threshold": None}
    for audio in LONG:
        (result,) = case.ours.generate([audio], timestamps=True, **judged)
        last = (result.segments or ())[-1].quality
        assert last is not None
        most = np.nextafter(last.no_speech_probability, 0)
        options = judged | {"no_speech_threshold": float(most)}
        (updates,) = collected(case.ours.transcribe([audio], **options)).values()
        found = result_of(updates)
        assert [found] == case.ours.generate([audio], timestamps=True, **options)
        left_out += len(found.segments or ()) < len(result.segments or ())
    assert left_out


def test_features_are_taken_as_they_are(multilingual: Case) -> None:
    assert multilingual.ours.manifest.audio is not None
    features = LogMel.of(multilingual.ours.manifest.audio).chunk(LONG[1])
    sources: list[Any] = [features, np.zeros(RATE, np.float32)]
    found = collected(multilingual.ours.transcribe(sources, max_new_tokens=9))
    assert result_of(found[0]).text and result_of(found[1]).finish_reason == "empty"
    one, other = multilingual.ours.detect_language(sources)
    assert one.language is not None and other.language is None
    (updates,) = collected(multilingual.ours.transcribe(sources[:1], vad=True)).values()
    assert result_of(updates).error == "vad: expected audio, found features"


def test_the_runtime_is_imported_without_locks_of_files() -> None:
    """As on Windows."""
    code = "import sys; sys.modules['fcntl'] = None; import dragoman.runtime"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_transcription_can_be_stopped(english: Case) -> None:
    cancel = threading.Event()
    updates = english.ours.transcribe(LONG[:1], cancel=cancel, **ONCE)
    next(updates)
    cancel.set()
    with pytest.raises(CancelError):
        next(updates)
    with pytest.raises(DragomanError, match="put it in a list"):
        next(english.ours.transcribe("a.wav", **ONCE))


# Parts between pauses.


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a recording is speech, with `PAUSES`."""

    def kept(self: VoiceFilter, blocks: Any) -> Iterator[NDArray[np.float32]]:
        signal = np.concatenate(list(blocks))
        self.spans = [(0, len(signal))]
        self.pauses = [(round(at * RATE), round(seconds * RATE)) for at, seconds in PAUSES]
        yield signal

    monkeypatch.setattr(VoiceFilter, "kept", kept)


def frames(seconds: float, *pauses: tuple[float, float]) -> Spectrogram:
    count = round(100 * seconds)
    voice = Voice(((0.0, seconds),), seconds, pauses)
    return Spectrogram(np.zeros((80, count), np.float32), count, seconds, (), voice)


@pytest.mark.parametrize(
    ("audio", "ends"),
    [
        (frames(0.9, (0.5, 0.3)), [90]),
        (frames(1.0, (0.5, 0.3)), [100]),
        (frames(1.5), [150]),
        (frames(1.5, (0.7, 0.3), (0.9, 0.3)), [90, 150]),  # of two as long, the last one
        (frames(1.5, (0.6, 0.4), (0.9, 0.3)), [60, 150]),  # the longest one
        (frames(1.3, (0.2, 2.0), (0.3, 0.3)), [30, 130]),  # none in the second half
        (frames(2.5, (1.7, 0.3)), [170, 250]),  # none in the window
        (frames(3.2, *((at / 2, 0.3) for at in range(1, 7))), [100, 200, 300, 320]),
        (frames(1.5, (1.5, 2.0)), [150]),  # the end is no pause
    ],
)
def test_a_recording_is_divided_at_pauses(audio: Spectrogram, ends: list[int]) -> None:
    parts = divided(audio, 100)
    assert [part._end for part in parts] == ends
    assert [part.position for part in parts] == [0, *ends[:-1]]


@pytest.mark.parametrize("timestamps", [True, None])
def test_parts_are_decoded_as_recordings_of_their_own(
    case: Case, pauses: None, timestamps: bool | None
) -> None:
    """The oracle decodes the features of each part by itself.

    Parts that are longer than a window, of 1 s, have timestamps in any case.
    """
    audio, vocabulary = noise(6.1, 20), case.ours.manifest.speech
    assert vocabulary is not None and case.ours.manifest.audio is not None
    features = LogMel.of(case.ours.manifest.audio).whole([audio])
    options = ONCE | {"vad": True, "timestamps": timestamps, "cut_at_silence": True}
    (found,) = case.ours.generate([audio], **options)
    bounds = [0, 52, 136, 320, 550, 610]
    segments: list[Segment] = []
    language = found.language
    for begin, end in pairwise(bounds):
        (part,) = case.ours.generate(
            [features[:, begin:end]],
            timestamps=timestamps or end - begin > 100 or None,
            language=language,
            **ONCE,
        )
        segments += [
            dataclasses.replace(s, start=s.start + begin / 100, end=s.end + begin / 100)
            for s in part.segments or ()
        ]
    assert found.segments is not None
    assert [s.tokens for s in found.segments] == [s.tokens for s in segments]
    for one, other in zip(found.segments, segments, strict=True):
        # Without timestamps, a part ends at a step of 0.02 s, and a whole recording at its end.
        step = 0.011 if timestamps else 0.021
        assert (one.start, one.end) == pytest.approx((other.start, other.end), abs=step)
    assert found.tokens == tuple(token for s in segments for token in s.tokens)
    if vocabulary.languages:
        assert found.language_probability is not None
    one_by_one = case.ours.generate([audio], max_batch_size=1, **options)
    assert one_by_one == [found]


def test_a_recording_of_one_part_has_the_times_of_its_speech(
    english: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(self: VoiceFilter, blocks: Any) -> Iterator[NDArray[np.float32]]:
        signal = np.concatenate(list(blocks))
        assert self._pause == SHORT_PAUSE
        self.spans = [(2 * RATE, 2 * RATE + RATE // 2)]
        yield signal[2 * RATE : 2 * RATE + RATE // 2]

    monkeypatch.setattr(VoiceFilter, "kept", kept)
    *_, last = english.ours.transcribe(
        [noise(4.0, 3)], **ONCE | {"vad": True, "cut_at_silence": True}
    )
    assert last.result is not None and last.result.segments is not None
    (segment,) = last.result.segments
    assert (segment.start, segment.end) == (2.0, 2.5)
    assert f" {last.result.text}" == segment.text


def test_features_are_not_cut(english: Case) -> None:
    assert english.ours.manifest.audio is not None
    features = LogMel.of(english.ours.manifest.audio).whole([LONG[0]])
    options = {name: value for name, value in ONCE.items() if name != "vad"}
    *_, expected = english.ours.transcribe([features], **options)
    *_, found = english.ours.transcribe([features], **options, cut_at_silence=True)
    assert found.result == expected.result


def test_text_after_a_part_begins_in_it() -> None:
    """Whisper dates text to the padding of a window, too."""
    audio = frames(40.0)
    vocabulary = Vocabulary(multilingual=False)
    row = Row([], [vocabulary["0.90"], 5, vocabulary["1.00"]])
    part = Recording(audio, 3920, 4000)
    part.add(TokenSequence(row, 0), tuple(row.tokens), vocabulary["0.00"], 100)
    assert [(s.start, s.end) for s in part.segments] == [(39.2, 40.0)]


def test_what_excludes_parts(english: Case) -> None:
    for name, wrong in (("vad", False), ("condition_on_previous_text", True)):
        with pytest.raises(DragomanError, match=f"cut_at_silence: expected {name} {not wrong}"):
            options: dict[str, Any] = {name: wrong, "cut_at_silence": True}
            english.ours.generate([LONG[0]], **options)
    with pytest.raises(DragomanError, match="cut_at_silence: expected false to stream"):
        english.ours.stream(LONG[1], cut_at_silence=True)


# Journals.


def interrupted(case: Case, journal: Path, updates: int, **options: Any) -> list[TranscriptUpdate]:
    """The first updates of a transcription that ends after them."""
    running = case.ours.transcribe(LONG, journal=journal, **ONCE | options)
    found = [next(running) for _ in range(updates)]
    running.close()
    return found


@pytest.mark.parametrize("options", [{}, {"word_timestamps": True}, {"fallback": True}])
def test_a_transcription_goes_on_after_its_journal(
    case: Case, tmp_path: Path, options: dict[str, Any]
) -> None:
    """However often it was interrupted, its results are those of one that was not."""
    expected = case.ours.generate(LONG, timestamps=True, **ONCE | options)
    journal, done = tmp_path / "journal", 0.0
    for count in (1, 2, 4):
        interrupted(case, journal, count, **options)
        (first, *_) = collected(case.ours.transcribe(LONG, journal=journal, **ONCE | options))[0]
        assert first.done >= done
        done = first.done
        lines = journal.read_bytes().splitlines()
        found = collected(case.ours.transcribe(LONG, journal=journal, **ONCE | options))
        assert [result_of(found[index]) for index in range(len(LONG))] == expected
        assert journal.read_bytes().splitlines() == lines  # nothing was decoded again
        journal.write_bytes(b"\n".join(lines[: len(lines) // 2]) + b'\n{"recording": "unfinis')


def test_parts_go_on_after_their_journal(case: Case, pauses: None, tmp_path: Path) -> None:
    audio, journal = noise(6.1, 20), tmp_path / "journal"
    options = ONCE | {"vad": True, "cut_at_silence": True}
    (expected,) = case.ours.generate([audio], timestamps=False, **options)
    for count in range(1, 5):
        running = case.ours.transcribe([audio], journal=journal, **options)
        for _ in range(count):
            next(running, None)
        running.close()
    found = collected(case.ours.transcribe([audio], journal=journal, **options))
    assert result_of(found[0]) == expected


def test_the_same_recording_twice(english: Case, tmp_path: Path) -> None:
    expected = english.ours.generate([LONG[0]], timestamps=True, **ONCE)
    for _ in range(3):
        updates = english.ours.transcribe([LONG[0]] * 2, journal=tmp_path / "journal", **ONCE)
        assert [result_of(each) for each in collected(updates).values()] == expected * 2


def test_a_journal_is_of_one_bundle_and_one_set_of_options(
    english: Case, multilingual: Case, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    interrupted(english, journal, 2)
    before = journal.read_bytes()
    with pytest.raises(JournalError, match="with the options of this call"):
        interrupted(english, journal, 1, num_beams=2)
    with pytest.raises(JournalError, match="with the bundle of this call"):
        interrupted(multilingual, journal, 1)
    assert journal.read_bytes() == before
    interrupted(english, journal, 1, max_batch_size=2)  # changes no transcript


def test_a_file_that_is_no_journal_stays_as_it_is(english: Case, tmp_path: Path) -> None:
    journal = tmp_path / "notes.txt"
    for text in ("My notes", "{}\n", '{"journal": 1, \n', "\x00\xff\n"):
        journal.write_text(text)
        with pytest.raises(JournalError, match=r"notes\.txt"):
            interrupted(english, journal, 1)
        assert journal.read_text() == text
    for path in (tmp_path, tmp_path / "missing" / "journal"):
        with pytest.raises(JournalError, match=path.name):
            interrupted(english, path, 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[1]", "line 3: expected an object"),
        (b"{", "line 3: expected JSON"),
        (b"{}", "line 3: line.recording: missing"),
        (b"\xff", "line 3: expected JSON"),
    ],
)
def test_damaged_lines_are_named(english: Case, tmp_path: Path, line: bytes, problem: str) -> None:
    journal = tmp_path / "journal"
    interrupted(english, journal, 1)
    lines = journal.read_bytes().splitlines()[:2]
    journal.write_bytes(b"\n".join([*lines, line]) + b"\n")
    with pytest.raises(JournalError) as caught:
        interrupted(english, journal, 1)
    assert problem in str(caught.value)


def test_a_journal_is_used_by_one_process(english: Case, tmp_path: Path) -> None:
    running = english.ours.transcribe(LONG, journal=tmp_path / "journal", **ONCE)
    next(running)
    with pytest.raises(JournalError, match="found it in use"):
        interrupted(english, tmp_path / "journal", 1)
    running.close()
    interrupted(english, tmp_path / "journal", 1)


def test_a_full_disk_stops_the_call(
    english: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a line may have been written; the next call goes on before it."""
    journal, write = tmp_path / "journal", Journal.write

    def full(self: Journal, entry: Any) -> None:
        file = self._file
        self._file = SimpleNamespace(write=lambda line: file.write(line[:9]), close=file.close)  # type: ignore[assignment]
        write(self, entry)

    interrupted(english, journal, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", full)
        with pytest.raises(JournalError, match="No space left"):
            interrupted(english, journal, 9)
    assert not journal.read_bytes().endswith(b"\n")
    found = collected(english.ours.transcribe(LONG, journal=journal, **ONCE))
    assert [result_of(each) for each in found.values()] == english.ours.generate(
        LONG, timestamps=True, **ONCE
    )


def test_states_have_no_earlier_segments(english: Case, tmp_path: Path) -> None:
    """A journal grows with its transcript."""
    journal = tmp_path / "journal"
    updates = collected(english.ours.transcribe(LONG[:1], journal=journal, **ONCE))
    result = result_of(updates[0])
    states = [json.loads(line)["state"] for line in journal.read_text().splitlines()[1:]]
    assert len(states) > 2
    assert sum(len(state["segments"]) for state in states) == len(result.segments or ())


# Texts around a window.


def prompt_of(case: Case, **changes: Any) -> list[int]:
    """What the decoder reads before the text of the first window."""
    options = GenerationOptions(language="en", **changes)
    transcriber = parts_of(case.ours).transcriber
    pending = transcriber.begin(LONG[1], options)
    assert not isinstance(pending, Result)
    request = pending.jobs[0].request
    return [*request.prompt, *(token for token in request.prefix if isinstance(token, int))]


def test_hotwords_precede_every_window(english: Case) -> None:
    vocabulary = Vocabulary(multilingual=False)
    start, before = vocabulary["startoftranscript"], vocabulary["startofprev"]
    untimed = vocabulary["notimestamps"]
    assert prompt_of(english, hotwords="w5 w9") == [before, 5, 9, start, untimed]
    both = prompt_of(english, hotwords="w5 w9", initial_prompt="w8 w4")
    assert both == [before, 5, 9, 8, 4, start, untimed]
    many = " ".join(f"w{n}" for n in range(10, 50))
    room = 30 // 2 - 1  # positions
    cut = prompt_of(english, hotwords="w5 w9", initial_prompt=many)
    assert cut == [before, 5, 9, *range(50 - (room - 2), 50), start, untimed]
    first = prompt_of(english, hotwords=many, initial_prompt="w5")
    assert first == [before, *range(10, 10 + room), start, untimed]
    for audio in LONG:  # as long as a prompt that is forgotten after the first window
        (hot,) = english.ours.generate([audio], hotwords="w5 w9", **ONCE)
        (once,) = english.ours.generate([audio], initial_prompt="w5 w9", **ONCE)
        assert (hot == once) == (len(audio) <= RATE)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_long_prompts_do_not_depend_on_the_batch(case: Case, num_beams: int) -> None:
    """They are read row by row, and once for all beams of a row."""
    options: dict[str, Any] = ONCE | {
        "num_beams": num_beams,
        "initial_prompt": " ".join(f"w{n}" for n in range(8, 30)),
        "condition_on_previous_text": True,
        "timestamps": True,
    }
    together = case.ours.generate(LONG, **options)
    assert together == [case.ours.generate([audio], **options)[0] for audio in LONG]
    assert together != case.ours.generate(LONG, **options | {"initial_prompt": "w9"})


@torch.no_grad()
def continued(theirs: Any, audio: NDArray[np.float32], read: list[int], most: int) -> list[int]:
    """What Hugging Face's model writes after some tokens, greedily and without its `generate`."""
    features = extractor(theirs)(audio, sampling_rate=RATE, return_tensors="pt").input_features
    settings, tokens = theirs.generation_config, list(read)
    for _ in range(most):
        decoder = torch.tensor([tokens])
        logits = theirs(input_features=features, decoder_input_ids=decoder).logits[0, -1]
        logits[settings.suppress_tokens] = -torch.inf
        if len(tokens) == len(read):
            logits[settings.begin_suppress_tokens] = -torch.inf
        token = int(logits.argmax())
        if token == settings.eos_token_id:
            break
        tokens.append(token)
    return tokens[len(read) :]


@pytest.mark.parametrize("prefix", ["w5 w9 w5", [5, 9, 5]])
def test_a_prefix_begins_the_first_window(multilingual: Case, prefix: Any) -> None:
    vocabulary = Vocabulary(multilingual=True)
    names = ("startoftranscript", "en", "transcribe", "notimestamps")
    read = [*(vocabulary[name] for name in names), 5, 9, 5]
    expected = continued(multilingual.theirs, LONG[1], read, 9)
    options: dict[str, Any] = {"language": "en", "task": "transcribe", "max_new_tokens": 12}
    (found,) = multilingual.ours.generate([LONG[1]], prefix=prefix, **options)
    assert list(found.tokens) == [5, 9, 5, *expected]
    assert (found.text or "").startswith("w5 w9 w5 ")
    (timed,) = multilingual.ours.generate([LONG[0]], prefix=prefix, timestamps=True, **options)
    assert timed.tokens[:4] == (vocabulary["0.00"], 5, 9, 5)
    windows = [s.text for s in timed.segments or ()]
    assert sum((text or "").startswith(" w5 w9 w5") for text in windows) == 1


def test_prefixes_that_cannot_be(multilingual: Case) -> None:
    long = " ".join(["w5"] * 60)
    (found,) = multilingual.ours.generate([LONG[1]], prefix=long, language="en")
    assert found.error is not None and "prefix: expected fewer than" in found.error
    (found,) = multilingual.ours.generate([LONG[1]], prefix=[Vocabulary(True)["endoftext"]])
    assert found.error is not None and "prefix: expected tokens of text" in found.error
    with pytest.raises(DragomanError, match="prefix: expected false to stream"):
        multilingual.ours.stream(LONG[1], prefix="w5")


# Languages.


def test_languages_are_detected_in_the_first_window(
    multilingual: Case, english: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[Any] = [*LONG, tmp_path / "none.wav"]
    found = multilingual.ours.detect_language(sources, vad=False)
    firsts = [audio[:RATE] for audio in LONG]
    for one, other in zip(found, multilingual.ours.generate(firsts, language="auto"), strict=False):
        assert (one.language, one.error) == (other.language, None)
        assert one.probability == pytest.approx(other.language_probability, rel=1e-3)
    assert found[3].language is None and "none.wav" in (found[3].error or "")
    assert multilingual.ours.detect_language([np.zeros(RATE, np.float32)])[0].language is None

    def fail(*arguments: Any) -> Any:
        raise BackendError("the device is on fire")

    monkeypatch.setattr(multilingual.ours.backend, "start", fail)
    (failed,) = multilingual.ours.detect_language(LONG[:1], vad=False)
    assert (failed.language, failed.error) == (None, "the device is on fire")
    with pytest.raises(DragomanError, match="expected a model of several languages"):
        english.ours.detect_language(LONG)
    assert issubclass(AbilityError, DragomanError)
