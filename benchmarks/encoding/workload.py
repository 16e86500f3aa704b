"""What every contender encodes: English prose, cut so that all texts have one length in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
PROSE = ROOT / "LICENSE"
OTHER_PROSE = ROOT / "README.md"
"""For tools that look at texts to quantize: not those that are measured."""
TOKENS_OF_A_TURN = 4096
MOST_CALLS = 64


class Calls(NamedTuple):
    """A work item: several calls with different texts, because one could be too short to time.

    Attributes:
        length: tokens of every text, special tokens included
        texts: of each call, as many in all
    """

    length: int
    texts: list[list[str]]

    @property
    def batch_size(self) -> int:
        return len(self.texts[0])

    def __str__(self) -> str:
        return f"{self.length} tokens, batch {self.batch_size}"


def calls(prose: str, tokenizer: Tokenizer, length: int, batch_size: int) -> Calls:
    """The same for the same prose."""
    count = max(1, min(MOST_CALLS, TOKENS_OF_A_TURN // (length * batch_size)))
    texts = pieces(prose, tokenizer, length)
    return Calls(length, [list(islice(texts, batch_size)) for _ in range(count)])


def pieces(prose: str, tokenizer: Tokenizer, length: int) -> Iterator[str]:
    """Successive texts of exactly `length` tokens, special tokens included, each from the beginning
    of a word; without end: the prose is read again, from a token further on at every time.
    """
    encoding = tokenizer.encode(prose, add_special_tokens=False)
    size = length - tokenizer.num_special_tokens_to_add(is_pair=False)
    words, spans = encoding.word_ids, encoding.offsets
    start = laps = 0
    while True:
        while 0 < start < len(words) and words[start] == words[start - 1]:
            start += 1
        if start + size > len(words):
            laps += 1
            start = laps % (len(words) - size + 1)
            continue
        end = start + size
        text = prose[spans[start][0] : spans[end - 1][1]]
        assert len(tokenizer.encode(text).ids) == length
        yield text
        start = end


def load_tokenizer(directory: Path) -> Tokenizer:
    """Of a checkpoint, without the truncation and padding that its file may ask for."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
