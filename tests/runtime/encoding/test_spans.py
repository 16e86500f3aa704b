"""Which characters of a text are a word, a mask or an answer, for every kind of tokenizer.

Tokenizers count spaces differently: WordPiece to no token, byte-level and Metaspace to the token
that follows, and the mask of RoBERTa takes the space before it. What is expected is counted by
hand, and the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from dragoman.runtime.encoding.tasks import Outputs, answer, filling, tagging
from dragoman.runtime.encoding.tokenizer import InputTokenizer
from dragoman.settings.head import Head

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word_piece() -> Tokenizer:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def byte_level(*, trim: bool) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<unk>", "<s>", "</s>", "<mask>", *alphabet, "Ġw", "Ġwo"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "w"), ("Ġw", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 1), trim_offsets=trim, add_prefix_space=False
    )
    return with_roberta_tokens(tokenizer)


def unigram(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    pieces = [(piece, 0.0) for piece in ("<unk>", "<s>", "</s>", "<mask>")]
    pieces += [("▁", -2.0), ("▁world", -1.0), *((letter, -3.0) for letter in LETTERS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 1), trim_offsets=False, add_prefix_space=False
    )
    return with_roberta_tokens(tokenizer)


def with_roberta_tokens(tokenizer: Tokenizer) -> Tokenizer:
    mask = AddedToken("<mask>", lstrip=True, normalized=False)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", mask])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "WordPiece": word_piece,
    "byte-level": lambda: byte_level(trim=True),
    "byte-level, spans not trimmed": lambda: byte_level(trim=False),
    "Metaspace": lambda: unigram(pre_tokenizers.Metaspace()),
    "words, then Metaspace": lambda: unigram(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    ),
}
MASK = 3


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> InputTokenizer:
    path = tmp_path / "tokenizer.json"
    TOKENIZERS[request.param]().save(str(path))
    return InputTokenizer(path, 40, Head("masked-language-model", 4, 8, mask_token_id=MASK))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("hello world", [(0, 5), (6, 11)]),
        ("hello  big world", [(0, 5), (7, 10), (11, 16)]),
        ("  a world  ", [(2, 3), (4, 9)]),
        ("one", [(0, 3)]),
        (" ", []),
        ("", []),
    ],
)
def test_words(text: str, spans: list[tuple[int, int]], tokenizer: InputTokenizer) -> None:
    """Each has the label of its first token: the logits give every token a label of its own."""
    tokens = tokenizer.encode(text)
    count = len(tokens.ids)
    labels = tuple(f"B-{i}" for i in range(count))
    logits = 50 * np.eye(count, dtype=np.float32)
    head = Head("token-classification", count, 8, labels=labels)
    found = tagging(outputs(logits), head, tokens, text)
    assert [(word.start, word.end) for word in found.words] == spans
    assert [word.text for word in found.words] == [text[start:end] for start, end in spans]
    assert [(e.start, e.end) for e in found.entities] == spans  # each begins one
    numbers = [int(word.label.removeprefix("B-")) for word in found.words]
    assert numbers == sorted(set(numbers)) and 0 not in numbers  # 0 is the special token's


def outputs(logits: NDArray[np.float32]) -> Outputs:
    """Of a text alone."""
    return Outputs({"token_logits": logits[None]}, 0, len(logits))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <mask> b", "a x b"),
        ("<mask> b", "x b"),
        ("a  <mask>", "a  x"),
        ("a<mask>b", "axb"),
        ("<mask> <mask>\n<mask>", "x x\nx"),
    ],
)
def test_masks(text: str, expected: str, tokenizer: InputTokenizer) -> None:
    mask = tokenizer.piece(MASK) or ""
    text = text.replace("<mask>", mask)
    tokens = tokenizer.encode(text)
    assert tokens.ids.count(MASK) == text.count(mask)
    size = 400
    best = next(i for i in range(size) if tokenizer.piece(i) == "x")
    logits = np.zeros((len(tokens.ids), size), np.float32)
    logits[:, best] = 9
    head = Head("masked-language-model", size, 8, mask_token_id=MASK)
    found = filling(outputs(logits), head, tokens, text, tokenizer, 1)
    assert found.text == expected
    assert [candidates[0].token for candidates in found.masks] == [best] * text.count(mask)


def test_answers(tokenizer: InputTokenizer) -> None:
    """The one from the first token after the word "is" to the last."""
    context = "it is  big world"
    tokens = tokenizer.encode("q", context)
    of_context = [i for i, segment in enumerate(tokens.segments) if segment == 1]
    first = next(i for i in of_context if tokens.spans[i][1] > 5)
    logits = np.full((len(tokens.ids), 2), -9, np.float32)
    logits[first, 0] = logits[of_context[-1], 1] = 9
    found = answer(outputs(logits), tokens, context, 40)
    assert (found.start, found.end, found.text) == (7, 16, "big world")
