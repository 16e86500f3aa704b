"""Translates documents: HTML, subtitles and plain texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Unpack, get_args

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from .arguments import CancelEvent, StopCheck, never_stopped, options_of, stop_check
from .attention.alignment import Alignment
from .decoding.results import Hypothesis, RejectedError, Result
from .format.manifest import Manifest
from .model import Model, parts_of
from .scoring.interface import ScoringOptions
from .texts.markup import Markup
from .texts.sentences import check_split, language_of, of_sentence
from .texts.tag_places import WordPairs

DocumentForm = Literal["html", "srt", "txt"]
DOCUMENT_FORMS: tuple[DocumentForm, ...] = get_args(DocumentForm)

NO_ALIGNMENT = (
    "tags are placed by the positions of words, since the bundle has no attention graph: build it "
    "--with-attention"
)


@dataclass(frozen=True)
class TranslatedDocument:
    """The translation of a document."""

    text: str
    warnings: tuple[str, ...] = ()
    """Lines for the user: sentences that were cut, tags that are placed by position."""


class PlainText:
    """A text, which the model splits into sentences."""

    def __init__(self, text: str) -> None:
        self.aligned: list[int] = []
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""
        self.sentences = [text.removeprefix("\ufeff")]

    def translated(
        self,
        outputs: Sequence[str],
        alignments: Mapping[int, WordPairs] | None = None,
        check: StopCheck = never_stopped,
    ) -> str:
        """Return the translation."""
        return f"{self._mark}{outputs[0]}"


_CUE_START = re.compile(r"(?:\{\\[^}\n]*\}|[-\u2013\u2014\s])*")
"""Places of ASS, such as {\\an8}, and dashes before what somebody says."""


_TAG = re.compile("(</?[a-zA-Z][^<>]*>)")


class Subtitles:
    """Subtitles in the form of SubRip: numbers, times, and texts up to the next blank line.

    The lines of a cue are translated as one text, and have as many lines again; lines with a dash
    are texts of their own.
    """

    def __init__(self, text: str, language: str, check: StopCheck = never_stopped) -> None:
        if text.strip() and "-->" not in text:
            raise DragomanError("srt: expected times such as 00:00:01,000 --> 00:00:02,500")
        self._check = check
        self._parts: list[str | Markup] = []
        self._lines: dict[int, int] = {}
        """The number of lines of a text."""
        self.sentences: list[str] = []
        self.aligned: list[int] = []
        self._break = "\r\n" if "\r\n" in text else "\n"
        is_text, waiting = False, list[str]()
        for line in text.splitlines(keepends=True):
            if is_text and line.strip():
                if waiting and line.lstrip().startswith("-"):
                    self._add(waiting, language)
                    waiting = []
                waiting.append(line)
                continue
            self._add(waiting, language)
            waiting = []
            is_text = "-->" in line
            self._parts.append(line)
        self._add(waiting, language)

    def _add(self, lines: Sequence[str], language: str) -> None:
        if not lines:
            return
        text = "".join(lines)
        start = _CUE_START.match(text)
        body = text[start.end() if start else 0 :]
        end = body[len(body.rstrip()) :]
        markup = Markup(body.rstrip(), language, entities=False, check=self._check)
        first = len(self.sentences)
        self._lines[len(self._parts) + 1] = len(lines)
        self._parts += [text[: len(text) - len(body)], markup, end]
        self.sentences += markup.sentences
        self.aligned += [first + n for n in markup.aligned]

    def translated(
        self,
        outputs: Sequence[str],
        alignments: Mapping[int, WordPairs] | None = None,
        check: StopCheck = never_stopped,
    ) -> str:
        """Return the subtitles with other texts."""
        pieces, first = list[str](), 0
        for place, part in enumerate(self._parts):
            check()
            if isinstance(part, str):
                pieces.append(part)
                continue
            last = first + len(part.sentences)
            own = {n - first: pairs for n, pairs in (alignments or {}).items() if first <= n < last}
            text = part.translated(outputs[first:last], own, check)
            if part.sentences:
                text = self._break.join(_lines(text, self._lines[place]))
            pieces.append(text)
            first = last
        return "".join(pieces)


def _lines(text: str, count: int) -> list[str]:
    """Break a text into lines of about the same length, at spaces outside of tags."""
    words, lines = _outside_of_tags(" ".join(text.splitlines())), list[str]()
    length = sum(map(len, words)) + len(words) - 1
    for number in range(count, 1, -1):
        line = ""
        while words and (not line or len(line) + 1 + len(words[0]) / 2 <= length / number):
            line += f"{' ' if line else ''}{words.pop(0)}"
        lines.append(line)
        length -= len(line) + 1
    return [line for line in [*lines, " ".join(words)] if line]


def _outside_of_tags(text: str) -> list[str]:
    words: list[list[str]] = [[]]
    for number, part in enumerate(_TAG.split(text)):
        first, *others = [part] if number % 2 else part.split(" ")
        words[-1].append(first)
        words += [[word] for word in others]
    return [word for word in map("".join, words) if word]


Document = PlainText | Subtitles | Markup
"""A document whose sentences can be replaced."""


def read_document(
    text: str, form: DocumentForm, language: str, check: StopCheck = never_stopped
) -> Document:
    """Find the sentences of a document in a language, see `texts.sentences.base_language`."""
    if form == "txt":
        return PlainText(text)
    if form == "html":
        return Markup(text, language, check=check)
    return Subtitles(text, language, check)


def outputs_of(results: Sequence[Result]) -> list[Sequence[Hypothesis]]:
    """Return the outputs of each sentence, best first; raise the error of one that was rejected."""
    for number, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(of_sentence(result.error, number, len(results)))
    return [result.hypotheses for result in results]


def pairs_to_align(
    document: Document, results: Sequence[Result], manifest: Manifest, rank: int = 0
) -> dict[int, tuple[str, Sequence[int]]]:
    """Return the sentences to align with their outputs of a rank, by number, without cut ones."""
    if "attention" not in manifest.graphs:
        return {}
    found: dict[int, tuple[str, Sequence[int]]] = {}
    for number in document.aligned:
        result = results[number]
        if len(result.hypotheses) > rank and not result.warnings:
            found[number] = (document.sentences[number], result.hypotheses[rank].tokens)
    return found


def warnings_of(
    document: Document, results: Sequence[Result], manifest: Manifest
) -> tuple[str, ...]:
    """Return the lines for the user about a document, each once."""
    found = dict.fromkeys(warning for result in results for warning in result.warnings)
    if document.aligned and "attention" not in manifest.graphs:
        found[NO_ALIGNMENT] = None
    return tuple(found)


def reading_of(options: GenerationOptions) -> ScoringOptions:
    """Return the options with which sentences and their outputs are aligned."""
    return ScoringOptions(
        source_language=options.source_language,
        target_language=options.target_language,
        split_special_tokens=options.split_special_tokens,
    )


def aligned_by_number(
    pairs: Mapping[int, object], alignments: Sequence[Alignment]
) -> dict[int, WordPairs]:
    """Return alignments by the numbers of sentences, without those that failed."""
    found = zip(pairs, alignments, strict=True)
    return {number: alignment for number, alignment in found if alignment.error is None}


def translate_document(
    model: Model,
    text: str,
    form: DocumentForm,
    options: GenerationOptions | None = None,
    *,
    timeout: float | None = None,
    cancel: CancelEvent | None = None,
    **changes: Unpack[GenerationKeywords],
) -> TranslatedDocument:
    """Translate a document, and keep all that is not text.

    Tags of HTML and subtitles are those of the document, each at the words that its words are
    aligned with; see the guide on documents.

    Args:
        form: "html"; "srt", subtitles; "txt", a text whose sentences are translated as with the
            option `split`
        options, timeout, cancel, changes: as for `Model.generate`; one output

    Raises:
        RejectedError: a sentence cannot be decoded.
        DragomanError: the form is unknown, the document has too many tags or subtitles no times, a
            package is missing, or as for `Model.generate` with `split`.
        DeadlineError, CancelError: the call was stopped.
    """
    if form not in DOCUMENT_FORMS:
        raise DragomanError(
            f"form: expected one of {', '.join(DOCUMENT_FORMS)}, found {shown(form)}"
        )
    if not isinstance(text, str):
        raise DragomanError(f"text: expected a text, found {shown(text)}")
    check = stop_check(timeout, cancel)
    resolved = options_of(options, changes).replace(split=True)
    if resolved.num_return_sequences > 1:
        count = shown(resolved.num_return_sequences)
        raise DragomanError(f"num_return_sequences: expected 1 for a document, found {count}")
    parts, manifest = parts_of(model, "generate"), model.manifest
    check_split(resolved, manifest)
    document = read_document(text, form, language_of(resolved, manifest), check)
    results = parts.front_end.generate(document.sentences, resolved, check)
    outputs = outputs_of(results)
    pairs = pairs_to_align(document, results, manifest)
    alignments = list(pairs.values())
    found = parts.alignments(alignments, reading_of(resolved), check, False) if alignments else []
    texts = [
        each[0].text or "" if each else result.text or ""
        for each, result in zip(outputs, results, strict=True)
    ]
    translated = document.translated(texts, aligned_by_number(pairs, found), check)
    return TranslatedDocument(translated, warnings_of(document, results, manifest))
