"""Tokenizers of a recipe: subword vocabularies trained on its texts, and their files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Literal

from tokenizers import (
    AddedToken,
    Encoding,
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
from dragoman.files.text_lines import UnknownCharacters

from ..settings import check_settings
from .recipe import SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE, Examples, Tokenizers

PAD, START, END, UNKNOWN = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
"""The special tokens, with the ids 0 to 3."""
UNKNOWN_ID = 3


BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The tokens of bytes, as SentencePiece spells them."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The kind of vocabulary to train.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    size: int | None = None
    """The number of tokens of a vocabulary, including the four special tokens. For characters, it
    is a maximum; None: all characters of the texts."""
    source_size: int | None = None
    target_size: int | None = None
    """The size of one side's vocabulary, if it differs from `size`."""
    kind: Literal["bpe", "unigram", "characters"] = "bpe"
    shared: bool | None = None
    """Whether source and target have one vocabulary; None: unless there are two `files`."""
    lowercase: bool = False
    """Whether sources and targets are lower-cased."""
    tokenized: bool = False
    """Whether spaces already surround punctuation; otherwise it is split off."""
    split_digits: bool = False
    """Whether each digit is a token of its own."""
    coverage: float = 1.0
    """The share of the texts' characters that the vocabulary has; the rarest are left out."""
    byte_fallback: bool = False
    """Whether characters that the vocabulary lacks become their bytes in UTF-8, which are 256 of
    its tokens. Otherwise, they become the unknown token."""
    files: tuple[str, ...] | None = None
    """A vocabulary that exists already, in place of a trained one: a file for both sides, or one
    for sources and one for targets. Each is a SentencePiece model or a `tokenizer.json`. Of the
    other fields, only `shared` and `lowercase` may be stated."""

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        if self.files is not None:
            yield from self._problems_of_files(self.files)
            return
        own = {"source_size": self.source_size, "target_size": self.target_size}
        if self.is_shared and any(own.values()):
            yield (
                "source_size and target_size: expected none for one vocabulary, which `size` is "
                "of; with shared = false, each side has its own"
            )
        elif self.kind != "characters" and None in self.sizes:
            name = "target_size" if self.source_size else "source_size"
            yield f"missing field {name if any(own.values()) else 'size'!r}"
        elif self.size is not None and all(own.values()):
            yield f"size: expected none with source_size and target_size, found {self.size}"
        for name in ("tokenized", "split_digits"):
            if self.kind == "characters" and getattr(self, name):
                yield f"{name}: expected false, because each character is a token, found true"
        least = len(SPECIAL_TOKENS) + len(BYTES) * self.byte_fallback
        for name, size in ({"size": self.size} | own).items():
            if size is not None and size <= least:
                bytes_ = " with the tokens of bytes" if self.byte_fallback else ""
                yield f"{name}: expected more than {least}{bytes_}, found {shown(size)}"
        if not 0 < self.coverage <= 1:
            yield f"coverage: expected more than 0 and at most 1, found {shown(self.coverage)}"

    def _problems_of_files(self, files: Sequence[str]) -> Iterator[str]:
        if len(files) > 2:
            yield f"files: expected one, or two for source and target, found {len(files)}"
        elif self.shared is not None and self.shared is not (len(files) == 1):
            yield (
                f"files: expected {'one file' if self.shared else 'two files'}, because shared is "
                f"{str(self.shared).lower()}, found {len(files)}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("files", "shared", "lowercase") and value != field.default:
                yield f"{field.name}: expected none with `files`, found {shown(value)}"

    @property
    def is_shared(self) -> bool:
        """Whether source and target have one vocabulary."""
        return len(self.files or ()) < 2 if self.shared is None else self.shared

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The sizes of both sides; None: as many tokens as the texts have characters."""
        return self.source_size or self.size, self.target_size or self.size

    @property
    def open(self) -> bool:
        """Whether the sizes follow from the texts."""
        return self.kind == "characters"

    def read_files(
        self, directory: Path, read: Callable[[Path], Tokenizer], prefixes: Sequence[str] = ()
    ) -> Tokenizers:
        """Read the tokenizers of `files`, whose names are relative to a directory.

        Args:
            read: reads a file; special tokens have the ids 0 to 3
            prefixes: see `train_tokenizers`

        Raises:
            DragomanError: a file cannot be read, or a prefix is a special token or a subword.
        """
        found = []
        for name in self.files or ():
            try:
                tokenizer = read(directory / name)
            except DragomanError as error:
                raise DragomanError(f"vocabulary: files: {error}") from error
            if self.lowercase:
                rules = [normalizers.Lowercase(), tokenizer.normalizer]
                tokenizer.normalizer = normalizers.Sequence([rule for rule in rules if rule])
            found.append(tokenizer)
        _add_prefixes(found[0], prefixes, "the sources")
        return Tokenizers(found[0], found[-1])


def train_tokenizers(
    vocabulary: Vocabulary, examples: Examples, prefixes: Sequence[str] = ()
) -> Tokenizers:
    """Train the tokenizers of both sides, of exactly the sizes that the vocabulary states.

    Prefixes are one token each of the sources' vocabulary, wherever they occur.

    Raises:
        DragomanError: the texts have too few subwords, the size leaves no room for any, or a
            prefix is a subword.
    """
    source_size, target_size = vocabulary.sizes

    def sources() -> Iterator[str]:
        return (example.source for example in examples)

    def targets() -> Iterator[str]:
        return (reference for example in examples for reference in example.references)

    def both() -> Iterator[str]:
        return chain(sources(), targets())

    if vocabulary.is_shared:
        shared = _train(vocabulary, source_size, both, "both sides", prefixes)
        return Tokenizers(shared, shared)
    return Tokenizers(
        _train(vocabulary, source_size, sources, "the sources", prefixes),
        _train(vocabulary, target_size, targets, "the targets", ()),
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
    SentencePiece's `nmt_nfkc`. Unless `left`, spaces before a text stay.
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
    vocabulary: Vocabulary,
    size: int | None,
    texts: Callable[[], Iterable[str]],
    side: str,
    prefixes: Sequence[str],
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            without(_CONTROLS),
            *white_space_rules(),
            *([normalizers.Lowercase()] if vocabulary.lowercase else []),
        ]
    )
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace()]
    if not vocabulary.tokenized:
        steps.append(pre_tokenizers.Punctuation("isolated"))
    elif vocabulary.byte_fallback or vocabulary.kind == "unigram":
        # What a user spells like a byte or a special token is text.
        spelled = Regex("<(?=(?:0x[0-9A-Fa-f]{2}|/?s|pad|unk)>)")
        steps.append(pre_tokenizers.Split(spelled, "isolated"))
    if vocabulary.split_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    tokenizer.decoder = decoders.Metaspace()
    if vocabulary.byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    added = len(BYTES) * vocabulary.byte_fallback + len(prefixes)
    room = None if size is None else size - added
    if room is not None and room <= len(SPECIAL_TOKENS):
        raise DragomanError(
            f"vocabulary: expected more than {added + len(SPECIAL_TOKENS)} tokens for {side}, "
            f"with those of bytes and prefixes, found {size}; choose a larger size"
        )
    if vocabulary.kind == "characters":
        most = None if room is None else room - len(SPECIAL_TOKENS)
        letters = _characters(tokenizer, texts(), vocabulary.coverage)[:most]
        pieces = {piece: number for number, piece in enumerate([*SPECIAL_TOKENS, *letters])}
        tokenizer.model = models.BPE(pieces, [], unk_token=UNKNOWN)
        tokenizer.add_special_tokens(_SPECIAL)
    else:
        assert room is not None
        rare = []
        if vocabulary.coverage < 1:  # no subword spans a character that is left out
            kept = _characters(tokenizer, texts(), vocabulary.coverage)
            left_out = Regex("[^" + "".join(rf"\x{{{ord(letter):X}}}" for letter in kept) + "]+")
            rare = [pre_tokenizers.Split(left_out, "removed")]
        tokenizer.pre_tokenizer = _in_order([*steps, *rare])
        _train_subwords(tokenizer, vocabulary, room, added, texts(), side)
    tokenizer.pre_tokenizer = _in_order(steps)
    if vocabulary.byte_fallback:
        tokenizer.model = _with_bytes(tokenizer)
    _add_prefixes(tokenizer, prefixes, side)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text
    return tokenizer


_SPECIAL = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]


def _in_order(steps: Sequence[pre_tokenizers.PreTokenizer]) -> pre_tokenizers.PreTokenizer:
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence([*steps])


def _characters(tokenizer: Tokenizer, texts: Iterable[str], coverage: float) -> list[str]:
    """Return the most frequent characters of normalized texts, after the mark of a space.

    They are the share `coverage` of all characters, at least.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    del counts[" "]
    left = coverage * counts.total()
    found = ["\u2581"]
    for letter, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left <= 0:
            break
        found.append(letter)
        left -= count
    return found


def _train_subwords(
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    room: int,
    added: int,
    texts: Iterable[str],
    side: str,
) -> None:
    trainer: trainers.Trainer
    if vocabulary.kind == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=room, special_tokens=_SPECIAL, show_progress=False)
    else:
        tokenizer.model = models.Unigram()
        trainer = trainers.UnigramTrainer(
            vocab_size=room, special_tokens=_SPECIAL, unk_token=UNKNOWN, show_progress=False
        )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # raised if a unigram model has too many single symbols
        raise DragomanError(
            f"vocabulary: {room + added} tokens cannot be made of {side}: {error}"
        ) from error
    found = tokenizer.get_vocab_size()
    if found < room:
        raise DragomanError(
            f"vocabulary: expected {room + added} tokens, but {side} give only "
            f"{found + added}: choose a smaller size"
        )
    if found > room:
        raise DragomanError(
            f"vocabulary: expected {room + added} tokens, but the symbols of {side} alone are "
            f"{found + added}: choose a larger size, or a coverage that leaves out rare ones"
        )


def _add_prefixes(tokenizer: Tokenizer, prefixes: Sequence[str], side: str) -> None:
    """Add prefixes to a vocabulary, unless they are added tokens already."""
    added = tokenizer.get_added_tokens_decoder().values()
    present = {token.content for token in added if not token.special}
    new = [prefix for prefix in prefixes if prefix not in present]
    for prefix in new:
        if tokenizer.token_to_id(prefix) is not None:
            raise DragomanError(
                f"prefix: expected a text that is no subword of {side} and no special token, "
                f"found {shown(prefix)}; choose another one, such as <BT>"
            )
    # Not special: texts to translate may begin with a prefix, too.
    tokenizer.add_tokens([AddedToken(prefix, special=False, normalized=False) for prefix in new])


def _with_bytes(tokenizer: Tokenizer) -> models.Model:
    model = json.loads(tokenizer.to_str())["model"]
    first = len(SPECIAL_TOKENS)
    if model["type"] == "Unigram":
        scored = [(piece, score) for piece, score in model["vocab"]]
        scored[first:first] = [(byte, 0.0) for byte in BYTES]
        return models.Unigram(scored, model["unk_id"], byte_fallback=True)
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    pieces[first:first] = BYTES
    return models.BPE(
        {piece: number for number, piece in enumerate(pieces)},
        [(left, right) for left, right in model["merges"]],
        unk_token=UNKNOWN,
        byte_fallback=True,
    )


def count_unknown(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    encodings: Sequence[Encoding],
    unknown: UnknownCharacters,
) -> None:
    """Count the characters of texts that a tokenizer encodes as its unknown token.

    A model of whole words knows no characters.
    """
    if isinstance(tokenizer.model, models.WordLevel | models.WordPiece):
        return
    special = tokenizer.get_added_tokens_decoder().get(UNKNOWN_ID)
    counts = special is not None and special.special
    for text, encoding in zip(texts, encodings, strict=True):
        places: set[int] = set()
        if counts and UNKNOWN_ID in encoding.ids:
            pairs = zip(encoding.ids, encoding.offsets, strict=True)
            places.update(n for token, span in pairs if token == UNKNOWN_ID for n in range(*span))
        unknown.add(text, "".join("".join(text[n] for n in sorted(places)).split()))


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


def digests_of(tokenizers: Tokenizers) -> list[str]:
    """Return the SHA-256 of the tokenizers of both sides as their files, which round scores."""
    texts = (Tokenizer.from_str(each.to_str()).to_str() for each in tokenizers)
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exceptions
        raise DragomanError(f"{path}: expected a tokenizer to go on with: {error}") from error
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text; files lack this setting
    return tokenizer
