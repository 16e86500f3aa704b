"""Tokenizer files: reading and checking a checkpoint's, and writing a bundle's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import VOCABULARY_BYTES
from dragoman.reference_model.settings import all_are
from dragoman.runtime.format.texts import Languages, Prompts, SourceTemplate, Tokenizers
from dragoman.runtime.format.writing import BundleWriter
from dragoman.runtime.texts.codecs.pieces import AddedPiece
from dragoman.runtime.texts.codecs.tokenizer_file import read_tokenizer

from ..formats.json_files import read_json_if_present


@dataclass(frozen=True)
class PieceModel:
    """A SentencePiece model, and the token ids that a checkpoint gives its pieces."""

    model: Path
    pieces: Mapping[str, int] = field(repr=False)
    """Piece -> token id; an id without a piece belongs to a special token."""
    unknown: int | None
    leading_code: bool = False
    added: tuple[AddedPiece, ...] = ()
    """These three: see `runtime.texts.codecs.pieces.Vocabulary`."""

    def vocabulary(self) -> str:
        """Return the JSON that the runtime reads."""
        data = {
            "unknown": self.unknown,
            "leading_code": self.leading_code,
            "added": [dataclasses.asdict(token) for token in self.added],
            "pieces": dict(self.pieces),
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizers of a model, to be written into its bundle."""

    source: Path | Tokenizer | PieceModel | None
    target: Path | Tokenizer | PieceModel
    """Both: a file of the `tokenizers` library, a tokenizer in memory, or a SentencePiece model; no
    source for a model whose input is not text."""
    template: SourceTemplate | None = None
    """The special tokens around a source text; None: those in the source's file."""
    languages: Languages | None = None
    """Languages of a multilingual model."""
    pretokenized: bool = False
    """Whether texts are tokens of the vocabulary, separated by spaces."""
    cleans_up: bool = False
    """See `runtime.format.texts.Tokenizers.clean_up_tokenization_spaces`."""
    prompts: Prompts | None = None
    """Prompts of an embedding model."""

    def write(self, files: BundleWriter) -> Tokenizers:
        """Write the tokenizers, a shared one once; return the names of the files."""
        is_single = self.source is None or self.source == self.target
        target, target_vocabulary = _write(self.target, files, "" if is_single else "target_")
        source, source_vocabulary = None, None
        if self.source == self.target:
            source, source_vocabulary = target, target_vocabulary
        elif self.source is not None:
            source, source_vocabulary = _write(self.source, files, "source_")
        return Tokenizers(
            source,
            target,
            source_vocabulary,
            target_vocabulary,
            self.template,
            pretokenized=self.pretokenized,
            clean_up_tokenization_spaces=self.cleans_up,
            prompts=self.prompts,
        )


def _write(
    tokenizer: Path | Tokenizer | PieceModel, files: BundleWriter, prefix: str
) -> tuple[str, str | None]:
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


LIBRARY_FILE = "tokenizer.json"


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Read a JSON object of pieces and their token ids, for a vocabulary of this size."""
    vocabulary = read_json_if_present(path, limit=VOCABULARY_BYTES)
    if not vocabulary or not all_are(int, vocabulary.values()):
        raise DragomanError(f"{path}: expected a JSON object of pieces and their token ids")
    check_ids(path, vocabulary, size)
    return vocabulary


def read_library_file(path: Path, size: int) -> Tokenizer:
    """Read a file of the `tokenizers` library, for a vocabulary of this size."""
    tokenizer = read_tokenizer(path)
    check_ids(path, tokenizer.get_vocab(with_added_tokens=True), size)
    return tokenizer


def check_ids(path: Path, vocabulary: Mapping[str, int], size: int) -> None:
    """Raise a DragomanError if a token id is outside a vocabulary of `size` tokens."""
    outside = {token: piece for piece, token in vocabulary.items() if not 0 <= token < size}
    if outside:
        first = min(outside)
        raise DragomanError(
            f"{path}: expected token ids in [0, {size}), the model's vocabulary, found "
            f"{len(outside)} outside, such as {first} ({shown(outside[first])})"
        )


def check_has_tokens(path: Path, vocabulary: Mapping[str, int], *tokens: str) -> None:
    """Raise a DragomanError if a vocabulary lacks one of these tokens."""
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise DragomanError(f"{path}: expected a token {shown(missing[0])}, found none")


def all_present(directory: Path, *names: str) -> bool:
    """Return whether a group of files exists; raise a `DragomanError` if only some do."""
    missing = [name for name in names if not (directory / name).exists()]
    if missing and len(missing) < len(names):
        present = next(name for name in names if name not in missing)
        raise DragomanError(
            f"{directory}: expected {', '.join(missing)} beside {present}, found none"
        )
    return not missing
