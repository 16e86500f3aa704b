"""Kinds of tokenizers: their files in Hugging Face directories, and readers that families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from tokenizers import Tokenizer, models

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import VOCABULARY_BYTES, check_regular
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors

from .checkpoint import TokenizerCheckpoint
from .classes import TokenizerClass
from .files import LIBRARY_FILE, TokenizerFiles, all_present, read_vocabulary
from .multilingual import Multilingual, has_languages, multilingual_ranks
from .tiktoken import plain_ranks
from .vocabulary import Vocabulary

Reader = Callable[[TokenizerCheckpoint], TokenizerFiles | None]
"""Reads the tokenizers of a checkpoint; returns None if the reader's files do not exist."""


@dataclass(frozen=True)
class TokenizerKind:
    """The tokenizers of some classes, and the readers of their files."""

    classes: tuple[str, ...]
    """Names of classes in `transformers`, without the suffix "Fast"."""
    readers: tuple[Reader, ...]
    """Readers in order of preference; the first that finds its files is used. Ranks of tiktoken,
    which any class may have, come last."""
    languages: Multilingual | None = None
    """The naming of languages in multilingual models of this kind."""
    matches: Callable[[TokenizerCheckpoint], bool] = lambda checkpoint: True
    """Whether a checkpoint has this kind, if its tokenizer class names none."""
    any_class: bool = False
    """Whether the files have the same meaning for every class, as in byte-level pair encoding.
    Otherwise, a class of another name needs `tokenizer.json`."""

    def read(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        """Read the tokenizers of a checkpoint; None if there are none.

        Raises:
            DragomanError: a file is damaged, unusable or missing, ids are outside the model's
                vocabulary, or the package sentencepiece is missing.
        """
        found = (reader(checkpoint) for reader in (*self.readers, self._ranks))
        return next((files for files in found if files is not None), None)

    def _ranks(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        if self.languages and has_languages(checkpoint, self.languages):
            return multilingual_ranks(checkpoint, self.languages)
        return plain_ranks(checkpoint)


def library_file(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Use `tokenizer.json` and the files beside it for both sides."""
    tokenizer = checkpoint.assembled()
    if tokenizer is None:
        return None
    return TokenizerFiles(tokenizer, tokenizer, cleans_up=checkpoint.cleans_up(tokenizer))


def byte_level(checkpoint: TokenizerCheckpoint, kind: TokenizerClass) -> Tokenizer | None:
    """Read byte-level pair encoding from `vocab.json` and `merges.txt`; None without them."""
    directory = checkpoint.directory
    if not all_present(directory, "vocab.json", "merges.txt"):
        return None
    path, merges = directory / "vocab.json", directory / "merges.txt"
    vocabulary = read_vocabulary(path, checkpoint.vocab_size)
    check_regular(merges, VOCABULARY_BYTES)
    try:
        with panics_as_errors():
            pairs = models.BPE.read_file(str(path), str(merges))[1]
            return checkpoint.from_vocabulary(kind, Vocabulary(vocabulary, pairs))
    except DragomanError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(f"{merges}: not the merges of {path.name}: {error}") from error


def sentencepiece_file(
    checkpoint: TokenizerCheckpoint, file_name: str, kind: TokenizerClass
) -> TokenizerFiles | None:
    """Read one SentencePiece model for both sides, as a class of `transformers` does."""
    tokenizer = checkpoint.from_sentencepiece(file_name, kind)
    if tokenizer is None:
        return None
    return TokenizerFiles(tokenizer, tokenizer, cleans_up=checkpoint.cleans_up(tokenizer))


PLAIN = TokenizerKind((), (library_file,))
"""A tokenizer that `tokenizer.json` describes completely."""

GENERIC = frozenset(
    {"PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend"}
)
"""Classes in `transformers` that do not determine the kind."""


def choose_kind(
    checkpoint: TokenizerCheckpoint,
    of_family: Iterable[TokenizerKind],
    of_all_families: Iterable[TokenizerKind],
) -> TokenizerKind:
    """Choose the kind of the tokenizer's class or, if the class names none, the first that matches.

    Files of an unknown class are refused unless the kind is for any class. A model may use the
    tokenizer of another family.
    """
    name = checkpoint.class_name
    for kind in of_all_families:
        if name in kind.classes:
            return kind
    kind = next((kind for kind in of_family if kind.matches(checkpoint)), PLAIN)
    # A monolingual model of a multilingual family may have an unknown class.
    unknown_class = name is not None and checkpoint.library is not None
    if kind.languages and unknown_class and not has_languages(checkpoint, kind.languages):
        return PLAIN
    if name is None or name in GENERIC or kind.any_class:
        return kind
    return replace(kind, readers=tuple(partial(_of_another_class, r) for r in kind.readers))


def _of_another_class(reader: Reader, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read the files of another class, if the checkpoint has `tokenizer.json`."""
    files = reader(checkpoint)
    if files is not None and checkpoint.library is None:
        raise DragomanError(
            f"{checkpoint.directory}: expected {LIBRARY_FILE}, because the tokenizer's class "
            f"{shown(checkpoint.class_name)} is unknown, found none"
        )
    return files
