"""Interprets encoder outputs as each head requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.head import Head

from ..backends.interface import BackendError
from ..format.contract import Role
from ..texts.sentences import stripped
from .results import (
    Answer,
    Candidate,
    Classification,
    Filling,
    RankedDocument,
    ScoredLabel,
    Tag,
    Tagging,
)
from .tokenizer import InputTokenizer, Tokenized

PER_TOKEN: frozenset[Role] = frozenset({"hidden", "token_logits"})
TEMPLATE = "This example is {}."
"""The hypothesis of zero-shot classification, as in transformers."""
MOST_LABELS = 1000
"""The most labels of a zero-shot classification, each of which costs a pass for each text."""
MOST_CHARACTERS = 1000
"""The most characters of a label, and of a template: each label makes a hypothesis of both."""


class Outputs:
    """The graph's outputs for one text of a batch.

    Reading copies an output, so that the batch's memory can be reused.
    """

    def __init__(self, found: Mapping[Role, NDArray[Any]], row: int, length: int) -> None:
        self._found, self._row, self._length = found, row, length

    def read(self, role: Role, token: int | None = None) -> NDArray[np.float32]:
        """Copy an output: a vector, or a row for each token, or that of one token.

        Raises:
            BackendError: a value is not a finite number.
        """
        values = self._found[role][self._row]
        if role in PER_TOKEN:
            values = values[: self._length]
        own: NDArray[np.float32] = (values if token is None else values[token]).astype(np.float32)
        if not np.isfinite(own).all():
            raise BackendError("the model's outputs are not finite numbers")
        return own


def classification(outputs: Outputs, head: Head, text: Tokenized) -> Classification:
    """Return labels with their probabilities: softmax, or sigmoids if multi-label."""
    logits = outputs.read("class_logits").astype(np.float64)
    if len(head.labels) == 1 and not head.multi_label:
        scores = logits
    elif head.multi_label:
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = softmax(logits)
    return Classification(_best_first(head.labels, scores), truncated=text.truncated)


def _best_first(labels: Sequence[str], scores: NDArray[np.float64]) -> tuple[ScoredLabel, ...]:
    """Return labels, best first; of equal scores, the first label first."""
    order = np.argsort(-scores, kind="stable")
    return tuple(ScoredLabel(labels[i], float(scores[i])) for i in order.tolist())


@dataclass(frozen=True)
class ZeroShot:
    """Labels chosen at run time, each a hypothesis that a model of inference judges of a text.

    The numbers are those of the pipeline `zero-shot-classification` of transformers (Yin et al.
    2019).

    Raises:
        DragomanError: labels are missing, empty, repeated, too many or too long, or the template is
            too long or has not exactly one `{}`.
    """

    labels: tuple[str, ...]
    """The labels, each of which replaces the `{}` of the template."""
    template: str = TEMPLATE
    multi_label: bool = False
    """Whether each label has a probability of its own, so that several may be true."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.labels) <= MOST_LABELS:
            raise DragomanError(
                f"labels: expected 1 to {MOST_LABELS:,} labels, found {len(self.labels):,}"
            )
        for label in self.labels:
            if not isinstance(label, str) or not label.strip():
                raise DragomanError(f"labels: expected texts, none empty, found {shown(label)}")
            _check_characters("labels", label)
        if len(set(self.labels)) < len(self.labels):
            repeated = next(label for label in self.labels if self.labels.count(label) > 1)
            raise DragomanError(f"labels: expected each label once, found {shown(repeated)} twice")
        if isinstance(self.template, str):
            _check_characters("hypothesis_template", self.template)
        if not isinstance(self.template, str) or _fields(self.template) != [("", "", None)]:
            raise DragomanError(
                "hypothesis_template: expected a text with one {}, where the label goes, found "
                f"{shown(self.template)}"
            )
        if not isinstance(self.multi_label, bool):
            raise DragomanError(
                f"multi_label: expected true or false, found {shown(self.multi_label)}"
            )

    @classmethod
    def of(cls, labels: Any, template: Any = TEMPLATE, multi_label: Any = False) -> ZeroShot:
        """Create from the arguments of a call."""
        if isinstance(labels, str) or not isinstance(labels, Sequence):
            raise DragomanError(f"labels: expected a list of texts, found {shown(labels)}")
        return cls(tuple(labels), template, multi_label)

    @property
    def hypotheses(self) -> list[str]:
        """The hypothesis of each label."""
        return [self.template.format(label) for label in self.labels]

    def classification(
        self, logits: NDArray[np.float64], head: Head, *, truncated: bool
    ) -> Classification:
        """Return the labels of a text with their probabilities from logits [labels, head.outputs].

        These are a softmax over the labels' logits of entailment; with `multi_label` or one label,
        a softmax of contradiction and entailment for each label.
        """
        entailment = head.entailment
        assert entailment is not None  # noqa: S101 (checked by `check_able`)
        if self.multi_label or len(self.labels) == 1:
            contradiction = 0 if entailment else -1
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        return Classification(_best_first(self.labels, scores), truncated=truncated)


def _check_characters(name: str, text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise DragomanError(
            f"{name}: expected at most {MOST_CHARACTERS:,} characters, found {len(text):,}"
        )


def _fields(template: str) -> list[tuple[str, str | None, str | None]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError:
        return []
    return [(name, form, conversion) for _, name, form, conversion in parsed if name is not None]


def ranked(found: Sequence[Classification], top: int | None = None) -> list[RankedDocument]:
    """Rank documents by the only label of each, best first, then those with an error."""
    documents = [
        RankedDocument(i, None if each.error else each.labels[0].score, each.error, each.truncated)
        for i, each in enumerate(found)
    ]
    # Of equal scores, the first document is the first.
    documents.sort(key=lambda each: (each.score is None, -(each.score or 0.0)))
    return documents[:top]


def tagging(outputs: Outputs, head: Head, text: Tokenized, source: str | None) -> Tagging:
    """Label each word as its first token."""
    probabilities = softmax(outputs.read("token_logits").astype(np.float64))
    labels = probabilities.argmax(-1).tolist()
    words = [
        Tag(
            head.labels[labels[index]],
            float(probabilities[index, labels[index]]),
            start,
            end,
            None if source is None else source[start:end],
        )
        for index, start, end in _words(text, source)
    ]
    return Tagging(tuple(words), tuple(_entities(words, source)), truncated=text.truncated)


def filling(
    outputs: Outputs,
    head: Head,
    text: Tokenized,
    source: str | None,
    tokenizer: InputTokenizer | None,
    top: int,
) -> Filling:
    """Return the most probable tokens for each mask of a text."""
    masks = [i for i, token in enumerate(text.ids) if token == head.mask_token_id]
    found = []
    for index in masks:
        probabilities = softmax(outputs.read("token_logits", index).astype(np.float64))
        ranked = np.argsort(-probabilities, kind="stable")[:top].tolist()
        found.append(
            tuple(
                Candidate(
                    token,
                    None if tokenizer is None else tokenizer.text(token),
                    float(probabilities[token]),
                )
                for token in ranked
            )
        )
    filled = None
    if source is not None and tokenizer is not None:
        best = dict(zip(masks, (candidates[0] for candidates in found), strict=True))
        filled = _filled(source, text, best, tokenizer)
    return Filling(filled, tuple(found), truncated=text.truncated)


def _filled(
    source: str, text: Tokenized, best: dict[int, Candidate], tokenizer: InputTokenizer
) -> str:
    """Replace the masks of a text; a word continuation, such as `##s`, gets no space."""
    for index in sorted(best, reverse=True):
        start, end = stripped(source, *text.spans[index])
        before = best[index - 1].token if index - 1 in best else text.ids[index - 1]
        added = tokenizer.after(before, best[index].token) if index else None
        if added is None:
            source = source[:start] + (best[index].text or "") + source[end:]
        else:
            source = source[:start].rstrip() + added + source[end:]
    return source


def answer(outputs: Outputs, text: Tokenized, context: str, longest: int) -> Answer:
    """Return the most probable answer span in the context.

    Its probability is that of the pipeline `question-answering` of transformers, where a special
    token at the beginning stands for no answer.
    """
    logits = outputs.read("token_logits").astype(np.float64)
    of_context = np.array(text.segments) == 1
    if not of_context.any():
        return Answer(error="expected a context with an answer, found an empty one")
    no_answer = text.segments[0] is None
    excluded = ~of_context
    excluded[0] &= not no_answer
    logits[excluded] = -np.inf
    begins, ends = softmax(logits.T)
    if no_answer:
        begins[0] = ends[0] = 0
    longest = min(longest, len(begins))
    together = np.triu(np.outer(begins, ends)) - np.triu(np.outer(begins, ends), longest)
    first, last = np.unravel_index(int(together.argmax()), together.shape)
    start, end = stripped(context, text.spans[int(first)][0], text.spans[int(last)][1])
    return Answer(
        context[start:end],
        float(together[first, last]),
        start,
        end,
        truncated=text.truncated,
    )


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the softmax over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _words(text: Tokenized, source: str | None) -> list[tuple[int, int, int]]:
    """Return the first token and the character offsets of each word; token ids are words."""
    if source is None:
        return [(index, -1, -1) for index in range(len(text.ids))]
    words: list[tuple[int, int, int]] = []
    previous: int | None = None
    for index, word in enumerate(text.words):
        start, end = text.spans[index]
        if word is not None and word == previous:
            words[-1] = (*words[-1][:2], end)
        elif word is not None:
            words.append((index, start, end))
            previous = word
    # A token's span begins with a space where the tokenizer marks spaces on tokens (Metaspace), and
    # where a mask token consumes the space before it.
    trimmed = [(index, *stripped(source, start, end)) for index, start, end in words]
    return [(index, start, end) for index, start, end in trimmed if start < end]


def _entities(words: Sequence[Tag], source: str | None) -> list[Tag]:
    """Group words labelled B-X, I-X, I-X; I-X after another label also begins an entity."""
    entities: list[Tag] = []
    open_kind: str | None = None
    counts: list[int] = []
    for word in words:
        position, dash, kind = word.label.partition("-")
        if not dash or position not in ("B", "I"):
            open_kind = None
            continue
        if position == "I" and kind == open_kind:
            last = entities[-1]
            counts[-1] += 1
            mean = last.probability + (word.probability - last.probability) / counts[-1]
            text = None if source is None else source[last.start : word.end]
            entities[-1] = Tag(kind, mean, last.start, word.end, text)
        else:
            entities.append(Tag(kind, word.probability, word.start, word.end, word.text))
            counts.append(1)
        open_kind = kind
    return entities
