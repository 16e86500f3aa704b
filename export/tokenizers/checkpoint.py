"""The tokenizer settings of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, models

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import VOCABULARY_BYTES, read_regular
from dragoman.runtime.texts.codecs.tokenizer_file import check_tokenizer, read_tokenizer

from ..formats.json_files import read_json_if_present
from .classes import CLASSES, TokenizerClass, assemble
from .files import LIBRARY_FILE, check_ids, read_library_file, read_vocabulary
from .settings import CONFIG_FILE, read_settings
from .vocabulary import Vocabulary, library_vocabulary, sentencepiece_vocabulary

T = TypeVar("T")

OF_MODELS: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "ElectraTokenizer",
    "gpt2": "GPT2Tokenizer",
    "mbart": "MBartTokenizer",
    "mpnet": "MPNetTokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "roberta": "RobertaTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""The class of each `model_type`, for checkpoints that name none."""


@dataclass(frozen=True)
class TokenizerCheckpoint:
    """A directory, with the tokenizer settings of its model and its files."""

    directory: Path
    values: Mapping[str, Any]
    """Fields of config.json."""
    source_vocab_size: int
    target_vocab_size: int
    """The sizes of both vocabularies are equal if the input is not text."""

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

    def assembled(self, languages: Sequence[str] = ()) -> Path | Tokenizer | None:
        """Return the tokenizer of `tokenizer.json` and the files beside it; None without that file.

        It is the path of the file, if the others change nothing. `languages` are tokens that the
        class knows.
        """
        if self.library is None:
            return None
        path = self.directory / LIBRARY_FILE
        data = json.loads(read_regular(path, VOCABULARY_BYTES))
        settings = replace(read_settings(self.directory, data), languages=languages)
        loaded = self.class_name or OF_MODELS.get(str(self.values.get("model_type")), "")
        kind, found = CLASSES.get(loaded), type(self.library.model).__name__
        if kind is not None and kind.model != found:
            if self.class_name is not None:
                raise DragomanError(
                    f"{path}: model: expected {kind.model}, because tokenizer_class is "
                    f"{self.class_name}, found {found}; with PreTrainedTokenizerFast, the file is "
                    "used as it is"
                )
            kind = None
        if kind is None and data.get("padding"):  # names a special token, too
            padding = {"pad_token": data["padding"]["pad_token"]}
            settings = replace(settings, values={**padding, **settings.values})
        made = assemble(kind, library_vocabulary(data) if kind else read_tokenizer(path), settings)
        check_tokenizer(made, path)
        return path if json.loads(made.to_str()) == json.loads(self.library.to_str()) else made

    def from_sentencepiece(
        self,
        file_name: str,
        kind: TokenizerClass,
        languages: Sequence[str] = (),
        added: Mapping[int, AddedToken] = MappingProxyType({}),
    ) -> Tokenizer | None:
        """Return the tokenizer that a class makes of a SentencePiece model; None without it.

        Tokens are added unless the settings list some.
        """
        path = self.directory / file_name
        if not path.exists():
            return None
        settings = read_settings(self.directory, None)
        # As in transformers, special tokens of the model stand in place of further ones.
        settings = replace(settings, languages=languages, added=settings.added or added, further=())
        vocabulary = sentencepiece_vocabulary(path)
        tokenizer = assemble(kind, vocabulary, settings)
        check_tokenizer(tokenizer, path)
        ids = {piece: tokenizer.token_to_id(piece) or 0 for piece, _ in vocabulary.scored}
        check_ids(path, ids, self.vocab_size)
        return tokenizer

    def from_vocabulary(self, kind: TokenizerClass, vocabulary: Vocabulary) -> Tokenizer:
        """Return the tokenizer that a class makes of a vocabulary."""
        tokenizer = assemble(kind, vocabulary, read_settings(self.directory, None))
        check_tokenizer(tokenizer, self.directory)
        return tokenizer

    def cleans_up(self, tokenizer: object) -> bool:
        """Return whether `transformers` removes spaces before punctuation from decoded texts."""
        made = self.library if isinstance(tokenizer, Path) else tokenizer
        bpe = isinstance(made, Tokenizer) and isinstance(made.model, models.BPE)
        forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        wanted = self.setting("clean_up_tokenization_spaces", bool)
        return bool(wanted and (not bpe or self.setting(forced, bool)))

    @property
    def class_name(self) -> str | None:
        """The tokenizer's class in `transformers`, without the suffix "Fast"."""
        stated = self.settings.get("tokenizer_class") or self.values.get("tokenizer_class")
        return str(stated).removesuffix("Fast") if stated else None

    def setting(self, name: str, kind: type[T]) -> T | None:
        """Return a field of tokenizer_config.json, of this type; None if it is missing."""
        value = self.settings.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise DragomanError(
            f"{self.directory / CONFIG_FILE}: {name}: expected {kind.__name__}, found "
            f"{shown(value)}"
        )

    def special(self, name: str, default: str) -> str:
        """Return the text of a special token by its name, such as "eos"."""
        token = self.settings.get(f"{name}_token") or default
        return str(token.get("content", default) if isinstance(token, dict) else token)

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


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    raise TypeError(f"found content {shown(content)}")
