"""What the files of a Hugging Face directory state about its tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from dragoman.errors import DragomanError

from .multilingual import MULTILINGUAL
from .reading import LIBRARY_FILE, read_library_file, read_vocabulary

CONFIG_FILE = "tokenizer_config.json"

T = TypeVar("T")


@dataclass(frozen=True)
class TokenizerCheckpoint:
    directory: Path
    values: Mapping[str, Any]
    """Of config.json."""
    settings: Mapping[str, Any]
    """Of tokenizer_config.json."""
    source_vocab_size: int
    target_vocab_size: int

    @property
    def vocab_size(self) -> int:
        """Of what numbers the tokens of both sides."""
        return min(self.source_vocab_size, self.target_vocab_size)

    @cached_property
    def library(self) -> Tokenizer | None:
        """The file of the `tokenizers` library; None where there is none."""
        path = self.directory / LIBRARY_FILE
        return read_library_file(path, self.vocab_size) if path.is_file() else None

    def has_languages(self, family: str) -> bool:
        """Whether the checkpoint lists tokens of languages as the family names them."""
        listed = self.added_tokens()
        if self.library is not None:
            listed |= self.library.get_vocab(with_added_tokens=True)
        return bool(MULTILINGUAL[family].among(listed))

    def setting(self, name: str, kind: type[T]) -> T | None:
        """A value of tokenizer_config.json; None where there is none."""
        value = self.settings.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise DragomanError(
            f"{self.directory / CONFIG_FILE}: {name}: expected {kind.__name__}, found {value!r:.40}"
        )

    def special(self, name: str, default: str) -> str:
        """The content of a special token, as of `eos`."""
        token = self.settings.get(f"{name}_token") or default
        return str(token.get("content", default) if isinstance(token, dict) else token)

    def added_tokens(self) -> dict[str, int]:
        """The tokens beside the vocabulary that the checkpoint lists with their ids."""
        path = self.directory / "added_tokens.json"
        listed = read_vocabulary(path, self.source_vocab_size) if path.is_file() else {}
        decoder = self.setting("added_tokens_decoder", dict) or {}
        try:
            return listed | {token["content"]: int(i) for i, token in decoder.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise DragomanError(
                f"{self.directory / CONFIG_FILE}: added_tokens_decoder: expected tokens by their "
                f"ids, each with its content: {error}"
            ) from error

    def refuse_added_texts(self, pieces: Mapping[str, int]) -> None:
        """A SentencePiece model knows nothing of tokens added to it that stand for text."""
        self.added_tokens()
        for token in (self.setting("added_tokens_decoder", dict) or {}).values():
            if not token.get("special", True) and token["content"] not in pieces:
                raise DragomanError(
                    f"{self.directory}: expected {LIBRARY_FILE}, for the added token "
                    f"{token['content']!r} is text, found a SentencePiece model alone"
                )
