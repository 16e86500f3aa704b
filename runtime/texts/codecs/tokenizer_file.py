"""Reading a file of the `tokenizers` library that may be damaged or made with bad intent.

The library checks little: it fails where a rule is used first, by a panic, in an endless loop, or
when memory is used up. What can be seen in the file is checked; the rest is tried out once.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, models

from dragoman.regular_files import VOCABULARY_BYTES, read_regular

from ...format.manifest import BundleError
from .charsmap import charsmap_problem
from .failures import panics_as_errors, summary
from .growth import growth_problem

TRIAL_TEXTS = ("", " ", "a", "Hello, world 12!", "e\u0301 \ufb01 \u65e5\u672c \U0001f600")
TRIAL_TOKENS = range(64)
LONGEST_WORD = 1000
"""Characters: the time that WordPiece takes grows with the third power of a word's length."""

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that neither truncates nor pads, and that was tried out.

    Raises:
        BundleError: the file is something else, or makes the library fail.
    """
    try:
        content = read_regular(path, VOCABULARY_BYTES)
        problem = next(_charsmap_problems(content), None)
        if problem is None:
            with panics_as_errors():
                tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no narrower type
        raise BundleError(str(path), [f"not a tokenizer file: {summary(error)}"]) from error
    if problem is not None:
        raise BundleError(str(path), [f"precompiled_charsmap: {problem}"])
    # Files may enable truncation and padding, but a text that is too long is rejected, never
    # truncated.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    problem = next(_problems(tokenizer), None)
    if problem is not None:
        raise BundleError(str(path), [problem])
    return tokenizer


def _charsmap_problems(content: bytes) -> Iterator[str]:
    """What is wrong with the rules of SentencePiece models in a file."""
    for match in _CHARSMAP.finditer(content):
        try:
            problem = charsmap_problem(base64.b64decode(match[1], validate=True))
        except binascii.Error as error:
            problem = f"expected base64: {error}"
        if problem is not None:
            yield problem


def _problems(tokenizer: Tokenizer) -> Iterator[str]:
    """What makes a tokenizer fail. The first is the only one: what follows might not end."""
    for name in ("normalizer", "decoder"):
        problem = growth_problem(getattr(tokenizer, name))
        if problem is not None:
            yield f"{name}: {problem}"
    model = tokenizer.model
    if isinstance(model, models.WordPiece) and model.max_input_chars_per_word > LONGEST_WORD:
        yield (
            f"model.max_input_chars_per_word: expected at most {LONGEST_WORD}, found "
            f"{model.max_input_chars_per_word}"
        )
    try:
        with panics_as_errors():
            yield from _empty_tokens(tokenizer)
            yield from _failed_trials(tokenizer)
    except Exception as error:
        yield f"fails when it is tried out: {summary(error)}"


def _empty_tokens(tokenizer: Tokenizer) -> Iterator[str]:
    """The library looks for added tokens in normalized texts, for empty ones without end."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        if normalizer and token.normalized and not normalizer.normalize_str(token.content):
            yield f"added_tokens: nothing is left of {token.content!r} when it is normalized"


def _failed_trials(tokenizer: Tokenizer) -> Iterator[str]:
    for text in TRIAL_TEXTS:
        with contextlib.suppress(Exception):  # symbols that it has no token for
            tokenizer.encode(text)
    for token in tokenizer.encode("").ids:
        if tokenizer.id_to_token(token) is None:
            yield f"post_processor: expected tokens of the vocabulary, found {token}"
    tokenizer.decode([])
    tokenizer.decode(list(TRIAL_TOKENS))
