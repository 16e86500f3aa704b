"""Replaces the sentences in HTML by their translations, and keeps every tag as it is.

Block elements divide the text into paragraphs, in which inline elements are placed among the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

from dragoman.errors import DragomanError

from ..arguments import StopCheck, never_stopped
from .sentences import Span, gaps, sentence_spans
from .tag_places import Inline, WordPairs, Words

MOST_NESTED = 200
"""The most elements within each other."""
_BLOCK = 256
"""Characters that are compared at once."""
WHITE_SPACE = " \t\n\r\f"
"""What HTML takes for one space."""
_RUNS = re.compile(f"[{WHITE_SPACE}]+|[^{WHITE_SPACE}]+")

MOST_TAGS = 100_000
"""The most tags of a document, and whatever else is markup, such as comments."""
_TOO_MANY = (
    f"tags: expected at most {MOST_NESTED} elements within each other and {MOST_TAGS:,} tags, "
    "found more"
)
VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()  # noqa: SIM905
)
BLOCKS = frozenset(
    (  # noqa: SIM905
        "address article aside audio base blockquote body br button canvas caption center col "
        "colgroup dd details dialog dir div dl dt embed fieldset figcaption figure footer form "
        "frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main "
        "map menu menuitem meta nav noframes noscript object ol optgroup option p param picture "
        "pre search section select source summary table tbody td template tfoot th thead title tr "
        "track ul video"
    ).split()
)
CLOSED_BY_OTHERS = frozenset(
    "body colgroup dd dt head html li optgroup option p tbody td tfoot th thead tr".split()  # noqa: SIM905
)
"""Elements whose end tag may be left out, so that they need not be nested."""
LEFT_ALONE = frozenset(
    (  # noqa: SIM905
        "code iframe math noembed noframes noscript plaintext pre script style svg textarea xmp"
    ).split()
)
"""Elements that are not translated, among them those whose tags a tokenizer takes for text."""


@dataclass(frozen=True)
class _Event:
    raw: str
    """The part as it is written; together the parts are the document."""
    text: str | None = None
    """Decoded characters; None: markup."""
    tag: str | None = None
    is_end: bool = False
    is_left_alone: bool = False
    """Whether it begins an element that is not translated."""


class _Paragraph:
    def __init__(self) -> None:
        self.raw: list[str] = []
        self.inline: list[Inline] = []
        self.spans: list[Span] = []
        self.first = 0
        """The number of the first sentence in the document."""
        self._before: list[str] = []
        self._characters: list[str] = []
        self._spaces: dict[int, list[str]] = {}
        self._open: list[tuple[str, Inline]] = []

    def add_text(self, raw: str, text: str) -> None:
        """Add characters; white space in a row is one space."""
        self.raw.append(raw)
        characters = self._characters
        for run in _RUNS.findall(text):
            if run[0] not in WHITE_SPACE:
                characters.extend(run)
                continue
            if not characters and not self.inline:
                self._before.append(run)
                continue
            if characters and characters[-1] != " ":
                characters.append(" ")
            place, is_first = len(characters), True
            for one in reversed(self._siblings):
                if not one.begin == one.end == place:
                    break
                is_first = False
                if one.is_spaced:  # so are those before it
                    break
                one.is_spaced = True
            if characters and is_first:
                self._spaces.setdefault(place - 1, []).append(run)

    @property
    def before(self) -> str:
        return "".join(self._before)

    @property
    def text(self) -> str:
        return "".join(self._characters)

    @property
    def _siblings(self) -> list[Inline]:
        return self._open[-1][1].children if self._open else self.inline

    def add_point(self, raw: str, *, is_cut: bool = False) -> None:
        """Add something without text: a comment, an image, an element that is left alone."""
        self.raw.append(raw)
        place = len(self._characters)
        self._siblings.append(Inline(raw, "", place, place, is_cut=is_cut))

    def open(self, raw: str, tag: str) -> None:
        self.add_point(raw)
        self._open.append((tag, self._siblings[-1]))

    def close(self, raw: str, tag: str) -> None:
        place = next((n for n in reversed(range(len(self._open))) if self._open[n][0] == tag), None)
        if place is None:
            self.add_point(raw, is_cut=True)
            return
        self.raw.append(raw)
        self._leave_open(place + 1)
        _, element = self._open.pop()
        element.closing, element.end = raw, len(self._characters)

    def _leave_open(self, place: int) -> None:
        """Make tags by themselves of the elements that do not end here."""
        while len(self._open) > place:
            _, element = self._open.pop()
            self._siblings.extend(element.children)  # the element is the last one
            element.children, element.is_cut = [], True

    def split(self, language: str, first: int, check: StopCheck) -> None:
        """Find the sentences, if the text has letters."""
        self._leave_open(0)
        self.first = first
        if any(map(str.isalpha, self._characters)):
            self.spans = sentence_spans(self.text, language, lines=False, check=check)

    def written(self, begin: int, end: int) -> str:
        """Return a part between sentences, with its original white space."""
        each = (self._spaces.get(n, self._characters[n]) for n in range(begin, end))
        return "".join(chain.from_iterable(each))


class Markup:
    """HTML, or another text with tags.

    Args:
        entities: whether there are references such as `&amp;`

    Raises:
        DragomanError: there are too many or too deep elements, parts are not found, or turbohtml is
            missing.
    """

    def __init__(
        self,
        text: str,
        language: str,
        *,
        entities: bool = True,
        check: StopCheck = never_stopped,
    ) -> None:
        self._entities = entities
        # Tokenizers of HTML make all line breaks LF.
        self._break = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        events = _checked(_events(text, entities=entities), text, check)
        self._parts = list(_parts(_left_alone(events)))
        self.sentences: list[str] = []
        """What is to be translated."""
        for part in self._parts:
            if isinstance(part, _Paragraph):
                part.split(language, len(self.sentences), check)
                whole = part.text
                self.sentences += [whole[slice(*span)] for span in part.spans]

    @property
    def aligned(self) -> list[int]:
        """The numbers of the sentences with tags among their words."""
        return [
            part.first + n
            for part in self._parts
            if isinstance(part, _Paragraph) and part.inline
            for n in range(len(part.spans))
        ]

    def translated(
        self,
        outputs: Sequence[str],
        alignments: Mapping[int, WordPairs] | None = None,
        check: StopCheck = never_stopped,
    ) -> str:
        """Return the document with outputs in place of its sentences.

        Args:
            alignments: by the numbers of sentences; otherwise words are aligned by their places
        """
        pieces = []
        for part in self._parts:
            check()
            if isinstance(part, str):
                pieces.append(part)
            elif not part.spans:
                pieces += part.raw
            else:
                pieces.append(self._paragraph(part, outputs, alignments or {}, check))
        text = "".join(pieces)
        return text if self._break == "\n" else text.replace("\n", self._break)

    def _paragraph(
        self,
        part: _Paragraph,
        outputs: Sequence[str],
        alignments: Mapping[int, WordPairs],
        check: StopCheck,
    ) -> str:
        own, text = outputs[part.first : part.first + len(part.spans)], part.text
        edges = [0, *(edge for span in part.spans for edge in span), len(text)]
        words = Words(text, self._encoded, check)
        between = gaps(text, part.spans, own)
        for n, (begin, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            is_added = between[n] != text[begin:end]
            words.keep((begin, end), between[n] if is_added else part.written(begin, end))
            if n < len(own):
                words.add(part.spans[n], own[n], alignments.get(part.first + n))
        return part.before + words.rendered(part.inline)

    def _encoded(self, text: str) -> str:
        return escape(text, quote=False) if self._entities else text


def _checked(
    events: Iterable[_Event], text: str, check: StopCheck = never_stopped
) -> Iterator[_Event]:
    """Yield parts of HTML, after a check that they are the whole text."""
    done, count, is_whole = 0, 0, True
    for event in events:
        check()
        count += event.text is None
        if count > MOST_TAGS:
            raise DragomanError(_TOO_MANY)
        is_whole = text.startswith(event.raw, done)
        if not is_whole:
            break
        done += len(event.raw)
        yield event
    if not is_whole or done < len(text):
        raise DragomanError(
            f"tags: expected HTML that a tokenizer finds all parts of, found other text at "
            f"character {done}"
        )


def _events(text: str, *, entities: bool) -> Iterator[_Event]:
    if "<" not in text and not (entities and "&" in text):
        yield _Event(text, text)
        return
    try:
        from turbohtml import TokenType, tokenize
    except ImportError as error:
        raise DragomanError(
            "tags: expected the package turbohtml, found none: pip install 'dragoman[html]'"
        ) from error
    # Tokenizers of HTML make U+FFFD of NUL in some places.
    readable = text.replace("\0", "\ufffd")
    done = 0
    nested: list[str] = []
    for token in tokenize(readable, resolve_references=False, capture_source=True):
        if token.type is TokenType.TEXT:
            for size, is_text in _written(token.data or "", readable, done):
                raw = text[done : done + size]
                yield _Event(raw, raw if is_text else None)
                done += size
            continue
        begin = readable.find(token.source or "", done)
        if begin < 0:
            return  # `_checked` refuses it
        if begin > done:  # what no token has, such as </>
            yield _Event(text[done:begin])
        done = begin + len(token.source or "")
        raw = text[begin:done]
        if token.type is TokenType.CHARACTER_REFERENCE:
            yield _Event(raw, token.data if entities else raw)
        elif token.type in (TokenType.START_TAG, TokenType.END_TAG):
            tag, is_end = token.tag or "", token.type is TokenType.END_TAG
            _nest(nested, tag, is_end=is_end)
            if len(nested) > MOST_NESTED:
                raise DragomanError(_TOO_MANY)
            yield _Event(
                raw, None, tag, is_end=is_end, is_left_alone=not is_end and _is_left_alone(token)
            )
        else:
            yield _Event(raw)
    if done < len(text):
        yield _Event(text[done:])


def _written(found: str, text: str, begin: int) -> Iterator[tuple[int, bool]]:
    """Yield the sizes of parts of a text, and whether a token has them."""
    place = 0
    while place < len(found) and begin < len(text):
        size = 0
        while (same := found[place + size : place + size + _BLOCK]) and text.startswith(
            same, begin + size
        ):
            size += len(same)
        other = text[begin + size : begin + size + _BLOCK]
        pairs = list(zip(same, other, strict=False))
        size += next((n for n, (one, two) in enumerate(pairs) if one != two), len(pairs))
        if size:
            yield size, True
        place, begin = place + size, begin + size
        if place < len(found):
            left_out = min(3 if text.startswith("</>", begin) else 1, len(text) - begin)
            yield left_out, False
            begin += left_out


def _nest(nested: list[str], tag: str, *, is_end: bool) -> None:
    if is_end and tag in nested:
        while nested.pop() != tag:
            pass
    elif not is_end and tag not in VOID and tag not in CLOSED_BY_OTHERS:
        nested.append(tag)


def _is_left_alone(token: Any) -> bool:
    if token.tag in VOID:
        return False
    translate = dict(token.attrs).get("translate")
    return token.tag in LEFT_ALONE or (translate or "").strip().lower() == "no"


def _left_alone(events: Iterable[_Event]) -> Iterator[_Event]:
    """Join the parts of each element that is not translated."""
    inside: list[str] = []
    tag, depth = "", 0
    for event in events:
        if not depth:
            if not event.is_left_alone:
                yield event
                continue
            tag, depth, inside = event.tag or "", 1, [event.raw]
            if event.raw.endswith("/>") and tag in ("svg", "math"):
                depth = 0
        else:
            inside.append(event.raw)
            if event.tag == tag:
                depth += -1 if event.is_end else 1
        if not depth:
            yield _Event("".join(inside), None, tag, is_left_alone=True)
    if depth:
        yield _Event("".join(inside), None, tag, is_left_alone=True)


def _parts(events: Iterable[_Event]) -> Iterator[str | _Paragraph]:
    paragraph: _Paragraph | None = None
    for event in events:
        if event.tag in BLOCKS or event.raw[:9].lower() == "<!doctype":
            if paragraph is not None:
                yield paragraph
            paragraph = None
            yield event.raw
            continue
        paragraph = paragraph or _Paragraph()
        if event.text is not None:
            paragraph.add_text(event.raw, event.text)
        elif event.tag is None or event.is_left_alone or event.tag in VOID:
            paragraph.add_point(event.raw)
        elif event.is_end:
            paragraph.close(event.raw, event.tag)
        else:
            paragraph.open(event.raw, event.tag)
    if paragraph is not None:
        yield paragraph
