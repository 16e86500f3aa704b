"""The tokenizer of Whisper, which only turns tokens into text."""
# ruff: noqa: SIM905

from __future__ import annotations

import re

from tokenizers import AddedToken, Tokenizer

from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ...tokenizers.encodings import GPT2_PATTERN, Encoding
from ...tokenizers.library import byte_level
from ...tokenizers.tiktoken import tokenizer_of_ranks

_TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")
_RANKS = {"gpt2": 50_256, "multilingual": 50_257}
"""How many there are in the files of OpenAI's implementation."""
_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr
bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn
yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su
yue
""".split()
"""In the order of their tokens. Models before large-v3 lack the last."""
_AFTER_LANGUAGES = [
    *"translate transcribe startoflm startofprev nospeech notimestamps".split(),
    *(f"{i * 0.02:.2f}" for i in range(1501)),
]


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


def _ranks(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    encodings = {name: _encoding(size, checkpoint.vocab_size) for name, size in _RANKS.items()}
    tokenizer = tokenizer_of_ranks(checkpoint, encodings)
    return None if tokenizer is None else TokenizerFiles(None, hide_timestamps(tokenizer))


def _encoding(size: int, vocab_size: int) -> Encoding:
    """Special tokens follow the ranks. The vocabulary's size tells how many languages there are; if
    it is another, only the checkpoint can list them.
    """
    for languages in (_LANGUAGES[:-1], _LANGUAGES):
        names = ("endoftext", "startoftranscript", *languages, *_AFTER_LANGUAGES)
        if size + len(names) == vocab_size:
            tokens = {f"<|{name}|>": token for token, name in enumerate(names, start=size)}
            return Encoding(GPT2_PATTERN, size, tokens)
    return Encoding(GPT2_PATTERN, size)


TOKENIZER = TokenizerKind(("WhisperTokenizer",), (_library_file, _merges, _ranks), tells_all=True)
