"""Computes the outputs for the inputs of known answers, and compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from .arguments import never_stopped
from .audio.log_mel import sound
from .decoding.results import RejectedError
from .encoding.front_end import run
from .encoding.tokenizer import Tokenized
from .format.known_answers import (
    PROJECTIONS,
    Answer,
    EncodedAnswer,
    GeneratedAnswer,
    KnownAnswers,
)
from .format.manifest import Manifest, Precision
from .model import Model, parts_of
from .speech.prompts import greedy_options, prompt_options

TOLERANCES: dict[Precision, float] = {
    "fp32": 0.001,
    "fp16": 0.1,
    "bf16": 0.6,
    "int8": 0.2,
    "int4": 0.2,
}
"""The most that a log-probability or a margin may differ, in nats: docs/guides/bundle.md has the
measurements. An encoder's outputs may differ by as much of their size."""


@dataclass(frozen=True)
class Outcome:
    """The comparison of one known answer."""

    answer: Answer
    gap: float = 0.0
    """The largest difference of a log-probability or a margin in nats, along the tokens that agree;
    for an encoder's output, of a value as a share of the output's size."""
    problem: str | None = None
    """What differs; None: nothing that rounding does not explain."""
    tied: int | None = None
    """The step at which another token of nearly the same probability was selected."""
    by_tokenizer: bool = False
    """Whether the tokenizer gives other tokens or another text."""
    same_tokens: bool = False
    """Whether `problem` is about probabilities only."""


def compare_answers(
    model: Model, known: KnownAnswers, answers: Sequence[Answer], *, margins: bool = False
) -> list[Outcome]:
    """Compute the outputs for the inputs of known answers in one batch, and compare them.

    Without `margins`, they are not compared, and tokens are selected by the graph.
    """
    tolerance = TOLERANCES[model.manifest.precision]
    generated = [answer for answer in answers if isinstance(answer, GeneratedAnswer)]
    encoded = [answer for answer in answers if isinstance(answer, EncodedAnswer)]
    alternatives = 2 if margins and model.manifest.model.target_vocab_size > 1 else 0
    try:
        outputs: list[Any] = [
            *generate(model, known, generated, alternatives=alternatives),
            *encode(model, encoded),
        ]
    except DragomanError as error:  # a graph that fails
        return [Outcome(answer, problem=str(error)) for answer in answers]
    ordered: list[Answer] = [*generated, *encoded]
    return [
        _tokenized(model, known, answer)
        or (
            _compare_generated(model, answer, output, tolerance)
            if isinstance(answer, GeneratedAnswer)
            else _compare_encoded(answer, output, tolerance)
        )
        for answer, output in zip(ordered, outputs, strict=True)
    ]


def worst(runs: Sequence[Sequence[Outcome]]) -> list[Outcome]:
    """Return the worst outcome of each answer, in the order of the first run."""
    found: dict[str, Outcome] = {}
    for outcome in chain.from_iterable(runs):
        before = found.setdefault(outcome.answer.name, outcome)
        if (outcome.problem is not None, outcome.gap) > (before.problem is not None, before.gap):
            found[outcome.answer.name] = outcome
    return list(found.values())


@dataclass(frozen=True)
class Generated:
    """An output: tokens after the prefix, including the end token, and their log-probabilities."""

    tokens: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    error: str | None = None
    """Why there is none."""
    margins: tuple[float, ...] = ()
    """The log-probability of each token minus that of the best other one, if requested."""


def options_of_answer(
    manifest: Manifest, known: KnownAnswers, answer: GeneratedAnswer
) -> GenerationOptions:
    """Return the options of an answer: greedy search without penalties, or the bundle's beams."""
    if answer.num_beams > 1:
        options = prompt_options(manifest).replace(num_beams=answer.num_beams, do_sample=False)
    else:
        options = greedy_options(manifest).replace(
            min_new_tokens=0, repetition_penalty=1.0, no_repeat_ngram_size=0
        )
    if answer.prefix:
        options = options.replace(prefix=answer.prefix)
    return options.replace(
        max_new_tokens=answer.max_new_tokens,
        target_language=known.target_language,
        shortlist=False,
    )


def generate(
    model: Model,
    known: KnownAnswers,
    answers: Sequence[GeneratedAnswer],
    *,
    alternatives: int = 0,
) -> list[Generated]:
    """Compute the outputs for the inputs of known answers, those of texts in one batch.

    Margins need 2 `alternatives`.
    """
    if not answers:
        return []
    each = [options_of_answer(model.manifest, known, answer) for answer in answers]
    audio = model.manifest.audio
    if audio is not None:
        return [
            _transcribed(model, sound(audio.sampling_rate, answer.seconds or 0), options)
            for answer, options in zip(answers, each, strict=True)
        ]
    options = [one.replace(alternatives=alternatives) for one in each]
    results = model.generate([answer.source for answer in answers], options)
    outputs = []
    for answer, result in zip(answers, results, strict=True):
        if not result.hypotheses:
            outputs.append(Generated(error=result.error or "no output"))
            continue
        best, given = result.hypotheses[0], len(answer.prefix)
        end = () if best.end_token is None else (best.end_token,)
        outputs.append(
            Generated(
                (*best.tokens, *end)[given:],
                best.token_log_probabilities[given:],
                margins=tuple(
                    _margin(token, {a.token: a.log_probability for a in step})
                    for token, step in zip(
                        (*best.tokens, *end)[given:], best.alternatives[given:], strict=False
                    )
                ),
            )
        )
    return outputs


def _margin(token: int, best: dict[int, float]) -> float:
    others = [value for other, value in best.items() if other != token]
    return best[token] - max(others) if token in best and others else FORCED


FORCED = 100.0
"""The margin of a token without alternatives, in nats."""


def _transcribed(
    model: Model, signal: NDArray[np.float32], options: GenerationOptions
) -> Generated:
    """Transcribe one window: results of `generate` lack the log-probability of each token."""
    try:
        tokens = list(model.stream(signal, options))
    except RejectedError as error:
        return Generated(error=str(error))
    return Generated(
        tuple(token.id for token in tokens), tuple(token.log_probability for token in tokens)
    )


def encode(model: Model, answers: Sequence[EncodedAnswer]) -> list[Any]:
    """Compute the outputs of an encoder-only model, or errors, each as its `values` and `size`."""
    head, manifest = model.manifest.head, model.manifest
    if not answers or head is None:
        return []
    roles = [tensor.role for tensor in manifest.graphs["encoder"].outputs]
    texts = []
    for answer in answers:
        ids = list(answer.source)
        none: list[int | None] = [None] * len(ids)
        types = list(answer.types) or [0] * len(ids)
        texts.append(Tokenized(ids, types, [], none, none))
    found = run(
        parts_of(model).backend,
        manifest,
        head,
        texts,
        lambda _, outputs: projections(
            np.concatenate([outputs.read(role).ravel() for role in roles])
        ),
        never_stopped,
    )
    made = dict(found)
    return [made[index] for index in range(len(texts))]


def projections(numbers: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Return sums of numbers with different signs, as a share of their size, and the size.

    Every number takes part in every sum, so that none can be wrong unnoticed.
    """
    wide = numbers.astype(np.float64)
    norm = math.sqrt(float(wide @ wide)) or 1.0
    mask = (1 << 64) - 1
    index = np.arange(1, len(wide) + 1, dtype=np.uint64)
    values = []
    for number in range(PROJECTIONS):
        # Fibonacci hashing: the upper bits of multiples of an odd number look random.
        mixed = index * np.uint64(0x9E3779B97F4A7C15 + 2 * 0x632BE59BD9B4E019 * number & mask)
        signs = 1.0 - 2.0 * ((mixed >> np.uint64(40)) & np.uint64(1)).astype(np.float64)
        values.append(float(signs @ wide) / norm)
    return np.array(values), norm / math.sqrt(len(wide))


def _tokenized(model: Model, known: KnownAnswers, answer: Answer) -> Outcome | None:
    if model.manifest.tokenizers is None:
        return None
    try:
        if isinstance(answer, GeneratedAnswer):
            if answer.text is None:
                return None
            what = answer.text
            found = model.tokenize(answer.text, known.source_language)
        else:
            if not answer.texts:
                return None
            what = answer.texts[0]
            pair: Any = answer.texts if len(answer.texts) == 2 else answer.texts[0]
            found = parts_of(model).encoder.tokenize(pair).ids
    except DragomanError as error:
        return Outcome(answer, problem=str(error), by_tokenizer=True)
    if tuple(found) == answer.source:
        return None
    problem = f"{shown(what)} has tokens {shown(found)}, expected {shown(list(answer.source))}"
    return Outcome(answer, problem=problem, by_tokenizer=True)


def _compare_generated(
    model: Model, answer: GeneratedAnswer, found: Generated, tolerance: float
) -> Outcome:
    if found.error is not None:
        return Outcome(answer, problem=found.error)
    expected = list(zip(answer.tokens, answer.log_probabilities, strict=True))
    gap = 0.0
    for step, ((token, known), (other, value)) in enumerate(
        zip(expected, zip(found.tokens, found.log_probabilities, strict=True), strict=False)
    ):
        if token == other:
            gap = max(gap, _difference(value, known))
            what = f"token {step}: log-probability {value:.4f}, expected {known:.4f}"
            if gap <= tolerance and found.margins and answer.margins:
                value, known = found.margins[step], answer.margins[step]
                gap = max(gap, _difference(value, known))
                what = f"token {step}: margin {value:.4f}, expected {known:.4f}"
            if gap > tolerance:
                return Outcome(answer, gap, what, same_tokens=True)
            continue
        if _is_tie(answer, found, step, tolerance):
            return Outcome(answer, gap, tied=step)
        return Outcome(answer, gap, f"token {step}: {other}, expected {token}")
    if len(found.tokens) != len(answer.tokens):
        step = min(len(found.tokens), len(answer.tokens))
        if answer.num_beams > 1 and _is_tie(answer, found, step, tolerance):
            return Outcome(answer, gap, tied=step)
        return Outcome(answer, gap, f"{len(found.tokens)} tokens, expected {len(answer.tokens)}")
    if answer.output is not None and model.manifest.tokenizers is not None:
        try:
            text = model.detokenize(answer.tokens)
        except DragomanError as error:
            return Outcome(answer, gap, str(error), by_tokenizer=True)
        if text != answer.output:
            problem = f"text {shown(text)}, expected {shown(answer.output)}"
            return Outcome(answer, gap, problem, by_tokenizer=True)
    return Outcome(answer, gap)


def _is_tie(answer: GeneratedAnswer, found: Generated, step: int, tolerance: float) -> bool:
    """Return whether rounding explains another token.

    In greedy search, its probability must be nearly that of the expected token, which must have had
    a small margin. With beams, the whole output must be as probable as the expected one.
    """
    if answer.num_beams > 1:
        longest = max(len(found.tokens), len(answer.tokens))
        score = sum(found.log_probabilities)
        return _difference(score, answer.score) <= tolerance * max(1, longest)
    margin = answer.margins[step] if answer.margins else FORCED
    gap = _difference(found.log_probabilities[step], answer.log_probabilities[step])
    return margin <= 2 * tolerance and gap <= 2 * tolerance


def _difference(found: float, expected: float) -> float:
    return abs(found - expected) if math.isfinite(found) else math.inf


def _compare_encoded(answer: EncodedAnswer, found: Any, tolerance: float) -> Outcome:
    if isinstance(found, DragomanError):
        return Outcome(answer, problem=str(found))
    values, size = found
    expected = np.array(answer.values)
    gap = float(np.abs(values - expected).max())
    # The values are shares of the output's size, which is compared itself.
    gap = max(gap, _difference(size, answer.size) / max(answer.size, 1e-30))
    if gap <= tolerance:
        return Outcome(answer, gap)
    return Outcome(answer, gap, f"the output differs by {gap:.2g} of its size")
