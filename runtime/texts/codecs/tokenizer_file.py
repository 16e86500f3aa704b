"""Reads files of the `tokenizers` library that may be damaged or malicious.

The library validates little: an invalid rule may panic, loop forever or exhaust memory. So rules
are checked, and the tokenizer is run on trial texts.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers

from dragoman.errors import shown
from dragoman.files.regular_files import VOCABULARY_BYTES, read_regular

from ...format.manifest import BundleError
from .interface import TokenizerError, UnknownSymbolsError

TRIAL_TEXTS = ("", " ", "a", "Hello, world 12!", "e\u0301 \ufb01 \u65e5\u672c \U0001f600")
TRIAL_TOKENS = range(64)
LONGEST_WORD = 1000
"""Number of characters. WordPiece takes cubic time in the length of a word."""

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


def read_tokenizer(path: Path, *, text_token: int | None = None) -> Tokenizer:
    """Read a tokenizer that neither truncates nor pads, and run it on trial texts.

    Args:
        text_token: special token that counts as text
    """
    try:
        content = read_regular(path, VOCABULARY_BYTES)
        problem = next(_charsmap_problems(content), None)
        if problem is None:
            with panics_as_errors():
                if text_token is not None:
                    content = _with_text_token(content, text_token)
                tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no narrower type
        raise BundleError(str(path), [f"not a tokenizer file: {summary(error)}"]) from error
    if problem is not None:
        raise BundleError(str(path), [f"precompiled_charsmap: {problem}"])
    # Files may enable truncation and padding, but a text that is too long is rejected, never
    # truncated.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    check_tokenizer(tokenizer, path)
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Run a tokenizer on trial texts; a `BundleError` names its file if they fail."""
    problem = next(_problems(tokenizer), None)
    if problem is not None:
        raise BundleError(str(path), [problem])


def _with_text_token(content: bytes, token_id: int) -> bytes:
    data = json.loads(content)
    for token in data["added_tokens"]:
        token["special"] = token["special"] and token["id"] != token_id
    return json.dumps(data).encode()


def _charsmap_problems(content: bytes) -> Iterator[str]:
    for match in _CHARSMAP.finditer(content):
        try:
            problem = charsmap_problem(base64.b64decode(match[1], validate=True))
        except binascii.Error as error:
            problem = f"expected base64: {error}"
        if problem is not None:
            yield problem


def _problems(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the problems of a tokenizer; after one, further checks might not terminate."""
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
    """Yield added tokens that normalize to nothing, on which the library loops forever."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        if normalizer and token.normalized and not normalizer.normalize_str(token.content):
            yield f"added_tokens: nothing is left of {shown(token.content)} when it is normalized"


def _failed_trials(tokenizer: Tokenizer) -> Iterator[str]:
    for text in TRIAL_TEXTS:
        with contextlib.suppress(Exception):  # symbols without a token
            tokenizer.encode(text)
    for token in tokenizer.encode("").ids:
        if tokenizer.id_to_token(token) is None:
            yield f"post_processor: expected tokens of the vocabulary, found {token}"
    tokenizer.decode([])
    tokenizer.decode(list(TRIAL_TOKENS))


# A `precompiled_charsmap` holds the normalization rules of a SentencePiece model as a double-array
# trie (Aoe 1989) from UTF-8 bytes to replacements: its size in bytes as u32, its units as u32, then
# the replacements, each terminated by a zero byte. The libraries follow units without checking
# bounds.

LEAF = np.uint32(1 << 31)
"""Marks a unit that holds the position of a replacement, not a state of the trie."""
BLOCK = 256
"""A unit's children are in one block: their base XOR a byte."""
LONGEST_REPLACEMENT = 256
"""Number of bytes; Unicode's own compatibility forms need 33."""


def charsmap_problem(charsmap: bytes) -> str | None:
    """Return the problem of normalization rules, if any.

    The trie must stay in bounds; replacements must be short and whole characters.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(charsmap):
        return f"expected a trie of at most {max(len(charsmap) - 4, 0)} bytes, found {size}"
    units = np.frombuffer(charsmap, "<u4", size // 4, offset=4)
    texts = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    index = np.arange(len(units), dtype=np.uint32)
    states = units < LEAF
    states[0] = True
    base = index ^ (units >> 10) << ((units & 512) >> 6)
    if int((base[states] | (BLOCK - 1)).max()) >= len(units):
        return "its trie points beyond its end"
    positions = units[base[states & (units & 256 > 0)]] & ~LEAF
    starts = np.append(texts & 0xC0 != 0x80, True)
    if len(positions) and (positions.max() > len(texts) or not starts[positions].all()):
        return "its trie points to replacements that are not there"
    ends = np.flatnonzero(np.append(texts, 0) == 0)
    longest = int(np.diff(ends, prepend=-1).max()) - 1
    if longest > LONGEST_REPLACEMENT:
        return (
            f"expected replacements of at most {LONGEST_REPLACEMENT} bytes for a character, found "
            f"{longest}"
        )
    return None


LONGEST_CONTENT = 256
"""Maximum number of characters of a replacement."""
MOST_GROWTH = 16
"""Maximum factor by which all replacements together may lengthen a text."""


def growth_problem(component: Any) -> str | None:
    """Return the problem of the replacements of a normalizer or decoder, if any.

    A chain of replacements can lengthen a text exponentially. They are tried one by one on their
    own patterns and contents.
    """
    if component is None:
        return None
    rules = list(_replacements(json.loads(component.__getstate__())))
    longest = max((len(rule["content"]) for rule in rules), default=0)
    if longest > LONGEST_CONTENT:
        return (
            f"expected replacements of at most {LONGEST_CONTENT} characters, found one of {longest}"
        )
    if sum(map(_may_lengthen, rules)) < 2:
        return None
    text = string.printable + "".join(_pattern(rule)[1] + rule["content"] for rule in rules)
    most = MOST_GROWTH * len(text)
    for rule in rules:
        kind, pattern = _pattern(rule)
        replace = normalizers.Replace(
            Regex(pattern) if kind == "Regex" else pattern, rule["content"]
        )
        text = replace.normalize_str(text)
        if len(text) > most:
            return f"its replacements make a text more than {MOST_GROWTH} times as long"
    return None


def _replacements(component: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if component["type"] == "Replace":
        yield component
    for part in component.get("normalizers") or component.get("decoders") or ():
        yield from _replacements(part)


def _pattern(rule: dict[str, Any]) -> tuple[str, str]:
    [(kind, pattern)] = rule["pattern"].items()
    return kind, pattern


def _may_lengthen(rule: dict[str, Any]) -> bool:
    kind, pattern = _pattern(rule)
    return len(rule["content"]) > (len(pattern) if kind == "String" else 0)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a RuntimeError in place of a panic of Rust code, which is a `BaseException`."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":
            raise RuntimeError(str(error)) from error
        raise


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Raise a TokenizerError that names the file in place of the library's errors.

    `UnknownSymbolsError` passes through.
    """
    try:
        with panics_as_errors():
            yield
    except UnknownSymbolsError:
        raise
    except Exception as error:
        raise TokenizerError(f"{path.name}: this tokenizer fails: {summary(error)}") from error


def summary(error: Exception) -> str:
    """Return the beginning of the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
