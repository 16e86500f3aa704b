"""Kinds of tokenizers: their files at Hugging Face, and how these are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from dragoman.errors import DragomanError

from .checkpoint import TokenizerCheckpoint
from .files import LIBRARY_FILE, TokenizerFiles
from .multilingual import Multilingual, has_languages, multilingual_ranks
from .readers import library_file
from .tiktoken import plain_ranks

Reader = Callable[[TokenizerCheckpoint], TokenizerFiles | None]
"""Returns None if the files that it reads do not exist."""


@dataclass(frozen=True)
class TokenizerKind:
    """The tokenizers of some classes, and the readers of their files.

    Attributes:
        classes: names of its classes in `transformers`, without the ending of their fast variants
        readers: in order of preference; the first that finds its files reads them. If none does,
            ranks of tiktoken are looked for, which any class may have
        languages: how multilingual models of this kind name their languages
        matches: whether it is the kind of a checkpoint whose tokenizer class names none
        any_class: whether its files mean the same for every class, as those of a byte-level pair
            encoding do. For other kinds, a class of another name needs `tokenizer.json`
    """

    classes: tuple[str, ...]
    readers: tuple[Reader, ...]
    languages: Multilingual | None = None
    matches: Callable[[TokenizerCheckpoint], bool] = lambda checkpoint: True
    any_class: bool = False

    def read(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        """Read the tokenizers of a checkpoint; None if there are none.

        Raises:
            DragomanError: a file is damaged or unusable, half of a pair is missing, ids are outside
                the model's vocabulary, or the package sentencepiece is missing.
        """
        found = (reader(checkpoint) for reader in (*self.readers, self._ranks))
        return next((files for files in found if files is not None), None)

    def _ranks(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        if self.languages and has_languages(checkpoint, self.languages):
            return multilingual_ranks(checkpoint, self.languages)
        return plain_ranks(checkpoint)


PLAIN = TokenizerKind((), (library_file,))
"""A tokenizer that `tokenizer.json` describes completely."""

GENERIC = frozenset(
    {"PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend"}
)
"""Classes in `transformers` that do not show how a tokenizer works."""


def choose_kind(
    checkpoint: TokenizerCheckpoint,
    of_family: Iterable[TokenizerKind],
    of_all_families: Iterable[TokenizerKind],
) -> TokenizerKind:
    """Choose the kind that the tokenizer's class names or, if it names none, that suits.

    Files of a class of an unknown name are refused unless the kind is for any class.

    Args:
        of_family: the kinds that the model's own family uses
        of_all_families: a tokenizer may be borrowed from another family
    """
    name = checkpoint.class_name
    for kind in of_all_families:
        if name in kind.classes:
            return kind
    kind = next((kind for kind in of_family if kind.matches(checkpoint)), PLAIN)
    # A class of an unknown name may be there because the model knows one language only.
    unknown_class = name is not None and checkpoint.library is not None
    if kind.languages and unknown_class and not has_languages(checkpoint, kind.languages):
        return PLAIN
    if name is None or name in GENERIC or kind.any_class:
        return kind
    return replace(kind, readers=tuple(partial(_of_another_class, r) for r in kind.readers))


def _of_another_class(reader: Reader, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read the files of another class, if the checkpoint has `tokenizer.json`.

    Raises:
        DragomanError: the reader has found files that another class may read in another way.
    """
    files = reader(checkpoint)
    if files is not None and checkpoint.library is None:
        raise DragomanError(
            f"{checkpoint.directory}: expected {LIBRARY_FILE}, because the tokenizer's class "
            f"{checkpoint.class_name!r:.60} is unknown, found none"
        )
    return files
