"""Tokenizers of a recipe: subword vocabularies trained on its texts, and their files.

A vocabulary is learned by byte-pair encoding (Sennrich et al. 2016) or as a unigram language model
(Kudo 2018).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_whole

from ..settings import check_settings
from .examples import Example
from .recipe import SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE, Tokenizers

PAD, START, END, UNKNOWN = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
"""The special tokens, with the ids 0 to 3."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The kind of vocabulary to train.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    size: int
    """The number of tokens of a vocabulary, including the four special tokens."""
    kind: Literal["bpe", "unigram"] = "bpe"
    shared: bool = True
    """Whether source and target have one vocabulary."""
    lowercase: bool = False
    """Whether sources and targets are lower-cased."""
    tokenized: bool = False
    """Whether spaces already surround punctuation; otherwise it is split off."""

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        if self.size <= len(SPECIAL_TOKENS):
            yield f"size: expected more than {len(SPECIAL_TOKENS)}, found {shown(self.size)}"


def train_tokenizers(
    vocabulary: Vocabulary, examples: Collection[Example], prefixes: Sequence[str] = ()
) -> Tokenizers:
    """Train the tokenizers of both sides, of exactly the size that the vocabulary states.

    Args:
        prefixes: texts that are one token each of the sources' vocabulary, wherever they occur

    Raises:
        DragomanError: the texts have too few subwords, or a prefix is a subword.
    """
    sources = (example.source for example in examples)
    targets = (reference for example in examples for reference in example.references)
    if vocabulary.shared:
        both = _train(vocabulary, chain(sources, targets), "both sides", prefixes)
        return Tokenizers(both, both)
    return Tokenizers(
        _train(vocabulary, sources, "the sources", prefixes),
        _train(vocabulary, targets, "the targets", ()),
    )


ZERO_WIDTH = r"\u00AD\u200B\u200E\u200F\u202A-\u202E\u2060-\u2069\uFEFF"
"""Soft hyphens, zero-width spaces and marks of direction."""
_CONTROLS = r"\x00-\x08\x0E-\x1B\u007F-\u0084\u0086-\u009F"
_JOINERS = r"\u200C\u200D"
_STRAY_JOINERS = rf"(?<![^\s{_JOINERS}])[{_JOINERS}]+|[{_JOINERS}]+(?![^\s{_JOINERS}])"
"""Zero-width joiners and non-joiners that have no neighbour on one side. Others are part of words,
as in Persian, and of emoji."""
_WHITE_SPACE = r"[\s\x1C-\x1F\u2581]+"
"""Tabs, line ends, no-break and other spaces, and the mark of `Metaspace` for a space."""


def white_space_rules(*, left: bool = True) -> list[normalizers.Normalizer]:
    """Make normalizers for white space: a single space for each run of it, and none around a text.

    Characters without width that are not part of a word are removed. The rules are similar to
    SentencePiece's `nmt_nfkc`, which replaces some of these characters by spaces.

    Args:
        left: whether to remove the space before a text
    """
    return [
        without(ZERO_WIDTH),
        normalizers.Replace(Regex(_STRAY_JOINERS), ""),
        normalizers.Replace(Regex(_WHITE_SPACE), " "),
        normalizers.Strip(left=left, right=True),
    ]


def without(characters: str) -> normalizers.Normalizer:
    """Make a normalizer that removes characters, given as ranges of a regular expression."""
    return normalizers.Replace(Regex(f"[{characters}]"), "")


def _train(
    vocabulary: Vocabulary, texts: Iterable[str], side: str, prefixes: Sequence[str]
) -> Tokenizer:
    bpe = vocabulary.kind == "bpe"
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN) if bpe else models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            without(_CONTROLS),
            *white_space_rules(),
            *([normalizers.Lowercase()] if vocabulary.lowercase else []),
        ]
    )
    words = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = (
        words
        if vocabulary.tokenized
        else pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation("isolated")])
    )
    tokenizer.decoder = decoders.Metaspace()
    size = vocabulary.size - len(prefixes)
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    trainer = (
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
        if bpe
        else trainers.UnigramTrainer(
            vocab_size=size,
            special_tokens=special,
            unk_token=UNKNOWN,
            show_progress=False,
        )
    )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # raised if a unigram model has too many single symbols
        raise DragomanError(
            f"vocabulary: {vocabulary.size} tokens cannot be made of {side}: {error}"
        ) from error
    for prefix in prefixes:
        if tokenizer.token_to_id(prefix) is not None:
            raise DragomanError(
                f"prefix: expected a text that is no subword of {side}, found {shown(prefix)}; "
                "choose another one, such as <BT>"
            )
    # Not special: texts to translate may begin with a prefix, too.
    tokenizer.add_tokens(
        [AddedToken(prefix, special=False, normalized=False) for prefix in prefixes]
    )
    found = tokenizer.get_vocab_size()
    if found < vocabulary.size:
        raise DragomanError(
            f"vocabulary: expected {vocabulary.size} tokens, but {side} give only {found}: choose "
            "a smaller size"
        )
    if found > vocabulary.size:
        raise DragomanError(
            f"vocabulary: expected {vocabulary.size} tokens, but the symbols of {side} alone are "
            f"{found}: choose a larger size"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text
    return tokenizer


FILES = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)


def write_tokenizers(tokenizers: Tokenizers, directory: Path) -> None:
    """Write the tokenizers of both sides into a checkpoint directory.

    Raises:
        DragomanError: a file cannot be written.
    """
    for tokenizer, name in zip(tokenizers, FILES, strict=True):
        text = tokenizer.to_str(pretty=True)
        write_whole(
            directory / name,
            lambda partial, text=text: partial.write_text(text, encoding="utf-8"),  # type: ignore[misc]
        )


def read_tokenizers(directory: Path) -> Tokenizers:
    """Read the tokenizers of both sides from a checkpoint directory.

    Raises:
        DragomanError: a file is missing or damaged.
    """
    source, target = (_tokenizer(directory / name) for name in FILES)
    return Tokenizers(source, target)


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exceptions
        raise DragomanError(f"{path}: expected a tokenizer to go on with: {error}") from error
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text; files lack this setting
    return tokenizer
