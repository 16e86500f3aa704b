"""A kind of tokenizer: the files that it is kept in at Hugging Face, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .checkpoint import TokenizerCheckpoint
from .files import TokenizerFiles
from .library import library_file
from .multilingual import Multilingual, has_languages

Reader = Callable[[TokenizerCheckpoint], TokenizerFiles | None]
"""Gives None if the files that it reads are not there."""


@dataclass(frozen=True)
class TokenizerKind:
    """How the tokenizers of one class are kept in Hugging Face directories.

    Attributes:
        classes: names of its classes in `transformers`, without the ending of their fast variants
        readers: in order of preference; the first that finds its files reads them
        languages: how multilingual models of this kind name their languages
        suits: whether it is the kind of a checkpoint whose tokenizer class does not tell
    """

    classes: tuple[str, ...]
    readers: tuple[Reader, ...]
    languages: Multilingual | None = None
    suits: Callable[[TokenizerCheckpoint], bool] = lambda checkpoint: True

    def read(self, checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
        """The tokenizers of a checkpoint; None if there are none.

        Raises:
            DragomanError: a file is damaged or unusable, half of a pair is missing, ids are outside
                the model's vocabulary, or the package sentencepiece is missing.
        """
        found = (reader(checkpoint) for reader in self.readers)
        return next((files for files in found if files is not None), None)


PLAIN = TokenizerKind((), (library_file,))
"""A tokenizer whose library file says everything."""


def choose_kind(
    checkpoint: TokenizerCheckpoint,
    of_family: Iterable[TokenizerKind],
    of_all_families: Iterable[TokenizerKind],
) -> TokenizerKind:
    """The kind that the tokenizer's class names or, if it names none, that suits the checkpoint.

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
    return kind
