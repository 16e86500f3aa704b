"""The front end of encoder-only models."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import shown
from dragoman.settings.head import Head

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend
from ..backends.rows import padded_length
from ..decoding.request import MAX_LOGITS, as_batch, batches, pad, run_or_split
from ..decoding.results import RejectedError, TooManyTokensError, collected
from ..format.contract import Role
from ..format.manifest import Manifest
from ..texts.front_end import check_ids, token_ids
from .results import (
    Answer,
    Classification,
    Embedding,
    Filling,
    HiddenStates,
    Tagging,
)
from .tasks import Outputs, ZeroShot, answer, classification, filling, tagging
from .tokenizer import Cut, Hypothesis, InputTokenizer, ReadingKeywords, Tokenized

Made = TypeVar("Made")
Result = TypeVar("Result", Embedding, HiddenStates, Classification, Tagging, Filling, Answer)

MAX_BATCH_SIZE = 64
MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens in a batch, including padding."""
RUN_TOKENS = 32
"""A run of a graph on the processor costs as much as this many tokens, besides its own."""
MAX_PAIRS = 4096
"""Maximum number of pairs of a text and a label that are in memory."""
LOGITS_PER_TOKEN = frozenset(
    {"token-classification", "masked-language-model", "question-answering"}
)
"""Tasks with logits for every token."""


class EncoderFrontEnd:
    """Encodes texts in batches and interprets the outputs."""

    def __init__(self, manifest: Manifest, head: Head, backend: Backend, directory: Path) -> None:
        self._manifest, self.head, self._backend = manifest, head, backend
        self._longest = backend.limits.source or manifest.model.max_source_positions
        self._tokenizer = None
        if manifest.tokenizers is not None and manifest.tokenizers.source is not None:
            source, prompts = manifest.tokenizers.source, manifest.tokenizers.prompts
            self._tokenizer = InputTokenizer(directory / source, self._longest, head, prompts)

    def embeddings(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Embedding]:
        """Return the embedding of each source."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: Embedding(outputs.read("embedding"), truncated=text.truncated),
            Embedding(np.empty(0, np.float32)),
        )

    def hidden_states(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[HiddenStates]:
        """Return the last hidden states of each source."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: HiddenStates(outputs.read("hidden"), truncated=text.truncated),
            HiddenStates(np.empty((0, 0), np.float32)),
        )

    def classify(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        *,
        zero_shot: ZeroShot | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify each text or pair of texts."""
        if zero_shot is not None:
            return collected(self._zero_shot(sources, check, reading, zero_shot), len(sources))
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: classification(outputs, self.head, text),
            Classification(),
        )

    def tag(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Tagging]:
        """Label the words of each text."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, source: tagging(outputs, self.head, text, _text(source)),
            Tagging(),
        )

    def fill(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        *,
        top: int,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Filling]:
        """Predict the `top` most probable tokens for each mask of each text."""

        def result(outputs: Outputs, text: Tokenized, source: Any) -> Filling:
            if self.head.mask_token_id not in text.ids:
                mask = self.head.mask_token_id or 0
                name = "" if self._tokenizer is None else f" ({self._tokenizer.piece(mask)})"
                return Filling(error=f"expected a mask{name}, found none")
            return filling(outputs, self.head, text, _text(source), self._tokenizer, top)

        return self._each(sources, check, reading, result, Filling())

    def answer(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        *,
        longest: int,
        stride: int | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Answer]:
        """Answer questions, each a pair of question and context, in at most `longest` tokens."""
        if stride is not None:
            found = self._in_windows(sources, check, reading, longest, stride)
            return collected(found, len(sources))
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, source: answer(outputs, text, source[1], longest),
            Answer(),
        )

    def tokenize(self, source: Any, **reading: Unpack[ReadingKeywords]) -> Tokenized:
        """Return the tokens of a source, or raise a `RejectedError`."""
        text = self._tokens(source, **reading)
        check_ids(text.ids, self._manifest.model.source_vocab_size or 0)
        if not text.ids:
            raise RejectedError("expected at least one token, found none")
        return text

    def piece(self, token: int) -> str:
        """Return the piece of a token; its id without tokenizers."""
        piece = None if self._tokenizer is None else self._tokenizer.piece(token)
        return str(token) if piece is None else piece

    def _in_windows(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        longest: int,
        stride: int,
    ) -> Iterator[tuple[int, Answer]]:
        windows: list[tuple[int, Tokenized]] = []
        for index, source in enumerate(sources):
            check()
            try:
                windows += [(index, each) for each in self._windows(source, stride, **reading)]
            except RejectedError as error:
                yield index, Answer(error=str(error))
            if len(windows) >= MAX_PAIRS or index == len(sources) - 1:
                yield from self._best_answers(sources, windows, check, longest)
                windows = []

    def _windows(
        self, source: Any, stride: int, **reading: Unpack[ReadingKeywords]
    ) -> list[Tokenized]:
        reading["truncate"] = False
        try:
            return [self.tokenize(source, **reading)]
        except TooManyTokensError:
            assert self._tokenizer is not None  # noqa: S101 (it has counted the tokens)
            question, context = source
            return self._tokenizer.windows(
                question,
                context,
                stride,
                split_special_tokens=reading.get("split_special_tokens", False),
                prompt_name=reading.get("prompt_name"),
            )

    def _best_answers(
        self,
        sources: Sequence[Any],
        windows: Sequence[tuple[int, Tokenized]],
        check: StopCheck,
        longest: int,
    ) -> Iterator[tuple[int, Answer]]:
        groups = [index for index, _ in windows]
        results = run(
            self._backend,
            self._manifest,
            self.head,
            [text for _, text in windows],
            lambda number, outputs: answer(
                outputs, windows[number][1], sources[windows[number][0]][1], longest
            ),
            check,
        )
        for index, each in _grouped(results, groups):
            answers = [Answer(error=str(m)) if isinstance(m, RejectedError) else m for m in each]
            failed = next((one for one in answers if one.error is not None), None)
            yield index, failed or max(answers, key=lambda one: one.probability)

    def _zero_shot(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        zero_shot: ZeroShot,
    ) -> Iterator[tuple[int, Classification]]:
        hypotheses = zero_shot.hypotheses
        step = max(1, MAX_PAIRS // len(hypotheses))
        for first in range(0, len(sources), step):
            texts = sources[first : first + step]
            pairs = [Hypothesis(text, sentence) for text in texts for sentence in hypotheses]
            made = self._made(
                pairs,
                check,
                reading,
                lambda outputs, text, _: (outputs.read("class_logits"), text.truncated),
            )
            groups = [first + number // len(hypotheses) for number in range(len(pairs))]
            for index, each in _grouped(made, groups):
                yield index, self._judged(each, zero_shot)

    def _judged(self, each: Sequence[Any], zero_shot: ZeroShot) -> Classification:
        error = next((one for one in each if isinstance(one, RejectedError)), None)
        if error is not None:
            return Classification(error=str(error))
        logits, cut = zip(*each, strict=True)
        return zero_shot.classification(
            np.stack(logits).astype(np.float64), self.head, truncated=any(cut)
        )

    def _each(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        result: Callable[[Outputs, Tokenized, Any], Result],
        empty: Result,
    ) -> list[Result]:
        """Compute results; that of a rejected source is `empty` with an error."""
        made = self._made(sources, check, reading, result)
        results = (
            (i, dataclasses.replace(empty, error=str(m)) if isinstance(m, RejectedError) else m)
            for i, m in made
        )
        return collected(results, len(sources))

    def _made(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        make: Callable[[Outputs, Tokenized, Any], Made],
    ) -> Iterator[tuple[int, Made | RejectedError]]:
        good: list[tuple[int, Tokenized]] = []
        for index, source in enumerate(sources):
            check()
            text = self._try(source, reading)
            if isinstance(text, RejectedError):
                yield index, text
            else:
                good.append((index, text))
        found = run(
            self._backend,
            self._manifest,
            self.head,
            [text for _, text in good],
            lambda number, outputs: make(outputs, good[number][1], sources[good[number][0]]),
            check,
        )
        yield from ((good[number][0], made) for number, made in found)

    def _try(self, source: Any, reading: ReadingKeywords) -> Tokenized | RejectedError:
        try:
            return self.tokenize(source, **reading)
        except TooManyTokensError as error:
            if reading.get("truncate"):
                return error
            ways = "truncate=True (--truncate) leaves out the rest"
            if self.head.task == "question-answering":
                ways += ", stride=N (--stride N) reads it in windows"
            return RejectedError(f"{error}; {ways}")
        except RejectedError as error:
            return error

    def _tokens(self, source: Any, **reading: Unpack[ReadingKeywords]) -> Tokenized:
        answers = self.head.task == "question-answering"
        pairs = answers or self.head.task == "sequence-classification"
        is_hypothesis = isinstance(source, Hypothesis)
        if is_hypothesis and not isinstance(source.text, str):
            raise RejectedError(f"expected a text, found {shown(source.text)}")
        if isinstance(source, str) or _is_pair(source):
            if self._tokenizer is None:
                expected = "a bundle with them, since answers are text" if answers else "token ids"
                if is_hypothesis:
                    expected = "a bundle with them, since labels are texts"
                raise RejectedError(f"this bundle has no tokenizers: expected {expected}")
            if isinstance(source, str):
                if answers:
                    raise RejectedError("expected a pair of question and context, found one text")
                return self._tokenizer.encode(source, **reading)
            if not pairs:
                raise RejectedError("expected a text, found a pair: this model reads one text")
            cut: Cut | None = "only_first" if is_hypothesis else None
            return self._tokenizer.encode(*source, cut=cut, **reading)
        if answers:
            raise RejectedError("expected a pair of question and context, both texts")
        ids = token_ids(source, or_text="a text or ")
        if len(ids) > self._longest and not reading.get("truncate"):
            raise TooManyTokensError(
                f"source has {len(ids)} tokens, expected at most {self._longest}"
            )
        kept = ids[: self._longest]
        none: list[int | None] = [None] * len(kept)
        return Tokenized(kept, [0] * len(kept), [], none, none, truncated=len(kept) < len(ids))


def _is_pair(source: Any) -> bool:
    pair = isinstance(source, tuple | list) and len(source) == 2
    return pair and all(isinstance(text, str) for text in source)


def _text(source: Any) -> str | None:
    return source if isinstance(source, str) else None


LineSource = str | tuple[str, str]
"""A text or a pair of texts."""


def source_of_line(line: str, head: Head) -> LineSource:
    """Parse a line of input: a text, or a pair with a tab between, which answering requires."""
    first, tab, second = line.partition("\t")
    if head.task == "question-answering":
        if not tab:
            raise RejectedError("expected a question, a tab and a context, found no tab")
        return first, second
    return (first, second) if head.task == "sequence-classification" and tab else line


def _grouped(
    results: Iterable[tuple[int, Made]], groups: Sequence[int]
) -> Iterator[tuple[int, list[Made]]]:
    """Yield each group with its results in order, once all are there."""
    counts, found = Counter(groups), dict[int, dict[int, Made]]()
    for number, result in results:
        group = groups[number]
        own = found.setdefault(group, {})
        own[number] = result
        if len(own) == counts[group]:
            yield group, [own[number] for number in sorted(own)]
            del found[group]


def run(
    backend: Backend,
    manifest: Manifest,
    head: Head,
    texts: Sequence[Tokenized],
    make: Callable[[int, Outputs], Made],
    check: StopCheck,
) -> Iterator[tuple[int, Made | RejectedError]]:
    """Run the graph on all texts and yield each index with the result of `make`.

    A batch that fails, for example out of memory, is halved; a text that fails alone is rejected.

    Args:
        make: called before the next batch is computed
    """

    def made(indices: list[int]) -> list[Made | RejectedError]:
        check()
        found = _run(backend, manifest, head, [texts[i] for i in indices])
        return [make(i, outputs) for i, outputs in zip(indices, found, strict=True)]

    multiple, most = backend.limits.source_multiple, manifest.model.max_source_positions
    lengths = [padded_length(len(text.ids), multiple, most) for text in texts]
    rows = min(MAX_BATCH_SIZE, backend.limits.rows or MAX_BATCH_SIZE)
    tokens = min(tokens_of_batch(head), backend.limits.encoded or MAX_BATCH_TOKENS)
    for full in batches(lengths, max_batch_size=rows, max_batch_tokens=tokens):
        # On a GPU, where the backend states no best number, a run costs more than its padding.
        parts = [full] if backend.limits.encoded is None else divided(full, lengths)
        for batch in parts:
            yield from zip(batch, run_or_split(made, batch, RejectedError), strict=True)


def divided(batch: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Divide a batch so that padding and the cost of runs are least together.

    Args:
        batch: indices into `lengths`, the longest first
    """
    cost, begin = [0.0], [0]
    for end in range(1, len(batch) + 1):
        tried = [
            (cost[first] + (end - first) * lengths[batch[first]] + RUN_TOKENS, first)
            for first in range(end)
        ]
        least, first = min(tried)
        cost.append(least)
        begin.append(first)
    parts, end = list[list[int]](), len(batch)
    while end:
        parts.append(list(batch[begin[end] : end]))
        end = begin[end]
    return parts[::-1]


def tokens_of_batch(head: Head) -> int:
    """Return the tokens, including padding, of the largest batch that fits into memory."""
    logits = head.outputs if head.task in LOGITS_PER_TOKEN else 1
    return min(MAX_BATCH_TOKENS, MAX_LOGITS // logits)


def _run(
    backend: Backend, manifest: Manifest, head: Head, texts: Sequence[Tokenized]
) -> list[Outputs]:
    model = manifest.model
    source, mask = as_batch([text.ids for text in texts], model, backend.limits.source_multiple)
    types = None
    if head.token_types:
        types, _ = pad([text.types for text in texts], 0, source.shape[1])
    encoded = backend.encode(source, mask, types)
    found: dict[Role, NDArray[Any]] = {
        tensor.role: encoded[tensor.name] for tensor in manifest.graphs["encoder"].outputs
    }
    return [Outputs(found, row, len(text.ids)) for row, text in enumerate(texts)]
