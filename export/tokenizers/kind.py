"""A kind of tokenizer: the files that it is kept in at Hugging Face, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from dragoman.errors import DragomanError

from .checkpoint import TokenizerCheckpoint
from .files import TokenizerFiles
from .library import library_file
from .multilingual import Multilingual, has_languages, multilingual_ranks
from .reading import LIBRARY_FILE
from .tiktoken import plain_ranks

Reader = Callable[[TokenizerCheckpoint], TokenizerFiles | None]
"""Gives None if the files that it reads are not there."""


@dataclass(frozen=True)
class TokenizerKind:
    """How the tokenizers of one class are kept in Hugging Face directories.

    Attributes:
        classes: names of its classes in `transformers`, without the ending of their fast variants
        readers: in order of preference; the first that finds its files reads them. If none does,
            ranks of tiktoken are looked for, in which any class may be kept
        languages: how multilingual models of this kind name their languages
        suits: whether it is the kind of a checkpoint whose tokenizer class does not tell
        tells_all: its files mean the same whatever the class, as those of a byte-level pair
            encoding do. Of other kinds, only `tokenizer.json` is read for a class of another name
    """

    classes: tuple[str, ...]
    readers: tuple[Reader, ...]
    languages: Multilingual | None = None
    suits: Callable[[TokenizerCheckpoint], bool] = lambda checkpoint: True
    tells_all: bool = False

    def read(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        """The tokenizers of a checkpoint; None if there are none.

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
"""A tokenizer whose library file says everything."""

GENERIC = frozenset(
    {"PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend"}
)
"""Classes in `transformers` that do not tell how a tokenizer works."""


def choose_kind(
    checkpoint: TokenizerCheckpoint,
    of_family: Iterable[TokenizerKind],
    of_all_families: Iterable[TokenizerKind],
) -> TokenizerKind:
    """The kind that the tokenizer's class names or, if it names none, that suits the checkpoint.

    Files of a class of an unknown name are refused where they do not say all; see `tells_all`.

    Args:
        of_family: the kinds that the model's own family uses
        of_all_families: a tokenizer may be borrowed from another family
    """
    name = checkpoint.class_name
    for kind in of_all_families:
        if name in kind.classes:
            return kind
    kind = next((kind for kind in of_family if kind.suits(checkpoint)), PLAIN)
    # A class of an unknown name may be there because the model knows one language only.
    unknown_class = name is not None and checkpoint.library is not None
    if kind.languages and unknown_class and not has_languages(checkpoint, kind.languages):
        return PLAIN
    if name is None or name in GENERIC or kind.tells_all:
        return kind
    return replace(kind, readers=tuple(partial(_of_another_class, r) for r in kind.readers))


def _of_another_class(reader: Reader, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """What a reader gives, if the checkpoint has `tokenizer.json`.

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
