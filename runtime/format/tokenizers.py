"""Which files of a bundle are its tokenizers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from .languages import SourceTemplate


@dataclass(frozen=True)
class Tokenizers:
    """How texts become source tokens, and target tokens texts. The file of each side is in the
    format of the `tokenizers` library or, where there is a vocabulary, a SentencePiece model.

    Attributes:
        source: None: the model does not take texts
        source_vocabulary, target_vocabulary: the token ids of a SentencePiece model's pieces:
            `texts.codecs.pieces.Vocabulary` in JSON
        template: None: the source's file itself says which special tokens surround a text
    """

    source: str | None
    target: str
    source_vocabulary: str | None = None
    target_vocabulary: str | None = None
    template: SourceTemplate | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """All files, each once."""
        names = (self.source, self.target, self.source_vocabulary, self.target_vocabulary)
        return tuple(dict.fromkeys(name for name in names if name is not None))
