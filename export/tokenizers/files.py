"""Tokenizers on their way into a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from dragoman.runtime.format.languages import Languages, SourceTemplate
from dragoman.runtime.format.tokenizers import Tokenizers
from dragoman.runtime.format.writing import BundleWriter


@dataclass(frozen=True)
class PieceModel:
    """A SentencePiece model, and the token ids that a checkpoint gives its pieces.

    Attributes:
        pieces: piece -> token id; an id without a piece belongs to a special token
        unknown, leading_code: as in `runtime.codecs.pieces.Vocabulary`
    """

    model: Path
    pieces: Mapping[str, int] = field(repr=False)
    unknown: int | None
    leading_code: bool = False

    def vocabulary(self) -> str:
        """The JSON that the runtime reads."""
        data = {
            "unknown": self.unknown,
            "leading_code": self.leading_code,
            "pieces": dict(self.pieces),
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizers of a model, to be written into its bundle.

    Attributes:
        source, target: a file of the `tokenizers` library, a tokenizer in memory, or a
            SentencePiece model; no source for a model whose input is not text
        template: the special tokens around a source text; None: those of the source's own file
        languages: of a multilingual model
    """

    source: Path | Tokenizer | PieceModel | None
    target: Path | Tokenizer | PieceModel
    template: SourceTemplate | None = None
    languages: Languages | None = None

    def write(self, files: BundleWriter) -> Tokenizers:
        """Write them into a bundle. A tokenizer that both sides share is written once.

        Returns:
            the names of the files, as the manifest records them
        """
        if self.source is None:
            target, vocabulary = _write(self.target, files, "")
            return Tokenizers(None, target, None, vocabulary, self.template)
        if self.source == self.target:
            target, vocabulary = _write(self.target, files, "")
            return Tokenizers(target, target, vocabulary, vocabulary, self.template)
        source, source_vocabulary = _write(self.source, files, "source_")
        target, target_vocabulary = _write(self.target, files, "target_")
        return Tokenizers(source, target, source_vocabulary, target_vocabulary, self.template)


def _write(
    tokenizer: Path | Tokenizer | PieceModel, files: BundleWriter, prefix: str
) -> tuple[str, str | None]:
    """The names of the tokenizer's file and of its vocabulary, if it has one."""
    name = f"{prefix}tokenizer.json"
    if isinstance(tokenizer, Path):
        files.copy(tokenizer, name)
        return name, None
    if isinstance(tokenizer, Tokenizer):
        files.write(name, tokenizer.to_str(pretty=False).encode())
        return name, None
    name, vocabulary = f"{prefix}sentencepiece.model", f"{prefix}vocabulary.json"
    files.copy(tokenizer.model, name)
    files.write(vocabulary, tokenizer.vocabulary().encode())
    return name, vocabulary
