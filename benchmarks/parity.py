"""Parity: does a bundle compute what the trained model computes? Three levels, in this order.

1. tensors: cross keys and values, and teacher-forced logits, within a tolerance per precision
2. tokens: free-running greedy output; identical at fp32
3. task: the recipe's own metric, where the inputs have references

The oracle is `reference_model` in PyTorch, fp32, decoding without a cache.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.export.neutral_bundle import log_mel_of
from dragoman.optimize.compare import NOT_FINITE, RESOLUTION
from dragoman.optimize.random_sound import random_sound
from dragoman.reference_model import NoMemory, Source, Transformer, greedy_uncached
from dragoman.reference_model import as_batch as as_tensors
from dragoman.reference_model.recipes import Example, Recipe
from dragoman.runtime import Model
from dragoman.runtime.format.manifest import Manifest, Precision
from dragoman.runtime.format.records import Divergence, Parity, TaskParity, TensorParity, TokenParity
from dragoman.runtime.decoding.batching import Encodable, as_batch, batches, pad
from dragoman.runtime.speech.prompts import options_of_prompt

TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": RESOLUTION[ir.DataType.FLOAT16],
    "bf16": RESOLUTION[ir.DataType.BFLOAT16],
    "int8": 0.15,
    "int4": 0.5,
}
"""Largest absolute difference over max(1, largest absolute value of the oracle's tensor)."""

TASK_TOLERANCES: dict[Precision, float] = {
    "fp32": 0.0,
    "fp16": 0.003,
    "bf16": 0.003,
    "int8": 0.003,
    "int4": 0.007,
}
"""How much worse the task's metric may be."""

QUANTIZED: frozenset[Precision] = frozenset({"int8", "int4"})

EXCUSED_OF_SPEECH = 0.05
"""The share of positions of audio whose cross keys and values may be beyond the tolerance in int8
and int4. Trained encoders of speech write numbers a hundred times all others at a few positions
("Massive Activations", Sun et al. 2024), mostly of silence. Which positions those are is decided by
less than what rounding to 8 bits changes, however few products are rounded: of Whisper base 3 in a
hundred change places, and neither logits nor words tell."""

TENSOR_INPUTS = 64
"""Inputs compared tensor by tensor, spread evenly over all."""

BATCH_SIZE = 64

Progress = Callable[[int], None]


@dataclass(frozen=True)
class ParityInputs:
    """What to compare on.

    Attributes:
        description: for the record
        sources: source token ids, at least one each, or features [mel bins, frames]
        texts: what the bundle's own tokenizer must turn into the sources, where they were texts
        examples, recipe: what the sources came from, where there are references to score
        source_language: of the texts, for a multilingual model
    """

    description: str
    sources: Sequence[Encodable]
    texts: list[str] | None = None
    examples: list[Example] | None = None
    recipe: Recipe | None = None
    source_language: str | None = None


def random_inputs(model: Transformer, count: int = 64, *, seed: int = 0) -> ParityInputs:
    """Uniformly random tokens in ragged lengths from 1: for models that come without inputs."""
    generator = np.random.default_rng(seed)
    config = model.config
    log_mel = log_mel_of(config)
    if log_mel is not None:
        count = min(count, 4)  # windows of half a minute
        sounds: list[Encodable] = [
            log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
            for _ in range(count)
        ]
        return ParityInputs(f"{count} windows of random sound (seed {seed})", sounds)
    vocabulary = config.source_vocab_size or 0
    longest = min(48, config.max_source_positions)
    lengths = [1, longest, *generator.integers(1, longest + 1, size=max(0, count - 2))][:count]
    tokens = [generator.integers(0, vocabulary, size=n).tolist() for n in lengths]
    return ParityInputs(f"{count} random sources (seed {seed})", tokens)


def check_parity(
    model: Model,
    reference: Transformer,
    inputs: ParityInputs,
    *,
    backend: str,
    progress: Progress = lambda advanced: None,
) -> Parity:
    """Compare a bundle with the oracle on all three levels.

    Args:
        progress: called with the number of inputs just done; each input counts once

    Raises:
        DragomanError: the bundle's tokenizer gives other tokens than the checkpoint's.
    """
    _check_tokenizer(model, inputs)
    reference, language = _told(reference, model.manifest)
    precision = model.manifest.precision
    limit = model.manifest.default_max_new_tokens
    expected: dict[int, list[int]] = {}
    for batch in _batches(inputs.sources):
        outputs = greedy_uncached(reference, [_for_torch(inputs.sources[i]) for i in batch], limit)
        expected.update(zip(batch, outputs, strict=True))
        progress(len(batch))
    oracle = [expected[i] for i in range(len(inputs.sources))]

    tensors, largest_logit = _compare_tensors(model, reference, inputs.sources, oracle)
    found = _generate(model, inputs.sources, limit, language)
    tokens = _compare_tokens(
        reference,
        inputs.sources,
        oracle,
        found,
        precision,
        limit=limit,
        largest_logit=largest_logit,
    )
    task = _compare_task(model, inputs, oracle, found)
    return Parity(
        passed=all(t.passed for t in tensors) and tokens.passed and (task is None or task.passed),
        oracle=f"reference_model, PyTorch {torch.__version__}, fp32, without a cache",
        inputs=inputs.description,
        backend=backend,
        tensors=tuple(tensors),
        tokens=tokens,
        task=task,
    )


def _compare_tensors(
    model: Model, reference: Transformer, sources: Sequence[Encodable], oracle: list[list[int]]
) -> tuple[list[TensorParity], float]:
    """Level 1, on some of the inputs; and the largest absolute logit of the oracle."""
    chosen = np.linspace(0, len(sources) - 1, min(TENSOR_INPUTS, len(sources))).astype(int).tolist()
    facts = model.manifest.model
    meters: dict[str, _Meter] = {}
    for batch in _batches([sources[i] for i in chosen]):
        rows = [chosen[i] for i in batch]
        source, source_mask = as_batch([sources[i] for i in rows], facts)
        given = [reference.config.start_token_id, *reference.generation.prompt]
        forced, target_mask = pad([[*given, *oracle[i][:-1]] for i in rows], facts.pad_token_id)
        with torch.inference_mode():
            mask = torch.from_numpy(source_mask)
            cross = reference.encode(torch.from_numpy(source), mask)
            start = torch.zeros(len(rows), dtype=torch.long)
            logits = reference.decode(torch.from_numpy(forced), start, mask, cross, NoMemory())
        encoded = model.backend.encode(source, source_mask)
        for spec in model.manifest.encoder.outputs:
            assert spec.layer is not None
            wanted = cross[spec.layer][0 if spec.role == "cross_key" else 1].numpy()
            heads_last = (0, 2, 1, 3)
            meters.setdefault(spec.name, _Meter()).add(
                encoded[spec.name].transpose(heads_last)[source_mask],
                wanted.transpose(heads_last)[source_mask],
            )
        scored = model.backend.score(source, source_mask, forced)
        meters.setdefault("logits", _Meter()).add(scored[target_mask], logits.numpy()[target_mask])
    tolerance = TOLERANCES[model.manifest.precision]
    results = [
        meter.result(name, tolerance, _excused(model.manifest, name))
        for name, meter in meters.items()
    ]
    return results, meters["logits"].scale


def _excused(manifest: Manifest, tensor: str) -> float:
    """The share of a tensor's positions that may be beyond the tolerance."""
    speech = manifest.audio is not None and manifest.precision in QUANTIZED
    return EXCUSED_OF_SPEECH if speech and tensor != "logits" else 0.0


class _Meter:
    """The difference between two tensors [positions, ...], by position, over several batches."""

    def __init__(self) -> None:
        self.relative = self.scale = 0.0
        self.absolute: list[float] = []

    def add(self, found: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
        difference = np.abs(found.astype(np.float64) - expected)
        difference[~np.isfinite(difference)] = NOT_FINITE
        magnitude = np.abs(expected)
        self.scale = max(self.scale, float(magnitude.max()))
        self.absolute += difference.reshape(len(difference), -1).max(axis=1).tolist()
        self.relative = max(self.relative, float((difference / np.maximum(magnitude, 1e-3)).max()))

    def result(self, name: str, tolerance: float, excused: float = 0.0) -> TensorParity:
        """
        Args:
            excused: the share of positions that may be beyond the tolerance, if they are finite
        """
        differences = np.sort(self.absolute)[::-1] / max(1.0, self.scale)
        beyond = int(np.count_nonzero(differences > tolerance))
        finite = max(self.absolute) < NOT_FINITE
        left_out = min(beyond, int(excused * len(differences))) if finite else 0
        difference = float(differences[left_out])
        return TensorParity(
            name=name,
            largest_absolute=max(self.absolute),
            largest_relative=self.relative,
            difference=difference,
            tolerance=tolerance,
            passed=difference <= tolerance,
            positions=len(differences),
            positions_beyond=beyond,
        )


def _check_tokenizer(model: Model, inputs: ParityInputs) -> None:
    for text, source in zip(inputs.texts or [], inputs.sources, strict=False):
        found = model.tokenize(text, inputs.source_language)
        if found != source:
            raise DragomanError(
                f"the bundle's tokenizer is not the checkpoint's: for {text[:40]!r} expected "
                f"tokens {source[:20]}, found {found[:20]}"
            )


def _generate(
    model: Model, sources: Sequence[Encodable], limit: int, language: str | None
) -> list[list[int]]:
    """Free-running output as the oracle gives it: with the end token where reached."""
    end = model.manifest.model.end_token_id
    prompted = options_of_prompt(model.manifest)
    return [
        [*result.tokens, end] if result.finish_reason == "end" else list(result.tokens)
        for result in model.generate(
            sources, max_new_tokens=limit, target_language=language, **prompted
        )
    ]


def _compare_tokens(
    reference: Transformer,
    sources: Sequence[Encodable],
    oracle: list[list[int]],
    found: list[list[int]],
    precision: Precision,
    *,
    limit: int,
    largest_logit: float,
) -> TokenParity:
    """Level 2. Below fp32 a divergence is accepted where the oracle's margin is so small that
    differences within the tolerance of level 1 explain it. Of a token that the rules of decoding
    forbid it never is."""
    divergences = [
        _divergence(reference, i, sources[i], expected, other, limit)
        for i, (expected, other) in enumerate(zip(oracle, found, strict=True))
        if expected != other
    ]
    explained = 2 * TOLERANCES[precision] * max(1.0, largest_logit)
    passed = not divergences or (
        precision != "fp32" and all(d.margin <= explained for d in divergences)
    )
    return TokenParity(
        sequences=len(oracle),
        identical=len(oracle) - len(divergences),
        divergences=tuple(divergences),
        passed=passed,
    )


def _told(reference: Transformer, manifest: Manifest) -> tuple[Transformer, str | None]:
    """The oracle told the language to write, which a multilingual bundle is told too: its default,
    else the first there is."""
    languages = manifest.languages
    if languages is None:
        return reference, None
    code = languages.default_target or min(languages.tokens)
    start, rules = languages.told(code, manifest.model.start_token_id, manifest.rules)
    told = copy.copy(reference)
    told.config = reference.config.replace(start_token_id=start)
    told.generation = dataclasses.replace(
        reference.generation, forced_first_token_id=rules.forced_first_token_id
    )
    return told, code


def _for_torch(source: Encodable) -> Source:
    return torch.from_numpy(source) if isinstance(source, np.ndarray) else source


def _divergence(
    reference: Transformer,
    index: int,
    source: Encodable,
    expected: list[int],
    found: list[int],
    limit: int,
) -> Divergence:
    config = reference.config
    # A sequence that is a prefix of the other ends where the other has one more token.
    pairs = zip_longest(expected, found, fillvalue=config.end_token_id)
    step, (wanted, got) = next(
        ((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1]),
        (min(len(expected), len(found)), (config.end_token_id, config.end_token_id)),
    )
    given, new = [config.start_token_id, *reference.generation.prompt], expected[:step]
    batch, mask = as_tensors([_for_torch(source)], config)
    with torch.inference_mode():
        logits = reference(batch, mask, torch.tensor([given + new]))[0, -1]
    scores = reference.generation.scores(
        logits, given, new, end_token_id=config.end_token_id, limit=limit
    )
    margin = min(float(scores[wanted] - scores[got]), NOT_FINITE)
    return Divergence(index, step, wanted, got, margin)


def _compare_task(
    model: Model, inputs: ParityInputs, oracle: list[list[int]], found: list[list[int]]
) -> TaskParity | None:
    """Level 3."""
    if inputs.recipe is None or inputs.examples is None:
        return None
    recipe, examples = inputs.recipe, inputs.examples
    decode = recipe.make_target_tokenizer().decode

    def figure(texts: list[str]) -> float:
        return recipe.score(texts, examples)[recipe.metric]

    expected = figure([decode(tokens) for tokens in oracle])
    measured = figure([model.detokenize(tokens) or "" for tokens in found])
    tolerance = TASK_TOLERANCES[model.manifest.precision]
    return TaskParity(recipe.metric, expected, measured, measured - expected <= tolerance)


def _batches(sources: Sequence[Encodable]) -> list[list[int]]:
    lengths = [
        source.shape[-1] if isinstance(source, np.ndarray) else len(source) for source in sources
    ]
    return list(batches(lengths, max_batch_size=BATCH_SIZE, max_batch_tokens=4096))
