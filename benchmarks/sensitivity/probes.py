"""What the trained model predicts on fixed inputs, and how far a variant is from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.verification.checks.distributions import DistanceMeter
from dragoman.verification.checks.encoders import EncodedBatch, cosines, encoded_batches, logits_of
from dragoman.verification.checks.tokens import bundle_outputs, greedy_results
from dragoman.verification.forced import forced_batches
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.oracle import oracle_for

from .results import Effect, Measure
from .variants import Variant

LONGEST = 64
"""The most new tokens along which predictions are compared."""


class Probe(Protocol):
    """
    Attributes:
        measure: what the effects are
        positions: predictions that are compared
    """

    measure: Measure
    positions: int

    def effect(self, variant: Variant) -> Effect:
        """How far a variant is from the trained model."""


@dataclass(frozen=True)
class Passage:
    """A batch of outputs that every variant is forced along.

    Attributes:
        encoded: what the encoder computes in fp32, by name; nothing of a decoder alone
        chosen: bool [B, T], True where the token that follows is the model's choice
        expected: the trained model's logits there [positions, V]
    """

    source: NDArray[Any]
    source_mask: NDArray[np.bool_]
    read: NDArray[np.int64]
    encoded: Mapping[str, NDArray[Any]]
    chosen: NDArray[np.bool_]
    expected: NDArray[np.float32]


class DecodingProbe:
    """Distributions of the next token, along the greedy outputs of the model itself.

    Args:
        neutral: the bundle of the trained model in fp32, which decodes
    """

    measure: Measure = "divergence"

    def __init__(
        self, neutral: Model, reference: AutoregressiveModel, sources: Sequence[Encodable]
    ) -> None:
        oracle, language = oracle_for(reference, neutral.manifest)
        limit = min(LONGEST, neutral.manifest.default_max_new_tokens)
        outputs = bundle_outputs(greedy_results(neutral, sources, limit, language))
        self._passages = [
            Passage(
                batch.source,
                batch.source_mask,
                batch.read,
                batch.encoded,
                batch.chosen_mask,
                batch.logits[batch.chosen_mask],
            )
            for batch in forced_batches(neutral, oracle, sources, outputs)
        ]
        self.positions = sum(len(passage.expected) for passage in self._passages)

    def effect(self, variant: Variant) -> Effect:
        meter = DistanceMeter()
        for passage in self._passages:
            encoded = passage.encoded
            if encoded and "encoder" not in variant.exact:
                encoded = variant.encode(passage.source, passage.source_mask)
            found = variant.score_encoded(encoded, passage.source_mask, passage.read)
            meter.add(passage.expected, found[passage.chosen])
        return _effect(meter)


class EncoderProbe:
    """What an encoder alone gives: distributions of labels or tokens, or vectors."""

    def __init__(self, neutral: Model, reference: EncoderModel, inputs: ParityInputs) -> None:
        assert neutral.manifest.head is not None
        self._head = neutral.manifest.head
        self._graph = neutral.manifest.graphs["encoder"]
        vectors = self._head.task == "embedding"
        self.measure: Measure = "cosine distance" if vectors else "divergence"
        sources = [[int(token) for token in source] for source in inputs.sources]
        types = None if inputs.lines is None else [line.tokens.types for line in inputs.lines]
        batches = encoded_batches(neutral, reference, None, sources, types, lambda count: None)
        self._batches = [*batches]
        self.positions = sum(map(self._predictions, self._batches))

    def effect(self, variant: Variant) -> Effect:
        meter, distances = DistanceMeter(), list[float]()
        for batch in self._batches:
            encoded = variant.encode(batch.source, batch.mask, batch.types)
            outputs = {tensor.role: encoded[tensor.name] for tensor in self._graph.outputs}
            if self.measure == "cosine distance":
                same = cosines(batch.expected["embedding"], outputs["embedding"])
                distances += [1 - cosine for cosine in same]
                continue
            for expected, found, _ in logits_of(replace(batch, found=outputs), self._head):
                meter.add(expected, found)
        if distances:
            return Effect(float(np.mean(distances)), max(distances), None)
        return _effect(meter)

    def _predictions(self, batch: EncodedBatch) -> int:
        if self.measure == "cosine distance":
            return len(batch.source)
        return sum(len(expected) for expected, _, _ in logits_of(batch, self._head))


def _effect(meter: DistanceMeter) -> Effect:
    found = meter.result()
    return Effect(found.mean, found.largest, found.same_choice)


def probe_of(neutral: Model, reference: ReferenceModel, inputs: ParityInputs) -> Probe:
    """The probe for a kind of model."""
    if isinstance(reference, EncoderModel):
        return EncoderProbe(neutral, reference, inputs)
    return DecodingProbe(neutral, reference, inputs.sources)
