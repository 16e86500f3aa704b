"""Compares the outputs of encoder-only models with the oracle's.

Level 1 compares outputs number by number. Level 2 compares embeddings by cosine, and logits as
distributions, whose best label must be the oracle's at fp32, but for ties. Below fp32 both are held
to what the precision does to the oracle, see `rounded_oracle`. Rankings are recorded, and not
judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.reference_model import EncoderModel
from dragoman.runtime import Model
from dragoman.runtime.decoding.request import batches, pad
from dragoman.runtime.encoding.front_end import tokens_of_batch
from dragoman.runtime.format.contract import Role
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import (
    NOT_FINITE,
    Cosines,
    DistributionParity,
    RankParity,
    Ranks,
    TensorParity,
    VectorParity,
)
from dragoman.settings.head import Head

from ..inputs.items import spread
from ..oracle import check_finite, encoder_pass
from ..tolerances import COSINE_LIMITS, NEGLIGIBLE, ROUNDING_MULTIPLES, TOLERANCES
from .distances import DifferenceMeter, DistributionMeter

MAX_ROWS, MAX_TOKENS = 32, 2048

MOST_RANKED = 256
"""Maximum number of documents in a list, spread evenly. Each embedding is also a query."""
TIED = 1e-5
"""Scores this close are equal, so that documents with the same text have no order."""
FIRST = 10
"""The documents at the top of a list that count in NDCG."""

Outputs = dict[Role, NDArray[Any]]


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of sources, with what the oracle, the rounded oracle and the bundle compute."""

    indices: Sequence[int]
    source: NDArray[np.int64]
    """Token ids [B, S]."""
    mask: NDArray[np.bool_]
    """[B, S], True at tokens."""
    types: NDArray[np.int64] | None
    """The segment of each token, [B, S]; None: the model has no segments."""
    expected: Outputs
    """The oracle's outputs."""
    rounded: Outputs | None
    """The outputs of the rounded oracle; None at fp32."""
    found: Outputs
    """The outputs of the bundle."""


@dataclass(frozen=True)
class EncoderParity:
    """The outcome of comparing an encoder-only model."""

    tensors: list[TensorParity]
    vectors: VectorParity | None
    distributions: DistributionParity | None
    ranks: RankParity | None
    """The order of embeddings, or of the scores of a model with one label."""


def compare_encoder(
    model: Model,
    oracle: EncoderModel,
    rounded: EncoderModel | None,
    sources: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None,
    *,
    queries: Sequence[str] | None = None,
    random: bool,
    advance: Callable[[int], None],
) -> EncoderParity:
    """Compare the outputs of a bundle with the oracle's.

    Args:
        queries: the query of each source, whose documents are ranked; None: one for all
    """
    precision, head = model.manifest.precision, model.manifest.head
    assert head is not None
    meters: dict[str, DifferenceMeter] = {}
    of_bundle, of_rounded = list[float](), list[float]()
    distributions = DistributionMeter(precision, None, random=random)
    ranks = RankMeter(head, queries or [""] * len(sources))
    for batch in encoded_batches(model, oracle, rounded, sources, types, advance):
        for role, expected in batch.expected.items():
            per_token = role in ("hidden", "token_logits")
            rows = batch.mask if per_token else slice(None)
            meters.setdefault(role, DifferenceMeter()).add(batch.found[role][rows], expected[rows])
        ranks.add(batch)
        if head.task == "embedding":
            right = batch.expected["embedding"]
            of_bundle += cosines(right, batch.found["embedding"])
            if batch.rounded is not None:
                of_rounded += cosines(right, batch.rounded["embedding"])
        else:
            for expected, found, rounded_ones in logits_of(batch, head):
                distributions.add_logits(expected, found, rounded_ones)
    tolerance = TOLERANCES[precision] if precision == "fp32" else None
    tensors = [meter.result(name, tolerance) for name, meter in meters.items()]
    if head.task == "embedding":
        vectors = _judged(of_bundle, of_rounded, precision, random=random)
        return EncoderParity(tensors, vectors, None, ranks.result())
    return EncoderParity(tensors, None, distributions.result(labels=True), ranks.result())


def encoded_batches(
    model: Model,
    oracle: EncoderModel,
    rounded: EncoderModel | None,
    sources: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None,
    advance: Callable[[int], None],
) -> Iterator[EncodedBatch]:
    """Compute the outputs of oracle, rounded oracle and bundle in batches of similar length.

    Args:
        types: the segment of each token; None: those of `halved`
    """
    manifest = model.manifest
    graph, head = manifest.graphs["encoder"], manifest.head
    assert head is not None
    roles = [tensor.role for tensor in graph.outputs]
    lengths = list(map(len, sources))
    if types is None:
        types = list(map(halved, lengths))
    tokens = min(MAX_TOKENS, tokens_of_batch(head))
    for batch in batches(lengths, max_batch_size=MAX_ROWS, max_batch_tokens=tokens):
        source, mask = pad([sources[i] for i in batch], manifest.model.pad_token_id)
        segments = pad([types[i] for i in batch], 0)[0] if head.token_types else None
        encoded = model.backend.encode(source, mask, segments)

        def by_role(of: EncoderModel) -> Outputs:
            return dict(zip(roles, encoder_pass(of, source, mask, segments), strict=True))  # noqa: B023

        expected = by_role(oracle)
        for outputs in expected.values():
            check_finite(outputs)
        yield EncodedBatch(
            batch,
            source,
            mask,
            segments,
            expected,
            None if rounded is None else by_role(rounded),
            {tensor.role: encoded[tensor.name] for tensor in graph.outputs},
        )
        advance(len(batch))


def halved(length: int) -> list[int]:
    """Segments of a source whose second half is the second text of a pair."""
    return [0] * (length - length // 2) + [1] * (length // 2)


def logits_of(
    batch: EncodedBatch, head: Head
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]:
    """Read logits [distributions, choices] of the oracle, the bundle and the rounded oracle."""
    (role,) = batch.expected
    several = head.multi_label or head.outputs == 1  # each label is true or false by itself

    def of(outputs: Outputs) -> list[NDArray[Any]]:
        values = outputs[role]
        if head.task == "question-answering":  # a token for the beginning, and one for the end
            return [row[own].T for row, own in zip(values, batch.mask, strict=True)]
        chosen = values[batch.mask] if role == "token_logits" else values
        if several:
            chosen = chosen.reshape(-1, 1)
            return [np.concatenate([np.zeros_like(chosen), chosen], axis=1)]
        return [chosen]

    expected, found = of(batch.expected), of(batch.found)
    rounded = [None] * len(expected) if batch.rounded is None else of(batch.rounded)
    yield from zip(expected, found, rounded, strict=True)


def _judged(
    of_bundle: list[float], of_rounded: list[float], precision: Precision, *, random: bool
) -> VectorParity:
    """Judge the cosines of the bundle's embeddings, and the rounded oracle's, with the oracle's."""
    bundle = _summary(of_bundle)
    rounded, allowed = None, COSINE_LIMITS["fp32"]
    if of_rounded:
        rounded = _summary(of_rounded)
        distance = ROUNDING_MULTIPLES[precision] * (1 - rounded.mean)
        allowed = 1 - max(NEGLIGIBLE, distance)
        if not random:
            allowed = max(allowed, COSINE_LIMITS[precision])
    return VectorParity(len(of_bundle), bundle, rounded, allowed, bundle.mean >= allowed)


def _summary(values: list[float]) -> Cosines:
    return Cosines(float(np.mean(values)), min(values))


def cosines(expected: NDArray[Any], found: NDArray[Any]) -> list[float]:
    """Compute the cosines of the angles between rows; -1 where they are not finite."""
    wide, other = expected.astype(np.float64), found.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(other, axis=1)
    cosines = (wide * other).sum(1) / np.maximum(lengths, 1 / NOT_FINITE)
    values: list[float] = np.nan_to_num(cosines, nan=-1, posinf=-1, neginf=-1).clip(-1, 1).tolist()
    return values


class RankMeter:
    """Measures how far bundle and oracle rank documents alike, over several batches.

    A model with one label ranks the documents of each query. Embeddings rank, for each text, all
    others by their cosine.
    """

    def __init__(self, head: Head, queries: Sequence[str]) -> None:
        self._head, lists = head, defaultdict[str, list[int]](list)
        for index, query in enumerate(queries):
            lists["" if head.task == "embedding" else query].append(index)
        self._chosen = [spread(indices, MOST_RANKED) for indices in lists.values()]
        """The sources of each list; for embeddings, of one list that each of them ranks."""
        self._read: dict[int, dict[str, NDArray[Any]]] = {
            index: {} for indices in self._chosen for index in indices
        }
        """The scores or embeddings of the chosen sources, by who computed them."""

    def add(self, batch: EncodedBatch) -> None:
        """Keep the scores or embeddings of the chosen sources of another batch."""
        role: Role = "class_logits"
        if self._head.task == "embedding":
            role = "embedding"
        elif self._head.task != "sequence-classification" or self._head.outputs > 1:
            return
        outputs = {"oracle": batch.expected, "bundle": batch.found}
        if batch.rounded is not None:
            outputs["rounded"] = batch.rounded
        for row, index in enumerate(batch.indices):
            if index not in self._read:
                continue
            values = {name: found[role][row].astype(np.float64) for name, found in outputs.items()}
            self._read[index] = {n: np.nan_to_num(v, posinf=0, neginf=0) for n, v in values.items()}

    def result(self) -> RankParity | None:
        """Compare all orders; None: there are none."""
        documents, found = 0, defaultdict[str, list[tuple[float, float]]](list)
        for scores in self._lists():
            oracle, places = scores["oracle"], {name: tied(own) for name, own in scores.items()}
            if not places["oracle"].any():
                continue  # no order
            documents += len(oracle)
            for name in scores.keys() - {"oracle"}:
                tau = kendall_tau(places["oracle"], places[name])
                found[name].append((tau, ndcg(oracle, places[name])))
        if not documents:
            return None
        means = {name: Ranks(*np.mean(pairs, 0).tolist()) for name, pairs in found.items()}
        return RankParity(len(found["bundle"]), documents, means["bundle"], means.get("rounded"))

    def _lists(self) -> Iterator[dict[str, NDArray[np.float64]]]:
        lists = [[self._read[i] for i in indices if self._read[i]] for indices in self._chosen]
        if self._head.task == "embedding":
            (read,) = lists
            vectors = {name: np.stack([each[name] for each in read]) for name in read[0]}
            for index in range(len(read) if len(read) > 2 else 0):
                yield {
                    name: np.delete(np.array(cosines(rows[index : index + 1], rows)), index)
                    for name, rows in vectors.items()
                }
            return
        for read in lists:
            if len(read) > 1:
                yield {name: np.concatenate([each[name] for each in read]) for name in read[0]}


def tied(scores: NDArray[Any], within: float = TIED) -> NDArray[np.int64]:
    """Number the scores in ascending order from 0, those of neighbours this close alike."""
    order = np.argsort(scores)
    numbers = np.zeros(len(scores), np.int64)
    numbers[order[1:]] = np.cumsum(np.diff(scores[order]) > within)
    return numbers


def kendall_tau(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Compute Kendall's tau-b of two lists of scores (Kendall 1945).

    It is the share of pairs in the same order minus that in the other, adjusted for ties; 0 if all
    scores of a list are equal.
    """
    one, other = (np.sign(np.subtract.outer(scores, scores)) for scores in (expected, found))
    ordered = float(np.count_nonzero(one)) * float(np.count_nonzero(other))
    return float((one * other).sum() / ordered**0.5) if ordered else 0.0


def ndcg(expected: NDArray[Any], found: NDArray[Any], first: int = FIRST) -> float:
    """Compute NDCG (Jarvelin & Kekalainen 2002) of the first documents by the found scores.

    A document's relevance is its expected score, moved and scaled to between 0 and 1. Documents of
    equal found scores share the discounts of their places.

    Args:
        expected: scores that are not all equal
    """
    relevance = (expected - expected.min()) / (expected.max() - expected.min())
    places = np.arange(len(found))
    discounts = np.where(places < first, 1 / np.log2(places + 2), 0)
    values, group, sizes = np.unique(-found, return_inverse=True, return_counts=True)
    shared = np.bincount(np.repeat(np.arange(len(values)), sizes), discounts) / sizes
    best = np.sort(relevance)[::-1] @ discounts
    return float(relevance @ shared[group] / best)
