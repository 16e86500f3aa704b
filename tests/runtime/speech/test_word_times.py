"""Times of words: dynamic time warping, words and their times, against slow and foreign oracles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime import Result, load
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.format.neutral_graphs import aligning_heads, aligning_layers
from dragoman.runtime.speech.timestamps import TimedTokens
from dragoman.runtime.speech.word_times import (
    SpokenWindow,
    TokenTimes,
    WordTimer,
    medians,
    spans_of,
    warped,
)

from ...speech_models import RATE, Vocabulary, extractor, noise
from .conftest import Case, Exported

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

AUDIO = [noise(seconds, seed) for seed, seconds in enumerate((0.31, 1.0, 0.7))]
LONG = noise(3.3, 10)


def slow_path(cost: NDArray[np.float32]) -> list[tuple[int, int]]:
    """The definition: cell by cell; of equal predecessors the one to the left."""
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    came: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            if both < down and both < right:
                came[i, j], best = (i - 1, j - 1), both
            elif down < both and down < right:
                came[i, j], best = (i - 1, j), down
            else:
                came[i, j], best = (i, j - 1), right
            total[i, j] = np.float64(cost[i - 1, j - 1]) + best
    place, path = (rows, columns), []
    while place != (0, 0):
        path.append((place[0] - 1, place[1] - 1))
        place = came[place]
    return path[::-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (2, 2), (5, 13), (13, 5), (9, 9)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_path_is_the_cheapest(shape: tuple[int, int], ties: bool) -> None:
    generator = np.random.default_rng(sum(shape))
    for _ in range(5):
        cost = generator.standard_normal(shape).astype(np.float32)
        cost = np.round(cost) if ties else cost
        assert [tuple(step) for step in warped(cost).tolist()] == slow_path(cost)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 50])
def test_medians_of_seven(length: int) -> None:
    values = np.random.default_rng(length).standard_normal((2, 3, length)).astype(np.float32)
    expected = values
    if length > 3:
        wide = torch.nn.functional.pad(torch.from_numpy(values), (3, 3), mode="reflect")
        expected = np.median(wide.unfold(-1, 7, 1).numpy(), axis=-1)
    np.testing.assert_array_equal(medians(values), expected)


class Pieces:
    """A stream in which each token is a piece; None is a part of the next character."""

    def __init__(self, pieces: Sequence[str | None]) -> None:
        self._pieces = pieces

    def step(self, token: int) -> str:
        return self._pieces[token] or ""

    def rest(self) -> str:
        return "\ufffd" if self._pieces and self._pieces[-1] is None else ""


@pytest.mark.parametrize(
    ("pieces", "spaces", "expected"),
    [
        ([" He", "llo", ",", " you"], True, [(" Hello", 2), (",", 1), (" you", 1)]),
        (["He", " ", "(", "a", ")"], True, [("He", 1), (" ", 1), ("(a", 2), (")", 1)]),
        ([None, " é", "t", None], True, [(" ét\ufffd", 4)]),
        (["今", None, "日", "。"], False, [("今", 1), ("日", 2), ("。", 1)]),
        ([], True, []),
        ([None], True, [("\ufffd", 1)]),
    ],
)
def test_tokens_become_words(pieces: Any, spaces: bool, expected: Any) -> None:
    found = spans_of(range(len(pieces)), Pieces(pieces), spaces=spaces)
    assert [(span.text, span.tokens) for span in found] == expected


class Timed(WordTimer):
    """Times of words where each token begins at a given frame."""

    def __init__(self, manifest: Any, starts: Sequence[int]) -> None:
        self._manifest, self._starts = manifest, starts

    def times(self, *_: Any) -> TokenTimes:
        path = [[token, frame] for token, frame in enumerate(self._starts)]
        return TokenTimes(np.array(path), np.linspace(0.5, 1, len(path) - 1, dtype=np.float32))


def words_of(
    english: Case,
    pieces: list[str],
    starts: Sequence[int],
    segments: Sequence[tuple[float, float, int]],
    **window: Any,
) -> list[TimedTokens]:
    """
    Args:
        segments: start, end and number of tokens of each
    """
    given, first = [], 0
    for start, end, count in segments:
        given.append(TimedTokens(start, end, tuple(range(first, first + count))))
        first += count
    timer = Timed(english.ours.manifest, starts)
    return timer.timed(given, {}, SpokenWindow((), 100, **window), lambda: Pieces(pieces))


def test_punctuation_belongs_to_the_word_beside_it(english: Case) -> None:
    pieces = [" (", "so", ",", ' "', "yes", '."', " he", " said", "!"]
    (segment,) = words_of(english, pieces, range(0, 100, 10), [(0.0, 1.8, 9)])
    assert [word.text for word in segment.words or ()] == [" (so,", ' "yes."', " he", " said!"]
    assert [word.start for word in segment.words or ()] == [0.0, 0.6, 1.2, 1.4]


def test_times_are_of_tokens_and_of_the_window(english: Case) -> None:
    (segment,) = words_of(
        english, [" a", " b", "c"], [5, 10, 15, 25], [(7.1, 7.5, 3)], offset=7.0, spoken=7.0
    )
    assert [(w.text, w.start, w.end) for w in (segment.words or ())] == [
        (" a", 7.1, 7.2),
        (" bc", 7.2, 7.5),
    ]
    assert [w.probability for w in (segment.words or ())] == pytest.approx([0.5, 0.875])
    assert (segment.start, segment.end) == (7.1, 7.5)


def test_words_after_a_pause_and_at_the_end_are_shortened(english: Case) -> None:
    """Usually 0.2 s: the first lasts 2 s, after a pause of 5; the last one 3 s."""
    starts = [0, 100, 110, 120, 130, 280]
    pieces = [" one", " two", " three", " four", " five"]
    (segment,) = words_of(english, pieces, starts, [(1.5, 2.7, 5)], offset=5.0)
    assert [(segment.words or ())[0].start, (segment.words or ())[0].end] == [6.6, 7.0]
    # The segment ends before the last word begins, and takes its end.
    assert segment.end == (segment.words or ())[-1].end == 10.6
    (segment,) = words_of(english, pieces, starts, [(0.0, 2.7, 5)])
    assert (segment.words or ())[-1].end == segment.end == 2.8  # the usual 0.2 s from 2.6


def test_long_marks_and_long_beginnings_of_sentences_are_cut(english: Case) -> None:
    starts = [0, 10, 20, 90, 100, 110, 120]
    pieces = [" a", " b", ".", " c", " d", " e"]
    (segment,) = words_of(english, pieces, starts, [(0.0, 2.4, 6)])
    assert (segment.words or ())[1].text == " b." and (segment.words or ())[1].end == 0.4
    starts = [0, 10, 20, 30, 100, 110, 120]
    (segment,) = words_of(english, pieces, starts, [(0.0, 2.4, 6)])
    assert [(segment.words or ())[2].start, (segment.words or ())[2].end] == [1.6, 2.0]


def test_each_segment_has_its_words(english: Case) -> None:
    pieces = [" a", " b", " c", "d", " e"]
    found = words_of(english, pieces, range(0, 60, 10), [(0, 0.4, 2), (0.4, 0.5, 0), (0.5, 1, 3)])
    assert [[w.text for w in s.words or ()] for s in found] == [[" a", " b"], [], [" cd", " e"]]
    assert [(s.start, s.end) for s in found] == [(0.0, 0.4), (0.4, 0.5), (0.5, 1.0)]


def test_words_are_of_their_segment_and_never_before_earlier_ones(english: Case) -> None:
    """A word and its mark go on in the next segment; an earlier window had words until 5.1 s."""
    pieces = [" a", " b", "c", ".", " d"]
    found = words_of(
        english, pieces, range(0, 60, 10), [(5.0, 5.4, 2), (5.4, 6.0, 3)], offset=5.0, spoken=5.1
    )
    assert [[(w.text, w.start, w.end) for w in s.words or ()] for s in found] == [
        [(" a", 5.1, 5.2), (" b", 5.2, 5.4)],
        [("c.", 5.4, 5.6), (" d", 5.8, 6.0)],
    ]
    assert [(s.start, s.end) for s in found] == [(5.1, 5.4), (5.4, 6.0)]


def test_heads_that_align() -> None:
    class Sizes:
        decoder_layers, num_heads = 5, 2

    model: Any = Sizes()
    assert aligning_heads(model, ()) == tuple((n, h) for n in (2, 3, 4) for h in (0, 1))
    assert aligning_heads(model, ((4, 1), (0, 1))) == ((0, 1), (4, 1))
    assert aligning_layers(model, ((4, 1), (0, 1), (4, 0))) == (0, 4)


def published(
    theirs: Any, audio: NDArray[np.float32], prompt: list[int], tokens: list[int]
) -> tuple[NDArray[np.float32], list[float]]:
    """Costs [tokens + 1, frames] and probabilities by Hugging Face's attention, in float64."""
    end = theirs.config.eos_token_id
    features = extractor(theirs)(audio, sampling_rate=RATE, return_tensors="pt").input_features
    read = torch.tensor([[*prompt, *tokens, end]])
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        output = theirs(features, decoder_input_ids=read, output_attentions=True)
    theirs.set_attn_implementation("sdpa")
    layers = theirs.config.decoder_layers
    heads = torch.cat([output.cross_attentions[n][0] for n in range(layers // 2, layers)])
    weights = heads[:, :, : max(1, len(audio) // 160 // 2)].double()
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    scaled = (weights - mean) / deviation
    if scaled.shape[-1] > 3:
        wide = torch.nn.functional.pad(scaled, (3, 3), mode="reflect")
        scaled = wide.unfold(-1, 7, 1).sort()[0][..., 3]
    matrix = scaled.mean(0)[len(prompt) - 1 : -1].numpy().astype(np.float32)
    text = output.logits[0, len(prompt) - 1 : -2, :end].softmax(-1)
    return -matrix, [float(text[n, token]) for n, token in enumerate(tokens)]


def test_tokens_are_aligned_as_by_the_published_method(case: Case) -> None:
    vocabulary = Vocabulary(case.ours.manifest.name == "multilingual")
    prompt = [vocabulary["startoftranscript"]]
    reading: dict[str, Any] = {}
    if vocabulary.multilingual:
        prompt += [vocabulary["de"], vocabulary["transcribe"]]
        reading = {"language": "de", "task": "transcribe"}
    prompt.append(vocabulary["notimestamps"])
    for audio, tokens in zip(AUDIO, ([5], [2, 8, 8, 59, 0, 4, 11], list(range(20))), strict=True):
        (found,) = case.ours.align([(audio, tokens)], **reading)
        cost, probabilities = published(case.theirs, audio, prompt, tokens)
        assert found.error is None
        path = [(token, frame) for frame, token in found.pairs]
        expected = slow_path(cost)
        assert path[0] == (0, 0) and path[-1] == expected[-1]
        # Rounding decides between paths that are as cheap.
        assert sum(cost[step] for step in path) == pytest.approx(
            sum(cost[step] for step in expected), abs=1e-3
        )
        np.testing.assert_allclose(found.probabilities, probabilities, rtol=1e-3)
        assert found.target == tuple(f" w{token}" for token in tokens)


def test_a_detected_language_is_followed_by_the_task(multilingual: Case) -> None:
    detected = multilingual.ours.generate([AUDIO[1]])[0].language
    (stated,) = multilingual.ours.align([(AUDIO[1], [3, 4])], language=detected, task="transcribe")
    (found,) = multilingual.ours.align([(AUDIO[1], [3, 4])])
    assert found == stated


def concatenated(result: Result) -> list[str]:
    return ["".join(word.text for word in s.words or ()) for s in result.segments or ()]


def test_words_of_transcripts(case: Case) -> None:
    for audio in (*AUDIO, LONG):
        (plain,) = case.ours.generate([audio], timestamps=True)
        (result,) = case.ours.generate([audio], word_timestamps=True)
        assert result.tokens == plain.tokens and result.text == plain.text
        assert result.segments is not None and plain.segments is not None
        texts = [segment.text or "" for segment in result.segments]
        for time in (f"<|{step * 0.02:.2f}|>" for step in range(51)):
            texts = [text.replace(time, "") for text in texts]
        assert concatenated(result) == texts
        words = [word for segment in result.segments for word in segment.words or ()]
        assert words and all(0 <= word.probability <= 1 for word in words)
        times = [0.0]
        for segment in result.segments:
            own = [time for word in segment.words or () for time in (word.start, word.end)]
            times += [segment.start, *own, segment.end]
        assert times == sorted(times) and times[-1] <= len(audio) / RATE


def test_words_without_segments_and_with_beams(case: Case) -> None:
    (result,) = case.ours.generate([AUDIO[1]], word_timestamps=True, timestamps=False, num_beams=3)
    (plain,) = case.ours.generate([AUDIO[1]], timestamps=False, num_beams=3)
    assert result.tokens == plain.tokens
    assert result.segments is not None and len(result.segments) == 1
    assert concatenated(result) == [f" {result.text}"]


def test_words_do_not_depend_on_the_batch(multilingual: Case) -> None:
    audio = [LONG, *AUDIO, noise(2.2, 4)]
    expected = [multilingual.ours.generate([a], word_timestamps=True)[0].segments for a in audio]
    for size in (2, 5):
        found = multilingual.ours.generate(audio, word_timestamps=True, max_batch_size=size)
        for one, other in zip(found, expected, strict=True):
            assert one.segments is not None and other is not None
            assert [(w.start, w.end, w.text) for s in one.segments for w in s.words or ()] == [
                (w.start, w.end, w.text) for s in other for w in s.words or ()
            ]


def test_what_cannot_be_timed(english: Case, multilingual: Case, exported: Exported) -> None:
    ours = english.ours
    with pytest.raises(DragomanError, match="word_timestamps: expected false to stream"):
        next(ours.stream(AUDIO[0], word_timestamps=True))
    for tokens, problem in (
        ([Vocabulary(False)["endoftext"]], "expected tokens of a text, found the token 60"),
        ([10_000], "expected token ids"),
        ([1] * 40, "at most"),
    ):
        (found,) = ours.align([(AUDIO[0], tokens)])
        assert found.error is not None and problem in found.error
    (found,) = ours.align([(LONG, [1])])
    assert found.error is not None and "at most 1 s" in found.error
    with pytest.raises(DragomanError, match="unknown_replaced: expected False"):
        ours.align([(AUDIO[0], [1])], unknown_replaced=True)
    with pytest.raises(DragomanError, match="expected a model that reads a text"):
        ours.replace_unknown("x", ours.generate([AUDIO[0]])[0])


def test_the_longest_output_is_timed(english: Case) -> None:
    """The decoder does not read its last token."""
    options: dict[str, Any] = {"max_new_tokens": 29, "min_new_tokens": 29, "timestamps": False}
    (plain,) = english.ours.generate([AUDIO[1]], **options)
    results = english.ours.generate(AUDIO, word_timestamps=True, **options)
    assert [result.error for result in results] == [None] * 3
    assert results[1].tokens == plain.tokens and len(plain.tokens) == 29
    assert concatenated(results[1]) == [f" {results[1].text}"]
    words = [word for segment in results[1].segments or () for word in segment.words or ()]
    assert words[-1].end == 0.98  # the last frame of a second


def test_the_longest_output_of_a_detected_language_is_timed(multilingual: Case) -> None:
    """The prompt of its text names a task, which the prompt that it was decoded from does not."""
    most = 37 - 3
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": most, "timestamps": False}
    (result,) = multilingual.ours.generate([AUDIO[1]], word_timestamps=True, **options)
    assert result.error is None and concatenated(result) == [f" {result.text}"]


def test_a_failure_rejects_one_recording(english: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    align, calls = english.ours.backend.align, list[int]()

    def failing(encoded: Any, token: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise BackendError("no memory")
        logits, attention = align(encoded, token)
        return logits, attention * np.float32(np.nan if len(calls) == 2 else 1)

    monkeypatch.setattr(english.ours.backend, "align", failing)
    results = english.ours.generate(AUDIO, word_timestamps=True, max_batch_size=1)
    assert [result.error for result in results] == [
        "no memory",
        "the model's attention and logits are not finite numbers",
        None,
    ]
    calls.clear()
    found = english.ours.align([(audio, [1]) for audio in AUDIO])
    assert [alignment.error for alignment in found] == [result.error for result in results]


def test_what_was_not_asked_for_is_none(english: Case) -> None:
    (plain,) = english.ours.generate([AUDIO[1]], timestamps=True)
    assert all(segment.words is None for segment in plain.segments or ())


def test_a_bundle_without_the_graph_is_built_again(english: Case) -> None:
    manifest = english.ours.manifest
    kept = manifest.graphs.pop("alignment")
    try:
        with pytest.raises(BackendError, match="found none in english: build it again"):
            english.ours.generate([AUDIO[0]], word_timestamps=True)
        with pytest.raises(BackendError, match="build it again"):
            english.ours.align([(AUDIO[0], [1])])
    finally:
        manifest.graphs["alignment"] = kept


def test_a_model_without_named_heads_has_the_upper_half(exported: Exported) -> None:
    _, bundle = exported("distilled")  # a single layer
    with load(bundle, threads=1) as model:
        graph = model.manifest.graphs["alignment"]
        assert graph.output("cross_attention").shape[1] == 1
        (result,) = model.generate([AUDIO[1]], word_timestamps=True)
        assert concatenated(result)[0]
