"""The tokenizer settings of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from dragoman.errors import DragomanError

from ..formats.json_files import read_json_if_present
from .files import LIBRARY_FILE, read_library_file, read_vocabulary

CONFIG_FILE = "tokenizer_config.json"

T = TypeVar("T")


@dataclass(frozen=True)
class TokenizerCheckpoint:
    """A directory, with the tokenizer settings of its model and its files.

    Attributes:
        values: fields of config.json
        source_vocab_size, target_vocab_size: the model's vocabulary sizes; equal if the input is
            not text
    """

    directory: Path
    values: Mapping[str, Any]
    source_vocab_size: int
    target_vocab_size: int

    @property
    def vocab_size(self) -> int:
        """The number of token ids that both sides have."""
        return min(self.source_vocab_size, self.target_vocab_size)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Fields of tokenizer_config.json."""
        return read_json_if_present(self.directory / CONFIG_FILE)

    @cached_property
    def library(self) -> Tokenizer | None:
        """The tokenizer of `tokenizer.json`; None without that file."""
        path = self.directory / LIBRARY_FILE
        return read_library_file(path, self.vocab_size) if path.exists() else None

    @property
    def class_name(self) -> str | None:
        """The tokenizer's class in `transformers`, without the suffix "Fast"."""
        stated = self.settings.get("tokenizer_class") or self.values.get("tokenizer_class")
        return str(stated).removesuffix("Fast") if stated else None

    def setting(self, name: str, kind: type[T]) -> T | None:
        """Return a field of tokenizer_config.json; None if it is missing.

        Raises:
            DragomanError: the value has another type.
        """
        value = self.settings.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise DragomanError(
            f"{self.directory / CONFIG_FILE}: {name}: expected {kind.__name__}, found {value!r:.40}"
        )

    def special(self, name: str, default: str) -> str:
        """Return the text of a special token by its name, such as "eos"."""
        token = self.settings.get(f"{name}_token") or default
        return str(token.get("content", default) if isinstance(token, dict) else token)

    def strips_left(self, name: str, text: str, default: bool) -> bool:
        """Return whether a special token includes the white space before it.

        Args:
            name: name of the token, such as "mask"
            text: text of the token
            default: value for a checkpoint without the setting
        """
        self.added_tokens()  # are checked
        listed = (self.setting("added_tokens_decoder", dict) or {}).values()
        stated = [token for token in listed if token["content"] == text]
        stated += [self.settings.get(f"{name}_token")]
        of_token = next((token for token in stated if isinstance(token, dict)), None)
        return default if of_token is None else of_token.get("lstrip") is True

    def added_tokens(self) -> dict[str, int]:
        """Return the added tokens of the checkpoint with their ids."""
        path = self.directory / "added_tokens.json"
        listed = read_vocabulary(path, self.source_vocab_size) if path.exists() else {}
        decoder = self.setting("added_tokens_decoder", dict) or {}
        try:
            return listed | {_text(token["content"]): int(i) for i, token in decoder.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise DragomanError(
                f"{self.directory / CONFIG_FILE}: added_tokens_decoder: expected tokens by their "
                f"ids, each with its content: {error}"
            ) from error

    def added_texts(self) -> list[str]:
        """Return the added tokens that are not special."""
        self.added_tokens()
        listed = (self.setting("added_tokens_decoder", dict) or {}).values()
        return [token["content"] for token in listed if not token.get("special", True)]

    def refuse_added_texts(self, pieces: Mapping[str, int]) -> None:
        """Raise a DragomanError for an added token that is not special.

        A SentencePiece model cannot encode it.
        """
        for text in self.added_texts():
            if text not in pieces:
                raise DragomanError(
                    f"{self.directory}: expected {LIBRARY_FILE}, because the added token "
                    f"{text!r} is text, found only a SentencePiece model"
                )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    raise TypeError(f"found content {content!r:.40}")
