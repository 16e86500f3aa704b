"""Doubtful windows are decoded again; what a window is judged by; and texts before a window."""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions, Model, Quality, Result
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState
from dragoman.runtime.decoding.greedy_and_sampling import Greedy
from dragoman.runtime.decoding.request import Request, as_batch
from dragoman.runtime.decoding.running_batch import Job, RunningBatch
from dragoman.runtime.model import parts_of
from dragoman.runtime.speech.plan import TEMPERATURES
from dragoman.runtime.speech.recording import Recording, Spectrogram
from dragoman.runtime.speech.windows import is_doubtful, is_silent

from ...speech_models import Vocabulary, extractor, noise, their_tokens
from .conftest import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SHORT = [noise(seconds, seed) for seed, seconds in enumerate((0.31, 1.0, 0.7))]
LONG = [noise(seconds, seed) for seed, seconds in enumerate((3.3, 4.13), start=10)]
NEVER: dict[str, Any] = {
    "compression_ratio_threshold": None,
    "log_probability_threshold": None,
    "no_speech_threshold": None,
}
ALWAYS: dict[str, Any] = NEVER | {"log_probability_threshold": 1.0}
"""Every text is doubtful."""
LIMIT = 12
"""New tokens of a window: by default there are fewer of them with fallback."""


def options(**changes: Any) -> Any:
    return {"timestamps": True, "fallback": True, "max_new_tokens": LIMIT, **changes}


def text_of(result: Result) -> str:
    assert result.error is None and result.segments is not None
    return result.text or ""


@torch.no_grad()
def judged(case: Case, audio: Any, result: Result) -> tuple[float, float]:
    """The mean log-probability of an output without timestamps among the tokens that may follow,
    the end included, and the probability of no speech: with Hugging Face's model in float64."""
    theirs = copy.deepcopy(case.theirs).double()
    vocabulary = Vocabulary(bool(theirs.generation_config.is_multilingual))
    features = extractor(theirs)(audio, sampling_rate=16_000, return_tensors="pt").input_features
    prompt = [vocabulary["startoftranscript"]]
    if theirs.generation_config.is_multilingual:
        prompt += [vocabulary[result.language or ""], vocabulary["transcribe"]]
    prompt.append(vocabulary["notimestamps"])
    end = [] if result.end_token is None else [result.end_token]
    read = torch.tensor([[*prompt, *result.tokens]])
    logits = theirs(features.double(), decoder_input_ids=read).logits[0]
    no_speech = logits[0].softmax(-1)[vocabulary["nospeech"]]
    allowed = logits[len(prompt) - 1 :]
    allowed[:, theirs.generation_config.suppress_tokens] = -torch.inf
    allowed[0, theirs.generation_config.begin_suppress_tokens] = -torch.inf
    following = torch.tensor([[*result.tokens, *end]]).T
    scores = allowed[: len(following)].log_softmax(-1).gather(1, following)
    return float(scores.sum()) / (len(result.tokens) + 1), float(no_speech)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_window_is_judged_by_its_probabilities(case: Case, beams: int) -> None:
    more: dict[str, Any] = {}
    if case.theirs.generation_config.is_multilingual:
        more = {"task": "transcribe"}
    found = case.ours.generate(
        SHORT, fallback=True, timestamps=False, num_beams=beams, **NEVER, **more
    )
    for audio, result in zip(SHORT, found, strict=True):
        (segment,) = result.segments or ()
        mean, no_speech = judged(case, audio, result)
        encoded = text_of(result).strip().encode()
        assert segment.quality is not None
        assert dataclasses.astuple(segment.quality) == (
            pytest.approx(mean, abs=2e-5),
            len(encoded) / len(zlib.compress(encoded)),
            pytest.approx(no_speech, rel=1e-4),
            0.0,
        )


@pytest.mark.parametrize("timestamps", [False, True])
def test_windows_that_are_not_doubtful_are_as_without(case: Case, timestamps: bool) -> None:
    audio = [*SHORT, LONG[0]]
    plain = case.ours.generate(audio, timestamps=timestamps, max_new_tokens=LIMIT)
    found = case.ours.generate(audio, **options(**NEVER) | {"timestamps": timestamps})
    assert [r.tokens for r in found] == [r.tokens for r in plain]
    for result, before in zip(found, plain, strict=True):
        bare = [dataclasses.replace(s, quality=None) for s in result.segments or ()]
        assert tuple(bare) == before.segments
        assert result.log_probability == pytest.approx(before.log_probability, abs=1e-4)


def test_doubtful_windows_are_sampled_at_rising_temperatures(case: Case) -> None:
    """The last attempt counts, and is the same in every batch and every call."""
    found = case.ours.generate([*SHORT, *LONG], **options(**ALWAYS))
    used = {s.quality.temperature for r in found for s in r.segments or () if s.quality}
    assert used == {TEMPERATURES[-1]}
    plain = case.ours.generate([*SHORT, *LONG], timestamps=True, max_new_tokens=LIMIT)
    assert [r.tokens for r in found] != [r.tokens for r in plain]
    assert case.ours.generate([*SHORT, *LONG], **options(**ALWAYS)) == found
    for size in (1, 7):
        again = case.ours.generate([*SHORT, *LONG], **options(**ALWAYS), max_batch_size=size)
        assert [r.tokens for r in again] == [r.tokens for r in found]


def test_a_window_is_encoded_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoder made for the first attempt serves all, with the same output."""
    encoded: list[int] = []
    encode = HostState._encode

    def counted(state: HostState, encoder: Any, manifest: Any, source: Any) -> None:
        encoded.append(len(source))
        encode(state, encoder, manifest, source)

    monkeypatch.setattr(HostState, "_encode", counted)
    always = options(num_beams=5, **ALWAYS)  # as many rows as samples
    short = case.ours.generate(SHORT[:1], **always)
    once = len(encoded)
    together = case.ours.generate([*SHORT, *LONG], **always)
    monkeypatch.setattr(HostState, "encoded_source", lambda *_: None)
    encoded.clear()
    assert case.ours.generate(SHORT[:1], **always) == short
    assert encoded == [1] * (once * len(TEMPERATURES))
    assert case.ours.generate([*SHORT, *LONG], **always) == together


def test_encoded_windows_start_together_with_others(case: Case) -> None:
    parts, model = parts_of(case.ours), case.ours.manifest.model
    begun = [parts.front_end.begin(audio, GenerationOptions(num_beams=1)) for audio in SHORT]
    requests = [one.jobs[0].request for one in begun if not isinstance(one, Result)]

    def decoded(requests: Sequence[Request]) -> dict[int, Any]:
        capacity = max(request.capacity for request in requests)
        batch = RunningBatch[int](parts.backend, model, width=1, capacity=capacity)
        found = batch.admit([Job(n, request, Greedy()) for n, request in enumerate(requests)])
        while batch.running:
            found += batch.step()
        return {one.job.key: (one.sequences[0].tokens, one.sequences[0].score) for one in found}

    expected = decoded(requests)
    assert len({tuple(tokens) for tokens, _ in expected.values()}) > 1
    for number, request in enumerate(requests):
        assert isinstance(request.source, np.ndarray)
        source = parts.backend.encode(*as_batch([request.source], model))
        mixed = [*requests]
        mixed[number] = dataclasses.replace(request, source=source)
        assert decoded(mixed) == expected


def test_the_attempts_end_with_the_first_that_is_not_doubtful(case: Case) -> None:
    """The threshold is between the best and the worst of what the attempts reach."""
    plain = case.ours.generate(SHORT, **options(**NEVER))
    values = [
        s.quality.average_log_probability for r in plain for s in r.segments or () if s.quality
    ]
    least = float(np.median(values))
    changed = NEVER | {"log_probability_threshold": least}
    found = case.ours.generate(SHORT, **options(**changed))
    for result, before in zip(found, plain, strict=True):
        (first, *_), (judged_before, *_) = result.segments or (), before.segments or ()
        assert first.quality is not None and judged_before.quality is not None
        is_kept = judged_before.quality.average_log_probability >= least
        assert (first.quality.temperature == 0) == is_kept
        if first.quality.temperature < TEMPERATURES[-1]:
            assert first.quality.average_log_probability >= least


def test_windows_without_speech_are_left_out(case: Case) -> None:
    silent = NEVER | {"no_speech_threshold": 0.0}
    found = case.ours.generate([*SHORT, *LONG], **options(**silent))
    left = [(r.text, r.segments, r.tokens, r.error, r.finish_reason) for r in found]
    assert left == [("", (), (), None, "empty")] * 5
    probable = silent | {"log_probability_threshold": -1e9}
    kept = case.ours.generate([*SHORT, *LONG], **options(**probable))
    plain = case.ours.generate([*SHORT, *LONG], timestamps=True, max_new_tokens=LIMIT)
    assert [r.tokens for r in kept] == [r.tokens for r in plain]


@pytest.mark.parametrize(
    ("quality", "doubtful", "silent"),
    [
        (Quality(-0.5, 1.5, 0.1, 0), False, False),
        (Quality(-0.5, 2.5, 0.1, 0), True, False),  # repeats itself
        (Quality(-1.5, 1.5, 0.1, 0), True, False),  # improbable
        (Quality(-1.5, 2.5, 0.7, 0), False, True),  # no speech
        (Quality(-0.5, 1.5, 0.7, 0), False, False),  # probable all the same
        (Quality(-0.5, 2.5, 0.7, 0), True, False),
        (Quality(-1.0, 2.4, 0.6, 0), False, False),  # at the thresholds
    ],
)
def test_the_rules_of_openai_whisper(quality: Quality, doubtful: bool, silent: bool) -> None:
    defaults = GenerationOptions()
    assert is_doubtful(quality, defaults) == doubtful
    assert is_silent(quality, defaults) == silent


@pytest.mark.parametrize("case", ["english", "multilingual"], indirect=True)
def test_the_text_before_a_window_is_read_as_by_hugging_face(case: Case) -> None:
    for audio in LONG:
        more: dict[str, Any] = {}
        if case.theirs.generation_config.is_multilingual:
            more = {"language": "de", "task": "transcribe"}
        vocabulary = Vocabulary(bool(more))
        case.theirs.generation_config.prev_sot_token_id = vocabulary["startofprev"]
        expected = their_tokens(
            case.theirs,
            audio,
            return_timestamps=True,
            condition_on_prev_tokens=True,
            temperature=(0.0,),
            **more,
        )
        result = case.ours.generate([audio], condition_on_previous_text=True, **more)[0]
        assert list(result.tokens) == expected
        plain = case.ours.generate([audio], **more)[0]
        assert plain.tokens != result.tokens


def test_the_initial_prompt_is_read(english: Case) -> None:
    (plain,) = english.ours.generate([LONG[0]])
    (prompted,) = english.ours.generate([LONG[0]], initial_prompt="w5")
    assert prompted.tokens != plain.tokens
    (blank,) = english.ours.generate([LONG[0]], initial_prompt="  ")
    assert blank == plain


def test_wrong_uses_are_refused(english: Case, text_model: Model) -> None:
    ours = english.ours
    with pytest.raises(DragomanError, match="fallback: expected false to stream"):
        next(ours.stream(SHORT[0], fallback=True))
    with pytest.raises(DragomanError, match="fallback: expected no do_sample: it chooses temp"):
        ours.generate([SHORT[0]], fallback=True, do_sample=True, temperature=0.5)
    speech: dict[str, Any] = {"fallback": True, "initial_prompt": "a", "no_speech_threshold": 0.5}
    for name, value in speech.items():
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(DragomanError, match=f"{name}: for speech models, found a text model"):
            text_model.generate(["abc"], **wrong)


def test_the_language_has_a_probability_if_it_is_detected(multilingual: Case) -> None:
    detected = multilingual.ours.generate(SHORT)
    stated = multilingual.ours.generate(SHORT, language="de")
    assert [r.language_probability for r in stated] == [None] * 3
    theirs, vocabulary = multilingual.theirs, Vocabulary(multilingual=True)
    ids = sorted(theirs.generation_config.lang_to_id.values())
    for audio, result in zip(SHORT, detected, strict=True):
        features = extractor(theirs)(audio, sampling_rate=16_000, return_tensors="pt")
        with torch.no_grad():
            logits = theirs(
                features.input_features,
                decoder_input_ids=torch.tensor([[vocabulary["startoftranscript"]]]),
            ).logits[0, 0, ids]
        assert result.language_probability == pytest.approx(
            float(logits.softmax(-1).max()), rel=1e-4
        )


def test_the_language_is_detected_without_the_text_before_a_window(multilingual: Case) -> None:
    plain = multilingual.ours.generate([*SHORT, *LONG])
    found = multilingual.ours.generate([*SHORT, *LONG], initial_prompt=" w5 w9", fallback=True)
    for result, before in zip(found, plain, strict=True):
        assert result.error is None and result.language == before.language
        assert result.language_probability == pytest.approx(before.language_probability, rel=1e-4)
        stated = multilingual.ours.generate([SHORT[0]], language=result.language)
        assert stated[0].language == result.language
    with pytest.raises(DragomanError, match="initial_prompt, hotwords: expected a language, too"):
        next(multilingual.ours.stream(SHORT[0], initial_prompt="w5"))
    list(multilingual.ours.stream(SHORT[0], initial_prompt="w5", language="de"))


def test_a_prompt_has_no_special_tokens(english: Case) -> None:
    """They would be commands to the model."""
    text = "w5 <|endoftext|> <|nospeech|>"
    recording = Recording(Spectrogram(np.zeros((2, 3), np.float32), 3, 0.03))
    options = GenerationOptions(initial_prompt=text, hotwords=text, prefix=text)
    parts_of(english.ours).transcriber._windows.set_texts(recording, options)
    read = {*recording.context, *recording.hotwords, *recording.prefix}
    special = set(range(Vocabulary(multilingual=False)["endoftext"], 10_000))
    assert read and not special & read


def test_one_window_of_several_is_left_out(case: Case) -> None:
    """Those before and after it are as if it were not."""
    plain = case.ours.generate(LONG, **options(**NEVER))
    windows = [s.quality for r in plain for s in r.segments or () if s.quality is not None]
    most = float(np.median([quality.no_speech_probability for quality in windows]))
    found = case.ours.generate(LONG, **options(**NEVER | {"no_speech_threshold": most}))
    for result in found:
        kept = [s.quality.no_speech_probability for s in result.segments or () if s.quality]
        assert all(probability <= most for probability in kept)
        starts = [s.start for s in result.segments or ()]
        assert starts == sorted(starts)
    assert 0 < sum(len(r.segments or ()) for r in found) < sum(len(r.segments or ()) for r in plain)
