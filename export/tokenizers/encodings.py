"""Encodings of tiktoken: the patterns that split texts, and the special tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.errors import shown

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Encoding:
    """The properties of an encoding that files of ranks lack."""

    pattern: str
    """Tiktoken's pattern of the pieces of a text, which are encoded one by one."""
    size: int | None = None
    """Number of ranks; None: any."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Special tokens with their ids."""


def _harmony_tokens() -> dict[str, int]:
    named = {
        "<|startoftext|>": 199_998,
        "<|endoftext|>": 199_999,
        "<|return|>": 200_002,
        "<|constrain|>": 200_003,
        "<|channel|>": 200_005,
        "<|start|>": 200_006,
        "<|end|>": 200_007,
        "<|message|>": 200_008,
        "<|call|>": 200_012,
        "<|endofprompt|>": 200_018,
    }
    rest = set(range(200_000, 201_088)) - set(named.values())
    return named | {f"<|reserved_{token}|>": token for token in rest}


_FILLING = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_GPT2 = Encoding(GPT2_PATTERN, 50_256, {"<|endoftext|>": 50_256})
_P50K_TOKENS = {"<|endoftext|>": 50_256}  # between the ranks

ENCODINGS: Mapping[str, Encoding] = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": Encoding(GPT2_PATTERN, 50_280, _P50K_TOKENS),
    "p50k_edit": Encoding(
        GPT2_PATTERN, 50_280, _P50K_TOKENS | {token: 50_281 + i for i, token in enumerate(_FILLING)}
    ),
    "cl100k_base": Encoding(
        CL100K_PATTERN,
        100_256,
        {"<|endoftext|>": 100_257, "<|endofprompt|>": 100_276}
        | {token: 100_258 + i for i, token in enumerate(_FILLING)},
    ),
    "o200k_base": Encoding(
        O200K_PATTERN, 199_998, {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}
    ),
    "o200k_harmony": Encoding(O200K_PATTERN, 199_998, _harmony_tokens()),
}
"""Encodings by tiktoken's names."""

_ESCAPE = (
    r"\\(?:[pP]\{(?:[LMNPSZ][a-z]?|Han|Hiragana|Katakana|Hangul)\}|[sSdDrnt]|u[0-9A-Fa-f]{4}"
    r"|[^A-Za-z0-9\s<>])"
)
_ITEMS = rf"\[\^?(?:{_ESCAPE}|(?!&&|--|~~)[^\[\]\\])+"
_BOUNDS = r"\{\d+(?:,\d*)?\}"
_TOKEN = re.compile(
    rf"""
    (?P<atom> {_ESCAPE} | {_ITEMS}(?:&&{_ITEMS}\])?\] | \. | [^\\()\[\]{{}}|?*+.^$] )
      (?: (?P<bounds> {_BOUNDS} ) (?P<possessive> \+ )? (?![?+]) )?
    | (?P<anchor> [\^$] )
    | \( (?: (?![?*]) | \? (?: [:>=!] | <[=!] | i:(?= (?P<folded> ['|\[\]a-zA-Z]+ ) \) ) ) )
    | \) (?: {_BOUNDS} (?![?+]) )?
    | \|
    | [?*+][?+]? (?![?*+])
    """,
    re.VERBOSE,
)
_ANCHORS = {"^": r"\A", "$": r"\z"}
_MULTIPLE = re.compile("ss|st|f[fil]", re.IGNORECASE)
"""Sequences that match a single letter, such as ß, in Oniguruma if case is ignored."""


class PatternError(ValueError):
    """A pattern that might mean something else in the syntax of the `tokenizers` library."""


def library_pattern(pattern: str) -> str:
    """Translate a pattern of tiktoken for the `tokenizers` library, whose syntax is Oniguruma's.

    There, anchors match at lines, and a plus after bounds repeats the bounded expression. A
    `PatternError` refuses syntax whose meaning may differ.
    """
    translated, position = list[str](), 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None or _MULTIPLE.search(token["folded"] or ""):
            found = pattern[position : position + 20]
            raise PatternError(f"found {shown(found)} at position {position}")
        if token["anchor"]:
            translated.append(_ANCHORS[token["anchor"]])
        elif token["possessive"]:
            translated.append(f"(?>{token['atom']}{token['bounds']})")
        else:
            translated.append(token[0])
        position = token.end()
    return "".join(translated)
