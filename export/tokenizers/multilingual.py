"""Multilingual models: their language codes, and the positions of language tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from dragoman.errors import DragomanError
from dragoman.runtime.format.texts import Languages, SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ..formats.json_files import read_json_if_present
from .checkpoint import TokenizerCheckpoint
from .classes import TokenizerClass
from .files import LIBRARY_FILE, PieceModel, TokenizerFiles, check_has_tokens
from .tiktoken import tokenizer_of_ranks

FAIRSEQ_MODEL = "sentencepiece.bpe.model"


@dataclass(frozen=True)
class Multilingual:
    """The naming of languages in a kind of multilingual model."""

    codes: Sequence[str]
    """Language codes in the order of the tokens, for checkpoints that do not list them."""
    code_pattern: str
    """A regular expression that matches a language code."""
    source: Literal["prefix", "suffix"]
    """The position of the language token in a source text."""
    target: Literal["start", "first"]
    """The position of the target language's token; see `runtime.format.languages`."""
    form: str = "{}"
    """The format of a language's token, with {} in place of the code."""

    def token(self, code: str) -> str:
        """Return the token of a language."""
        return self.form.format(code)

    def tokens_in(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """Return the languages that have a token in a vocabulary: code -> token id."""
        pattern = re.compile(self.form.format(f"({self.code_pattern})"))
        matches = ((pattern.fullmatch(piece), i) for piece, i in vocabulary.items())
        return {match[1]: token for match, token in matches if match}

    def tokens_from(self, first: int, listed: Mapping[str, int]) -> dict[str, int]:
        """Number all languages from `first`, unless `listed` has their ids: code -> id."""
        return {code: first + i for i, code in enumerate(self.codes)} | self.tokens_in(listed)

    def template(self, end: int, *, legacy: bool = False) -> SourceTemplate:
        """Return the special tokens around a source text, the last of which ends it.

        In older NLLB tokenizers, the language follows the text.
        """
        if self.source == "suffix" or legacy:
            return SourceTemplate((), (end, "source_language"))
        return SourceTemplate(("source_language",), (end,))

    def languages(
        self,
        tokens: dict[str, int],
        *,
        default_source: str | None = None,
        default_target: str | None = None,
        generation: Mapping[str, Any] = MappingProxyType({}),
    ) -> Languages:
        """Return the languages, by code with their tokens, as a bundle records them.

        In the model's generation settings, a language as start token or forced first token takes
        precedence over `default_target`.
        """
        codes = {token: code for code, token in tokens.items()}
        stated = codes.get(_token_id(generation, "forced_bos_token_id"))
        if self.target == "start":
            stated = codes.get(_token_id(generation, "decoder_start_token_id")) or stated
        return Languages(
            tokens,
            self.target,
            default_source if default_source in tokens else None,
            stated or (default_target if default_target in tokens else None),
        )


def _token_id(generation: Mapping[str, Any], name: str) -> int:
    match generation.get(name):
        case int(token) | [int(token)] if not isinstance(token, bool):
            return token
    return -1


def has_languages(checkpoint: TokenizerCheckpoint, languages: Multilingual) -> bool:
    """Return whether a checkpoint lists tokens of languages in this form."""
    listed = checkpoint.added_tokens()
    if checkpoint.library is not None:
        listed |= checkpoint.library.get_vocab(with_added_tokens=True)
    return bool(languages.tokens_in(listed))


def multilingual_library_file(
    checkpoint: TokenizerCheckpoint, languages: Multilingual
) -> TokenizerFiles | None:
    """Use `tokenizer.json`, whose vocabulary has the language tokens, and the files beside it."""
    if checkpoint.library is None:
        return None
    path = checkpoint.directory / LIBRARY_FILE
    tokens, end = _tokens_and_end(checkpoint, languages, checkpoint.library, path)
    tokenizer = checkpoint.assembled([languages.token(code) for code in languages.codes])
    assert tokenizer is not None
    return multilingual_files(checkpoint, languages, tokenizer, tokens, end)


def multilingual_ranks(
    checkpoint: TokenizerCheckpoint, languages: Multilingual
) -> TokenizerFiles | None:
    """Read ranks of tiktoken; the checkpoint lists the language tokens."""
    tokenizer = tokenizer_of_ranks(checkpoint)
    if tokenizer is None:
        return None
    tokens, end = _tokens_and_end(checkpoint, languages, tokenizer, checkpoint.directory)
    return multilingual_files(checkpoint, languages, tokenizer, tokens, end)


def _tokens_and_end(
    checkpoint: TokenizerCheckpoint, languages: Multilingual, tokenizer: Tokenizer, path: Path
) -> tuple[dict[str, int], int]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    end = checkpoint.special("eos", "</s>")
    check_has_tokens(path, vocabulary, end)
    tokens = languages.tokens_in(vocabulary)
    if not tokens:
        raise DragomanError(f"{path}: expected the tokens of languages, found none")
    return tokens, vocabulary[end]


def fairseq_pieces(
    checkpoint: TokenizerCheckpoint, languages: Multilingual, kind: TokenizerClass
) -> TokenizerFiles | None:
    """Read a SentencePiece model with the numbering of fairseq; languages follow the pieces.

    fairseq begins with <s>, <pad>, </s> and <unk>; SentencePiece with <unk>, <s> and </s>.
    """
    path = checkpoint.directory / FAIRSEQ_MODEL
    if not path.exists():
        return None
    codes = [languages.token(code) for code in languages.codes]
    # transformers would number the mask before the languages, unlike the models' embeddings.
    first = load_sentencepiece(path).get_piece_size() + 1
    added = {
        first + i: AddedToken(token, normalized=False, special=True)
        for i, token in enumerate([*codes, "<mask>"])
    }
    tokenizer = checkpoint.from_sentencepiece(
        FAIRSEQ_MODEL, kind, codes, added if kind.model == "BPE" else {}
    )
    assert tokenizer is not None
    tokens, end = _tokens_and_end(checkpoint, languages, tokenizer, path)
    return multilingual_files(checkpoint, languages, tokenizer, tokens, end)


def multilingual_files(
    checkpoint: TokenizerCheckpoint,
    languages: Multilingual,
    tokenizer: Path | Tokenizer | PieceModel,
    tokens: dict[str, int],
    end: int,
) -> TokenizerFiles:
    """Make the files of one tokenizer for both sides, with the languages and their defaults."""
    generation = read_json_if_present(checkpoint.directory / "generation_config.json")
    return TokenizerFiles(
        tokenizer,
        tokenizer,
        languages.template(end, legacy=bool(checkpoint.setting("legacy_behaviour", bool))),
        languages.languages(
            tokens,
            default_source=checkpoint.setting("src_lang", str),
            default_target=checkpoint.setting("tgt_lang", str),
            generation={**checkpoint.values, **generation},
        ),
        cleans_up=checkpoint.cleans_up(tokenizer),
    )
