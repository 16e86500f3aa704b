"""Compares what two tokenizers do to difficult texts, to every token id and to Unicode."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from dragoman.errors import shown
from dragoman.runtime.texts.codecs import PieceCodec
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors

TEXTS = (
    *("", " ", "  ", "\t", "\n", " \r\n\t "),
    *("a", "A", "Hello, world!", "HELLO WORLD", "hello world", "HeLLo", "iPhone McDonald"),
    *(" leads", "trails ", "  leads  ", "two  spaces", "tab\there", "line\nbreak\r\nend\n"),
    *("0", "7", "12", "123", "1234567890", "1,234.56", "3rd", "-5 %", "½ ² Ⅷ ١٢٣"),
    *(
        "caf\u00e9",
        "cafe\u0301",
        "\u00c5\u212b A\u030a",
        "a\u0323\u0308",
        "Ñandú İstanbul ŒUVRE ß ẞ",
    ),
    *("don't can't we've it's I'LL", "x.y,z;!?...", "(a) [b] {c} <d>", "a-b_c/d\\e", "“q” «s»"),
    *("日本語のテキスト。", "中文字符, mixed", "한국어 각 \u1100\u1161\u11a8", "ภาษาไทย हिन्दी"),
    *("Привет, мир", "Καλημέρα", "שלום עולם", "مَرحبا", "ﬁ ﬆ \uff21\uff41\uff11 ① ㍿"),
    *("😀", "a😀b", "👩\u200d👩\u200d👧 🇫🇷!", "\u0301\u0301", "\ufffd"),
    *("\x00", "a\x01b\x1f\x7f\x80\x85", "\u00a0n\u2003e\u3000i\u200bz\ufeff\u2028"),
    *("▁a ▁", "Ġa Ġ", "##a a##", "a</w>", "@@ a@@ b", "<0x41>", ">>fra<< a"),
    *("a" * 120, "ab" * 40, " " * 17, "word " * 30),
)
"""Texts with upper and lower case, accents composed and not, digits, white space at either end and
doubled, scripts without spaces, emoji, control characters, word boundary marks and long words."""

AROUND_SPECIAL = ("{}", "a{}b", "a {} b", " {}", "{} ", "{}{}")

SWEPT_TOGETHER = 32
"""Characters of Unicode in one text."""
SAMPLED_EVERY, SAMPLED = 41, ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0x10000, 0x20000))
"""Large blocks, whose characters are treated alike, and how many characters one stands for."""

SHOWN_TOKENS = 20

Text = str | tuple[str, str]
"""A text, or a pair of texts."""


class Differences:
    """Collects the first difference between tokenizers, and the token ids with any difference."""

    def __init__(self, label: str = "") -> None:
        self._label = f"{label}: " if label else ""
        self.problem = ""
        self.tokens: set[int] = set()

    def add(self, problem: str, tokens: Iterable[int] = ()) -> None:
        """Note a difference."""
        self.problem = self.problem or f"{self._label}{problem}"
        self.tokens.update(tokens)

    @property
    def count(self) -> int:
        """How many token ids differ; 1 if only something else differs."""
        return max(len(self.tokens), int(bool(self.problem)))


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    rest: list[Any]
    """Of each token, its segment, where in the text it stands, and whether it is special."""


class Behaviour(NamedTuple):
    """How a tokenizer is used."""

    encode: Callable[[Sequence[Text], bool], list[Encoded]]
    """Texts to tokens, with more than their ids or, which takes less time, without; a text that it
    refuses has none."""
    decode: Callable[[Sequence[list[int]]], list[str]]
    """Sequences of token ids to texts."""


def library_behaviour(tokenizer: Tokenizer, own_template: bool, *, skip: bool) -> Behaviour:
    """Use a tokenizer of the `tokenizers` library.

    Args:
        own_template: whether the special tokens that it defines are put around texts
    """

    def encode(texts: Sequence[Text], in_detail: bool) -> list[Encoded]:
        batch = tokenizer.encode_batch if in_detail else tokenizer.encode_batch_fast
        try:
            with panics_as_errors():
                found = batch(list(texts), add_special_tokens=own_template)
        except Exception:  # the library raises no narrower type
            if len(texts) == 1:
                return [Encoded([], [])]
            # A text that is refused stops them all.
            return [encode([text], in_detail)[0] for text in texts]
        if not in_detail:
            return [Encoded(encoding.ids, []) for encoding in found]
        return [
            Encoded(e.ids, list(zip(e.type_ids, e.offsets, e.special_tokens_mask, strict=True)))
            for e in found
        ]

    def decode(sequences: Sequence[list[int]]) -> list[str]:
        with panics_as_errors():
            return list(tokenizer.decode_batch(list(sequences), skip_special_tokens=skip))

    return Behaviour(encode, decode)


def piece_behaviour(codec: PieceCodec) -> Behaviour:
    """Use a SentencePiece model, whose pieces have ids of their own."""

    def ids(text: Text) -> list[int]:
        try:
            return codec.encode_source(str(text)).tokens
        except ValueError:  # symbols without a piece
            return []

    return Behaviour(
        lambda texts, in_detail: [Encoded(ids(text), []) for text in texts],
        lambda sequences: list(map(codec.decode, sequences)),
    )


def with_special_tokens(tokenizer: Tokenizer) -> Iterator[str]:
    """Make texts with each special or added token by itself, within a word and between words."""
    for token in tokenizer.get_added_tokens_decoder().values():
        yield from (around.replace("{}", token.content) for around in AROUND_SPECIAL)


@dataclass(frozen=True)
class Comparison:
    """Two tokenizers that are compared by what they do."""

    expected: Behaviour
    found: Behaviour
    differences: Differences

    def encode(self, texts: Sequence[Text], *, in_detail: bool = True) -> None:
        """Encode texts, or pairs of texts, with both."""
        expected, found = (
            tokenizer.encode(texts, in_detail) for tokenizer in (self.expected, self.found)
        )
        for text, wanted, other in zip(texts, expected, found, strict=True):
            if wanted.ids != other.ids:
                self.differences.add(
                    f"expected {shown(text)} -> {_listed(wanted.ids)}, found {_listed(other.ids)}",
                    set(wanted.ids) ^ set(other.ids),
                )
            elif wanted.rest != other.rest:
                tokens = zip(wanted.rest, other.rest, strict=True)
                place, differing = next(
                    (place, pair) for place, pair in enumerate(tokens) if pair[0] != pair[1]
                )
                self.differences.add(
                    f"expected segment, span and whether it is special of token {place} of "
                    f"{shown(text)} to be {differing[0]}, found {differing[1]}"
                )

    def decode(self, sequences: Sequence[list[int]]) -> None:
        """Decode sequences of token ids with both."""
        decoded = zip(
            sequences, self.expected.decode(sequences), self.found.decode(sequences), strict=True
        )
        for ids, wanted, other in decoded:
            if wanted != other:
                tokens = ids if len(ids) == 1 else ()
                problem = f"expected {_listed(ids)} -> {shown(wanted)}, found {shown(other)}"
                self.differences.add(problem, tokens)

    def each_token(self, tokens: Sequence[int]) -> None:
        """Decode every token by itself and between others, and encode what it stands for."""
        single = [[token] for token in tokens]
        self.decode([*single, *([tokens[-1], token, tokens[-1]] for token in tokens)])
        self.encode(list(dict.fromkeys(self.expected.decode(single))), in_detail=False)

    def sweep(self) -> None:
        """Encode the characters of Unicode, several in a text; where they differ, one by one."""
        groups = _characters()
        texts = ["".join(f"a{character}b " for character in group) for group in groups]
        expected, found = (
            tokenizer.encode(texts, False) for tokenizer in (self.expected, self.found)
        )
        for group, text, wanted, other in zip(groups, texts, expected, found, strict=True):
            if wanted != other:
                self.encode([*(f"a{character}b" for character in group), text])


@cache
def _characters() -> list[str]:
    chosen = [
        chr(code)
        for code in range(0x20000)
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
        and (code % SAMPLED_EVERY == 0 or not any(low <= code < high for low, high in SAMPLED))
    ]
    starts = range(0, len(chosen), SWEPT_TOGETHER)
    return ["".join(chosen[start : start + SWEPT_TOGETHER]) for start in starts]


def _listed(ids: Sequence[int]) -> str:
    if len(ids) <= SHOWN_TOKENS:
        return str(list(ids))
    return f"{str(list(ids[:SHOWN_TOKENS]))[:-1]}, ...]"
