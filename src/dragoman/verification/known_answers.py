"""Chooses the known answers of a bundle, and computes them where it is built.

They include ragged lengths, the shortest and a long input, a position beyond 128, and beams where
the bundle decodes with them; `load` checks the first ones. Bundles that may run on a GPU also hold
the trained model's outputs, see `runtime.oracle_comparison`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.errors import DragomanError
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.answer_comparison import encode, generate, projections
from dragoman.runtime.audio.log_mel import LogMel, sound
from dragoman.runtime.backends import default_backend, runs_on_gpus
from dragoman.runtime.decoding.request import EncoderInput, as_batch
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.known_answers import (
    LARGEST_FILE,
    Answer,
    EncodedAnswer,
    GeneratedAnswer,
    KnownAnswers,
)
from dragoman.runtime.format.manifest import Manifest, TensorRTEngines
from dragoman.runtime.loading import machine_of
from dragoman.runtime.oracle_comparison import compare_with_oracle

from .inputs.items import spread
from .inputs.parity_inputs import ParityInputs
from .oracle import encoder_pass, for_torch, oracle_for, oracle_outputs, oracle_pass
from .parity import running
from .tolerances import NEGLIGIBLE

SHORT, LONG = 24, 128
"""The most tokens of an input that `load` reads, and that `verify` reads."""
ROWS = 5
"""The number of ragged inputs at load: kernels for up to four rows are others than for more."""
FURTHER = 3
BEYOND = 130
"""Positions before the last ones of a long output."""
PRODUCTS = 1_000_000_000
"""The most multiplications of an answer group at load."""
LEAST_STEPS, MOST_STEPS = 4, 16
SECONDS = (1.5, 4.0)
"""Lengths of generated sound; `load` checks the first."""
LARGE_ENCODER = 2e8
"""Weights of an encoder that hears one sound only; its answers are longer."""
MOST_CHARACTERS = 1000
DIGITS = 5
LIKELY = 5
"""The tokens of each step whose probabilities the trained model's outputs hold."""
ORACLE_DIGITS = 8
"""The significant digits of these: the probability of all other tokens follows from them."""
ENGINE_MULTIPLE = 4.0
"""The largest distance from the oracle on another device, as a multiple of the distance of the
bundle that passed where it was built."""
LEAST_SHARE = 0.001
"""A difference of an encoder-only model's output that always passes, as a share of its size."""


def make_known_answers(
    bundle: Bundle, reference: ReferenceModel, inputs: ParityInputs, threads: int | None
) -> KnownAnswers:
    """Compute the known answers of a bundle whose parity holds.

    Args:
        bundle: the bundle of graphs, also for engines, which are built later
        inputs: the inputs of parity; generated ones are added
    """
    backend, elsewhere = default_backend(bundle), runs_on_gpus(bundle.manifest.target)
    machine = machine_of(bundle, backend)
    known = KnownAnswers(
        versions=machine.versions, processor=machine.processor, features=machine.features
    )
    with running(bundle, threads, backend) as (model, _):
        if isinstance(reference, EncoderModel):
            encoded = [*_encoded(model, _sizes(reference)["encoder"], inputs)]
            if elsewhere:
                encoded = [_with_oracle_values(answer, model, reference) for answer in encoded]
            return _limited(model, backend, _fitting_file(known, encoded))
        oracle, language = oracle_for(reference, bundle.manifest, inputs.target_language)
        if language is not None:
            known = replace(known, source_language=inputs.source_language, target_language=language)
        chosen = list(_chosen(model.manifest, reference, inputs))
        answers = [*_generated(model, known, oracle, chosen, elsewhere=elsewhere)]
        return _limited(model, backend, _fitting_file(known, answers))


def fitting(known: KnownAnswers, manifest: Manifest) -> KnownAnswers:
    """Leave out the answers whose inputs or outputs are longer than engines can hold."""
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return known
    longest = max(profile.source.largest for profile in engines.profiles)
    shortest = min(profile.source.smallest for profile in engines.profiles)

    def fits(answer: Answer) -> bool:
        positions = 0
        if isinstance(answer, GeneratedAnswer):
            positions = 2 + len(manifest.generation.prompt) + answer.max_new_tokens
            if not manifest.model.has_encoder:
                return len(answer.source) + positions <= engines.capacity
            if manifest.model.takes_audio:
                return positions <= engines.capacity
        has_room = not positions or positions <= engines.capacity
        return has_room and shortest <= len(answer.source) <= longest

    return replace(known, answers=tuple(filter(fits, known.answers)))


@dataclass(frozen=True)
class _Input:
    name: str
    source: tuple[int, ...]
    text: str | None = None
    line: str | tuple[str, ...] | None = None
    types: tuple[int, ...] = ()
    at_load: bool = True


def _sizes(model: ReferenceModel) -> dict[str, int]:
    counts = {"encoder": 0, "decoder": 0}
    for name, weight in model.named_parameters():
        side = name.partition(".")[0]
        if weight.dim() > 1 and "embedding" not in name:
            counts["encoder" if side == "encoder" else "decoder"] += weight.numel()
    counts["decoder"] += (model.config.target_vocab_size or 0) * model.config.d_model
    return counts


def _inputs(inputs: ParityInputs, vocabulary: int, longest: int) -> Iterator[_Input]:
    pool: dict[tuple[int, ...], _Input] = {}
    for number, source in enumerate(inputs.sources):
        ids = tuple(map(int, source))
        if 0 < len(ids) <= min(LONG, longest) and ids not in pool:
            name = inputs.origins[number] if inputs.origins else f"input {number + 1}"
            text = None if inputs.texts is None else inputs.texts[number]
            line = None if inputs.lines is None else inputs.lines[number]
            types = () if line is None or not any(line.tokens.types) else tuple(line.tokens.types)
            pool[ids] = _Input(name, ids, text, None if line is None else line.source, types)
    ordered = [pool[ids] for ids in sorted(pool, key=lambda ids: (len(ids), ids))]
    chosen = _ragged([one for one in ordered if len(one.source) <= SHORT], ROWS - 1)
    rest = [one for one in ordered if one not in chosen]
    # A model is less sure of inputs without a meaning, so that its numbers show more.
    for number, length in enumerate((17, 1, 5, 11, 23)):
        ids = numbered_ids(min(length, longest), vocabulary, number)
        if len(chosen) < ROWS and ids not in pool:
            chosen.append(_Input(f"generated input {number + 1}", ids))
    yield from chosen
    for one in _ragged(rest, FURTHER):
        yield replace(one, at_load=False)


def _ragged(ordered: Sequence[_Input], count: int) -> list[_Input]:
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[i] for i in spread(range(len(ordered)), count - 1)] + [ordered[-1]]


def numbered_ids(length: int, vocabulary: int, seed: int = 0) -> tuple[int, ...]:
    """Return token ids in no order, the same everywhere; 0 and 1 are often special."""
    state, ids = seed + 1, []
    for _ in range(length):
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        few = vocabulary <= 4
        ids.append((state >> 8) % vocabulary if few else 2 + (state >> 8) % (vocabulary - 2))
    return tuple(ids)


def _chosen(
    manifest: Manifest, reference: AutoregressiveModel, inputs: ParityInputs
) -> Iterator[GeneratedAnswer]:
    model, sizes = manifest.model, _sizes(reference)
    weights = sizes["decoder"]
    large = model.takes_audio and sizes["encoder"] > LARGE_ENCODER
    least = 2 * LEAST_STEPS if large else LEAST_STEPS
    steps = min(max(PRODUCTS // (ROWS * weights), least), MOST_STEPS)
    room = model.max_target_positions - len(manifest.generation.prompt) - 1
    steps = max(1, min(steps, manifest.default_max_new_tokens, room))
    if model.takes_audio:
        assert manifest.audio is not None
        window = manifest.audio.chunk_seconds
        lengths = SECONDS[:1] if large else SECONDS
        for number, seconds in enumerate(sorted({min(seconds, window) for seconds in lengths})):
            name = f"{seconds:g} s of generated sound"
            yield _asked(name=name, at_load=not number, max_new_tokens=steps, seconds=seconds)
        return
    longest = model.input_positions
    if not model.has_encoder:
        longest = max(1, model.max_target_positions - MOST_STEPS)
    found = list(_inputs(inputs, model.input_vocab_size, longest))
    for one in found:
        room = model.max_target_positions - (0 if model.has_encoder else len(one.source))
        limit = max(1, min(steps if one.at_load else 2 * steps, room))
        text = one.text if one.text is not None and len(one.text) <= MOST_CHARACTERS else None
        yield _asked(
            name=one.name, at_load=one.at_load, max_new_tokens=limit, source=one.source, text=text
        )
    middle = [one for one in found if one.at_load]
    beams = min(manifest.generation.num_beams, model.target_vocab_size)
    if beams > 1:
        one = middle[len(middle) // 2]
        yield _asked(
            name=f"{one.name}, {beams} beams",
            at_load=True,
            max_new_tokens=max(1, min(steps // 2 + 1, room)),
            source=one.source,
            num_beams=beams,
        )
    if model.max_target_positions < BEYOND + 8 or model.target_vocab_size < LEAST_STEPS:
        return
    cheap = BEYOND * weights <= 4 * PRODUCTS
    ids = numbered_ids(BEYOND, model.target_vocab_size, 7)
    ends = {*manifest.end_tokens, model.end_token_id}
    plain = next(token for token in range(model.target_vocab_size - 1, -1, -1) if token not in ends)
    ids = tuple(plain if token in ends else token for token in ids)
    name = f"output beyond position {BEYOND - 2}"
    limit, source, prefix = (
        (BEYOND + 2, middle[0].source, ids) if model.has_encoder else (2, ids, ())
    )
    yield _asked(name=name, at_load=cheap, max_new_tokens=limit, source=source, prefix=prefix)


_asked = functools.partial(GeneratedAnswer, source=(), num_beams=1, tokens=(), log_probabilities=())
"""Makes an answer without outputs."""


def _generated(
    model: Model,
    known: KnownAnswers,
    oracle: AutoregressiveModel,
    asked: Sequence[GeneratedAnswer],
    *,
    elsewhere: bool,
) -> Iterator[GeneratedAnswer]:
    sources = [_source(model.manifest, answer) for answer in asked]
    every = generate(model, known, asked, alternatives=2)
    drafts = [found.tokens for found in every]
    of_oracle = _greedy_outputs(oracle_without_penalties(oracle), asked, sources, drafts)
    for number, (answer, found) in enumerate(zip(asked, every, strict=True)):
        if found.error is not None or not found.tokens:
            continue
        greedy = answer.num_beams == 1
        expected = of_oracle.get(number)
        finished = replace(
            answer,
            tokens=found.tokens,
            output=_text(model, found.tokens),
            log_probabilities=tuple(
                min(0.0, round(value, DIGITS)) for value in found.log_probabilities
            ),
            margins=tuple(round(value, DIGITS) for value in found.margins) if greedy else (),
            oracle=None if expected == found.tokens else expected,
        )
        if elsewhere and greedy:
            finished = _with_likely(finished, model.manifest, oracle, sources[number])
        yield finished


def _source(manifest: Manifest, answer: GeneratedAnswer) -> EncoderInput:
    if answer.seconds is None:
        return list(answer.source)
    assert manifest.audio is not None
    log_mel = LogMel.of(manifest.audio)
    return log_mel.chunk(sound(log_mel.sampling_rate, answer.seconds))


def _greedy_outputs(
    oracle: AutoregressiveModel,
    asked: Sequence[GeneratedAnswer],
    sources: Sequence[EncoderInput],
    drafts: Sequence[Sequence[int]],
) -> dict[int, tuple[int, ...]]:
    """Decode the sources of plain greedy answers, by number; those of one length together."""
    plain = [i for i, answer in enumerate(asked) if answer.num_beams == 1 and not answer.prefix]
    outputs: dict[int, tuple[int, ...]] = {}
    for limit in {asked[i].max_new_tokens for i in plain}:
        own = [i for i in plain if asked[i].max_new_tokens == limit]
        likely = [drafts[i] for i in own]
        found = oracle_outputs(oracle, [sources[i] for i in own], limit, drafts=likely)
        outputs |= zip(own, map(tuple, found), strict=True)
    return outputs


def _with_likely(
    answer: GeneratedAnswer, manifest: Manifest, oracle: AutoregressiveModel, source: EncoderInput
) -> GeneratedAnswer:
    output = answer.tokens if answer.oracle is None else answer.oracle
    forced = oracle.generation.forced_first_token_id is not None
    if forced and answer.prefix:
        return answer
    before = [*oracle.prompt(for_torch(source)), *answer.prefix]
    encoded, mask = as_batch([source if manifest.model.has_encoder else []], manifest.model)
    _, logits = oracle_pass(oracle, encoded, mask, np.array([[*before, *output[:-1]]]))
    scores = logits[0, len(before) - 1 :].astype(np.float64)
    scores[:, list(manifest.generation.suppressed_token_ids)] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    likely: list[tuple[int, ...]] = [()] * forced
    values: list[tuple[float, ...]] = [()] * forced
    for token, row in list(zip(output, scores, strict=True))[forced:]:
        if not np.isfinite(row[token]):
            return answer  # the settings force a token that they suppress
        best = np.argsort(-row, kind="stable")[:LIKELY].tolist()
        tokens = [token, *(o for o in best if o != token and np.isfinite(row[o]))][:LIKELY]
        likely.append(tuple(tokens))
        values.append(tuple(min(0.0, _rounded(row[each])) for each in tokens))
    return replace(answer, likely=tuple(likely), oracle_log_probabilities=tuple(values))


def _with_oracle_values(answer: EncodedAnswer, model: Model, oracle: EncoderModel) -> EncodedAnswer:
    head = model.manifest.head
    source = np.array([answer.source])
    types = np.array([answer.types or [0] * len(answer.source)])
    segments = types if head is not None and head.token_types else None
    outputs = encoder_pass(oracle, source, np.ones_like(source, np.bool_), segments)
    numbers = np.concatenate([output.ravel() for output in outputs])
    values, size = projections(numbers)
    return replace(answer, oracle_values=tuple(map(_rounded, values)), oracle_size=_rounded(size))


def _rounded(value: float) -> float:
    return float(f"{value:.{ORACLE_DIGITS}g}")


def _limited(model: Model, backend: str, known: KnownAnswers) -> KnownAnswers:
    measured = compare_with_oracle(model, known, (), backend=backend)
    if measured is None or model.manifest.precision == "fp32":
        return known
    if measured.distributions is not None:
        allowed = max(NEGLIGIBLE, ENGINE_MULTIPLE * measured.distributions.bundle.mean)
    else:  # an encoder-only model
        allowed = max(LEAST_SHARE, ENGINE_MULTIPLE * measured.tensors[0].difference)
    return replace(known, allowed=float(f"{allowed:.3g}"))


def oracle_without_penalties(oracle: AutoregressiveModel) -> AutoregressiveModel:
    """Return the oracle with the rules of `known_answers.options_of_answer`."""
    plain = copy.copy(oracle)
    plain.generation = replace(
        oracle.generation,
        min_length=0,
        min_new_tokens=0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
    )
    return plain


def _text(model: Model, tokens: Sequence[int]) -> str | None:
    try:
        return model.detokenize(tokens)
    except DragomanError:  # the tokenizer cannot decode these tokens
        return None


def _encoded(model: Model, weights: int, inputs: ParityInputs) -> Iterator[EncodedAnswer]:
    spec = model.manifest.model
    vocabulary, longest = spec.source_vocab_size or 0, spec.input_positions
    found = list(_inputs(inputs, vocabulary, longest))
    if longest >= BEYOND:
        ids = numbered_ids(BEYOND, vocabulary, 7)
        cheap = BEYOND * weights <= 4 * PRODUCTS
        found.append(_Input(f"{BEYOND} generated tokens", ids, at_load=cheap))
    answers = []
    for one in found:
        texts = (one.line,) if isinstance(one.line, str) else one.line or ()
        if sum(map(len, texts)) > MOST_CHARACTERS:
            texts = ()
        answers.append(
            EncodedAnswer(
                name=one.name,
                at_load=one.at_load,
                source=one.source,
                types=one.types,
                texts=texts,
                values=(),
                size=0,
            )
        )
    for answer, output in zip(answers, encode(model, answers), strict=True):
        if isinstance(output, DragomanError):
            continue
        values, size = output
        rounded = tuple(map(float, np.round(values, DIGITS)))
        yield replace(answer, values=rounded, size=float(f"{size:.6g}"))


def _fitting_file(known: KnownAnswers, answers: Sequence[Answer]) -> KnownAnswers:
    distinct = {answer.name: answer for answer in answers}.values()
    kept = sorted(distinct, key=lambda answer: not answer.at_load)
    while True:
        full = replace(known, answers=tuple(kept))
        if len(full.to_json()) <= LARGEST_FILE or not kept:
            return full
        kept.pop()
