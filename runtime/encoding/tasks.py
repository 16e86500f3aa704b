"""Interprets encoder outputs as each head requires: labels, entities, mask predictions, answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.head import Head

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
from .running import Outputs
from .tokenizer import InputTokenizer, Tokenized


def classification(outputs: Outputs, head: Head, text: Tokenized) -> Classification:
    """Return labels with their probabilities: softmax, or a sigmoid per label if multi-label."""
    logits = outputs.read("class_logits").astype(np.float64)
    if len(head.labels) == 1 and not head.multi_label:
        scores = logits
    elif head.multi_label:
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = softmax(logits)
    order = np.argsort(-scores, kind="stable")
    labels = tuple(ScoredLabel(head.labels[i], float(scores[i])) for i in order.tolist())
    return Classification(labels, truncated=text.truncated)


def ranked(found: Sequence[Classification], top: int | None = None) -> list[RankedDocument]:
    """Rank documents by the only label of each, best first, then those with an error.

    Args:
        found: one for each document
        top: maximum number of documents to return; None: all
    """
    documents = [
        RankedDocument(i, None if each.error else each.labels[0].score, each.error, each.truncated)
        for i, each in enumerate(found)
    ]
    # Of equal scores, the first document is the first.
    documents.sort(key=lambda each: (each.score is None, -(each.score or 0.0)))
    return documents[:top]


def tagging(outputs: Outputs, head: Head, text: Tokenized, source: str | None) -> Tagging:
    """Label each word as its first token.

    Args:
        source: the text; None: the source is token ids, and each token is a word
    """
    probabilities = softmax(outputs.read("token_logits").astype(np.float64))
    labels = probabilities.argmax(-1).tolist()
    words: list[Tag] = []
    for index, start, end in _words(text, source):
        label = labels[index]
        words.append(
            Tag(
                head.labels[label],
                float(probabilities[index, label]),
                start,
                end,
                None if source is None else source[start:end],
            )
        )
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
        start, end = _without_space(source, *text.spans[index])
        before = best[index - 1].token if index - 1 in best else text.ids[index - 1]
        added = tokenizer.after(before, best[index].token) if index else None
        if added is None:
            source = source[:start] + (best[index].text or "") + source[end:]
        else:
            source = source[:start].rstrip() + added + source[end:]
    return source


def answer(outputs: Outputs, text: Tokenized, context: str, longest: int) -> Answer:
    """Return the most probable answer span in the context.

    Args:
        longest: maximum number of tokens in an answer
    """
    logits = outputs.read("token_logits").astype(np.float64)
    of_context = _of_second(text)
    if not of_context.any():
        return Answer(error="expected a context with an answer, found an empty one")
    logits[~of_context] = -np.inf
    begins, ends = softmax(logits.T)
    longest = min(longest, len(begins))
    together = np.triu(np.outer(begins, ends)) - np.triu(np.outer(begins, ends), longest)
    first, last = np.unravel_index(int(together.argmax()), together.shape)
    start, end = _without_space(context, text.spans[int(first)][0], text.spans[int(last)][1])
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


def _of_second(text: Tokenized) -> NDArray[np.bool_]:
    """Mark the tokens of the second text of a pair."""
    second: NDArray[np.bool_] = np.array(text.segments) == 1
    return second


def _words(text: Tokenized, source: str | None) -> list[tuple[int, int, int]]:
    """Return the first token and the character offsets of each word, without white space.

    If the source is token ids, each token is a word.
    """
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
    trimmed = [(index, *_without_space(source, start, end)) for index, start, end in words]
    return [(index, start, end) for index, start, end in trimmed if start < end]


def _without_space(source: str, start: int, end: int) -> tuple[int, int]:
    """Strip white space from a span of a text.

    A token's span begins with a space where the tokenizer marks spaces on tokens (Metaspace), and
    where a mask token consumes the space before it.
    """
    part = source[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def _entities(words: Sequence[Tag], source: str | None) -> list[Tag]:
    """Group words labelled B-X, I-X, I-X; an I-X after another label also begins an entity."""
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
            joined = Tag(kind, mean, last.start, last.end, last.text)
            entities[-1] = _spanning(last, joined, source, end=word.end)
        else:
            entities.append(Tag(kind, word.probability, word.start, word.end, word.text))
            counts.append(1)
        open_kind = kind
    return entities


def _spanning(first: Tag, tag: Tag, source: str | None, *, end: int) -> Tag:
    """Extend a tag from the start of `first` to `end`."""
    text = None if source is None else source[first.start : end]
    return Tag(tag.label, tag.probability, first.start, end, text)
