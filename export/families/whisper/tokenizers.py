"""The tokenizer of Whisper, which only turns tokens into text."""

from __future__ import annotations

import re

from tokenizers import AddedToken, Tokenizer

from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ...tokenizers.library import byte_level

_TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")


def hide_timestamps(tokenizer: Tokenizer) -> Tokenizer:
    """Make the timestamps special tokens, which texts leave out, as in `transformers`."""
    listed = tokenizer.get_added_tokens_decoder().values()
    tokenizer.add_special_tokens(
        [
            AddedToken(token.content, special=True, normalized=False)
            for token in listed
            if _TIMESTAMP.fullmatch(token.content)
        ]
    )
    return tokenizer


def _library_file(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    if checkpoint.library is None:
        return None
    return TokenizerFiles(None, hide_timestamps(checkpoint.library))


def _merges(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    tokenizer = byte_level(checkpoint, {"eos": "<|endoftext|>"})
    return None if tokenizer is None else TokenizerFiles(None, tokenizer)


TOKENIZER = TokenizerKind(("WhisperTokenizer",), (_library_file, _merges))
