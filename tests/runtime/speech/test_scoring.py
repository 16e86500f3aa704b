"""Scores of transcripts are the log-softmax at Hugging Face's labels, after the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from dragoman.runtime import DragomanError, Model
from dragoman.verification.tolerances import TOLERANCES

from ...speech_models import LANGUAGES, RATE, Vocabulary, extractor, noise
from .conftest import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

AUDIO = [
    noise(seconds, seed) for seed, seconds in enumerate((0.31, 1.0, 0.7, 0.99, 0.05, 0.5, 0.6))
]
TARGETS = [[5, 9, 9], [], [8] * 20, [3, 4, 5, 6], [0], [17], [2, 44]]


def vocabulary(case: Case) -> Vocabulary:
    return Vocabulary(bool(case.ours.manifest.speech and case.ours.manifest.speech.languages))


@torch.inference_mode()
def their_log_probabilities(
    case: Case, audio: Any, prompt: list[str], target: list[int]
) -> tuple[list[float], float]:
    """Of the target and the end token, and how far parity at fp32 lets logits make them differ.
    Their decoder reads the labels after the start token."""
    names = vocabulary(case)
    labels = [*(names[name] for name in prompt), *target, names["endoftext"]]
    features = extractor(case.theirs)(audio, sampling_rate=RATE, return_tensors="pt")
    output = case.theirs(features.input_features, labels=torch.tensor([labels]))
    values = output.logits[0].log_softmax(-1)[torch.arange(len(labels)), labels]
    assert float(output.loss) == pytest.approx(-float(values.mean()), abs=1e-5)
    return values[len(prompt) :].tolist(), 2 * TOLERANCES["fp32"] * float(output.logits.abs().max())


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("timestamps", [False, True])
def test_probabilities_are_those_at_their_labels(case: Case, count: int, timestamps: bool) -> None:
    names = vocabulary(case)
    several = names.multilingual
    options: dict[str, str] = {"language": "de", "task": "translate"} if several else {}
    prompt = ["de", "translate"] if several else []
    prompt += [] if timestamps else ["notimestamps"]
    targets = [[names["0.00"], *t, names["0.30"]] for t in TARGETS] if timestamps else TARGETS
    found = case.ours.score(
        list(zip(AUDIO, targets, strict=True))[:count],
        timestamps=timestamps,
        **options,  # type: ignore[arg-type]
    )
    for audio, target, scored in zip(AUDIO, targets, found, strict=False):
        assert scored.error is None
        assert scored.tokens == (*target, names["endoftext"])
        assert scored.language == ("de" if several else None)
        wanted, allowed = their_log_probabilities(case, audio, prompt, target)
        assert scored.token_log_probabilities == pytest.approx(wanted, abs=allowed)


def test_a_language_that_is_not_named_is_detected(multilingual: Case) -> None:
    pairs = list(zip(AUDIO, TARGETS, strict=True))
    generated = multilingual.ours.generate(AUDIO)
    found = multilingual.ours.score(pairs)
    assert [scored.language for scored in found] == [result.language for result in generated]
    assert {scored.language for scored in found} <= set(LANGUAGES)
    for pair, scored in zip(pairs, found, strict=True):
        [stated] = multilingual.ours.score([pair], language=scored.language)
        assert stated.token_log_probabilities == pytest.approx(
            scored.token_log_probabilities, abs=1e-4
        )


def test_generated_tokens_are_at_most_as_probable_among_all_tokens(english: Case) -> None:
    """Suppressed tokens have a share in these probabilities, and none in those of decoding."""
    for audio, result in zip(AUDIO, english.ours.generate(AUDIO), strict=True):
        [scored] = english.ours.score(
            [(audio, result.tokens)], end_token=result.finish_reason == "end"
        )
        assert scored.error is None
        assert scored.log_probability <= result.log_probability + 1e-4


def test_a_transcript_is_a_text_with_or_without_the_space_before_it(english: Case) -> None:
    ids, text, space = english.ours.score([(AUDIO[0], t) for t in ([7], "w7", " w7 ")])
    assert ids == text == space
    [empty] = english.ours.score([(AUDIO[0], "")])
    assert empty.tokens == (vocabulary(english)["endoftext"],)


def test_a_file_and_features(english: Case, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "one.wav", AUDIO[0], RATE, subtype="FLOAT")
    features = extractor(english.theirs)(AUDIO[0], sampling_rate=RATE, return_tensors="np")
    window = np.asarray(features.input_features[0], np.float32)
    samples, file, ready = english.ours.score(
        [(AUDIO[0], [5]), (tmp_path / "one.wav", [5]), (window, [5])]
    )
    assert samples == file
    assert ready.log_probability == pytest.approx(samples.log_probability, abs=1e-4)


def test_bad_pairs_are_rejected_alone(multilingual: Case, tmp_path: Path) -> None:
    good = (AUDIO[0], [5, 9])
    size = vocabulary(multilingual).size
    bad: list[tuple[Any, str]] = [
        ((noise(1.5, 1), [5]), "expected audio of at most 1 s to score, found 1.50 s"),
        ((tmp_path / "none.wav", [5]), f"{tmp_path / 'none.wav'}: expected a readable audio file"),
        ((AUDIO[1], [size]), f"target: expected token ids in [0, {size}), found {size}"),
        ((AUDIO[1], [8] * 50), "target has 51 tokens, expected at most "),
        (AUDIO[1], "expected a pair of source and target, found array"),
    ]
    pairs = [good, *(pair for pair, _ in bad), good]
    first, *rejected, last = multilingual.ours.score(pairs)
    assert first.error is None and last.error is None
    assert first.token_log_probabilities == pytest.approx(last.token_log_probabilities, abs=1e-5)
    for scored, (_, message) in zip(rejected, bad, strict=True):
        assert scored.error is not None and scored.error.startswith(message), scored.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_language": "de"}, "source_language and target_language are for text models"),
        ({"language": "xx"}, "language: expected one of de, en, fr, haw, found 'xx'"),
        ({"task": "sing"}, "task: expected one of transcribe, translate, found 'sing'"),
    ],
)
def test_bad_options_fail_the_call(
    multilingual: Case, options: dict[str, Any], message: str
) -> None:
    model: Model = multilingual.ours
    with pytest.raises(DragomanError, match="^" + message):
        model.score([(AUDIO[0], [5])], **options)
